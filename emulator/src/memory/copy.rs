//! Copies and sets: checked when they are queued, done by a thread of the stream.
//!
//! From pageable host memory the bytes are taken at the call; a copy to pageable host memory returns when it is done.
//! Both are what the real driver does, for which such memory must be staged. Copies inside a graph take the bytes when
//! they run.

use std::sync::Arc;

use super::{Place, alloc, check_device, check_reach, guarded, place};
use crate::context;
use crate::error::{INVALID_VALUE, Result};
use crate::stream::{self, Placement};
use crate::types::{CUcontext, CUdeviceptr, CUmemcpy2D, CUmemcpy3D, CUmemsetNodeParams, CUstream, In};
use crate::work::Work;

/// A copy of `depth` slices of `height` rows of `width` bytes.
#[derive(Clone, Debug)]
pub struct Copy {
    pub dst: u64,
    pub src: u64,
    /// What to copy instead of what is at `src` when the copy runs.
    taken: Option<Arc<[u8]>>,
    pub width: u64,
    pub height: u64,
    pub depth: u64,
    pub dst_pitch: u64,
    pub src_pitch: u64,
    pub dst_slice: u64,
    pub src_slice: u64,
}

impl Copy {
    pub fn flat(dst: u64, src: u64, width: u64) -> Copy {
        Copy {
            dst,
            src,
            taken: None,
            width,
            height: 1,
            depth: 1,
            dst_pitch: width,
            src_pitch: width,
            dst_slice: width,
            src_slice: width,
        }
    }

    fn is_empty(&self) -> bool {
        self.width == 0 || self.height == 0 || self.depth == 0
    }

    fn is_flat(&self) -> bool {
        self.height == 1 && self.depth == 1
    }

    /// Bytes from the first to the last that one side touches.
    fn span(&self, pitch: u64, slice: u64) -> Option<u64> {
        let rows = pitch.checked_mul(self.height - 1)?;
        let slices = slice.checked_mul(self.depth - 1)?;
        rows.checked_add(slices)?.checked_add(self.width)
    }

    /// Checks both sides and says where they are: source, destination.
    pub fn places(&self) -> Result<(Place, Place)> {
        if self.is_empty() {
            return Ok((Place::Device, Place::Device));
        }
        if self.dst == 0 || self.src == 0 {
            return Err(INVALID_VALUE);
        }
        let src = self.span(self.src_pitch, self.src_slice).ok_or(INVALID_VALUE)?;
        let dst = self.span(self.dst_pitch, self.dst_slice).ok_or(INVALID_VALUE)?;
        Ok((place(self.src, src)?, place(self.dst, dst)?))
    }

    pub fn to_params(&self) -> CUmemcpy3D {
        const UNIFIED: u32 = 4;
        let rows = |slice: u64, pitch: u64| slice.checked_div(pitch).unwrap_or(0) as usize;
        CUmemcpy3D {
            src_type: UNIFIED,
            src_device: self.src,
            src_pitch: self.src_pitch as usize,
            src_height: rows(self.src_slice, self.src_pitch),
            dst_type: UNIFIED,
            dst_device: self.dst,
            dst_pitch: self.dst_pitch as usize,
            dst_height: rows(self.dst_slice, self.dst_pitch),
            width: self.width as usize,
            height: self.height as usize,
            depth: self.depth as usize,
            ..CUmemcpy3D::default()
        }
    }

    pub fn run(&self) -> Result {
        if self.is_empty() {
            return Ok(());
        }
        if let Some(bytes) = &self.taken {
            return guarded(|| {
                // SAFETY: the destination was checked when the copy was queued; should it be gone, the access faults
                // and the fault is caught. Nobody may rely on what is read while a copy writes.
                unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.dst as *mut u8, bytes.len()) }
            });
        }
        guarded(|| {
            for slice in 0..self.depth {
                for row in 0..self.height {
                    let src = self.src + slice * self.src_slice + row * self.src_pitch;
                    let dst = self.dst + slice * self.dst_slice + row * self.dst_pitch;
                    // SAFETY: as above, for both sides. `copy` because a program may name overlapping ranges.
                    unsafe { std::ptr::copy(src as *const u8, dst as *mut u8, self.width as usize) };
                }
            }
        })
    }
}

