//! Building graphs by calls, and asking what is in them.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Graph, Node, get, node};
use crate::context;
use crate::error::{INVALID_VALUE, Result};
use crate::handle;
use crate::launch;
use crate::memory::copy::{Copy, Set};
use crate::module;
use crate::stream::event;
use crate::stream::memop;
use crate::types::{
    CUbatchMemOpNodeParams, CUcontext, CUevent, CUgraph, CUgraphEdgeData, CUgraphNode, CUhostNodeParams,
    CUkernelNodeParams, CUmemcpy3D, CUmemsetNodeParams, In, Out, Text,
};
use crate::work::{MemoryNode, Work};

impl Work {
    /// The `CUgraphNodeType` of a node with this work.
    pub fn node_type(&self) -> u32 {
        match self {
            Work::Kernel(_) => 0,
            Work::Copy(_) => 1,
            Work::Set(_) => 2,
            Work::Host { .. } | Work::Callback { .. } => 3,
            Work::Child(_) => 4,
            Work::Empty => 5,
            Work::Wait(_) => 6,
            Work::Record(_) => 7,
            Work::Memory(_, MemoryNode::Alloc) => 10,
            Work::Free(_) | Work::Memory(_, MemoryNode::Free) => 11,
            Work::MemOps(_) => 12,
        }
    }
}

pub fn kernel_work(params: &CUkernelNodeParams) -> Result<Work> {
    let function = module::get(if params.func != 0 { params.func } else { params.kern })?;
    let launch = launch::prepare(
        function,
        params.grid,
        params.block,
        params.shared_bytes,
        params.params,
        params.extra,
    )?;
    Ok(Work::Kernel(launch))
}

pub fn copy_work(params: &CUmemcpy3D) -> Result<Work> {
    let copy = Copy::try_from(params)?;
    copy.places()?;
    Ok(Work::Copy(copy))
}

pub fn set_work(params: &CUmemsetNodeParams) -> Result<Work> {
    let set = Set::from_params(params);
    set.check()?;
    set.check_place()?;
    Ok(Work::Set(set))
}

pub fn host_work(params: &CUhostNodeParams) -> Result<Work> {
    if params.function.is_none() {
        return Err(INVALID_VALUE);
    }
    Ok(Work::Host { function: params.function, data: params.data })
}

pub fn memop_work(params: &CUbatchMemOpNodeParams) -> Result<Work> {
    let context = context::get_or_current(params.ctx)?;
    Ok(Work::MemOps(memop::checked_batch(params.count, params.ops, params.flags, context)?))
}

fn add(out: Out<CUgraphNode>, graph: CUgraph, after: In<CUgraphNode>, count: usize, work: Work) -> Result {
    out.check()?;
    let graph = get(graph)?;
    let after =
        after.array(count)?.into_iter().map(|handle| graph.node(handle)).collect::<Result<Vec<_>>>()?;
    out.set(graph.add(work, &after)?.handle)
}

fn change_edges(
    graph: CUgraph,
    from: In<CUgraphNode>,
    to: In<CUgraphNode>,
    count: usize,
    change: impl Fn(&mut Vec<CUgraphNode>, CUgraphNode) -> Result,
) -> Result {
    let graph = get(graph)?;
    for (from, to) in from.array(count)?.into_iter().zip(to.array(count)?) {
        let (from, to) = (graph.node(from)?, graph.node(to)?);
        let mut inner = graph.inner.lock();
        change(inner.dependencies.get_mut(&to.handle).ok_or(INVALID_VALUE)?, from.handle)?;
    }
    Ok(())
}

fn add_edge(dependencies: &mut Vec<CUgraphNode>, from: CUgraphNode) -> Result {
    if dependencies.contains(&from) {
        return Err(INVALID_VALUE);
    }
    dependencies.push(from);
    Ok(())
}

fn remove_edge(dependencies: &mut Vec<CUgraphNode>, from: CUgraphNode) -> Result {
    let place = dependencies.iter().position(|known| *known == from).ok_or(INVALID_VALUE)?;
    dependencies.remove(place);
    Ok(())
}

/// Hands out a list: with NULL for the array its length, else as many entries as fit, the rest of the room zeroed.
fn hand_out(values: &[usize], out: Out<usize>, count: Out<usize>) -> Result {
    if out.is_null() {
        return count.set(values.len());
    }
    let room = count.get()?;
    if room == 0 {
        return Err(INVALID_VALUE);
    }
    for index in 0..room {
        out.set_at(index, values.get(index).copied().unwrap_or(0));
    }
    count.set(room.min(values.len()))
}

fn edges(graph: CUgraph, from: Out<CUgraphNode>, to: Out<CUgraphNode>, count: Out<usize>) -> Result {
    let graph = get(graph)?;
    let inner = graph.inner.lock();
    let pairs = inner.dependencies.iter().flat_map(|(to, all)| all.iter().map(move |from| (*from, *to)));
    let (sources, targets): (Vec<_>, Vec<_>) = pairs.unzip();
    if from.is_null() != to.is_null() {
        return Err(INVALID_VALUE);
    }
    let room = if from.is_null() { 0 } else { count.get()? };
    hand_out(&targets, to, count)?;
    if from.is_null() {
        return Ok(());
    }
    count.set(room)?;
    hand_out(&sources, from, count)
}

