//! Modules, libraries and the kernels in them.
//!
//! Any image is accepted and only its first byte is read: kernels are found by name among those linked into the
//! emulator. What is kept is the *first-load trap*: code of a kernel comes into a context when the kernel is first
//! launched, or by cuFuncLoad, and that waits for the kernels which run in the context at that moment. PTX is loaded
//! with its module, and with CUDA_MODULE_LOADING=EAGER so is everything.

use std::ffi::{CString, c_char};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use crate::config;
use crate::context::{self, Context};
use crate::device;
use crate::error::{FILE_NOT_FOUND, INVALID_HANDLE, INVALID_VALUE, NOT_FOUND, Result};
use crate::handle::Registry;
use crate::kernel::{self, KernelInfo};
use crate::stream::{self, capture};
use crate::types::{CUdevice, CUfunction, CUkernel, CUlibrary, CUmodule, In, Out, Text};

/// Dynamic shared memory that a kernel may use unless more was asked for.
const DEFAULT_DYNAMIC_SHARED: i32 = 48 << 10;
/// Registers per thread that kernels are said to use.
const REGISTERS: i32 = 32;

struct Module {
    handle: CUmodule,
    context: &'static Context,
    /// The library that this is the module of, or 0.
    library: CUlibrary,
    lazy: bool,
}

struct Library {
    handle: CUlibrary,
    lazy: bool,
}

/// A kernel: of a module, then it belongs to the module's context, or of a library, then it runs in any.
pub struct Function {
    pub handle: CUfunction,
    pub info: &'static KernelInfo,
    pub context: Option<&'static Context>,
    module: CUmodule,
    library: CUlibrary,
    lazy: bool,
    name: CString,
    dynamic_shared: AtomicI32,
    carveout: AtomicI32,
}

static MODULES: Registry<Module> = Registry::new();
static LIBRARIES: Registry<Library> = Registry::new();
static FUNCTIONS: Registry<Function> = Registry::new();

impl Function {
    /// Brings the kernel's code into a context.
    pub fn load(&self, context: &'static Context) {
        if self.is_loaded(context) {
            return;
        }
        let running = context.running.lock().clone();
        for op in running {
            op.wait();
        }
        context.loaded.lock().insert(self.info.name);
    }

    fn is_loaded(&self, context: &Context) -> bool {
        !self.lazy || context.loaded.lock().contains(self.info.name)
    }

    pub fn max_dynamic_shared(&self) -> i32 {
        self.dynamic_shared.load(Ordering::Relaxed)
    }

    fn attribute(&self, attribute: u32) -> Result<i32> {
        let (major, minor) = config::get().capability;
        let version = (major * 10 + minor) as i32;
        Ok(match attribute {
            0 => self.info.max_threads as i32,
            1 => self.info.shared_size as i32,
            2 | 3 | 7 => 0,
            4 => REGISTERS,
            5 | 6 => version,
            8 => self.max_dynamic_shared(),
            9 => self.carveout.load(Ordering::Relaxed),
            10..=15 => 0,
            _ => return Err(INVALID_VALUE),
        })
    }

    fn set_attribute(&self, attribute: u32, value: i32) -> Result {
        let most = device::SHARED_PER_BLOCK - self.info.shared_size as i32;
        match attribute {
            8 if (0..=most).contains(&value) => self.dynamic_shared.store(value, Ordering::Relaxed),
            9 if (-1..=100).contains(&value) => self.carveout.store(value, Ordering::Relaxed),
            10..=15 => {}
            _ => return Err(INVALID_VALUE),
        }
        Ok(())
    }

    /// Blocks of this kernel that fit on a multiprocessor.
    pub fn blocks_per_sm(&self, block: u32, dynamic_shared: usize) -> i32 {
        let threads = block.div_ceil(32) as i32 * 32;
        if threads == 0 || block > self.info.max_threads {
            return 0;
        }
        // Each block also takes what the system reserves per block.
        let shared = self.info.shared_size as i64 + dynamic_shared as i64 + 1024;
        let by_shared = i64::from(device::SHARED_PER_SM) / shared;
        let by_threads = 2048 / threads;
        let by_registers = 65536 / (threads * REGISTERS);
        by_threads.min(by_registers).min(32).min(by_shared as i32)
    }
}

/// The function behind a handle of a function or a kernel.
pub fn get(handle: CUfunction) -> Result<Arc<Function>> {
    FUNCTIONS.get(handle)
}