/// A set of `height` rows of `width` elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Set {
    pub dst: u64,
    pub pitch: u64,
    pub value: u32,
    pub element: u32,
    pub width: u64,
    pub height: u64,
}

impl Set {
    pub fn from_params(params: &CUmemsetNodeParams) -> Set {
        Set {
            dst: params.dst,
            pitch: params.pitch as u64,
            value: params.value,
            element: params.element_size,
            width: params.width as u64,
            height: params.height as u64,
        }
    }

    pub fn to_params(self) -> CUmemsetNodeParams {
        CUmemsetNodeParams {
            dst: self.dst,
            pitch: self.pitch as usize,
            value: self.value,
            element_size: self.element,
            width: self.width as usize,
            height: self.height as usize,
        }
    }

    /// Checks the set by itself.
    pub fn check(&self) -> Result {
        if !matches!(self.element, 1 | 2 | 4) || !self.dst.is_multiple_of(u64::from(self.element)) {
            return Err(INVALID_VALUE);
        }
        if self.is_empty() {
            return Ok(());
        }
        let row = self.width.checked_mul(u64::from(self.element)).ok_or(INVALID_VALUE)?;
        if self.height > 1 && self.pitch < row {
            return Err(INVALID_VALUE);
        }
        let rows = self.pitch.checked_mul(self.height - 1).ok_or(INVALID_VALUE)?;
        rows.checked_add(row).map(|_| ()).ok_or(INVALID_VALUE)
    }

    fn is_empty(&self) -> bool {
        self.width == 0 || self.height == 0
    }

    /// Bytes from the first to the last, of a set that was checked.
    fn span(&self) -> u64 {
        if self.is_empty() {
            0
        } else {
            self.pitch * (self.height - 1) + self.width * u64::from(self.element)
        }
    }

    /// Checks that the memory is there.
    pub fn check_place(&self) -> Result {
        check_device(self.dst, self.span())
    }

    pub fn run(&self) -> Result {
        guarded(|| {
            for row in 0..self.height {
                let at = self.dst + row * self.pitch;
                let count = self.width as usize;
                // SAFETY: the range was checked when the set was queued, alignment included; should it be gone, the
                // access faults and the fault is caught.
                unsafe {
                    match self.element {
                        1 => std::ptr::write_bytes(at as *mut u8, self.value as u8, count),
                        2 => std::slice::from_raw_parts_mut(at as *mut u16, count).fill(self.value as u16),
                        _ => std::slice::from_raw_parts_mut(at as *mut u32, count).fill(self.value),
                    }
                }
            }
        })
    }
}

/// Queues a copy. `wait` makes the call return when the copy is done.
fn queue(stream: CUstream, mut copy: Copy, wait: bool) -> Result {
    let stream = stream::get(stream)?;
    let (from, to) = copy.places()?;
    let wait =
        wait || (!copy.is_empty() && (alloc::is_synchronous(copy.dst) || alloc::is_synchronous(copy.src)));
    let op = stream.submit_with(|state| {
        if let Some(capture) = &mut state.capture {
            if wait {
                capture.invalidate();
                return Err(crate::error::STREAM_CAPTURE_UNSUPPORTED);
            }
            capture.add_unless(copy.is_empty(), Work::Copy(copy))?;
            return Ok(Placement::Captured);
        }
        if from == Place::Pageable && !wait && copy.is_flat() && !copy.is_empty() {
            // SAFETY: the caller of the API promised `width` readable bytes at its own pointer.
            let bytes = unsafe { std::slice::from_raw_parts(copy.src as *const u8, copy.width as usize) };
            copy.taken = Some(bytes.into());
        }
        Ok(Placement::Queue(Work::Copy(copy), Vec::new()))
    })?;
    if let Some(op) = op
        && (wait || to == Place::Pageable)
    {
        op.wait();
        stream.context.check()?;
    }
    Ok(())
}

