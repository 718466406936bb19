//! Messages of a group, sorted into lanes: one block per peer, direction and channel.
//!
//! Both sides of a pair sort their messages by the same rules, so lanes of the two sides match: messages of
//! one direction keep their order, and on how many channels a message travels depends on its bytes and the
//! number of ranks. Lanes progress independently.

use std::collections::BTreeMap;

use crate::gpu::layout::{message_channels, message_is_ll};
use crate::gpu::work::{Lane, Message};

/// A message with another rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Planned {
    pub peer: u32,
    pub is_send: bool,
    pub buffer: u64,
    pub bytes: u64,
}

/// Lanes and the messages they refer to.
#[derive(Debug, Clone, Default)]
pub struct Lanes {
    pub lanes: Vec<Lane>,
    pub messages: Vec<Message>,
}

/// Sorts `planned`, given in call order.
pub fn lanes(planned: &[Planned], nranks: u32) -> Lanes {
    let mut by_lane: BTreeMap<(u32, bool, u32), Vec<Message>> = BTreeMap::new();
    for message in planned {
        let channels = message_channels(message.bytes, nranks);
        for channel in 0..channels {
            by_lane.entry((message.peer, message.is_send, channel)).or_default().push(Message {
                buffer: message.buffer,
                bytes: message.bytes,
                channels,
                is_ll: u32::from(message_is_ll(message.bytes)),
                ..Message::default()
            });
        }
    }
    let mut sorted = Lanes::default();
    for ((peer, is_send, channel), mut messages) in by_lane {
        sorted.lanes.push(Lane {
            peer,
            is_send: u32::from(is_send),
            channel,
            first: sorted.messages.len() as u32,
            count: messages.len() as u32,
            ..Lane::default()
        });
        sorted.messages.append(&mut messages);
    }
    sorted
}
