//! User memory made known to a communicator: registered buffers and symmetric windows.

use std::ffi::{c_int, c_void};

use super::boundary::{self, not_null, unfinished};
use super::types::*;
use crate::error::Error;

/// Makes a buffer known, so that later collectives may use it without copies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommRegister(
    comm: ncclComm_t,
    buff: *mut c_void,
    size: usize,
    handle: *mut *mut c_void,
) -> ncclResult_t {
    twin!(
        pncclCommRegister = comm_register(
            comm: ncclComm_t,
            buff: *mut c_void,
            size: usize,
            handle: *mut *mut c_void,
        ) -> ncclResult_t
    )
}

unsafe fn comm_register(
    comm: ncclComm_t,
    buff: *mut c_void,
    size: usize,
    handle: *mut *mut c_void,
) -> ncclResult_t {
    boundary::on_comm("ncclCommRegister", comm, |comm| {
        not_null(handle, "handle")?;
        not_null(buff, "buff")?;
        let known = comm.buffers().add(buff.addr() as u64, size);
        put!(handle, std::ptr::without_provenance_mut(known))
    })
}

/// Forgets a buffer of ncclCommRegister; a NULL handle is nothing to forget.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommDeregister(comm: ncclComm_t, handle: *mut c_void) -> ncclResult_t {
    twin!(pncclCommDeregister = comm_deregister(comm: ncclComm_t, handle: *mut c_void) -> ncclResult_t)
}

unsafe fn comm_deregister(comm: ncclComm_t, handle: *mut c_void) -> ncclResult_t {
    boundary::on_comm("ncclCommDeregister", comm, |comm| {
        if handle.is_null() { Ok(()) } else { comm.buffers().remove(handle.addr()) }
    })
}

/// Makes memory of all ranks reachable by all ranks. Every rank calls it; flags: NCCL_WIN_* bits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommWindowRegister(
    comm: ncclComm_t,
    buff: *mut c_void,
    size: usize,
    win: *mut ncclWindow_t,
    winFlags: c_int,
) -> ncclResult_t {
    twin!(
        pncclCommWindowRegister = comm_window_register(
            comm: ncclComm_t,
            buff: *mut c_void,
            size: usize,
            win: *mut ncclWindow_t,
            winFlags: c_int,
        ) -> ncclResult_t
    )
}

unsafe fn comm_window_register(
    comm: ncclComm_t,
    buff: *mut c_void,
    size: usize,
    win: *mut ncclWindow_t,
    winFlags: c_int,
) -> ncclResult_t {
    boundary::enqueue("ncclCommWindowRegister", comm, |_| {
        let _ = winFlags;
        not_null(win, "win")?;
        not_null(buff, "buff")?;
        if size == 0 {
            return Err(Error::argument("size is 0: a window has memory"));
        }
        Err(unfinished())
    })
}

/// Ends a window; NULL is nothing to end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommWindowDeregister(comm: ncclComm_t, win: ncclWindow_t) -> ncclResult_t {
    twin!(pncclCommWindowDeregister = comm_window_deregister(comm: ncclComm_t, win: ncclWindow_t) -> ncclResult_t)
}

unsafe fn comm_window_deregister(comm: ncclComm_t, win: ncclWindow_t) -> ncclResult_t {
    boundary::on_comm("ncclCommWindowDeregister", comm, |_| {
        if win.is_null() { Ok(()) } else { Err(unfinished()) }
    })
}

/// The address with which a window was registered on this rank.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclWinGetUserPtr(
    comm: ncclComm_t,
    win: ncclWindow_t,
    outUserPtr: *mut *mut c_void,
) -> ncclResult_t {
    twin!(
        pncclWinGetUserPtr = win_get_user_ptr(
            comm: ncclComm_t,
            win: ncclWindow_t,
            outUserPtr: *mut *mut c_void,
        ) -> ncclResult_t
    )
}

unsafe fn win_get_user_ptr(
    comm: ncclComm_t,
    win: ncclWindow_t,
    outUserPtr: *mut *mut c_void,
) -> ncclResult_t {
    boundary::on_comm("ncclWinGetUserPtr", comm, |_| {
        not_null(win, "win")?;
        not_null(outUserPtr, "outUserPtr")?;
        Err(unfinished())
    })
}
