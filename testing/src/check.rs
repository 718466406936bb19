//! Runs a call on real buffers and compares every byte: results, inputs, and the canaries around both.

use std::io::Write;
use std::sync::LazyLock;

use crate::call::{Call, Region};
use crate::driver::{self, Outcome, Stream};
use crate::nccl::{Comm, Nccl};
use crate::pattern;

/// Bytes before and behind every buffer that no call may touch.
const PAD: usize = 512;
const CANARY: u8 = 0xa5;

/// Two areas of device memory for one rank's calls.
#[derive(Debug)]
pub struct Checker {
    nccl: &'static Nccl,
    areas: [u64; 2],
    capacity: usize,
    /// Results compared so far.
    pub checks: u64,
    got: Vec<u8>,
}

/// Misalignment of the two buffers, in elements.
#[derive(Debug, Clone, Copy, Default)]
pub struct Shift {
    pub send: usize,
    pub recv: usize,
}

/// One area as it should be, and where the call's buffer begins in it.
struct Image {
    bytes: Vec<u8>,
    base: usize,
    size: usize,
}

impl Image {
    fn new(elements: usize, shift: usize, size: usize) -> Image {
        let base = PAD + shift * size;
        Image { bytes: vec![CANARY; base + elements * size + PAD], base, size }
    }

    fn put(&mut self, at: usize, regions: &[Region]) {
        for region in regions {
            let from = self.base + (at + region.at) * self.size;
            region.pattern.fill(region.start, &mut self.bytes[from..from + region.count * self.size]);
        }
    }
}

/// With `OXCCL_TEST_TRACE=1`, says on the standard error what is about to run: what a run that hangs ends with.
pub fn trace(call: &Call) {
    trace_text(call);
}

/// The same of anything.
pub fn trace_text(what: &dyn std::fmt::Debug) {
    static WANTED: LazyLock<bool> = LazyLock::new(|| std::env::var_os("OXCCL_TEST_TRACE").is_some());
    if *WANTED {
        let line = format!("{:?} {what:?}\n", std::time::SystemTime::now());
        // A lost line is no failure.
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
}

impl Checker {
    /// Room for buffers of `capacity` bytes.
    pub fn new(nccl: &'static Nccl, capacity: usize) -> Outcome<Checker> {
        let area = || driver::alloc(Checker::area(capacity));
        Ok(Checker::over(nccl, [area()?, area()?], capacity))
    }

    /// Bytes of an area for buffers of `capacity` bytes.
    pub fn area(capacity: usize) -> usize {
        capacity + 4 * PAD
    }

    /// Over memory that the caller keeps.
    pub fn over(nccl: &'static Nccl, areas: [u64; 2], capacity: usize) -> Checker {
        Checker { nccl, areas, capacity, checks: 0, got: Vec::new() }
    }

    /// Device memory for what is not checked.
    pub fn scratch(&self) -> u64 {
        self.areas[0]
    }

    pub fn free(self) -> Outcome {
        self.areas.into_iter().try_for_each(driver::free)
    }

    /// Makes the call, waits for it, and compares everything.
    pub fn run(&mut self, call: &Call, shift: Shift, comm: Comm, stream: Stream) -> Outcome {
        self.run_with(call, shift, stream, |checker, send, recv| {
            call.enqueue(checker.nccl, comm, stream, send, recv)?;
            checker.settle(comm, stream)
        })
    }

    /// The same with `make` to do the call's work between the buffers' filling and the comparison.
    pub fn run_with(
        &mut self,
        call: &Call,
        shift: Shift,
        stream: Stream,
        make: impl FnOnce(&mut Checker, u64, u64) -> Outcome,
    ) -> Outcome {
        trace(call);
        let size = call.t.size();
        let (send_count, recv_count) = (call.send_count(), call.recv_count());
        if send_count.max(recv_count) * size > self.capacity {
            return Err(format!("{call:?} does not fit into {} bytes", self.capacity));
        }
        let [first, second] = self.areas;
        if let Some((send_at, recv_at)) = call.in_place_offsets() {
            let mut image = Image::new(send_count.max(recv_count), shift.recv, size);
            image.put(send_at, &call.inputs());
            driver::upload(second, &image.bytes, stream)?;
            let base = second + image.base as u64;
            make(self, base + (send_at * size) as u64, base + (recv_at * size) as u64)?;
            image.put(recv_at, &call.outputs());
            self.compare(call, "buffer", second, &image, stream)?;
        } else {
            let mut send = Image::new(send_count, shift.send, size);
            send.put(0, &call.inputs());
            let mut recv = Image::new(recv_count, shift.recv, size);
            driver::upload(first, &send.bytes, stream)?;
            driver::upload(second, &recv.bytes, stream)?;
            // A side that this rank does not use may be NULL.
            let unused_is_null = call.seed.is_multiple_of(2);
            let pointer = |area: u64, image: &Image, used: bool| {
                if used || !unused_is_null { area + image.base as u64 } else { 0 }
            };
            make(self, pointer(first, &send, call.uses_send()), pointer(second, &recv, call.uses_recv()))?;
            recv.put(0, &call.outputs());
            self.compare(call, "receive buffer", second, &recv, stream)?;
            self.compare(call, "send buffer", first, &send, stream)?;
        }
        self.checks += 1;
        Ok(())
    }

    /// Waits for the stream; an error of the communicator comes first.
    pub fn settle(&self, comm: Comm, stream: Stream) -> Outcome {
        driver::synchronize(stream)?;
        self.nccl.ok("the communicator's state", comm, self.nccl.async_error(comm))
    }

    fn compare(&mut self, call: &Call, what: &str, area: u64, image: &Image, stream: Stream) -> Outcome {
        self.got.resize(image.bytes.len(), 0);
        driver::download(area, &mut self.got, stream)?;
        let (got, want) = (&self.got, &image.bytes);
        if got == want {
            return Ok(());
        }
        let used = image.base..want.len() - PAD;
        let size = image.size;
        let wrong_element = |index: &usize| {
            let range = used.start + index * size..used.start + (index + 1) * size;
            got[range.clone()] != want[range]
        };
        let elements = used.len() / size;
        if let Some(index) = (0..elements).find(wrong_element) {
            let wrong = (0..elements).filter(wrong_element).count();
            let range = used.start + index * size..used.start + (index + 1) * size;
            return Err(format!(
                "{call:?}: {what}: {wrong} of {elements} elements are wrong, the first is element {index}: {:#x}, should be {:#x}",
                pattern::element(call.t, &got[range.clone()]),
                pattern::element(call.t, &want[range]),
            ));
        }
        let outside = (0..used.start).chain(used.end..want.len()).find(|at| got[*at] != want[*at]);
        match outside {
            Some(at) if at < used.start => {
                Err(format!("{call:?}: {what}: a byte {} before it was overwritten", used.start - at))
            }
            Some(at) => Err(format!("{call:?}: {what}: a byte {} behind it was overwritten", at - used.end)),
            None => Ok(()),
        }
    }
}