fn dependencies_of(node: &Node) -> Result<Vec<CUgraphNode>> {
    let graph = get(node.graph)?;
    let inner = graph.inner.lock();
    Ok(inner.dependencies.get(&node.handle).cloned().unwrap_or_default())
}

fn dependents_of(node: &Node) -> Result<Vec<CUgraphNode>> {
    let graph = get(node.graph)?;
    let inner = graph.inner.lock();
    let behind = inner.dependencies.iter().filter(|(_, all)| all.contains(&node.handle));
    Ok(behind.map(|(dependent, _)| *dependent).collect())
}

cu! {
    fn cuGraphCreate(out: Out<CUgraph>, flags: u32) {
        out.check()?;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        out.set(super::create().handle)
    }

    fn cuGraphDestroy(graph: CUgraph) {
        super::destroy(graph)
    }

    fn cuGraphClone(out: Out<CUgraph>, original: CUgraph) {
        out.check()?;
        let copy = get(original)?.copy(handle::next(), true);
        let handle = copy.handle;
        super::GRAPHS.insert(handle, Arc::new(copy));
        out.set(handle)
    }

    fn cuGraphNodeFindInClone(out: Out<CUgraphNode>, original: CUgraphNode, clone: CUgraph) {
        let graph = get(clone)?;
        let inner = graph.inner.lock();
        let twin = inner.nodes.iter().find(|node| node.original == original).ok_or(INVALID_VALUE)?;
        out.set(twin.handle)
    }

    fn cuGraphAddEmptyNode(out: Out<CUgraphNode>, graph: CUgraph, after: In<CUgraphNode>, count: usize) {
        add(out, graph, after, count, Work::Empty)
    }

    fn cuGraphAddKernelNode_v2(
        out: Out<CUgraphNode>, graph: CUgraph, after: In<CUgraphNode>, count: usize, params: In<CUkernelNodeParams>,
    ) {
        add(out, graph, after, count, kernel_work(&params.get()?)?)
    }

    fn cuGraphAddMemcpyNode(
        out: Out<CUgraphNode>, graph: CUgraph, after: In<CUgraphNode>, count: usize, params: In<CUmemcpy3D>,
        ctx: CUcontext,
    ) {
        context::get_or_current(ctx)?;
        add(out, graph, after, count, copy_work(&params.get()?)?)
    }

    fn cuGraphAddMemsetNode(
        out: Out<CUgraphNode>, graph: CUgraph, after: In<CUgraphNode>, count: usize,
        params: In<CUmemsetNodeParams>, ctx: CUcontext,
    ) {
        context::get_or_current(ctx)?;
        add(out, graph, after, count, set_work(&params.get()?)?)
    }

    fn cuGraphAddHostNode(
        out: Out<CUgraphNode>, graph: CUgraph, after: In<CUgraphNode>, count: usize, params: In<CUhostNodeParams>,
    ) {
        add(out, graph, after, count, host_work(&params.get()?)?)
    }

    fn cuGraphAddChildGraphNode(
        out: Out<CUgraphNode>, graph: CUgraph, after: In<CUgraphNode>, count: usize, child: CUgraph,
    ) {
        if child == graph {
            return Err(INVALID_VALUE);
        }
        let handle = handle::next();
        let copy = Arc::new(get(child)?.copy(handle, true));
        // The copy inside can be asked for and changed by its handle.
        super::GRAPHS.insert(handle, copy.clone());
        add(out, graph, after, count, Work::Child(copy))
    }

    fn cuGraphAddEventRecordNode(
        out: Out<CUgraphNode>, graph: CUgraph, after: In<CUgraphNode>, count: usize, event: CUevent,
    ) {
        add(out, graph, after, count, Work::Record(event::get(event)?))
    }

    fn cuGraphAddEventWaitNode(
        out: Out<CUgraphNode>, graph: CUgraph, after: In<CUgraphNode>, count: usize, event: CUevent,
    ) {
        add(out, graph, after, count, Work::Wait(event::get(event)?))
    }

    fn cuGraphAddBatchMemOpNode(
        out: Out<CUgraphNode>, graph: CUgraph, after: In<CUgraphNode>, count: usize,
        params: In<CUbatchMemOpNodeParams>,
    ) {
        add(out, graph, after, count, memop_work(&params.get()?)?)
    }

    fn cuGraphDestroyNode(handle: CUgraphNode) {
        let node = node(handle)?;
        let graph = get(node.graph)?;
        let mut inner = graph.inner.lock();
        inner.nodes.retain(|known| known.handle != handle);
        inner.dependencies.remove(&handle);
        inner.dependencies.values_mut().for_each(|all| all.retain(|known| *known != handle));
        super::NODES.remove(handle).map(|_| ())
    }

    fn cuGraphAddDependencies(graph: CUgraph, from: In<CUgraphNode>, to: In<CUgraphNode>, count: usize) {
        change_edges(graph, from, to, count, add_edge)
    }

    fn cuGraphAddDependencies_v2(
        graph: CUgraph, from: In<CUgraphNode>, to: In<CUgraphNode>, data: In<CUgraphEdgeData>, count: usize,
    ) {
        let _ = data;
        change_edges(graph, from, to, count, add_edge)
    }

    fn cuGraphRemoveDependencies(graph: CUgraph, from: In<CUgraphNode>, to: In<CUgraphNode>, count: usize) {
        change_edges(graph, from, to, count, remove_edge)
    }

    fn cuGraphRemoveDependencies_v2(
        graph: CUgraph, from: In<CUgraphNode>, to: In<CUgraphNode>, data: In<CUgraphEdgeData>, count: usize,
    ) {
        let _ = data;
        change_edges(graph, from, to, count, remove_edge)
    }

    fn cuGraphGetNodes(graph: CUgraph, nodes: Out<CUgraphNode>, count: Out<usize>) {
        let all: Vec<_> = get(graph)?.inner.lock().nodes.iter().map(|node| node.handle).collect();
        hand_out(&all, nodes, count)
    }

    fn cuGraphGetRootNodes(graph: CUgraph, nodes: Out<CUgraphNode>, count: Out<usize>) {
        let graph = get(graph)?;
        let inner = graph.inner.lock();
        let is_root = |node: &&Arc<Node>| inner.dependencies[&node.handle].is_empty();
        let roots: Vec<_> = inner.nodes.iter().filter(is_root).map(|node| node.handle).collect();
        hand_out(&roots, nodes, count)
    }

    fn cuGraphGetEdges(graph: CUgraph, from: Out<CUgraphNode>, to: Out<CUgraphNode>, count: Out<usize>) {
        edges(graph, from, to, count)
    }

    fn cuGraphGetEdges_v2(
        graph: CUgraph, from: Out<CUgraphNode>, to: Out<CUgraphNode>, data: Out<CUgraphEdgeData>, count: Out<usize>,
    ) {
        edges(graph, from, to, count)?;
        if !from.is_null() && !data.is_null() {
            (0..count.get()?).for_each(|index| data.set_at(index, CUgraphEdgeData::default()));
        }
        Ok(())
    }

    fn cuGraphNodeGetType(handle: CUgraphNode, kind: Out<u32>) {
        kind.set(node(handle)?.work().node_type())
    }

    fn cuGraphNodeGetDependencies(handle: CUgraphNode, nodes: Out<CUgraphNode>, count: Out<usize>) {
        hand_out(&dependencies_of(&*node(handle)?)?, nodes, count)
    }

    fn cuGraphNodeGetDependencies_v2(
        handle: CUgraphNode, nodes: Out<CUgraphNode>, data: Out<CUgraphEdgeData>, count: Out<usize>,
    ) {
        hand_out(&dependencies_of(&*node(handle)?)?, nodes, count)?;
        if !nodes.is_null() && !data.is_null() {
            (0..count.get()?).for_each(|index| data.set_at(index, CUgraphEdgeData::default()));
        }
        Ok(())
    }

    fn cuGraphNodeGetDependentNodes(handle: CUgraphNode, nodes: Out<CUgraphNode>, count: Out<usize>) {
        hand_out(&dependents_of(&*node(handle)?)?, nodes, count)
    }

    fn cuGraphNodeGetDependentNodes_v2(
        handle: CUgraphNode, nodes: Out<CUgraphNode>, data: Out<CUgraphEdgeData>, count: Out<usize>,
    ) {
        hand_out(&dependents_of(&*node(handle)?)?, nodes, count)?;
        if !nodes.is_null() && !data.is_null() {
            (0..count.get()?).for_each(|index| data.set_at(index, CUgraphEdgeData::default()));
        }
        Ok(())
    }

    fn cuGraphDebugDotPrint(graph: CUgraph, path: Text, flags: u32) {
        let _ = flags;
        let text = dot(&*get(graph)?);
        std::fs::write(path.get()?, text).map_err(|_| crate::error::OPERATING_SYSTEM)
    }
}

/// The graph in the language of Graphviz.
fn dot(graph: &Graph) -> String {
    const NAMES: [&str; 13] = [
        "KERNEL",
        "MEMCPY",
        "MEMSET",
        "HOST",
        "GRAPH",
        "EMPTY",
        "WAIT_EVENT",
        "EVENT_RECORD",
        "",
        "",
        "MEM_ALLOC",
        "MEM_FREE",
        "BATCH_MEM_OP",
    ];
    let inner = graph.inner.lock();
    let mut text = String::from("digraph {\n");
    for node in &inner.nodes {
        let kind = NAMES[node.work().node_type() as usize];
        let off = if node.enabled.load(Ordering::Relaxed) { "" } else { " (disabled)" };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  n{:x} [label=\"{kind}{off}\"];", node.handle);
        for before in &inner.dependencies[&node.handle] {
            let _ = writeln!(text, "  n{before:x} -> n{:x};", node.handle);
        }
    }
    text.push_str("}\n");
    text
}
