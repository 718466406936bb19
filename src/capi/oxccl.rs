//! Functions of our own (oxccl.h): which library serves this process.

use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::LazyLock;

/// Version of OxCCL, such as "0.1.0". A program that does not find this function (dlsym) runs with another NCCL.
#[unsafe(no_mangle)]
pub extern "C" fn oxcclVersion() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => panic!("the version has no zero inside"),
        };
    VERSION.as_ptr()
}

/// The file from which this library was loaded; empty where the loader does not tell.
#[unsafe(no_mangle)]
pub extern "C" fn oxcclLibraryPath() -> *const c_char {
    static PATH: LazyLock<CString> = LazyLock::new(library_path);
    PATH.as_ptr()
}

fn library_path() -> CString {
    let mut found = libc::Dl_info {
        dli_fname: c"".as_ptr(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: c"".as_ptr(),
        dli_saddr: std::ptr::null_mut(),
    };
    let here = library_path as fn() -> CString as *const c_void;
    // SAFETY: dladdr takes any address and writes to `found`, whose texts it borrows from the loader.
    let known = unsafe { libc::dladdr(here, &raw mut found) } != 0 && !found.dli_fname.is_null();
    if !known {
        return CString::default();
    }
    // SAFETY: the loader's name of a loaded file, which ends with a zero and stays as long as the file is loaded.
    unsafe { CStr::from_ptr(found.dli_fname) }.to_owned()
}
