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

/// ncclCollConfig_t as its initialiser leaves it.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CollConfig {
    pub size: usize,
    pub magic: u32,
    pub version: u32,
    pub ext: *const c_void,
    pub min_ctas: c_int,
    pub max_ctas: c_int,
    pub nvls_ctas: c_int,
    pub cga_cluster_size: c_int,
    pub alg_selection: *const c_char,
    pub force_alg_selection: c_int,
    pub cta_policy: c_int,
    pub profiler_tag: u64,
    pub launch_completion_event: *const c_void,
}

impl CollConfig {
    pub fn new() -> CollConfig {
        const UNDEF: c_int = c_int::MIN;
        CollConfig {
            size: size_of::<CollConfig>(),
            magic: Config::MAGIC,
            version: 23203,
            ext: ptr::null(),
            min_ctas: UNDEF,
            max_ctas: UNDEF,
            nvls_ctas: UNDEF,
            cga_cluster_size: UNDEF,
            alg_selection: ptr::null(),
            force_alg_selection: 0,
            cta_policy: UNDEF,
            profiler_tag: 0,
            launch_completion_event: ptr::null(),
        }
    }
}

impl Default for CollConfig {
    fn default() -> Self {
        Self::new()
    }
}

/// Where the factor of a scaled sum is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Residence {
    /// In device memory, read when the operation runs.
    Device = 0,
    /// In host memory, read when the operation is made.
    Host = 1,
}

/// Declares the table of functions and the code that fills it.
macro_rules! functions {
    ($($name:ident($($arg:ty),*);)*) => {
        #[allow(non_snake_case)]
        struct Functions {
            $($name: unsafe extern "C" fn($($arg),*) -> c_int,)*
            ncclResetDebugInit: unsafe extern "C" fn(),
            ncclGetErrorString: unsafe extern "C" fn(c_int) -> *const c_char,
            ncclGetLastError: unsafe extern "C" fn(*mut c_void) -> *const c_char,
        }
        impl Functions {
            fn resolve(library: &Library) -> Outcome<Functions> {
                // SAFETY: the prototypes are those of nccl.h.
                unsafe {
                    Ok(Functions {
                        $($name: *library.get(concat!(stringify!($name), "\0").as_bytes()).map_err(|e| e.to_string())?,)*
                        ncclResetDebugInit: *library.get(b"ncclResetDebugInit\0").map_err(|e| e.to_string())?,
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
    ncclCommInitRankScalable(*mut *mut c_void, c_int, c_int, c_int, *const UniqueId, *const Config);
    ncclCommSplit(*mut c_void, c_int, c_int, *mut *mut c_void, *const Config);
    ncclRedOpCreatePreMulSum(*mut c_int, *const c_void, c_int, c_int, *mut c_void);
    ncclRedOpDestroy(c_int, *mut c_void);
    ncclMemAlloc(*mut u64, usize);
    ncclMemFree(u64);
    ncclCommRegister(*mut c_void, u64, usize, *mut usize);
    ncclCommDeregister(*mut c_void, usize);
    ncclAllReduceConfig(u64, u64, usize, c_int, c_int, *mut c_void, usize, *const CollConfig);
    ncclReduceScatterConfig(u64, u64, usize, c_int, c_int, *mut c_void, usize, *const CollConfig);
    ncclReduceConfig(u64, u64, usize, c_int, c_int, c_int, *mut c_void, usize, *const CollConfig);
    ncclBroadcastConfig(u64, u64, usize, c_int, c_int, *mut c_void, usize, *const CollConfig);
    ncclAllGatherConfig(u64, u64, usize, c_int, *mut c_void, usize, *const CollConfig);
    ncclAlltoAllConfig(u64, u64, usize, c_int, *mut c_void, usize, *const CollConfig);
    ncclGatherConfig(u64, u64, usize, c_int, c_int, *mut c_void, usize, *const CollConfig);
    ncclScatterConfig(u64, u64, usize, c_int, c_int, *mut c_void, usize, *const CollConfig);
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

    pub fn init_rank_scalable(
        &self,
        comm: &mut Comm,
        nranks: i32,
        rank: i32,
        ids: (i32, *const UniqueId),
        config: Option<&Config>,
    ) -> i32 {
        let mut raw = comm.raw();
        let config = config.map_or(ptr::null(), ptr::from_ref);
        let code = call!(self.ncclCommInitRankScalable(&mut raw, nranks, rank, ids.0, ids.1, config));
        *comm = Comm(raw as usize);
        code
    }

    /// Inside a group `child` is written at the group's end, so it has to live until then.
    pub fn split(&self, comm: Comm, color: i32, key: i32, child: &mut Comm, config: Option<&Config>) -> i32 {
        let config = config.map_or(ptr::null(), ptr::from_ref);
        call!(self.ncclCommSplit(comm.raw(), color, key, ptr::from_mut(child).cast(), config))
    }

    /// The scalar lies at `scalar`, in host or device memory.
    pub fn make_op(&self, scalar: usize, t: i32, residence: i32, comm: Comm) -> (i32, i32) {
        let mut op = -1;
        let scalar = scalar as *const c_void;
        (call!(self.ncclRedOpCreatePreMulSum(&mut op, scalar, t, residence, comm.raw())), op)
    }

    pub fn destroy_op(&self, op: i32, comm: Comm) -> i32 {
        call!(self.ncclRedOpDestroy(op, comm.raw()))
    }

    pub fn mem_alloc(&self, bytes: usize) -> (i32, u64) {
        let mut address = 0;
        (call!(self.ncclMemAlloc(&mut address, bytes)), address)
    }

    pub fn mem_free(&self, address: u64) -> i32 {
        call!(self.ncclMemFree(address))
    }

    pub fn register(&self, comm: Comm, buffer: u64, bytes: usize) -> (i32, usize) {
        let mut handle = 0;
        (call!(self.ncclCommRegister(comm.raw(), buffer, bytes, &mut handle)), handle)
    }

    pub fn deregister(&self, comm: Comm, handle: usize) -> i32 {
        call!(self.ncclCommDeregister(comm.raw(), handle))
    }

    pub fn reset_debug(&self) {
        // SAFETY: takes nothing.
        unsafe { (self.functions.ncclResetDebugInit)() }
    }

    /// A collective with settings; none for functions that have no such form.
    pub fn with_config(
        &self,
        function: crate::call::Function,
        (send, recv, count): (u64, u64, usize),
        (t, op, root): (i32, i32, i32),
        comm: Comm,
        stream: Stream,
        config: Option<&CollConfig>,
    ) -> Option<i32> {
        use crate::call::Function::*;
        let (comm, stream, config) = (comm.raw(), stream.0, config.map_or(ptr::null(), ptr::from_ref));
        Some(match function {
            AllReduce => call!(self.ncclAllReduceConfig(send, recv, count, t, op, comm, stream, config)),
            ReduceScatter => {
                call!(self.ncclReduceScatterConfig(send, recv, count, t, op, comm, stream, config))
            }
            Reduce => call!(self.ncclReduceConfig(send, recv, count, t, op, root, comm, stream, config)),
            Broadcast => call!(self.ncclBroadcastConfig(send, recv, count, t, root, comm, stream, config)),
            AllGather => call!(self.ncclAllGatherConfig(send, recv, count, t, comm, stream, config)),
            AllToAll => call!(self.ncclAlltoAllConfig(send, recv, count, t, comm, stream, config)),
            Gather => call!(self.ncclGatherConfig(send, recv, count, t, root, comm, stream, config)),
            Scatter => call!(self.ncclScatterConfig(send, recv, count, t, root, comm, stream, config)),
            _ => return None,
        })
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