pub fn forget_context(context: &'static Context) {
    MODULES.remove_where(|module| module.context.is(context));
    FUNCTIONS.remove_where(|function| function.context.is_some_and(|owner| owner.is(context)));
}

/// Whether kernels of an image are loaded one by one: those of PTX come with their module.
fn is_lazy(image: In<u8>) -> Result<bool> {
    Ok(!config::get().eager && !is_text(image)?)
}

/// Whether an image is PTX.
fn is_text(image: In<u8>) -> Result<bool> {
    Ok(matches!(image.get()?, b'.' | b'/'))
}

/// The same for a file, which must be there.
fn is_lazy_file(name: Text) -> Result<bool> {
    let image = std::fs::read(name.get()?).map_err(|_| FILE_NOT_FOUND)?;
    is_lazy(In::new(image.as_ptr()))
}

fn load(out: Out<CUmodule>, image: In<u8>) -> Result {
    out.check()?;
    if is_text(image)? {
        // As on a GPU: its code comes into the context now, when that has nothing to do.
        stream::synchronize_behind_gate(context::current()?);
    }
    make_module(out, is_lazy(image)?)
}

fn make_module(out: Out<CUmodule>, lazy: bool) -> Result {
    let context = context::current()?;
    out.set(MODULES.insert_with(|handle| Module { handle, context, library: 0, lazy }).handle)
}

fn make_library(out: Out<CUlibrary>, lazy: bool) -> Result {
    out.check()?;
    out.set(LIBRARIES.insert_with(|handle| Library { handle, lazy }).handle)
}

/// The function of this name, made when it is first asked for.
fn function(
    name: &str,
    context: Option<&'static Context>,
    module: CUmodule,
    library: CUlibrary,
    lazy: bool,
) -> Result<CUfunction> {
    let info = kernel::find(name).ok_or(NOT_FOUND)?;
    let same = |known: &Arc<Function>| {
        known.module == module && known.library == library && std::ptr::eq(known.info, info)
    };
    if let Some(known) = FUNCTIONS.all().into_iter().find(same) {
        return Ok(known.handle);
    }
    let text = CString::new(name).map_err(|_| INVALID_VALUE)?;
    let made = FUNCTIONS.insert_with(|handle| Function {
        handle,
        info,
        context,
        module,
        library,
        lazy,
        name: text,
        dynamic_shared: AtomicI32::new(DEFAULT_DYNAMIC_SHARED),
        carveout: AtomicI32::new(-1),
    });
    Ok(made.handle)
}

/// The module that stands for a library in the current context.
fn module_of(library: CUlibrary) -> Result<Arc<Module>> {
    let lazy = LIBRARIES.get(library)?.lazy;
    let context = context::current()?;
    let known =
        MODULES.all().into_iter().find(|module| module.library == library && module.context.is(context));
    Ok(known.unwrap_or_else(|| MODULES.insert_with(|handle| Module { handle, context, library, lazy })))
}

fn parameter(function: CUfunction, index: usize, offset: Out<usize>, size: Out<usize>) -> Result {
    let function = get(function)?;
    if index != 0 || function.info.arg_size == 0 {
        return Err(INVALID_VALUE);
    }
    offset.set(0)?;
    size.set_opt(function.info.arg_size as usize);
    Ok(())
}

fn occupancy(out: Out<i32>, function: CUfunction, block: i32, dynamic_shared: usize) -> Result {
    let function = get(function)?;
    let block = u32::try_from(block).ok().filter(|block| *block > 0).ok_or(INVALID_VALUE)?;
    out.set(function.blocks_per_sm(block, dynamic_shared))
}

