//! Functions of the program that run in the order of a stream.
//!
//! They run on a thread of the emulator, one after another within a stream, and must not call the driver.

use crate::error::{INVALID_VALUE, NOT_SUPPORTED, Result};
use crate::stream::{self, Placement};
use crate::types::{CUhostFn, CUstream, CUstreamCallback, Opaque};
use crate::work::Work;

cu! {
    fn cuLaunchHostFunc / cuLaunchHostFunc_ptsz (stream: CUstream, function: CUhostFn, data: Opaque) {
        if function.is_none() {
            return Err(INVALID_VALUE);
        }
        stream::get(stream)?.submit(Work::Host { function, data }).map(|_| ())
    }

    fn cuStreamAddCallback / cuStreamAddCallback_ptsz (
        stream: CUstream, function: CUstreamCallback, data: Opaque, flags: u32,
    ) {
        if function.is_none() || flags != 0 {
            return Err(INVALID_VALUE);
        }
        let target = stream::get(stream)?;
        target
            .submit_with(|state| -> Result<Placement> {
                if let Some(capture) = &mut state.capture {
                    capture.invalidate();
                    return Err(NOT_SUPPORTED);
                }
                Ok(Placement::Queue(Work::Callback { function, stream, data }, Vec::new()))
            })
            .map(|_| ())
    }
}
