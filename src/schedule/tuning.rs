//! The choice of protocol, grid and step size of a collective, and why.
//!
//! A choice depends on [`Limits`], which all ranks agreed on at init, and on the call's function and size. LL
//! moves 16 bytes per 8 bytes of payload but needs no barrier and one crossing of the link; Simple moves
//! bytes as they are and signals per step.

use super::Function;
pub use crate::gpu::layout::Protocol;

/// What bounds a choice: equal on all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    pub nranks: u32,
    /// Protocols that every rank allows (NCCL_PROTO).
    pub ll: bool,
    pub simple: bool,
    pub min_blocks: u32,
    pub max_blocks: u32,
    /// Channels and slot sizes of the memory layout.
    pub ll_channels: u32,
    pub ll_chunk: u32,
    pub simple_channels: u32,
    pub simple_chunk: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    pub protocol: Protocol,
    /// Blocks.
    pub grid: u32,
    /// Bytes per step, channel and rank.
    pub chunk: u32,
}

/// Above this many pushed bytes per rank the doubled traffic of LL costs more than the signalling of Simple
/// (two H200 over NVLink: 512 KB all-reduce takes 5.3 us by LL one-shot).
const LL_PUSHED_BYTES: u64 = 512 << 10;
/// Payload of LL that one block handles before another block is worth starting.
const LL_BYTES_PER_BLOCK: u64 = 4 << 10;
/// The same for Simple, per rank's piece.
const SIMPLE_BYTES_PER_BLOCK: u64 = 32 << 10;
/// Steps that a block should have, so that pushing, reducing and copying overlap.
const SIMPLE_STEPS: u64 = 8;
const SIMPLE_SMALLEST_CHUNK: u64 = 4 << 10;

/// `bytes` is what one rank contributes to one peer's result: the whole vector for AllReduce, Broadcast and
/// Reduce, one rank's part for AllGather and ReduceScatter.
pub fn choose(limits: &Limits, function: Function, bytes: u64) -> Choice {
    let peers = u64::from(limits.nranks.saturating_sub(1).max(1));
    let protocol = match (limits.ll, limits.simple) {
        (true, false) => Protocol::Ll,
        (false, true) => Protocol::Simple,
        _ if bytes.saturating_mul(peers) <= LL_PUSHED_BYTES => Protocol::Ll,
        _ => Protocol::Simple,
    };
    match protocol {
        Protocol::Ll => {
            let grid = blocks(limits, bytes.div_ceil(LL_BYTES_PER_BLOCK), limits.ll_channels);
            Choice { protocol, grid, chunk: limits.ll_chunk }
        }
        Protocol::Simple => {
            // The two-shot all-reduce cuts the vector into one piece per rank.
            let piece = if function == Function::AllReduce {
                bytes.div_ceil(u64::from(limits.nranks))
            } else {
                bytes
            };
            let grid = blocks(limits, piece.div_ceil(SIMPLE_BYTES_PER_BLOCK), limits.simple_channels);
            let per_step = piece.div_ceil(u64::from(grid) * SIMPLE_STEPS).max(SIMPLE_SMALLEST_CHUNK);
            let chunk = per_step.next_multiple_of(512).min(u64::from(limits.simple_chunk)) as u32;
            Choice { protocol, grid, chunk }
        }
    }
}

fn blocks(limits: &Limits, wanted: u64, channels: u32) -> u32 {
    let most = limits.max_blocks.min(channels).max(1);
    let least = limits.min_blocks.clamp(1, most);
    wanted.clamp(u64::from(least), u64::from(most)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> Limits {
        Limits {
            nranks: 2,
            ll: true,
            simple: true,
            min_blocks: 1,
            max_blocks: 32,
            ll_channels: 32,
            ll_chunk: 8192,
            simple_channels: 32,
            simple_chunk: 65536,
        }
    }

    #[test]
    fn choices_stay_inside_the_limits() {
        for nranks in [2, 3, 8] {
            for (ll, simple) in [(true, true), (true, false), (false, true)] {
                for (min_blocks, max_blocks) in [(1, 32), (4, 4), (64, 2), (1, 1)] {
                    let limits = Limits { nranks, ll, simple, min_blocks, max_blocks, ..limits() };
                    for shift in 0..40 {
                        let bytes = (1u64 << shift) + 7;
                        let choice = choose(&limits, Function::AllReduce, bytes);
                        let (channels, slot) = match choice.protocol {
                            Protocol::Ll => (limits.ll_channels, limits.ll_chunk),
                            Protocol::Simple => (limits.simple_channels, limits.simple_chunk),
                        };
                        assert!(choice.grid >= 1 && choice.grid <= channels.min(max_blocks), "{choice:?}");
                        assert!(
                            choice.chunk >= 16 && choice.chunk <= slot && choice.chunk.is_multiple_of(16),
                            "{choice:?}"
                        );
                        assert!(ll || choice.protocol == Protocol::Simple);
                        assert!(simple || choice.protocol == Protocol::Ll);
                    }
                }
            }
        }
    }

    #[test]
    fn small_messages_use_ll_and_large_ones_simple() {
        assert_eq!(
            choose(&limits(), Function::AllReduce, 8),
            Choice { protocol: Protocol::Ll, grid: 1, chunk: 8192 }
        );
        assert_eq!(choose(&limits(), Function::AllReduce, 1 << 30).protocol, Protocol::Simple);
    }
}
