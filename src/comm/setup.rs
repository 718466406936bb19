//! Paths that are made when an operation first needs them.
//!
//! This also happens while the caller's stream is being captured: all of it is on our own stream or on none,
//! with relaxed capture, and a peer's part is done by its service thread, so it depends on no other
//! communicator, stream or application thread.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Comm;
use super::init::set_peers;
use crate::error::{Error, Result};
use crate::gpu::stream::RelaxedCapture;
use crate::gpu::work::PeerArgs;
use crate::sys::Deadline;
use crate::transport::Region;

/// A peer's service thread answers in milliseconds; only a dying machine takes this long.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// The rendezvous tells of a rank that left in milliseconds; a rank that ended otherwise fails the communicator as soon.
const LEAVING_TIMEOUT: Duration = Duration::from_secs(2);

/// What an operation needs beyond the base regions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Needs {
    /// The stage regions of all ranks.
    pub stage: bool,
    /// Message regions: peers that this rank sends large messages to.
    pub sends: Vec<u32>,
    /// Peers that it receives large messages from.
    pub receives: Vec<u32>,
}

impl Needs {
    pub fn stage(stage: bool) -> Needs {
        Needs { stage, ..Needs::default() }
    }
}

#[derive(Debug, Default)]
pub(super) struct Ready {
    stage: bool,
    sends: HashSet<u32>,
    receives: HashSet<u32>,
}

impl Comm {
    pub(super) fn set_up(&self, needs: &Needs) -> Result<()> {
        if *needs == Needs::default() {
            return Ok(());
        }
        let mut ready = self.setup.lock();
        let stage = needs.stage && !ready.stage;
        let sends: Vec<u32> =
            needs.sends.iter().filter(|peer| !ready.sends.contains(peer)).copied().collect();
        let receives: Vec<u32> =
            needs.receives.iter().filter(|peer| !ready.receives.contains(peer)).copied().collect();
        if !stage && sends.is_empty() && receives.is_empty() {
            return Ok(());
        }
        // The other ranks launch all the same and would wait for this one: they must hear of it.
        self.make(stage, &sends, &receives).inspect_err(|error| {
            if let Some(bootstrap) = self.bootstrap.lock().clone() {
                bootstrap.fail(error);
            }
            self.fail(error.clone());
        })?;
        ready.stage |= stage;
        ready.sends.extend(sends);
        ready.receives.extend(receives);
        Ok(())
    }

    fn make(&self, stage: bool, sends: &[u32], receives: &[u32]) -> Result<()> {
        let _bound = self.context.bind()?;
        let _relaxed = RelaxedCapture::enter()?;
        let mut peers = self.peers.lock();
        if stage {
            for peer in (0..self.nranks).filter(|peer| *peer != self.rank) {
                let entry = &mut peers[peer as usize];
                entry.local_stage = self.local.region(Region::Stage, self.media[peer as usize])?.address();
                entry.remote_stage = match self.map(peer, Region::Stage) {
                    // A rank that has left has made all its calls, so nothing can be sent to it; what it sent
                    // is here.
                    Err(_) if self.hears_of_leaving(peer) => 0,
                    mapped => mapped?,
                };
            }
        }
        for &peer in receives {
            let region = self.local.region(Region::Messages { sender: peer }, self.media[peer as usize])?;
            peers[peer as usize].local_p2p = region.address();
        }
        for &peer in sends {
            peers[peer as usize].remote_p2p = self.map(peer, Region::Messages { sender: self.rank })?;
        }
        self.publish_peers(&peers)
    }

    /// Whether a rank that does not answer has left in good order. That it has comes by another way than its answers, so it may
    /// be known a little later than they fail.
    fn hears_of_leaving(&self, peer: u32) -> bool {
        let deadline = Deadline::after(LEAVING_TIMEOUT);
        loop {
            if self.left.lock().contains(&peer) {
                return true;
            }
            if deadline.expired() || self.failed.load(Ordering::Acquire) {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn map(&self, peer: u32, region: Region) -> Result<u64> {
        let bootstrap = self.bootstrap.lock().clone();
        let bootstrap: Arc<_> = bootstrap.ok_or_else(|| Error::usage("the communicator was left already"))?;
        let same_process = bootstrap.same_process(peer);
        let ask = |request: &[u8]| bootstrap.request(peer, request, Deadline::after(ANSWER_TIMEOUT));
        let medium = self.media[peer as usize];
        self.remote.address(&self.context, (peer, same_process), (region, medium), ask)
    }

    /// Operations in flight go on with the addresses they have; entries only ever change from 0.
    fn publish_peers(&self, peers: &[PeerArgs]) -> Result<()> {
        let table = self.args.read().table;
        if table != 0 {
            self.local.stream().write(table, PeerArgs::bytes(peers))?;
        }
        set_peers(&mut self.args.write(), peers);
        Ok(())
    }
}
