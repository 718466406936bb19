//! Lanes and messages of launches whose parameters they do not fit.
//!
//! They lie in host memory that kernels read, lanes first. Eager launches use a list again once its launch has ended, so a
//! program that makes the same groups over and over allocates nothing; a graph has lists of its own.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::error::Result;
use crate::gpu::context::Context;
use crate::gpu::retire::Scratch;
use crate::gpu::stream::{CallerStream, Event, RelaxedCapture};
use crate::gpu::work::{Lane, Message};

/// The lists of a communicator's eager launches.
#[derive(Debug, Default)]
pub struct Lists {
    /// Each with the event of its last launch, in the order of these.
    used: VecDeque<(Scratch, Event)>,
}

impl Lists {
    /// Writes a list into memory that no launch uses any more, calls `launch` with its address, and marks its end on `stream`.
    pub fn with(
        &mut self,
        context: &Arc<Context>,
        (lanes, messages): (&[Lane], &[Message]),
        stream: CallerStream,
        launch: impl FnOnce(u64) -> Result<()>,
    ) -> Result<()> {
        let bytes = size_of_val(lanes) + size_of_val(messages);
        // A communicator's launches end in order, so behind one that runs nothing is free.
        let free = self
            .used
            .iter()
            .take_while(|(_, end)| end.is_done())
            .position(|(memory, _)| memory.bytes() >= bytes);
        let (memory, end) = match free.and_then(|at| self.used.remove(at)) {
            Some(list) => list,
            None => {
                let _relaxed = RelaxedCapture::enter()?;
                (Scratch::new(context, bytes)?, Event::new(context)?)
            }
        };
        let launched = write(&memory, lanes, messages)
            .and_then(|()| launch(memory.address()))
            .and_then(|()| end.record(stream));
        self.used.push_back((memory, end));
        launched
    }
}

/// A list for a graph, which replays it for as long as it lives.
pub fn lasting(context: &Arc<Context>, lanes: &[Lane], messages: &[Message]) -> Result<Arc<Scratch>> {
    let _relaxed = RelaxedCapture::enter()?;
    let memory = Scratch::new(context, size_of_val(lanes) + size_of_val(messages))?;
    write(&memory, lanes, messages)?;
    Ok(Arc::new(memory))
}

fn write(memory: &Scratch, lanes: &[Lane], messages: &[Message]) -> Result<()> {
    memory.write_host(0, Lane::bytes(lanes))?;
    memory.write_host(size_of_val(lanes), Message::bytes(messages))
}
