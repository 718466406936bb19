//! The library under test, loaded by path, through the public C ABI alone.
//!
//! Calls return the code as the library gave it; [`Nccl::ok`] turns a failure into a sentence. Wrong arguments are
//! passed on as they are: refusing them is the library's task.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;
use std::ptr;

use libloading::Library;

use crate::driver::{Outcome, Stream};

pub const SUCCESS: i32 = 0;
pub const UNHANDLED_CUDA: i32 = 1;
pub const INTERNAL: i32 = 3;
pub const INVALID_ARGUMENT: i32 = 4;
pub const INVALID_USAGE: i32 = 5;
pub const REMOTE: i32 = 6;
pub const IN_PROGRESS: i32 = 7;

/// A communicator handle; NULL and garbage are values like any other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Comm(pub usize);

impl Comm {
    pub const NULL: Comm = Comm(0);

    fn raw(self) -> *mut c_void {
        self.0 as *mut c_void
    }
}

#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UniqueId(pub [u8; 128]);

/// ncclConfig_t of version 2.28: the one that today's callers were built with.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Config {
    pub size: usize,
    pub magic: u32,
    pub version: u32,
    pub blocking: c_int,
    pub cga_cluster_size: c_int,
    pub min_ctas: c_int,
    pub max_ctas: c_int,
    pub net_name: *const c_char,
    pub split_share: c_int,
    pub traffic_class: c_int,
    pub comm_name: *const c_char,
    pub collnet_enable: c_int,
    pub cta_policy: c_int,
    pub shrink_share: c_int,
    pub nvls_ctas: c_int,
    pub channels_per_net_peer: c_int,
    pub nvlink_centric_sched: c_int,
    /// Room that newer versions use: a caller of another size passes a struct that is longer.
    pub beyond: [u8; 64],
}

impl Config {
    pub const MAGIC: u32 = 0xcafe_beef;
    /// Bytes of the 2.28 struct.
    pub const SIZE: usize = 80;

    pub fn new() -> Config {
        const UNDEF: c_int = c_int::MIN;
        Config {
            size: Self::SIZE,
            magic: Self::MAGIC,
            version: 22809,
            blocking: UNDEF,
            cga_cluster_size: UNDEF,
            min_ctas: UNDEF,
            max_ctas: UNDEF,
            net_name: ptr::null(),
            split_share: UNDEF,
            traffic_class: UNDEF,
            comm_name: ptr::null(),
            collnet_enable: UNDEF,
            cta_policy: UNDEF,
            shrink_share: UNDEF,
            nvls_ctas: UNDEF,
            channels_per_net_peer: UNDEF,
            nvlink_centric_sched: UNDEF,
            beyond: [0; 64],
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self::new()
    }
}

/// Declares the table of functions and the code that fills it.
macro_rules! functions {
    ($($name:ident($($arg:ty),*);)*) => {
        #[allow(non_snake_case)]
        struct Functions {
            $($name: unsafe extern "C" fn($($arg),*) -> c_int,)*
            ncclGetErrorString: unsafe extern "C" fn(c_int) -> *const c_char,
            ncclGetLastError: unsafe extern "C" fn(*mut c_void) -> *const c_char,
        }
        impl Functions {
            fn resolve(library: &Library) -> Outcome<Functions> {
                // SAFETY: the prototypes are those of nccl.h.
                unsafe {
                    Ok(Functions {
                        $($name: *library.get(concat!(stringify!($name), "\0").as_bytes()).map_err(|e| e.to_string())?,)*
                        ncclGetErrorString: *library.get(b"ncclGetErrorString\0").map_err(|e| e.to_string())?,
                        ncclGetLastError: *library.get(b"ncclGetLastError\0").map_err(|e| e.to_string())?,
                    })
                }
            }
        }
    };
}

functions! {
    ncclGetVersion(*mut c_int);
    ncclGetUniqueId(*mut UniqueId);
    ncclCommInitRank(*mut *mut c_void, c_int, UniqueId, c_int);
    ncclCommInitRankConfig(*mut *mut c_void, c_int, UniqueId, c_int, *const Config);
    ncclCommInitAll(*mut *mut c_void, c_int, *const c_int);
    ncclCommFinalize(*mut c_void);
    ncclCommDestroy(*mut c_void);
    ncclCommAbort(*mut c_void);
    ncclCommGetAsyncError(*mut c_void, *mut c_int);
    ncclCommCount(*mut c_void, *mut c_int);
    ncclCommCuDevice(*mut c_void, *mut c_int);
    ncclCommUserRank(*mut c_void, *mut c_int);
    ncclGroupStart();
    ncclGroupEnd();
    ncclGroupSimulateEnd(*mut c_void);
    ncclAllReduce(u64, u64, usize, c_int, c_int, *mut c_void, usize);
    ncclReduceScatter(u64, u64, usize, c_int, c_int, *mut c_void, usize);
    ncclReduce(u64, u64, usize, c_int, c_int, c_int, *mut c_void, usize);
    ncclBroadcast(u64, u64, usize, c_int, c_int, *mut c_void, usize);
    ncclBcast(u64, usize, c_int, c_int, *mut c_void, usize);
    ncclAllGather(u64, u64, usize, c_int, *mut c_void, usize);
    ncclAlltoAll(u64, u64, usize, c_int, *mut c_void, usize);
    ncclGather(u64, u64, usize, c_int, c_int, *mut c_void, usize);
    ncclScatter(u64, u64, usize, c_int, c_int, *mut c_void, usize);
    ncclSend(u64, usize, c_int, c_int, *mut c_void, usize);
    ncclRecv(u64, usize, c_int, c_int, *mut c_void, usize);
}

/// Forwards to a function of the table.
macro_rules! call {
    ($self:ident.$name:ident($($arg:expr),*)) => {
        // SAFETY: out pointers are to live locals of the caller; everything else is for the library to check.
        unsafe { ($self.functions.$name)($($arg),*) }
    };
}

/// The loaded library; it stays loaded until the process ends.
pub struct Nccl {
    functions: Functions,
    _library: Library,
}

impl std::fmt::Debug for Nccl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Nccl")
    }
}

