//! The messages of a batch: one launch with a block per lane, and copies for messages to oneself.

use std::collections::VecDeque;
use std::sync::Arc;

use super::Message;
use super::launch::Streams;
use crate::comm::{Comm, Lists, Needs, lasting};
use crate::error::{Error, Result};
use crate::gpu::host_block::Record;
use crate::gpu::layout::{KERNEL_MESSAGES, message_is_ll};
use crate::gpu::retire::Scratch;
use crate::gpu::stream::Capture;
use crate::gpu::work::{INLINE_LANES, INLINE_MESSAGES, Lane, Message as Work, MessageWork};
use crate::process;
use crate::schedule::messages::{Lanes, Planned, lanes};

pub(super) fn launch_messages(
    comm: &Arc<Comm>,
    messages: &[Message],
    streams: &Streams,
    lists: &mut Lists,
) -> Result<()> {
    if messages.is_empty() {
        return Ok(());
    }
    let own = comm.rank() as u32;
    for (from, to, bytes) in self_copies(own, messages)? {
        if bytes > 0 && from != to {
            streams.main.copy(to, from, bytes as usize)?;
        }
    }
    let planned: Vec<Planned> = messages
        .iter()
        .filter(|message| message.peer != own)
        .map(|&Message { peer, is_send, buffer, bytes }| Planned { peer, is_send, buffer, bytes })
        .collect();
    if planned.is_empty() {
        return Ok(());
    }
    let Lanes { lanes, messages } = lanes(&planned, comm.nranks() as u32);
    let mut work = MessageWork {
        comm: comm.args(&needs(&planned))?,
        lanes: 0,
        messages: 0,
        inline_lanes: [Lane::default(); INLINE_LANES],
        inline_messages: [Work::default(); INLINE_MESSAGES],
    };
    let grid = lanes.len() as u32;
    let bytes = planned.iter().map(|message| message.bytes).sum();
    comm.record(Record { bytes, grid, messages: planned.len() as u32, ..streams.record() });
    let kernel = comm.kernels().get(KERNEL_MESSAGES);
    if lanes.len() <= INLINE_LANES && messages.len() <= INLINE_MESSAGES {
        work.inline_lanes[..lanes.len()].copy_from_slice(&lanes);
        work.inline_messages[..messages.len()].copy_from_slice(&messages);
        return kernel.launch(grid, &work, streams.main);
    }
    let mut launch = |list: u64| {
        work.lanes = list;
        work.messages = list + size_of_val(&lanes[..]) as u64;
        kernel.launch(grid, &work, streams.main)
    };
    match streams.capture {
        Capture::None => lists.with(comm.context(), (&lanes, &messages), streams.main, launch),
        Capture::Active { graph, .. } => {
            let list = lasting(comm.context(), &lanes, &messages)?;
            // First: a launch that is in the graph must never be without its list.
            graph.keep(list.clone(), give_up_list)?;
            launch(list.address())
        }
    }
}

/// A graph's list: its memory may only be given back where CUDA may be called, and not on the service thread, which the driver might
/// hold up.
fn give_up_list(list: Arc<Scratch>) {
    process::defer(|| process::on_worker(|| drop(list)));
}

fn needs(planned: &[Planned]) -> Needs {
    let mut needs = Needs::default();
    for message in planned.iter().filter(|message| !message_is_ll(message.bytes)) {
        let peers = if message.is_send { &mut needs.sends } else { &mut needs.receives };
        if !peers.contains(&message.peer) {
            peers.push(message.peer);
        }
    }
    needs
}

/// Source, destination and bytes of the messages that a rank sends to itself, in order.
fn self_copies(own: u32, messages: &[Message]) -> Result<Vec<(u64, u64, u64)>> {
    let of = |is_send: bool| -> VecDeque<&Message> {
        messages.iter().filter(|message| message.peer == own && message.is_send == is_send).collect()
    };
    let (sends, receives) = (of(true), of(false));
    if sends.len() != receives.len() {
        return Err(Error::usage(format!(
            "rank {own} sends {} messages to itself and receives {} from itself: both must be in one group",
            sends.len(),
            receives.len()
        )));
    }
    let pair = |(number, (send, receive)): (usize, (&&Message, &&Message))| match send.bytes == receive.bytes
    {
        true => Ok((send.buffer, receive.buffer, send.bytes)),
        false => Err(Error::usage(format!(
            "rank {own}: message {number} to itself has {} bytes, its receive {}",
            send.bytes, receive.bytes
        ))),
    };
    sends.iter().zip(&receives).enumerate().map(pair).collect()
}