fn device_side(address: u64, len: usize) -> Result {
    check_device(address, len as u64)
}

/// Synchronous copies from device memory to device memory need not wait for their end.
fn queue_flat(stream: CUstream, dst: u64, src: u64, len: usize, synchronous: bool) -> Result {
    let copy = Copy::flat(dst, src, len as u64);
    let between_devices = copy.places()? == (Place::Device, Place::Device);
    queue(stream, copy, synchronous && !between_devices)
}

fn set(stream: CUstream, set: Set, synchronous: bool) -> Result {
    let stream = stream::get(stream)?;
    set.check()?;
    let op = stream.submit_with(|state| {
        // A captured set is looked at when its graph is made executable.
        if let Some(capture) = &mut state.capture {
            capture.add_unless(set.is_empty(), Work::Set(set))?;
            return Ok(Placement::Captured);
        }
        check_reach(set.dst, set.span(), stream.context)?;
        Ok(Placement::Queue(Work::Set(set), Vec::new()))
    })?;
    // Sets of device memory do not wait, those of host memory do.
    if let Some(op) = op
        && synchronous
        && place(set.dst, 0)? != Place::Device
    {
        op.wait();
    }
    Ok(())
}

fn row(dst: u64, value: u32, element: u32, width: usize) -> Set {
    Set { dst, pitch: 0, value, element, width: width as u64, height: 1 }
}

fn rows(dst: u64, pitch: usize, value: u32, element: u32, width: usize, height: usize) -> Set {
    Set { dst, pitch: pitch as u64, value, element, width: width as u64, height: height as u64 }
}

/// The address of one side of a strided copy, by its memory type.
fn side(kind: u32, host: usize, device: u64, len: u64) -> Result<u64> {
    match kind {
        1 => Ok(host as u64),
        2 => check_device(device, len).map(|()| device),
        // Unified: the address tells.
        4 => Ok(device),
        _ => Err(INVALID_VALUE),
    }
}

impl TryFrom<&CUmemcpy2D> for Copy {
    type Error = crate::error::Code;

    fn try_from(c: &CUmemcpy2D) -> Result<Copy> {
        let shifted = |base: u64, x: usize, y: usize, pitch: usize| base + (y * pitch + x) as u64;
        let src = side(c.src_type, c.src_host, c.src_device, 0)?;
        let dst = side(c.dst_type, c.dst_host, c.dst_device, 0)?;
        let pitch_or_width = |pitch: usize| if pitch == 0 { c.width } else { pitch };
        let (src_pitch, dst_pitch) = (pitch_or_width(c.src_pitch), pitch_or_width(c.dst_pitch));
        if src_pitch < c.width || dst_pitch < c.width {
            return Err(INVALID_VALUE);
        }
        Ok(Copy {
            dst: shifted(dst, c.dst_x, c.dst_y, dst_pitch),
            src: shifted(src, c.src_x, c.src_y, src_pitch),
            taken: None,
            width: c.width as u64,
            height: c.height as u64,
            depth: 1,
            dst_pitch: dst_pitch as u64,
            src_pitch: src_pitch as u64,
            dst_slice: 0,
            src_slice: 0,
        })
    }
}

impl TryFrom<&CUmemcpy3D> for Copy {
    type Error = crate::error::Code;

