//! The driver itself: found, initialised and checked once per process, and its result codes turned into
//! sentences.
//!
//! cudarc loads libcuda on first use and panics when it is missing, so nothing here calls a driver function
//! before [`driver`] has seen the library; the C boundary catches what still panics (a symbol that an old
//! driver lacks).

use std::ffi::CStr;

use cudarc::driver::sys;
use once_cell::sync::OnceCell;

use crate::error::{Code, Error, Result};

/// CUDA 12.0, driver 525: the oldest whose loader takes our images.
const OLDEST_VERSION: i32 = 12_000;

/// What the process knows of the driver.
#[derive(Debug, Clone, Copy)]
pub struct Driver {
    /// As cuDriverGetVersion has it: 12080 is CUDA 12.8.
    pub version: i32,
    pub devices: i32,
}

impl Driver {
    pub fn at_least(&self, version: i32) -> bool {
        self.version >= version
    }
}

/// The initialised driver; a failure is tried again at the next call (a container may get its devices late).
pub fn driver() -> Result<&'static Driver> {
    static DRIVER: OnceCell<Driver> = OnceCell::new();
    DRIVER.get_or_try_init(open)
}

fn open() -> Result<Driver> {
    let missing = || {
        Error::new(
            Code::UnhandledCuda,
            "no CUDA driver: libcuda.so.1 was not found; install the NVIDIA driver (525 or later), or in a container mount it \
             (nvidia-container-toolkit), or put the emulated driver on LD_LIBRARY_PATH",
        )
    };
    // SAFETY: only loads the library; a panic of cudarc's loader cannot happen once this answered true.
    if !unsafe { sys::is_culib_present() } {
        return Err(missing());
    }
    // SAFETY: libcuda is loaded; the toolkit's stub library has the symbols too and answers with
    // CUDA_ERROR_STUB_LIBRARY.
    check(unsafe { sys::cuInit(0) }, "cuInit")?;
    let mut version = 0;
    // SAFETY: out pointer to a live integer.
    check(unsafe { sys::cuDriverGetVersion(&mut version) }, "cuDriverGetVersion")?;
    if version < OLDEST_VERSION {
        return Err(Error::new(
            Code::UnhandledCuda,
            format!(
                "the CUDA driver is too old: it supports CUDA {}.{}, this library needs 12.0 (driver 525 or later)",
                version / 1000,
                version % 1000 / 10
            ),
        ));
    }
    let mut devices = 0;
    // SAFETY: out pointer to a live integer.
    check(unsafe { sys::cuDeviceGetCount(&mut devices) }, "cuDeviceGetCount")?;
    if devices == 0 {
        return Err(Error::new(
            Code::UnhandledCuda,
            "no GPU: the CUDA driver sees no device; look at nvidia-smi and CUDA_VISIBLE_DEVICES",
        ));
    }
    Ok(Driver { version, devices })
}

/// Turns a driver result into the library's: `attempted` is the call, with what a reader needs to know of its
/// arguments.
pub fn check(result: sys::CUresult, attempted: &str) -> Result<()> {
    if result == sys::CUresult::CUDA_SUCCESS { Ok(()) } else { Err(failure(result, attempted)) }
}

#[cold]
fn failure(result: sys::CUresult, attempted: &str) -> Error {
    let code = result as u32;
    let advice = match result {
        sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
            "; the GPU's memory is full: lower the framework's memory fraction, or leave room for 32 MiB per process"
        }
        sys::CUresult::CUDA_ERROR_ILLEGAL_ADDRESS => {
            "; an earlier kernel of this process (any library's) accessed memory it may not, the context is lost"
        }
        sys::CUresult::CUDA_ERROR_NO_DEVICE => {
            "; the driver sees no GPU: look at nvidia-smi and CUDA_VISIBLE_DEVICES"
        }
        sys::CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU => "; this GPU is older than compute capability 8.0",
        _ => "",
    };
    Error::new(
        Code::UnhandledCuda,
        format!("{attempted} failed with CUDA error {code} ({}){advice}", name(result)),
    )
}

fn name(result: sys::CUresult) -> String {
    let mut text = std::ptr::null();
    // SAFETY: out pointer to a live pointer; the driver returns static text or leaves it NULL.
    let known = unsafe { sys::cuGetErrorName(result, &mut text) };
    if known != sys::CUresult::CUDA_SUCCESS || text.is_null() {
        return "unknown".to_owned();
    }
    // SAFETY: the driver's texts are static and end with a zero.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
