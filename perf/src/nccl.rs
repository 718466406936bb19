//! The public ABI of an NCCL library that is given by path, NVIDIA's own included.
//!
//! Functions that only newer versions export are optional. A call that returns ncclInvalidUsage is kept apart from
//! real failures: that is how a library says that it does not have the function.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::Path;
use std::ptr;

use libloading::Library;

use crate::cuda::{DevicePtr, Stream, functions};

pub const ID_BYTES: usize = 128;
pub type Comm = *mut c_void;
type Buffer = DevicePtr;

/// ncclUniqueId, passed by value.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct UniqueId(pub [u8; ID_BYTES]);

const INVALID_USAGE: c_int = 5;

/// Why a call did not do its work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The library does not offer this; its sentence.
    Unsupported(String),
    Error(String),
}

impl From<String> for Failure {
    fn from(text: String) -> Self {
        Failure::Error(text)
    }
}

functions!(Functions {
    get_version = "ncclGetVersion": fn(*mut c_int);
    get_unique_id = "ncclGetUniqueId": fn(*mut UniqueId);
    comm_init_rank = "ncclCommInitRank": fn(*mut Comm, c_int, UniqueId, c_int);
    comm_destroy = "ncclCommDestroy": fn(Comm);
    get_async_error = "ncclCommGetAsyncError": fn(Comm, *mut c_int);
    all_reduce = "ncclAllReduce": fn(Buffer, Buffer, usize, c_int, c_int, Comm, Stream);
    broadcast = "ncclBroadcast": fn(Buffer, Buffer, usize, c_int, c_int, Comm, Stream);
    reduce = "ncclReduce": fn(Buffer, Buffer, usize, c_int, c_int, c_int, Comm, Stream);
    all_gather = "ncclAllGather": fn(Buffer, Buffer, usize, c_int, Comm, Stream);
    reduce_scatter = "ncclReduceScatter": fn(Buffer, Buffer, usize, c_int, c_int, Comm, Stream);
    send = "ncclSend": fn(Buffer, usize, c_int, c_int, Comm, Stream);
    recv = "ncclRecv": fn(Buffer, usize, c_int, c_int, Comm, Stream);
    group_start = "ncclGroupStart": fn();
    group_end = "ncclGroupEnd": fn();
});

type AllToAll = unsafe extern "C" fn(Buffer, Buffer, usize, c_int, Comm, Stream) -> c_int;
type GetText = unsafe extern "C" fn(Comm) -> *const c_char;
type GetErrorString = unsafe extern "C" fn(c_int) -> *const c_char;

/// A loaded library.
pub struct Nccl {
    pub f: Functions,
    /// Since 2.28.
    all_to_all: Option<AllToAll>,
    get_last_error: Option<GetText>,
    get_error_string: Option<GetErrorString>,
}

impl Nccl {
    pub fn open(path: &Path) -> Result<Nccl, String> {
        let open = || {
            // SAFETY: NCCL libraries have no initialisers with requirements.
            unsafe { Library::new(path) }.map_err(|e| format!("{}: {e}", path.display()))
        };
        let extra = open()?;
        // SAFETY: the types are the public prototypes; `f` keeps the library loaded for as long as these are used.
        let (all_to_all, get_last_error, get_error_string) = unsafe {
            (
                extra.get::<AllToAll>(b"ncclAlltoAll\0").ok().map(|s| *s),
                extra.get::<GetText>(b"ncclGetLastError\0").ok().map(|s| *s),
                extra.get::<GetErrorString>(b"ncclGetErrorString\0").ok().map(|s| *s),
            )
        };
        Ok(Nccl { f: Functions::resolve(open()?)?, all_to_all, get_last_error, get_error_string })
    }

    /// Version as the library reports it, such as 22809.
    pub fn version(&self) -> Result<c_int, Failure> {
        let mut version = 0;
        // SAFETY: a valid out pointer.
        self.check("ncclGetVersion", ptr::null_mut(), unsafe { (self.f.get_version)(&mut version) })?;
        Ok(version)
    }

    pub fn unique_id(&self) -> Result<UniqueId, Failure> {
        let mut id = UniqueId([0; ID_BYTES]);
        // SAFETY: a valid out pointer.
        self.check("ncclGetUniqueId", ptr::null_mut(), unsafe { (self.f.get_unique_id)(&mut id) })?;
        Ok(id)
    }

    pub fn init(&self, nranks: usize, id: UniqueId, rank: usize) -> Result<Comm, Failure> {
        let mut comm = ptr::null_mut();
        // SAFETY: a valid out pointer, the id by value.
        let rc = unsafe { (self.f.comm_init_rank)(&mut comm, nranks as c_int, id, rank as c_int) };
        self.check("ncclCommInitRank", ptr::null_mut(), rc)?;
        Ok(comm)
    }

    pub fn destroy(&self, comm: Comm) -> Result<(), Failure> {
        // SAFETY: a communicator made by `init`, destroyed once.
        self.check("ncclCommDestroy", ptr::null_mut(), unsafe { (self.f.comm_destroy)(comm) })
    }

    /// Fails when the communicator has met an error since.
    pub fn async_error(&self, comm: Comm) -> Result<(), Failure> {
        let mut state = 0;
        // SAFETY: a live communicator and a valid out pointer.
        self.check("ncclCommGetAsyncError", comm, unsafe { (self.f.get_async_error)(comm, &mut state) })?;
        self.check("the communicator", comm, state)
    }

    pub fn all_to_all(&self) -> Result<AllToAll, Failure> {
        self.all_to_all.ok_or_else(|| Failure::Unsupported("the library has no ncclAlltoAll".into()))
    }

    /// Runs `calls` between ncclGroupStart and ncclGroupEnd; the group is ended also when a call fails.
    pub fn group(&self, comm: Comm, calls: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
        // SAFETY: no pointers.
        self.check("ncclGroupStart", comm, unsafe { (self.f.group_start)() })?;
        let called = calls();
        // SAFETY: no pointers.
        let ended = self.check("ncclGroupEnd", comm, unsafe { (self.f.group_end)() });
        called.and(ended)
    }

    pub fn check(&self, what: &str, comm: Comm, rc: c_int) -> Result<(), Failure> {
        if rc == 0 {
            return Ok(());
        }
        // SAFETY: NULL or a live communicator; both functions return static or thread-owned strings.
        let text = unsafe {
            let code = self.get_error_string.map(|get| text(get(rc))).unwrap_or_default();
            let last = self.get_last_error.map(|get| text(get(comm))).unwrap_or_default();
            format!("{what}: {code} ({rc}): {last}")
        };
        Err(if rc == INVALID_USAGE { Failure::Unsupported(text) } else { Failure::Error(text) })
    }
}

/// SAFETY: `pointer` is NULL or a NUL-terminated string.
unsafe fn text(pointer: *const c_char) -> String {
    if pointer.is_null() {
        return String::new();
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(pointer) }.to_string_lossy().replace('\n', " ").trim().to_string()
}
