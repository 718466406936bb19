//! How a communicator comes up.
//!
//! Ranks meet through the unique id (`bootstrap`), exchange facts, agree on limits and on the medium of each
//! pair, map each other's base regions, and try every path with a token before it is used: a pair whose GPU
//! path fails falls back to host memory with one warning. Whatever fails on one rank is told to the others
//! before the call returns.

use std::collections::HashSet;
use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};

use super::info::{Agreed, BlockLimits, RankInfo, agree};
use super::{Comm, Config, HANDLES, Lists, Order, Publish, end};
use crate::bootstrap::Bootstrap;
use crate::error::{Error, LastError, Result};
use crate::gpu::context::{Context, ordinal_of};
use crate::gpu::driver::driver;
use crate::gpu::host_block::HostView;
use crate::gpu::kernels::Kernels;
use crate::gpu::layout::{KERNEL_PROBE, Layout};
use crate::gpu::memory::Medium;
use crate::gpu::retire::Tenant;
use crate::gpu::stream::{Event, RelaxedCapture};
use crate::gpu::work::{CommArgs, INLINE_PEERS, MAILBOX_STRIDE, Mailbox, PeerArgs, ProbeWork};
use crate::param;
use crate::process;
use crate::register::Buffers;
use crate::schedule::tuning::Limits;
use crate::sys::Deadline;
use crate::transport::{Local, NoGpu, Reach, Region, Remote, medium};

/// Stands for the id of a communicator of one rank that nobody was asked for.
pub const NO_ID: [u8; 128] = [0; 128];

/// A rank that is to come up: everything of the call, and the context that was current then.
pub struct InitJob {
    nranks: u32,
    id: [u8; 128],
    rank: u32,
    config: Config,
    context: Arc<Context>,
    publish: Publish,
    /// Set from elsewhere, ends the waits of a rank that is coming up.
    abort: Arc<AtomicBool>,
}

/// The job of a call on this thread, its arguments checked.
pub fn current_job(
    nranks: i32,
    id: [u8; 128],
    rank: i32,
    config: Config,
    publish: Publish,
) -> Result<InitJob> {
    if nranks < 1 {
        return Err(Error::argument(format!("nranks is {nranks}, it must be at least 1")));
    }
    if rank < 0 || rank >= nranks {
        return Err(Error::argument(format!(
            "rank is {rank}, it must be 0 to {} for {nranks} ranks",
            nranks - 1
        )));
    }
    let context = Context::current()?;
    Ok(InitJob::new(nranks as u32, id, rank as u32, config, context, publish))
}

/// One job per device, rank = position; each is published by its own `publish`.
pub fn init_all_jobs(
    id: [u8; 128],
    devices: &[i32],
    mut publish: impl FnMut(usize) -> Publish,
) -> Result<Vec<InitJob>> {
    let there = driver()?.devices;
    let mut seen = HashSet::new();
    for (rank, device) in devices.iter().enumerate() {
        if !(0..there).contains(device) {
            return Err(Error::argument(format!(
                "device {device}, for rank {rank}, does not exist: this process sees {there} (CUDA_VISIBLE_DEVICES may hide some)"
            )));
        }
        if !seen.insert(device) && !param::bool(param::MULTI_RANK_GPU_ENABLE) {
            return Err(Error::usage(format!(
                "device {device} is in the list twice (again for rank {rank}); set NCCL_MULTI_RANK_GPU_ENABLE=1 to share it"
            )));
        }
    }
    let job = |(rank, device): (usize, &i32)| {
        let context = Context::primary(*device)?;
        Ok(InitJob::new(devices.len() as u32, id, rank as u32, Config::default(), context, publish(rank)))
    };
    devices.iter().enumerate().map(job).collect()
}

impl InitJob {
    pub(super) fn new(
        nranks: u32,
        id: [u8; 128],
        rank: u32,
        config: Config,
        context: Arc<Context>,
        publish: Publish,
    ) -> InitJob {
        InitJob { nranks, id, rank, config, context, publish, abort: Arc::default() }
    }

    pub(super) fn abort_flag(&self) -> &Arc<AtomicBool> {
        &self.abort
    }

    /// Brings the rank up and publishes its handle. Blocks until all ranks are there.
    pub fn run(self) -> Result<()> {
        let (rank, nranks) = (self.rank, self.nranks);
        let told = |error: Error| error.context(format!("rank {rank} of {nranks}"));
        let comm = create(&self).map_err(told)?;
        let handle = HANDLES
            .insert(comm.clone())
            .ok_or_else(|| Error::usage("too many communicators are alive (65536)"))
            .inspect_err(|error| end::release(comm.clone(), Some(error.clone())))?;
        (self.publish)(handle);
        Ok(())
    }
}

