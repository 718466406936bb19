//! Children: communicators made of some of a communicator's ranks.
//!
//! All ranks of the parent take part, over the parent's bootstrap, whatever their streams are doing. A child shares nothing with its parent, so
//! it outlives it and does not fail with it.

use std::sync::Arc;
use std::time::Duration;

use super::init::NO_ID;
use super::{Comm, Config, InitJob, Publish};
use crate::bootstrap;
use crate::error::{Error, Result};
use crate::param;
use crate::sys::Deadline;

/// The colour of ranks that take part without getting a child.
pub const NO_COLOR: i32 = -1;

pub struct SplitJob {
    parent: Arc<Comm>,
    color: i32,
    key: i32,
    /// `None`: the parent's.
    config: Option<Config>,
    publish: Publish,
}

impl SplitJob {
    pub fn new(
        parent: Arc<Comm>,
        color: i32,
        key: i32,
        config: Option<Config>,
        publish: Publish,
    ) -> Result<SplitJob> {
        parent.check_usable()?;
        Ok(SplitJob { parent, color, key, config, publish })
    }

    pub fn parent(&self) -> &Arc<Comm> {
        &self.parent
    }

    /// Blocks until all ranks of the parent have called, then until the child is ready. Publishes 0 for [`NO_COLOR`].
    pub fn run(self) -> Result<()> {
        let parent = self.parent;
        let seconds = param::int(param::INIT_TIMEOUT).and_then(|s| u64::try_from(s).ok()).unwrap_or(300);
        let deadline = Deadline::after(Duration::from_secs(seconds));
        let mut own = self.color.to_le_bytes().to_vec();
        own.extend(self.key.to_le_bytes());
        let all = gather(&parent, &own, deadline)?;
        let wishes: Vec<(i32, i32)> = all.iter().map(|bytes| decode(bytes)).collect::<Result<_>>()?;
        // Every rank sees it, so every rank refuses.
        if let Some((rank, (color, _))) = wishes.iter().enumerate().find(|(_, (color, _))| *color < NO_COLOR)
        {
            return Err(Error::argument(format!(
                "rank {rank} passed color {color}: colours are not negative, or NCCL_SPLIT_NOCOLOR (-1)"
            )));
        }
        let members = members(&wishes, self.color);
        let is_leader = members.first() == Some(&(parent.rank as usize));
        let id = if is_leader && members.len() > 1 { bootstrap::unique_id()?.to_vec() } else { Vec::new() };
        let ids = gather(&parent, &id, deadline)?;
        if self.color == NO_COLOR {
            (self.publish)(0);
            return Ok(());
        }
        let position = members.iter().position(|rank| *rank == parent.rank as usize);
        let rank = position.ok_or_else(|| Error::internal("a rank is not among those of its own colour"))?;
        let id = match members.len() {
            1 => NO_ID,
            _ => ids[members[0]]
                .as_slice()
                .try_into()
                .map_err(|_| Error::internal("a leader sent no unique id"))?,
        };
        let config = self.config.unwrap_or_else(|| parent.config.clone());
        let child =
            InitJob::new(members.len() as u32, id, rank as u32, config, parent.context.clone(), self.publish);
        let abort = child.abort_flag().clone();
        parent.aborts_with_it(&abort);
        let up = child.run();
        parent.aborts_no_more(&abort);
        up.map_err(|error| {
            // A rank that is gone ends the child's coming up by way of the parent, which knows who.
            let error = parent.failure.lock().clone().unwrap_or(error);
            error.context(format!("split of communicator {}, color {}", parent.name, self.color))
        })
    }
}

fn gather(parent: &Comm, payload: &[u8], deadline: Deadline) -> Result<Vec<Vec<u8>>> {
    if parent.nranks == 1 {
        return Ok(vec![payload.to_vec()]);
    }
    let bootstrap = parent.bootstrap.lock().clone();
    bootstrap.ok_or_else(|| Error::usage("the communicator was left already"))?.all_gather(payload, deadline)
}

fn decode(bytes: &[u8]) -> Result<(i32, i32)> {
    let bytes: [u8; 8] =
        bytes.try_into().map_err(|_| Error::internal("a rank sent its colour in an unknown form"))?;
    let word = |at: usize| i32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    Ok((word(0), word(4)))
}

/// The parent's ranks of one colour in the child's order: by key, equal keys by the parent's rank.
fn members(wishes: &[(i32, i32)], color: i32) -> Vec<usize> {
    let mut members: Vec<usize> = (0..wishes.len()).filter(|rank| wishes[*rank].0 == color).collect();
    members.sort_by_key(|rank| (wishes[*rank].1, *rank));
    members
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_are_ordered_by_key_then_rank() {
        let wishes = [(0, 5), (1, 0), (0, -3), (0, 5), (NO_COLOR, 0)];
        assert_eq!(members(&wishes, 0), [2, 0, 3]);
        assert_eq!(members(&wishes, 1), [1]);
        assert_eq!(decode(&[1, 0, 0, 0, 0xfd, 0xff, 0xff, 0xff]).expect("whole"), (1, -3));
        assert!(decode(&[1]).is_err());
    }
}
