//! The library's kernels, loaded once per context, and their launches.
//!
//! Every kernel is loaded before the first communicator of its context is ready: a kernel that is first
//! launched while another one spins in the same context does not start before that one ends.

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::sync::{Arc, LazyLock};

use cudarc::driver::sys;
use parking_lot::Mutex;

use super::context::Context;
use super::driver::{check, driver};
use super::layout::KERNELS;
use super::stream::CallerStream;
use crate::error::{Error, Result};

/// Images of all kernels, made by build.rs: `IMAGES` and `KERNELS_SHA256`.
mod images {
    include!(concat!(env!("OUT_DIR"), "/images.rs"));
}

pub use images::KERNELS_SHA256;

/// First driver with cuFuncLoad.
const FUNC_LOAD_VERSION: i32 = 12_040;

/// A kernel in a context.
#[derive(Debug, Clone, Copy)]
pub struct Kernel {
    function: sys::CUfunction,
    /// Threads per block.
    pub threads: u32,
    /// Blocks that fit on the device at once.
    pub resident: u32,
    arg_bytes: usize,
}

// SAFETY: a CUfunction may be used from any thread.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

/// All kernels of one context, in the order of `layout::KERNELS`.
#[derive(Debug)]
pub struct Kernels {
    kernels: Vec<Kernel>,
}

impl Kernels {
    /// The kernels of `context`, loaded on first use. They stay loaded as long as the context lives: captured
    /// graphs hold their handles.
    pub fn of(context: &Context) -> Result<Arc<Kernels>> {
        /// By the context's address and its id.
        type Loaded = HashMap<(usize, u64), Arc<Kernels>>;
        static LOADED: LazyLock<Mutex<Loaded>> = LazyLock::new(Default::default);
        let _bound = context.bind()?;
        let mut id = 0;
        // SAFETY: out pointer to a live integer. The id tells a context from a later one at the same address.
        check(unsafe { sys::cuCtxGetId(std::ptr::null_mut(), &mut id) }, "cuCtxGetId")?;
        let mut loaded = LOADED.lock();
        if let Some(kernels) = loaded.get(&(context.key(), id)) {
            return Ok(kernels.clone());
        }
        let kernels = Arc::new(Kernels::load(context)?);
        loaded.insert((context.key(), id), kernels.clone());
        Ok(kernels)
    }

    fn load(context: &Context) -> Result<Kernels> {
        let image = image_for(context.device().capability)?;
        let mut module = std::ptr::null_mut();
        check(
            // SAFETY: the image is whole and outlives the call; the driver copies what it needs.
            unsafe { sys::cuModuleLoadData(&mut module, image.as_ptr().cast()) },
            &format!("cuModuleLoadData of the kernels for {}", context.device().name),
        )?;
        let multiprocessors = context.device().multiprocessors.max(1) as u32;
        let mut kernels = Vec::with_capacity(KERNELS.len());
        for info in &KERNELS {
            let name = CString::new(info.name).map_err(|_| Error::internal("kernel name"))?;
            let mut function = std::ptr::null_mut();
            let what = |call: &str| format!("{call} of kernel {}", info.name);
            check(
                // SAFETY: out pointer to a live pointer; the module is loaded and the name ends with a zero.
                unsafe { sys::cuModuleGetFunction(&mut function, module, name.as_ptr()) },
                &what("cuModuleGetFunction"),
            )?;
            if driver()?.at_least(FUNC_LOAD_VERSION) {
                // SAFETY: a live function.
                check(unsafe { sys::cuFuncLoad(function) }, &what("cuFuncLoad"))?;
            }
            let mut threads = 0;
            let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK;
            check(
                // SAFETY: out pointer to a live integer. Asking also loads the function on drivers without
                // cuFuncLoad.
                unsafe { sys::cuFuncGetAttribute(&mut threads, attribute, function) },
                &what("cuFuncGetAttribute"),
            )?;
            let threads = info.threads.min(threads.max(1) as u32);
            let mut blocks = 0;
            check(
                // SAFETY: out pointer to a live integer.
                unsafe {
                    sys::cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut blocks, function, threads as i32, 0)
                },
                &what("cuOccupancyMaxActiveBlocksPerMultiprocessor"),
            )?;
            let resident = multiprocessors * blocks.max(1) as u32;
            kernels.push(Kernel { function, threads, resident, arg_bytes: info.argument.size() });
        }
        Ok(Kernels { kernels })
    }

    pub fn get(&self, index: usize) -> Kernel {
        self.kernels[index]
    }

    /// Blocks of any kernel that fit on the device at once.
    pub fn resident(&self) -> u32 {
        self.kernels.iter().map(|kernel| kernel.resident).min().unwrap_or(1)
    }
}

impl Kernel {
    /// Launches with `argument` as the only parameter. The context of the stream must be current.
    pub fn launch<T: Copy>(&self, grid: u32, argument: &T, stream: CallerStream) -> Result<()> {
        assert_eq!(size_of::<T>(), self.arg_bytes, "the kernel takes another argument type");
        let config = sys::CUlaunchConfig {
            gridDimX: grid,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: self.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: 0,
            hStream: stream.raw(),
            attrs: std::ptr::null_mut(),
            numAttrs: 0,
        };
        let mut parameters = [(argument as *const T).cast_mut().cast::<c_void>()];
        // SAFETY: one parameter of the size the kernel declares (asserted); the driver copies it before it
        // returns.
        check(
            unsafe {
                sys::cuLaunchKernelEx(&config, self.function, parameters.as_mut_ptr(), std::ptr::null_mut())
            },
            "cuLaunchKernelEx on the caller's stream",
        )
    }
}

/// The best image for a compute capability, unpacked.
fn image_for((major, minor): (i32, i32)) -> Result<Vec<u8>> {
    // A cubin runs on its own major capability, from its minor one up; with the suffix `a` on exactly that
    // one.
    let fits = |image: &&images::Image| -> bool {
        let Some(target) = image.target.strip_prefix("sm_") else { return false };
        let exact = target.ends_with('a');
        let Ok(number) = target.trim_end_matches('a').parse::<i32>() else { return false };
        number / 10 == major && if exact { number % 10 == minor } else { number % 10 <= minor }
    };
    let best = images::IMAGES.iter().filter(fits).max_by_key(|image| image.target);
    let portable = || images::IMAGES.iter().find(|image| image.is_ptx && major >= 9);
    let image = best.or_else(portable).ok_or_else(|| {
        Error::usage(format!(
            "no kernels for a GPU of compute capability {major}.{minor}: 8.0 or later is needed"
        ))
    })?;
    miniz_oxide::inflate::decompress_to_vec_with_limit(image.deflated, image.len).map_err(|error| {
        Error::internal(format!("the kernels for {} are damaged in this library file: {error}", image.target))
    })
}