fn create(job: &InitJob) -> Result<Arc<Comm>> {
    let started = Instant::now();
    let seconds = param::int(param::INIT_TIMEOUT).and_then(|s| u64::try_from(s).ok()).unwrap_or(300);
    let deadline = Deadline::after(Duration::from_secs(seconds));
    let _bound = job.context.bind()?;
    let abort = job.abort.clone();
    let bootstrap = match job.nranks {
        1 if job.id == NO_ID => None,
        nranks => Some(Arc::new(Bootstrap::join(&job.id, job.rank, nranks, abort, deadline)?)),
    };
    // One rank joins only to check its id and to end what waits for others: it has nobody to talk to.
    let bootstrap = bootstrap.filter(|_| job.nranks > 1);
    let met = started.elapsed();
    let comm = Builder { job, bootstrap: bootstrap.as_ref(), deadline }.build().inspect_err(|error| {
        if let Some(bootstrap) = &bootstrap {
            bootstrap.fail(error);
        }
    })?;
    if let Some(bootstrap) = &bootstrap {
        end::watch(&comm, bootstrap);
    }
    tracing::info!(
        target: "INIT",
        "communicator {} rank {} of {} on {} ready in {:.1} ms (ranks met after {:.1} ms), at most {} blocks, {}",
        comm.name,
        comm.rank,
        comm.nranks,
        comm.context.device().uuid_text(),
        started.elapsed().as_secs_f64() * 1e3,
        met.as_secs_f64() * 1e3,
        comm.limits.max_blocks,
        paths_text(&comm),
    );
    Ok(comm)
}

fn paths_text(comm: &Comm) -> String {
    let through = |wanted: Medium| -> Vec<String> {
        let peers =
            comm.media.iter().enumerate().filter(|(peer, m)| *peer as u32 != comm.rank && **m == wanted);
        peers.map(|(peer, _)| peer.to_string()).collect()
    };
    format!(
        "GPU memory to ranks [{}], host memory to ranks [{}]",
        through(Medium::Gpu).join(" "),
        through(Medium::Host).join(" ")
    )
}

struct Builder<'a> {
    job: &'a InitJob,
    bootstrap: Option<&'a Arc<Bootstrap>>,
    deadline: Deadline,
}

