//! Regions: what a rank owns for others to write, and what it mapped of theirs.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::error::{Error, Result};
use crate::gpu::context::Context;
use crate::gpu::layout::Layout;
use crate::gpu::memory::{Export, Mapping, Medium, Memory};
use crate::gpu::stream::{RelaxedCapture, Stream};
use crate::gpu::work::PeerArgs;
use crate::sys::fork::PrivateFd;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Region {
    /// State, mailboxes, LL slots: made at init.
    Base,
    /// Slots of the Simple protocol for collectives.
    Stage,
    /// Slots for large messages from one sender.
    Messages { sender: u32 },
}

/// What this rank owns.
#[derive(Debug)]
pub struct Local {
    context: Arc<Context>,
    layout: Layout,
    /// First sequence number of everything; not 0 in tests of the wrap-around.
    sequence_start: u32,
    /// Our own stream: set-up must not depend on, or get into, the caller's.
    stream: Stream,
    memory: Mutex<HashMap<(Region, Medium), Arc<Memory>>>,
}

impl Local {
    pub fn new(context: &Arc<Context>, layout: Layout, sequence_start: u32) -> Result<Local> {
        let _relaxed = RelaxedCapture::enter()?;
        Ok(Local {
            context: context.clone(),
            layout,
            sequence_start,
            stream: Stream::new(context)?,
            memory: Mutex::default(),
        })
    }

    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// The region, made on first use.
    pub fn region(&self, region: Region, medium: Medium) -> Result<Arc<Memory>> {
        let mut memory = self.memory.lock();
        if let Some(made) = memory.get(&(region, medium)) {
            return Ok(made.clone());
        }
        let _relaxed = RelaxedCapture::enter()?;
        let bytes = match region {
            Region::Base => self.layout.base_bytes + self.own_bytes(medium),
            Region::Stage => self.layout.stage_bytes,
            Region::Messages { .. } => self.layout.p2p_bytes,
        };
        let made = Memory::new(&self.context, medium, bytes)
            .map_err(|error| error.context(format!("making the {region:?} region in {medium:?} memory")))?;
        // Slots may hold anything. Clearing them would need a kernel of the driver's, which might have to wait for one of
        // ours that waits for this very set-up.
        if region == Region::Base && medium == Medium::Gpu {
            self.stream.zero(made.address(), made.bytes())?;
        }
        if region == Region::Base && self.sequence_start != 0 {
            let mailboxes = self.layout.initial_mailboxes(self.sequence_start);
            self.stream.write(made.address() + u64::from(self.layout.mailbox_offset), &mailboxes)?;
            if medium == Medium::Gpu {
                let state = self.layout.initial_state(self.sequence_start);
                self.stream.write(made.address() + self.layout.base_bytes as u64, &state)?;
            }
        }
        memory.insert((region, medium), made.clone());
        Ok(made)
    }

    /// What lies behind the base region in GPU memory, for this rank's kernels alone: the state area, then
    /// the table of peers.
    fn own_bytes(&self, medium: Medium) -> usize {
        match medium {
            Medium::Gpu => self.layout.state_bytes + self.layout.nranks as usize * size_of::<PeerArgs>(),
            Medium::Host => 0,
        }
    }

    /// Device address of the state area.
    pub fn state(&self) -> Result<u64> {
        Ok(self.region(Region::Base, Medium::Gpu)?.address() + self.layout.base_bytes as u64)
    }

    /// Device address of the table of peers.
    pub fn table(&self) -> Result<u64> {
        Ok(self.state()? + self.layout.state_bytes as u64)
    }

    /// GPU and host bytes held now.
    pub fn bytes(&self) -> (usize, usize) {
        let memory = self.memory.lock();
        let of = |wanted: Medium| {
            memory.iter().filter(|((_, medium), _)| *medium == wanted).map(|(_, m)| m.bytes()).sum()
        };
        (of(Medium::Gpu), of(Medium::Host))
    }

    /// Answers a peer's [`Remote`] request; runs on the service's worker.
    pub fn answer(&self, asking: u32, request: &[u8]) -> Result<(Vec<u8>, Vec<PrivateFd>)> {
        let (region, medium) = decode_request(asking, request)
            .ok_or_else(|| Error::internal(format!("rank {asking} asked for an unknown region")))?;
        let export = self.region(region, medium)?.export()?;
        let mut bytes = vec![export.kind];
        bytes.extend(export.bytes.to_le_bytes());
        bytes.extend(export.address.to_le_bytes());
        bytes.extend(export.handle);
        Ok((bytes, export.fd.into_iter().collect()))
    }
}

/// Regions of peers, mapped into this rank's address space.
#[derive(Debug, Default)]
pub struct Remote {
    mappings: Mutex<HashMap<(u32, Region, Medium), Mapping>>,
}

impl Remote {
    /// Device address of `peer`'s region; mapped on first use, by `ask`ing the peer.
    pub fn address(
        &self,
        context: &Arc<Context>,
        (peer, same_process): (u32, bool),
        (region, medium): (Region, Medium),
        ask: impl FnOnce(&[u8]) -> Result<(Vec<u8>, Vec<PrivateFd>)>,
    ) -> Result<u64> {
        if let Some(mapping) = self.mappings.lock().get(&(peer, region, medium)) {
            return Ok(mapping.address());
        }
        // No lock while the peer answers: it may be mapping ours at the same time.
        let (bytes, mut fds) = ask(&encode_request(region, medium))?;
        let export = decode_export(&bytes, fds.pop())
            .ok_or_else(|| Error::internal(format!("rank {peer} described its memory in an unknown form")))?;
        let _relaxed = RelaxedCapture::enter()?;
        let mapping = Mapping::open(context, export, same_process).map_err(|error| {
            error.context(format!("mapping the {region:?} region of rank {peer} ({medium:?} memory)"))
        })?;
        let address = mapping.address();
        self.mappings.lock().insert((peer, region, medium), mapping);
        Ok(address)
    }

    /// Gives up the mappings of a peer in one medium.
    pub fn forget(&self, peer: u32, medium: Medium) {
        self.mappings.lock().retain(|(rank, _, of), _| *rank != peer || *of != medium);
    }
}

fn encode_request(region: Region, medium: Medium) -> [u8; 2] {
    let kind = match region {
        Region::Base => 0,
        Region::Stage => 1,
        Region::Messages { .. } => 2,
    };
    [kind, u8::from(medium == Medium::Host)]
}

fn decode_request(asking: u32, request: &[u8]) -> Option<(Region, Medium)> {
    let &[kind, medium] = request else { return None };
    let region = match kind {
        0 => Region::Base,
        1 => Region::Stage,
        // Only the sender itself writes this region, so only it may map it.
        2 => Region::Messages { sender: asking },
        _ => return None,
    };
    let medium = match medium {
        0 => Medium::Gpu,
        1 => Medium::Host,
        _ => return None,
    };
    Some((region, medium))
}

fn decode_export(bytes: &[u8], fd: Option<PrivateFd>) -> Option<Export> {
    let (&kind, rest) = bytes.split_first()?;
    let (length, rest) = rest.split_first_chunk::<8>()?;
    let (address, rest) = rest.split_first_chunk::<8>()?;
    Some(Export {
        kind,
        bytes: u64::from_le_bytes(*length),
        address: u64::from_le_bytes(*address),
        handle: rest.try_into().ok()?,
        fd,
    })
}