#[allow(clippy::too_many_arguments)] // the ABI's own
impl Nccl {
    pub fn open(path: &Path) -> Outcome<Nccl> {
        // SAFETY: the library has no initialisers with requirements on the caller.
        let library = unsafe { Library::new(path) }.map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(Nccl { functions: Functions::resolve(&library)?, _library: library })
    }

    /// A failure as a sentence: the function, the code's name, the last error.
    pub fn ok(&self, what: &str, comm: Comm, code: i32) -> Outcome {
        if code == SUCCESS {
            return Ok(());
        }
        Err(format!("{what}: {} ({code}): {}", self.error_string(code), self.last_error(comm)))
    }

    pub fn error_string(&self, code: i32) -> String {
        text(call!(self.ncclGetErrorString(code)))
    }

    pub fn last_error(&self, comm: Comm) -> String {
        text(call!(self.ncclGetLastError(comm.raw())))
    }

    pub fn version(&self) -> (i32, i32) {
        let mut version = 0;
        let code = call!(self.ncclGetVersion(&mut version));
        (code, version)
    }

    pub fn unique_id(&self) -> Outcome<UniqueId> {
        let mut id = UniqueId([0; 128]);
        let code = call!(self.ncclGetUniqueId(&mut id));
        self.ok("ncclGetUniqueId", Comm::NULL, code)?;
        Ok(id)
    }

    pub fn init_rank(&self, comm: &mut Comm, nranks: i32, id: UniqueId, rank: i32) -> i32 {
        let mut raw = comm.raw();
        let code = call!(self.ncclCommInitRank(&mut raw, nranks, id, rank));
        *comm = Comm(raw as usize);
        code
    }

    /// Inside a group: `comm` is written at the group's end, so it has to live until then.
    pub fn init_rank_at(&self, comm: &mut Comm, nranks: i32, id: UniqueId, rank: i32) -> i32 {
        call!(self.ncclCommInitRank(ptr::from_mut(comm).cast(), nranks, id, rank))
    }

    pub fn init_rank_config(
        &self,
        comm: &mut Comm,
        nranks: i32,
        id: UniqueId,
        rank: i32,
        config: &Config,
    ) -> i32 {
        let mut raw = comm.raw();
        let code = call!(self.ncclCommInitRankConfig(&mut raw, nranks, id, rank, config));
        *comm = Comm(raw as usize);
        code
    }

    pub fn init_all(&self, devices: &[i32]) -> (i32, Vec<Comm>) {
        let mut raw = vec![ptr::null_mut(); devices.len()];
        let code = call!(self.ncclCommInitAll(raw.as_mut_ptr(), devices.len() as c_int, devices.as_ptr()));
        (code, raw.into_iter().map(|comm| Comm(comm as usize)).collect())
    }

    pub fn finalize(&self, comm: Comm) -> i32 {
        call!(self.ncclCommFinalize(comm.raw()))
    }

    pub fn destroy(&self, comm: Comm) -> i32 {
        call!(self.ncclCommDestroy(comm.raw()))
    }

    pub fn abort(&self, comm: Comm) -> i32 {
        call!(self.ncclCommAbort(comm.raw()))
    }

    /// The communicator's state, or the code of the query where that failed.
    pub fn async_error(&self, comm: Comm) -> i32 {
        let mut state = 0;
        let code = call!(self.ncclCommGetAsyncError(comm.raw(), &mut state));
        if code == SUCCESS { state } else { code }
    }

