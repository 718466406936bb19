//! Finds `libnvrtc.so.12`, the kernel compiler, and runs it.
//!
//! The library is loaded at run time of the build script; nothing of CUDA needs to be installed beside it. Looked for
//! in this order: the path in OXCCL_NVRTC, `target/nvrtc/` (where `cargo xtask` unpacks the pinned wheel), the
//! system's loader path, the usual toolkit folders. NVRTC of CUDA 12 is wanted: code of CUDA 13 does not load on
//! drivers before 580.

use std::env;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr;

use libloading::Library;

const NAME: &str = "libnvrtc.so.12";

type Program = *mut c_void;
type GetSize = unsafe extern "C" fn(Program, *mut usize) -> c_int;
type GetBytes = unsafe extern "C" fn(Program, *mut c_char) -> c_int;

/// A loaded kernel compiler.
pub struct Nvrtc {
    library: Library,
    /// Version as NVRTC reports it, such as (12, 9).
    pub version: (i32, i32),
    pub path: PathBuf,
}

/// What one compilation gave.
pub struct Compiled {
    pub image: Vec<u8>,
    pub log: String,
}

impl Nvrtc {
    /// Finds and loads the compiler; the error says where it looked and what to do.
    pub fn find(target_dir: &Path) -> Result<Nvrtc, String> {
        let mut tried = Vec::new();
        for path in candidates(target_dir) {
            match Self::load(&path) {
                Ok(nvrtc) => return Ok(nvrtc),
                Err(why) => tried.push(format!("  {}: {why}", path.display())),
            }
        }
        Err(format!(
            "the kernel compiler {NAME} (NVRTC of CUDA 12) was not found. `cargo xtask build` fetches it into target/; \
             or install NVIDIA's package (cuda-nvrtc-12-9, or `pip install nvidia-cuda-nvrtc-cu12==12.9.86`) and set \
             OXCCL_NVRTC to the path of the file. Looked at:\n{}",
            tried.join("\n")
        ))
    }

    fn load(path: &Path) -> Result<Nvrtc, String> {
        // A name without a slash goes to the loader's search path; anything else has to exist.
        if path.components().count() > 1 && !path.exists() {
            return Err("no such file".into());
        }
        // SAFETY: NVRTC's initialisers do nothing but set up its own state.
        let library = unsafe { Library::new(path) }.map_err(|e| e.to_string())?;
        let mut version = (0, 0);
        // SAFETY: the signature is the documented one and both pointers are valid for the call.
        let rc = unsafe {
            let get = library
                .get::<unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int>(b"nvrtcVersion\0")
                .map_err(|e| e.to_string())?;
            get(&mut version.0, &mut version.1)
        };
        if rc != 0 || version.0 != 12 || version.1 < 9 {
            return Err(format!("version {}.{}, wanted 12.9 (status {rc})", version.0, version.1));
        }
        Ok(Nvrtc { library, version, path: path.to_path_buf() })
    }

    /// Compiles one source for one target. `ptx` chooses PTX instead of machine code.
    pub fn compile(
        &self,
        source: &str,
        name: &str,
        options: &[String],
        ptx: bool,
    ) -> Result<Compiled, String> {
        let source = CString::new(source).map_err(|_| "the source contains a NUL byte".to_string())?;
        let file = CString::new(name).map_err(|e| e.to_string())?;
        let options: Vec<CString> = options
            .iter()
            .map(|o| CString::new(o.as_str()).map_err(|e| e.to_string()))
            .collect::<Result<_, _>>()?;
        let pointers: Vec<*const c_char> = options.iter().map(|o| o.as_ptr()).collect();

        let mut program: Program = ptr::null_mut();
        // SAFETY: the signatures are NVRTC's documented ones; all strings outlive the calls.
        unsafe {
            let create = self.symbol::<unsafe extern "C" fn(
                *mut Program,
                *const c_char,
                *const c_char,
                c_int,
                *const *const c_char,
                *const *const c_char,
            ) -> c_int>(c"nvrtcCreateProgram")?;
            let rc = create(&mut program, source.as_ptr(), file.as_ptr(), 0, ptr::null(), ptr::null());
            self.check(rc, "nvrtcCreateProgram")?;
            let compile = self
                .symbol::<unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int>(
                    c"nvrtcCompileProgram",
                )?;
            let rc = compile(program, pointers.len() as c_int, pointers.as_ptr());
            let log = self.bytes(program, c"nvrtcGetProgramLogSize", c"nvrtcGetProgramLog")?;
            let log = String::from_utf8_lossy(&log).trim_end_matches('\0').to_string();
            self.check(rc, "nvrtcCompileProgram").map_err(|e| format!("{e}\n{log}"))?;
            let image = if ptx {
                self.bytes(program, c"nvrtcGetPTXSize", c"nvrtcGetPTX")?
            } else {
                self.bytes(program, c"nvrtcGetCUBINSize", c"nvrtcGetCUBIN")?
            };
            let destroy =
                self.symbol::<unsafe extern "C" fn(*mut Program) -> c_int>(c"nvrtcDestroyProgram")?;
            self.check(destroy(&mut program), "nvrtcDestroyProgram")?;
            Ok(Compiled { image, log })
        }
    }

    /// SAFETY: `T` has to be the type of the function called `name`.
    unsafe fn symbol<T: Copy>(&self, name: &CStr) -> Result<T, String> {
        // SAFETY: handed on to the caller.
        unsafe { self.library.get::<T>(name.to_bytes_with_nul()) }.map(|s| *s).map_err(|e| e.to_string())
    }

    /// SAFETY: `program` has to be a live program.
    unsafe fn bytes(&self, program: Program, size: &CStr, get: &CStr) -> Result<Vec<u8>, String> {
        // SAFETY: both calls have these signatures; the buffer has the size that NVRTC asked for.
        unsafe {
            let mut len = 0usize;
            self.check(self.symbol::<GetSize>(size)?(program, &mut len), "the size of a result")?;
            let mut out = vec![0u8; len];
            self.check(self.symbol::<GetBytes>(get)?(program, out.as_mut_ptr().cast()), "a result")?;
            Ok(out)
        }
    }

    fn check(&self, rc: c_int, what: &str) -> Result<(), String> {
        if rc == 0 {
            return Ok(());
        }
        // SAFETY: nvrtcGetErrorString accepts any integer and returns a static string.
        let text = unsafe {
            let get = self.symbol::<unsafe extern "C" fn(c_int) -> *const c_char>(c"nvrtcGetErrorString")?;
            CStr::from_ptr(get(rc)).to_string_lossy().into_owned()
        };
        Err(format!("{what}: {text}"))
    }
}

fn candidates(target_dir: &Path) -> Vec<PathBuf> {
    if let Some(path) = env::var_os("OXCCL_NVRTC").filter(|p| !p.is_empty()) {
        let path = PathBuf::from(path);
        // A folder is taken as the place of the file.
        return vec![if path.is_dir() { path.join(NAME) } else { path }];
    }
    let mut paths = vec![target_dir.join("nvrtc").join(NAME), PathBuf::from(NAME)];
    paths.extend(
        [
            "/usr/local/cuda/lib64",
            "/usr/local/cuda-12.9/lib64",
            "/usr/lib/x86_64-linux-gnu",
            "/usr/lib/aarch64-linux-gnu",
        ]
        .iter()
        .map(|dir| Path::new(dir).join(NAME)),
    );
    paths
}