impl Builder<'_> {
    fn build(&self) -> Result<Arc<Comm>> {
        let (rank, nranks, context) = (self.job.rank, self.job.nranks, &self.job.context);
        let _relaxed = RelaxedCapture::enter()?;
        let kernels = Kernels::of(context)?;
        let layout = Layout::new(nranks);
        let own = RankInfo::own(context.device(), kernels.resident(), self.block_limits())?;
        let infos = self.gather(&own.encode())?;
        let infos = infos.iter().enumerate().map(|(rank, bytes)| RankInfo::decode(rank, bytes));
        let infos: Vec<RankInfo> = infos.collect::<Result<_>>()?;
        let agreed = agree(&infos)?;

        let start = param::int(param::SEQUENCE_START).unwrap_or(0) as u32;
        let local = Arc::new(Local::new(context, layout, start)?);
        let base = local.region(Region::Base, Medium::Gpu)?;
        let host = HostView::new(context, rank, nranks)?;
        if let Some(bootstrap) = self.bootstrap {
            let local = local.clone();
            bootstrap.serve(Arc::new(move |asking, request| local.answer(asking, request)));
        }
        let mut args = layout.comm_args(rank);
        args.state = local.state()?;
        args.host = host.address();
        if nranks as usize > INLINE_PEERS {
            args.table = local.table()?;
        }
        let remote = Remote::default();
        let (media, peers) = self.connect(&infos, &kernels, &local, &remote, args)?;
        set_peers(&mut args, &peers);
        if args.table != 0 {
            local.stream().write(args.table, PeerArgs::bytes(&peers))?;
        }
        // Nobody may send before everybody's table is written; the last exchange of `connect` was before
        // that.
        self.gather(&[])?;
        let last = Arc::new(Event::new(context)?);
        Ok(Arc::new(Comm {
            rank,
            nranks,
            session: self.bootstrap.map(|bootstrap| bootstrap.session()).unwrap_or_default(),
            name: self.job.config.name.clone().unwrap_or_else(|| format!("{:#x}", base.address())),
            config: self.job.config.clone(),
            context: context.clone(),
            kernels,
            limits: limits(nranks, &agreed, &layout),
            host,
            local,
            remote,
            media,
            bootstrap: Mutex::new(self.bootstrap.cloned()),
            args: RwLock::new(args),
            peers: Mutex::new(peers),
            setup: Mutex::default(),
            order: Mutex::new(Order {
                event: last.clone(),
                last: None,
                captured: None,
                lists: Lists::default(),
            }),
            failed: AtomicBool::new(false),
            failure: Mutex::new(None),
            finalized: AtomicBool::new(false),
            children: Mutex::default(),
            operations: Mutex::default(),
            buffers: Buffers::default(),
            left: Mutex::default(),
            last_error: LastError::new(),
            generation: process::generation(),
            tenant: Tenant::new(context, last),
        }))
    }

    fn gather(&self, payload: &[u8]) -> Result<Vec<Vec<u8>>> {
        match self.bootstrap {
            Some(bootstrap) => bootstrap.all_gather(payload, self.deadline),
            None => Ok(vec![payload.to_vec()]),
        }
    }

    fn block_limits(&self) -> BlockLimits {
        let first = |settings: [param::Setting; 2], config: Option<i32>| -> Option<u32> {
            let environment = settings.into_iter().find_map(param::int);
            environment
                .or(config.map(i64::from))
                .and_then(|value| u32::try_from(value).ok())
                .filter(|value| *value > 0)
        };
        let config = &self.job.config;
        BlockLimits {
            min: first([param::MIN_CTAS, param::MIN_NCHANNELS], config.min_ctas).unwrap_or(1),
            max: first([param::MAX_CTAS, param::MAX_NCHANNELS], config.max_ctas).unwrap_or(u32::MAX),
        }
    }

    /// Chooses the medium of each pair, maps the base regions and tries them.
    fn connect(
        &self,
        infos: &[RankInfo],
        kernels: &Kernels,
        local: &Arc<Local>,
        remote: &Remote,
        args: CommArgs,
    ) -> Result<(Vec<Medium>, Vec<PeerArgs>)> {
        let rank = self.job.rank;
        let mut reach = self.reach(infos)?;
        let mut peers = vec![PeerArgs::default(); infos.len()];
        let mut done = vec![false; infos.len()];
        done[rank as usize] = true;
        let own = local.region(Region::Base, Medium::Gpu)?.address();
        peers[rank as usize] = PeerArgs { remote_base: own, local_base: own, ..PeerArgs::default() };
        // The second round only has the pairs whose GPU path failed, now over host memory.
        for round in 0..2 {
            let media = self.agree_on_media(&reach, infos)?;
            let open: Vec<u32> = (0..self.job.nranks).filter(|peer| !done[*peer as usize]).collect();
            for &peer in &open {
                let medium = media[peer as usize];
                match self.map_base(local, remote, peer, medium) {
                    Ok(mapped) => peers[peer as usize] = mapped,
                    Err(error) if medium == Medium::Gpu => {
                        tracing::warn!(target: "P2P", "rank {rank}: GPU memory of rank {peer}: {error}");
                        reach[peer as usize] = Reach::NoGpu(NoGpu::ProbeFailed);
                    }
                    Err(error) => return Err(error),
                }
            }
            let arrived = self.probe(kernels, local, args, &peers, &open, round)?;
            for (&peer, arrived) in open.iter().zip(arrived) {
                if arrived {
                    continue;
                }
                if media[peer as usize] == Medium::Host {
                    return Err(Error::internal(format!(
                        "a token of rank {peer} did not arrive through host memory that both ranks have mapped"
                    )));
                }
                reach[peer as usize] = Reach::NoGpu(NoGpu::ProbeFailed);
            }
            let settled = self.agree_on_media(&reach, infos)?;
            for &peer in &open {
                let peer = peer as usize;
                done[peer] = settled[peer] == media[peer];
                if !done[peer] {
                    peers[peer] = PeerArgs::default();
                    remote.forget(peer as u32, Medium::Gpu);
                    if rank < peer as u32 {
                        tracing::warn!(
                            target: "P2P",
                            "ranks {rank} and {peer} cannot use each other's GPU memory and go through host memory, which is \
                             slower: {}",
                            reach[peer].why_not().unwrap_or("the other rank could not")
                        );
                    }
                }
            }
            // Every rank sees all verdicts, so all agree on whether there is a second round.
            if !self.any_left(done.contains(&false))? {
                return Ok((settled, peers));
            }
        }
        Err(Error::internal("a path that was tried twice is still not settled"))
    }

    fn any_left(&self, left: bool) -> Result<bool> {
        Ok(self.gather(&[u8::from(left)])?.iter().any(|answer| answer.first() == Some(&1)))
    }

    /// What this rank expects of its way to each peer.
    fn reach(&self, infos: &[RankInfo]) -> Result<Vec<Reach>> {
        let device = self.job.context.device();
        let own = &infos[self.job.rank as usize];
        let towards = |(peer, info): (usize, &RankInfo)| -> Result<Reach> {
            if peer == self.job.rank as usize {
                return Ok(Reach::Gpu);
            }
            if own.p2p_disabled || info.p2p_disabled {
                return Ok(Reach::NoGpu(NoGpu::Disabled));
            }
            if !own.exports || !info.exports {
                return Ok(Reach::NoGpu(NoGpu::NoExport));
            }
            // A peer's device that is hidden from this process can still be mapped; the probe decides.
            match ordinal_of(&info.uuid)? {
                Some(ordinal) if !device.can_access(ordinal)? => Ok(Reach::NoGpu(NoGpu::NoPeerAccess)),
                _ => Ok(Reach::Gpu),
            }
        };
        infos.iter().enumerate().map(towards).collect()
    }

    fn agree_on_media(&self, reach: &[Reach], infos: &[RankInfo]) -> Result<Vec<Medium>> {
        let own: Vec<u8> = reach.iter().map(|reach| reach.to_byte()).collect();
        let all = self.gather(&own)?;
        let rank = self.job.rank as usize;
        for (a, of_a) in all.iter().enumerate() {
            for (b, of_b) in all.iter().enumerate().skip(a + 1) {
                let sides = of_a.get(b).zip(of_b.get(a));
                let (&ab, &ba) =
                    sides.ok_or_else(|| Error::internal("a rank's list of paths is too short"))?;
                let (ab, ba) = (Reach::from_byte(ab), Reach::from_byte(ba));
                if medium(ab, ba, infos[a].shm_disabled || infos[b].shm_disabled).is_none() {
                    let why = ab.why_not().or(ba.why_not()).unwrap_or_default();
                    return Err(Error::usage(format!(
                        "no way between ranks {a} and {b}: not through GPU memory ({why}), and not through host memory \
                         (NCCL_SHM_DISABLE is set); the network transport is not finished"
                    )));
                }
            }
        }
        let of = |peer: usize| {
            let (own, theirs) = (Reach::from_byte(all[rank][peer]), Reach::from_byte(all[peer][rank]));
            medium(own, theirs, infos[rank].shm_disabled || infos[peer].shm_disabled).unwrap_or(Medium::Host)
        };
        Ok((0..infos.len()).map(of).collect())
    }

    fn map_base(&self, local: &Local, remote: &Remote, peer: u32, medium: Medium) -> Result<PeerArgs> {
        let local_base = local.region(Region::Base, medium)?.address();
        let bootstrap = self.bootstrap.ok_or_else(|| Error::internal("a peer without a bootstrap"))?;
        let same_process = bootstrap.same_process(peer);
        let ask = |request: &[u8]| bootstrap.request(peer, request, self.deadline);
        let remote_base =
            remote.address(&self.job.context, (peer, same_process), (Region::Base, medium), ask)?;
        Ok(PeerArgs { remote_base, local_base, ..PeerArgs::default() })
    }

    /// Writes a token to every peer in `open` that is mapped, and says for each whether its token arrived
    /// here.
    fn probe(
        &self,
        kernels: &Kernels,
        local: &Local,
        mut args: CommArgs,
        peers: &[PeerArgs],
        open: &[u32],
        round: u32,
    ) -> Result<Vec<bool>> {
        let token = |sender: u32| 0x0cc1_0000 + round * 0x0010_0000 + sender * 64;
        let mut only_open = vec![PeerArgs::default(); peers.len()];
        for &peer in open {
            only_open[peer as usize] = peers[peer as usize];
        }
        set_peers(&mut args, &only_open);
        if args.table != 0 {
            local.stream().write(args.table, PeerArgs::bytes(&only_open))?;
        }
        let work = ProbeWork { comm: args, token: token(self.job.rank), reserved: [0; 3] };
        kernels.get(KERNEL_PROBE).launch(1, &work, local.stream().handle())?;
        local.stream().synchronize()?;
        // Everybody has written.
        self.gather(&[])?;
        let look = |&peer: &u32| -> Result<bool> {
            let base = peers[peer as usize].local_base;
            if base == 0 {
                return Ok(false);
            }
            let mailbox = base + u64::from(args.mailbox_offset) + u64::from(peer) * u64::from(MAILBOX_STRIDE);
            let mut word = [0; 4];
            local.stream().read(mailbox + offset_of!(Mailbox, probe) as u64, &mut word)?;
            Ok(u32::from_ne_bytes(word) == token(peer).wrapping_add(self.job.rank))
        };
        open.iter().map(look).collect()
    }
}

fn limits(nranks: u32, agreed: &Agreed, layout: &Layout) -> Limits {
    Limits {
        nranks,
        ll: agreed.ll,
        simple: agreed.simple,
        min_blocks: agreed.min_blocks,
        max_blocks: agreed.max_blocks,
        ll_channels: layout.ll_channels,
        ll_chunk: layout.ll_chunk,
        simple_channels: layout.simple_channels,
        simple_chunk: layout.simple_chunk,
    }
}

/// Puts the addresses that travel inside launches into place.
pub(super) fn set_peers(args: &mut CommArgs, peers: &[PeerArgs]) {
    for (inline, peer) in args.peers.iter_mut().zip(peers) {
        *inline = *peer;
    }
}