    pub fn count(&self, comm: Comm) -> (i32, i32) {
        let mut value = -1;
        (call!(self.ncclCommCount(comm.raw(), &mut value)), value)
    }

    pub fn cu_device(&self, comm: Comm) -> (i32, i32) {
        let mut value = -1;
        (call!(self.ncclCommCuDevice(comm.raw(), &mut value)), value)
    }

    pub fn user_rank(&self, comm: Comm) -> (i32, i32) {
        let mut value = -1;
        (call!(self.ncclCommUserRank(comm.raw(), &mut value)), value)
    }

    pub fn group_start(&self) -> i32 {
        call!(self.ncclGroupStart())
    }

    /// With NULL: the caller asks for no estimate.
    pub fn group_simulate_end(&self) -> i32 {
        call!(self.ncclGroupSimulateEnd(ptr::null_mut()))
    }

    pub fn group_end(&self) -> i32 {
        call!(self.ncclGroupEnd())
    }

    /// Runs `calls` in a group, which is ended also when one fails.
    pub fn group(&self, comm: Comm, calls: impl FnOnce() -> Outcome) -> Outcome {
        self.ok("ncclGroupStart", comm, self.group_start())?;
        let called = calls();
        let ended = self.group_end();
        called?;
        self.ok("ncclGroupEnd", comm, ended)
    }

    pub fn all_reduce(
        &self,
        send: u64,
        recv: u64,
        count: usize,
        t: i32,
        op: i32,
        comm: Comm,
        stream: Stream,
    ) -> i32 {
        call!(self.ncclAllReduce(send, recv, count, t, op, comm.raw(), stream.0))
    }

    pub fn reduce_scatter(
        &self,
        send: u64,
        recv: u64,
        count: usize,
        t: i32,
        op: i32,
        comm: Comm,
        stream: Stream,
    ) -> i32 {
        call!(self.ncclReduceScatter(send, recv, count, t, op, comm.raw(), stream.0))
    }

    pub fn reduce(
        &self,
        send: u64,
        recv: u64,
        count: usize,
        t: i32,
        op: i32,
        root: i32,
        comm: Comm,
        stream: Stream,
    ) -> i32 {
        call!(self.ncclReduce(send, recv, count, t, op, root, comm.raw(), stream.0))
    }

    pub fn broadcast(
        &self,
        send: u64,
        recv: u64,
        count: usize,
        t: i32,
        root: i32,
        comm: Comm,
        stream: Stream,
    ) -> i32 {
        call!(self.ncclBroadcast(send, recv, count, t, root, comm.raw(), stream.0))
    }

    pub fn bcast(&self, buffer: u64, count: usize, t: i32, root: i32, comm: Comm, stream: Stream) -> i32 {
        call!(self.ncclBcast(buffer, count, t, root, comm.raw(), stream.0))
    }

    pub fn all_gather(&self, send: u64, recv: u64, count: usize, t: i32, comm: Comm, stream: Stream) -> i32 {
        call!(self.ncclAllGather(send, recv, count, t, comm.raw(), stream.0))
    }

    pub fn all_to_all(&self, send: u64, recv: u64, count: usize, t: i32, comm: Comm, stream: Stream) -> i32 {
        call!(self.ncclAlltoAll(send, recv, count, t, comm.raw(), stream.0))
    }

    pub fn gather(
        &self,
        send: u64,
        recv: u64,
        count: usize,
        t: i32,
        root: i32,
        comm: Comm,
        stream: Stream,
    ) -> i32 {
        call!(self.ncclGather(send, recv, count, t, root, comm.raw(), stream.0))
    }

    pub fn scatter(
        &self,
        send: u64,
        recv: u64,
        count: usize,
        t: i32,
        root: i32,
        comm: Comm,
        stream: Stream,
    ) -> i32 {
        call!(self.ncclScatter(send, recv, count, t, root, comm.raw(), stream.0))
    }

    pub fn send(&self, buffer: u64, count: usize, t: i32, peer: i32, comm: Comm, stream: Stream) -> i32 {
        call!(self.ncclSend(buffer, count, t, peer, comm.raw(), stream.0))
    }

    pub fn recv(&self, buffer: u64, count: usize, t: i32, peer: i32, comm: Comm, stream: Stream) -> i32 {
        call!(self.ncclRecv(buffer, count, t, peer, comm.raw(), stream.0))
    }
}

fn text(pointer: *const c_char) -> String {
    if pointer.is_null() {
        return String::new();
    }
    // SAFETY: the library answers with NULL or with a static string that ends with a zero.
    CString::from(unsafe { CStr::from_ptr(pointer) }).to_string_lossy().into_owned()
}