cu! {
    fn cuModuleLoadData(out: Out<CUmodule>, image: In<u8>) {
        load(out, image)
    }

    fn cuModuleLoadDataEx(out: Out<CUmodule>, image: In<u8>, count: u32, options: usize, values: usize) {
        let _ = (count, options, values);
        load(out, image)
    }

    fn cuModuleLoadFatBinary(out: Out<CUmodule>, image: In<u8>) {
        load(out, image)
    }

    fn cuModuleLoad(out: Out<CUmodule>, name: Text) {
        out.check()?;
        make_module(out, is_lazy_file(name)?)
    }

    fn cuModuleUnload(module: CUmodule) {
        let module = MODULES.get(module)?;
        if module.library != 0 {
            return Err(INVALID_HANDLE);
        }
        capture::forbid_unsafe()?;
        stream::drain_without_deadline(module.context);
        MODULES.remove(module.handle)?;
        FUNCTIONS.remove_where(|function| function.module == module.handle);
        Ok(())
    }

    fn cuModuleGetFunction(out: Out<CUfunction>, module: CUmodule, name: Text) {
        out.check()?;
        let module = MODULES.get(module)?;
        out.set(function(&name.get()?, Some(module.context), module.handle, 0, module.lazy)?)
    }

    fn cuModuleGetGlobal_v2(out: Out<u64>, bytes: Out<usize>, module: CUmodule, name: Text) {
        let _ = (out, bytes, MODULES.get(module)?, name.get()?);
        // Kernels of the emulator have no global variables.
        Err(NOT_FOUND)
    }

    fn cuModuleGetLoadingMode(mode: Out<u32>) {
        mode.set(if config::get().eager { 1 } else { 2 })
    }

    fn cuLibraryLoadData(
        out: Out<CUlibrary>, code: In<u8>, jit_options: usize, jit_values: usize, jit_count: u32,
        options: usize, values: usize, count: u32,
    ) {
        let _ = (jit_options, jit_values, jit_count, options, values, count);
        make_library(out, is_lazy(code)?)
    }

    fn cuLibraryLoadFromFile(
        out: Out<CUlibrary>, name: Text, jit_options: usize, jit_values: usize, jit_count: u32,
        options: usize, values: usize, count: u32,
    ) {
        let _ = (jit_options, jit_values, jit_count, options, values, count);
        make_library(out, is_lazy_file(name)?)
    }

    fn cuLibraryUnload(library: CUlibrary) {
        LIBRARIES.remove(library)?;
        MODULES.remove_where(|module| module.library == library);
        FUNCTIONS.remove_where(|function| function.library == library);
        Ok(())
    }

    fn cuLibraryGetKernel(out: Out<CUkernel>, library: CUlibrary, name: Text) {
        out.check()?;
        let library = LIBRARIES.get(library)?;
        out.set(function(&name.get()?, None, 0, library.handle, library.lazy)?)
    }

    fn cuLibraryGetModule(out: Out<CUmodule>, library: CUlibrary) {
        out.set(module_of(library)?.handle)
    }

    fn cuLibraryGetGlobal(out: Out<u64>, bytes: Out<usize>, library: CUlibrary, name: Text) {
        let _ = (out, bytes, LIBRARIES.get(library)?, name.get()?);
        Err(NOT_FOUND)
    }

    fn cuKernelGetFunction(out: Out<CUfunction>, kernel: CUkernel) {
        out.check()?;
        let kernel = get(kernel)?;
        let module = module_of(kernel.library)?;
        out.set(function(kernel.info.name, Some(module.context), module.handle, kernel.library, kernel.lazy)?)
    }

    fn cuKernelGetLibrary(out: Out<CUlibrary>, kernel: CUkernel) {
        out.set(get(kernel)?.library)
    }

    fn cuKernelGetName(out: Out<*const c_char>, kernel: CUkernel) {
        out.set(get(kernel)?.name.as_ptr())
    }

    fn cuKernelGetParamInfo(kernel: CUkernel, index: usize, offset: Out<usize>, size: Out<usize>) {
        parameter(kernel, index, offset, size)
    }

    fn cuKernelGetAttribute(value: Out<i32>, attribute: u32, kernel: CUkernel, dev: CUdevice) {
        device::get(dev)?;
        value.set(get(kernel)?.attribute(attribute)?)
    }

    fn cuKernelSetAttribute(attribute: u32, value: i32, kernel: CUkernel, dev: CUdevice) {
        device::get(dev)?;
        get(kernel)?.set_attribute(attribute, value)
    }

    fn cuKernelSetCacheConfig(kernel: CUkernel, config: u32, dev: CUdevice) {
        let _ = (get(kernel)?, config, device::get(dev)?);
        Ok(())
    }

    fn cuFuncGetAttribute(value: Out<i32>, attribute: u32, function: CUfunction) {
        value.set(get(function)?.attribute(attribute)?)
    }

    fn cuFuncSetAttribute(function: CUfunction, attribute: u32, value: i32) {
        get(function)?.set_attribute(attribute, value)
    }

    fn cuFuncSetCacheConfig(function: CUfunction, config: u32) {
        let _ = (get(function)?, config);
        Ok(())
    }

    fn cuFuncSetSharedMemConfig(function: CUfunction, config: u32) {
        let _ = (get(function)?, config);
        Ok(())
    }

    fn cuFuncGetModule(out: Out<CUmodule>, function: CUfunction) {
        out.set(get(function)?.module)
    }

    fn cuFuncGetName(out: Out<*const c_char>, function: CUfunction) {
        out.set(get(function)?.name.as_ptr())
    }

    fn cuFuncGetParamInfo(function: CUfunction, index: usize, offset: Out<usize>, size: Out<usize>) {
        parameter(function, index, offset, size)
    }

    fn cuFuncLoad(function: CUfunction) {
        let function = get(function)?;
        let context = function.context.map_or_else(context::current, Ok)?;
        context.check()?;
        function.load(context);
        Ok(())
    }

    fn cuFuncIsLoaded(state: Out<u32>, function: CUfunction) {
        let function = get(function)?;
        let context = function.context.map_or_else(context::current, Ok)?;
        state.set(u32::from(function.is_loaded(context)))
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks: Out<i32>, function: CUfunction, block: i32, dynamic_shared: usize,
    ) {
        occupancy(blocks, function, block, dynamic_shared)
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        blocks: Out<i32>, function: CUfunction, block: i32, dynamic_shared: usize, flags: u32,
    ) {
        if flags > 1 {
            return Err(INVALID_VALUE);
        }
        occupancy(blocks, function, block, dynamic_shared)
    }

    fn cuOccupancyAvailableDynamicSMemPerBlock(size: Out<usize>, function: CUfunction, blocks: i32, block: i32) {
        let function = get(function)?;
        if blocks <= 0 || block <= 0 {
            return Err(INVALID_VALUE);
        }
        let share = device::SHARED_PER_SM / blocks - 1024 - function.info.shared_size as i32;
        size.set(share.clamp(0, device::SHARED_PER_BLOCK) as usize)
    }

    fn cuOccupancyMaxPotentialBlockSize(
        grid: Out<i32>, block: Out<i32>, function: CUfunction, shared_of: usize, dynamic_shared: usize, limit: i32,
    ) {
        let _ = shared_of;
        let function = get(function)?;
        let most = function.info.max_threads as i32;
        let threads = if limit > 0 { most.min(limit) } else { most };
        let per_sm = function.blocks_per_sm(threads as u32, dynamic_shared);
        grid.set(per_sm * config::get().sms as i32)?;
        block.set(threads)
    }
}