    fn try_from(c: &CUmemcpy3D) -> Result<Copy> {
        let src = side(c.src_type, c.src_host, c.src_device, 0)?;
        let dst = side(c.dst_type, c.dst_host, c.dst_device, 0)?;
        let or = |value: usize, default: usize| if value == 0 { default } else { value };
        let (src_pitch, dst_pitch) = (or(c.src_pitch, c.width), or(c.dst_pitch, c.width));
        let (src_slice, dst_slice) =
            (src_pitch * or(c.src_height, c.height), dst_pitch * or(c.dst_height, c.height));
        if src_pitch < c.width || dst_pitch < c.width {
            return Err(INVALID_VALUE);
        }
        Ok(Copy {
            dst: dst + (c.dst_z * dst_slice + c.dst_y * dst_pitch + c.dst_x) as u64,
            src: src + (c.src_z * src_slice + c.src_y * src_pitch + c.src_x) as u64,
            taken: None,
            width: c.width as u64,
            height: c.height as u64,
            depth: c.depth as u64,
            dst_pitch: dst_pitch as u64,
            src_pitch: src_pitch as u64,
            dst_slice: dst_slice as u64,
            src_slice: src_slice as u64,
        })
    }
}

cu! {
    fn cuMemcpy / cuMemcpy_ptds (dst: CUdeviceptr, src: CUdeviceptr, len: usize) {
        queue_flat(0, dst, src, len, true)
    }

    [stream] fn cuMemcpyAsync / cuMemcpyAsync_ptsz (dst: CUdeviceptr, src: CUdeviceptr, len: usize, stream: CUstream) {
        queue_flat(stream, dst, src, len, false)
    }

    fn cuMemcpyHtoD_v2 / cuMemcpyHtoD_v2_ptds (dst: CUdeviceptr, src: usize, len: usize) {
        device_side(dst, len)?;
        queue_flat(0, dst, src as u64, len, true)
    }

    [stream] fn cuMemcpyHtoDAsync_v2 / cuMemcpyHtoDAsync_v2_ptsz (dst: CUdeviceptr, src: usize, len: usize, stream: CUstream) {
        device_side(dst, len)?;
        queue_flat(stream, dst, src as u64, len, false)
    }

    fn cuMemcpyDtoH_v2 / cuMemcpyDtoH_v2_ptds (dst: usize, src: CUdeviceptr, len: usize) {
        device_side(src, len)?;
        queue_flat(0, dst as u64, src, len, true)
    }

    [stream] fn cuMemcpyDtoHAsync_v2 / cuMemcpyDtoHAsync_v2_ptsz (dst: usize, src: CUdeviceptr, len: usize, stream: CUstream) {
        device_side(src, len)?;
        queue_flat(stream, dst as u64, src, len, false)
    }

    fn cuMemcpyDtoD_v2 / cuMemcpyDtoD_v2_ptds (dst: CUdeviceptr, src: CUdeviceptr, len: usize) {
        device_side(dst, len)?;
        device_side(src, len)?;
        queue_flat(0, dst, src, len, true)
    }

    [stream] fn cuMemcpyDtoDAsync_v2 / cuMemcpyDtoDAsync_v2_ptsz (
        dst: CUdeviceptr, src: CUdeviceptr, len: usize, stream: CUstream,
    ) {
        device_side(dst, len)?;
        device_side(src, len)?;
        queue_flat(stream, dst, src, len, false)
    }

    fn cuMemcpyPeer / cuMemcpyPeer_ptds (
        dst: CUdeviceptr, dst_ctx: CUcontext, src: CUdeviceptr, src_ctx: CUcontext, len: usize,
    ) {
        context::get_or_current(dst_ctx)?;
        context::get_or_current(src_ctx)?;
        device_side(dst, len)?;
        device_side(src, len)?;
        queue_flat(0, dst, src, len, true)
    }

    [stream] fn cuMemcpyPeerAsync / cuMemcpyPeerAsync_ptsz (
        dst: CUdeviceptr, dst_ctx: CUcontext, src: CUdeviceptr, src_ctx: CUcontext, len: usize, stream: CUstream,
    ) {
        context::get_or_current(dst_ctx)?;
        context::get_or_current(src_ctx)?;
        device_side(dst, len)?;
        device_side(src, len)?;
        queue_flat(stream, dst, src, len, false)
    }

    fn cuMemcpy2D_v2 / cuMemcpy2D_v2_ptds (params: In<CUmemcpy2D>) {
        queue(0, Copy::try_from(&params.get()?)?, true)
    }

    fn cuMemcpy2DUnaligned_v2 / cuMemcpy2DUnaligned_v2_ptds (params: In<CUmemcpy2D>) {
        queue(0, Copy::try_from(&params.get()?)?, true)
    }

    [stream] fn cuMemcpy2DAsync_v2 / cuMemcpy2DAsync_v2_ptsz (params: In<CUmemcpy2D>, stream: CUstream) {
        queue(stream, Copy::try_from(&params.get()?)?, false)
    }

    fn cuMemcpy3D_v2 / cuMemcpy3D_v2_ptds (params: In<CUmemcpy3D>) {
        queue(0, Copy::try_from(&params.get()?)?, true)
    }

    [stream] fn cuMemcpy3DAsync_v2 / cuMemcpy3DAsync_v2_ptsz (params: In<CUmemcpy3D>, stream: CUstream) {
        queue(stream, Copy::try_from(&params.get()?)?, false)
    }

    fn cuMemsetD8_v2 / cuMemsetD8_v2_ptds (dst: CUdeviceptr, value: u8, count: usize) {
        set(0, row(dst, u32::from(value), 1, count), true)
    }

    fn cuMemsetD16_v2 / cuMemsetD16_v2_ptds (dst: CUdeviceptr, value: u16, count: usize) {
        set(0, row(dst, u32::from(value), 2, count), true)
    }

    fn cuMemsetD32_v2 / cuMemsetD32_v2_ptds (dst: CUdeviceptr, value: u32, count: usize) {
        set(0, row(dst, value, 4, count), true)
    }

    [stream] fn cuMemsetD8Async / cuMemsetD8Async_ptsz (dst: CUdeviceptr, value: u8, count: usize, stream: CUstream) {
        set(stream, row(dst, u32::from(value), 1, count), false)
    }

    [stream] fn cuMemsetD16Async / cuMemsetD16Async_ptsz (dst: CUdeviceptr, value: u16, count: usize, stream: CUstream) {
        set(stream, row(dst, u32::from(value), 2, count), false)
    }

    [stream] fn cuMemsetD32Async / cuMemsetD32Async_ptsz (dst: CUdeviceptr, value: u32, count: usize, stream: CUstream) {
        set(stream, row(dst, value, 4, count), false)
    }

    fn cuMemsetD2D8_v2 / cuMemsetD2D8_v2_ptds (dst: CUdeviceptr, pitch: usize, value: u8, width: usize, height: usize) {
        set(0, rows(dst, pitch, u32::from(value), 1, width, height), true)
    }

    [stream] fn cuMemsetD2D8Async / cuMemsetD2D8Async_ptsz (
        dst: CUdeviceptr, pitch: usize, value: u8, width: usize, height: usize, stream: CUstream,
    ) {
        set(stream, rows(dst, pitch, u32::from(value), 1, width, height), false)
    }

    fn cuMemsetD2D16_v2 / cuMemsetD2D16_v2_ptds (
        dst: CUdeviceptr, pitch: usize, value: u16, width: usize, height: usize,
    ) {
        set(0, rows(dst, pitch, u32::from(value), 2, width, height), true)
    }

    [stream] fn cuMemsetD2D16Async / cuMemsetD2D16Async_ptsz (
        dst: CUdeviceptr, pitch: usize, value: u16, width: usize, height: usize, stream: CUstream,
    ) {
        set(stream, rows(dst, pitch, u32::from(value), 2, width, height), false)
    }

    fn cuMemsetD2D32_v2 / cuMemsetD2D32_v2_ptds (
        dst: CUdeviceptr, pitch: usize, value: u32, width: usize, height: usize,
    ) {
        set(0, rows(dst, pitch, value, 4, width, height), true)
    }

    [stream] fn cuMemsetD2D32Async / cuMemsetD2D32Async_ptsz (
        dst: CUdeviceptr, pitch: usize, value: u32, width: usize, height: usize, stream: CUstream,
    ) {
        set(stream, rows(dst, pitch, value, 4, width, height), false)
    }
}
