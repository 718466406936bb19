//! Executable graphs: a private copy of a graph, launched again and again.
//!
//! Launches of one executable graph follow each other; a capture refuses them. Destroying one while it runs is
//! allowed: the run holds what it needs.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;

use super::{Graph, Node};
use crate::context;
use crate::error::{GRAPH_EXEC_UPDATE_FAILURE, INVALID_VALUE, Result, STREAM_CAPTURE_UNSUPPORTED};
use crate::handle::{self, Registry};
use crate::stream::op::Op;
use crate::stream::{self, Placement, capture};
use crate::types::{
    CUgraph, CUgraphExec, CUgraphExecUpdateResultInfo, CUgraphInstantiateParams, CUgraphNode, CUstream, Out,
};
use crate::work::Work;

pub struct Exec {
    handle: CUgraphExec,
    graph: Arc<Graph>,
    flags: u64,
    last: Mutex<Option<Arc<Op>>>,
}

static EXECS: Registry<Exec> = Registry::new();

/// Flags that instantiation accepts: free on launch, upload, device launch, node priorities.
const FLAGS: u64 = 1 | 2 | 8;
const NODE_TYPE_CHANGED: u32 = 3;
const TOPOLOGY_CHANGED: u32 = 2;

impl Exec {
    /// The executable's copy of a node of the graph that it was made from.
    pub fn twin(&self, node: CUgraphNode) -> Result<Arc<Node>> {
        let inner = self.graph.inner.lock();
        inner.nodes.iter().find(|twin| twin.original == node).cloned().ok_or(INVALID_VALUE)
    }
}

pub fn get(handle: CUgraphExec) -> Result<Arc<Exec>> {
    EXECS.get(handle).map_err(|_| INVALID_VALUE)
}

fn instantiate(out: Out<CUgraphExec>, graph: CUgraph, flags: u64) -> Result {
    out.check()?;
    let graph = super::get(graph)?;
    let context = context::current()?;
    capture::forbid_unsafe()?;
    if flags & !FLAGS != 0 || graph.ordered().is_none() {
        return Err(INVALID_VALUE);
    }
    graph.check()?;
    let copy = Arc::new(graph.copy(handle::next(), false));
    copy.load_kernels(context);
    let exec = EXECS.insert_with(|handle| Exec { handle, graph: copy, flags, last: Mutex::new(None) });
    out.set(exec.handle)
}

fn launch(exec: CUgraphExec, stream: CUstream) -> Result {
    let (exec, stream) = (get(exec)?, stream::get(stream)?);
    let mut last = exec.last.lock();
    let op = stream.submit_with(|state| {
        if let Some(capture) = &state.capture {
            capture.invalidate();
            return Err(STREAM_CAPTURE_UNSUPPORTED);
        }
        Ok(Placement::Queue(Work::Child(exec.graph.clone()), last.clone().into_iter().collect()))
    })?;
    if op.is_some() {
        *last = op;
    }
    Ok(())
}

/// What stands in the way of making one graph's work that of the other.
fn difference(old: &Graph, new: &Graph) -> Option<(u32, CUgraphNode)> {
    let (Some(old), Some(new)) = (old.ordered(), new.ordered()) else { return Some((TOPOLOGY_CHANGED, 0)) };
    if old.len() != new.len() {
        return Some((TOPOLOGY_CHANGED, 0));
    }
    for ((old, old_places), (new, new_places)) in old.iter().zip(&new) {
        let (old_work, new_work) = (old.work(), new.work());
        if old_work.node_type() != new_work.node_type() {
            return Some((NODE_TYPE_CHANGED, new.handle));
        }
        if old_places != new_places {
            return Some((TOPOLOGY_CHANGED, new.handle));
        }
        if let (Work::Child(old), Work::Child(new)) = (old_work, new_work)
            && let Some((result, _)) = difference(&old, &new)
        {
            return Some((result, 0));
        }
    }
    None
}

cu! {
    fn cuGraphInstantiateWithFlags(out: Out<CUgraphExec>, graph: CUgraph, flags: u64) {
        instantiate(out, graph, flags)
    }

    fn cuGraphInstantiate_v2(
        out: Out<CUgraphExec>, graph: CUgraph, error_node: Out<CUgraphNode>, text: usize, len: usize,
    ) {
        let _ = (text, len);
        error_node.set_opt(0);
        instantiate(out, graph, 0)
    }

    fn cuGraphInstantiateWithParams / cuGraphInstantiateWithParams_ptsz (
        out: Out<CUgraphExec>, graph: CUgraph, params: Out<CUgraphInstantiateParams>,
    ) {
        let mut values = params.get()?;
        instantiate(out, graph, values.flags)?;
        (values.error_node, values.result) = (0, 0);
        params.set(values)
    }

    fn cuGraphExecDestroy(exec: CUgraphExec) {
        EXECS.remove(exec).map(|_| ()).map_err(|_| INVALID_VALUE)
    }

    fn cuGraphExecGetFlags(exec: CUgraphExec, flags: Out<u64>) {
        flags.set(get(exec)?.flags)
    }

    fn cuGraphUpload / cuGraphUpload_ptsz (exec: CUgraphExec, stream: CUstream) {
        let (exec, stream) = (get(exec)?, stream::get(stream)?);
        exec.graph.load_kernels(stream.context);
        Ok(())
    }

    fn cuGraphLaunch / cuGraphLaunch_ptsz (exec: CUgraphExec, stream: CUstream) {
        launch(exec, stream)
    }

    fn cuGraphExecUpdate_v2(exec: CUgraphExec, graph: CUgraph, info: Out<CUgraphExecUpdateResultInfo>) {
        let (exec, graph) = (get(exec)?, super::get(graph)?);
        if let Some((result, error_node)) = difference(&exec.graph, &graph) {
            info.set_opt(CUgraphExecUpdateResultInfo { result, error_node, error_from_node: 0 });
            return Err(GRAPH_EXEC_UPDATE_FAILURE);
        }
        let fresh = graph.copy(0, false);
        let (old, new) = (exec.graph.ordered().unwrap_or_default(), fresh.ordered().unwrap_or_default());
        for ((old, _), (new, _)) in old.iter().zip(&new) {
            old.set_work(new.work());
        }
        // The executable graph now needs what the other graph holds.
        *exec.graph.objects.lock() = std::mem::take(&mut *fresh.objects.lock());
        exec.graph.load_kernels(context::current()?);
        info.set_opt(CUgraphExecUpdateResultInfo { result: 0, error_node: 0, error_from_node: 0 });
        Ok(())
    }

    fn cuGraphNodeSetEnabled(exec: CUgraphExec, node: CUgraphNode, enabled: u32) {
        let twin = get(exec)?.twin(node)?;
        if !matches!(twin.work(), Work::Kernel(_) | Work::Copy(_) | Work::Set(_)) {
            return Err(INVALID_VALUE);
        }
        twin.enabled.store(enabled != 0, Ordering::Relaxed);
        Ok(())
    }

    fn cuGraphNodeGetEnabled(exec: CUgraphExec, node: CUgraphNode, enabled: Out<u32>) {
        enabled.set(u32::from(get(exec)?.twin(node)?.enabled.load(Ordering::Relaxed)))
    }
}