/// A kernel's own copy of its parameter, from the two forms in which a launch can give it.
pub fn argument(info: &KernelInfo, params: In<usize>, extra: In<usize>) -> Result<Arc<[u8]>> {
    let size = info.arg_size as usize;
    if !params.is_null() && !extra.is_null() {
        return Err(INVALID_VALUE);
    }
    let (source, given) = if !params.is_null() {
        (if size == 0 { 0 } else { params.get()? }, size)
    } else if !extra.is_null() {
        from_extra(extra)?
    } else {
        (0, 0)
    };
    match (size, source) {
        (0, _) => Ok(Arc::new([])),
        (_, 0) => Err(INVALID_VALUE),
        (size, source) => {
            // A buffer that is too short is accepted; what it lacks is nowhere defined.
            let mut bytes = In::new(source as *const u8).array(given.min(size))?;
            bytes.resize(size, 0);
            Ok(bytes.into())
        }
    }
}

/// Finds the parameter buffer and its size in the `extra` list: pairs of key and pointer up to the end mark.
fn from_extra(extra: In<usize>) -> Result<(usize, usize)> {
    const BUFFER_POINTER: usize = 1;
    const BUFFER_SIZE: usize = 2;
    let (mut buffer, mut bytes) = (0, 0);
    let mut at = extra.raw();
    for _ in 0..4 {
        let key = In::new(at).get()?;
        let value = In::new(at.wrapping_add(1));
        match key {
            0 => break,
            BUFFER_POINTER => buffer = value.get()?,
            BUFFER_SIZE => bytes = In::new(value.get()? as *const usize).get()?,
            _ => return Err(INVALID_VALUE),
        }
        at = at.wrapping_add(2);
    }
    Ok((buffer, bytes))
}
