//! Graphs: work with dependencies, built by calls or by capture, and launched as a whole.
//!
//! A graph owns its nodes. An executable graph is a private copy of one, see [`exec`]. Starting a graph queues one
//! operation per node, so branches that wait for each other run at the same time, and a last marker that holds the
//! graph until all of it has ended.

pub mod build;
pub mod exec;
pub mod params;
pub mod user_object;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::context::Context;
use crate::error::{INVALID_VALUE, Result};
use crate::handle::{self, Registry};
use crate::stream::op::{Job, Op};
use crate::types::{CUgraph, CUgraphNode};
use crate::work::{self, GraphMemory, MemoryNode, Work};
use user_object::Held;

pub struct Graph {
    pub handle: CUgraph,
    inner: Mutex<Inner>,
    objects: Mutex<Vec<Held>>,
}

#[derive(Default)]
struct Inner {
    /// In the order in which they were added.
    nodes: Vec<Arc<Node>>,
    /// For each node the nodes that it depends on.
    dependencies: BTreeMap<CUgraphNode, Vec<CUgraphNode>>,
}

pub struct Node {
    pub handle: CUgraphNode,
    graph: CUgraph,
    /// The node that this one is a copy of.
    original: CUgraphNode,
    work: Mutex<Work>,
    enabled: AtomicBool,
    /// The parameter list of a kernel, as it was handed out last.
    shown: Mutex<Option<Box<[usize; 1]>>>,
}

static GRAPHS: Registry<Graph> = Registry::new();
static NODES: Registry<Node> = Registry::new();

pub fn get(handle: CUgraph) -> Result<Arc<Graph>> {
    GRAPHS.get(handle).map_err(|_| INVALID_VALUE)
}

pub fn node(handle: CUgraphNode) -> Result<Arc<Node>> {
    NODES.get(handle).map_err(|_| INVALID_VALUE)
}

/// A new empty graph that its handle keeps.
pub fn create() -> Arc<Graph> {
    GRAPHS.insert_with(Graph::empty)
}

/// Takes a graph's handle away. What it held goes now: events that were recorded in its capture may remember the graph for longer.
pub fn destroy(handle: CUgraph) -> Result {
    let graph = GRAPHS.remove(handle).map_err(|_| INVALID_VALUE)?;
    let objects = std::mem::take(&mut *graph.objects.lock());
    drop(objects);
    Ok(())
}

impl Drop for Graph {
    fn drop(&mut self) {
        for node in &self.inner.get_mut().nodes {
            // Copies inside executable graphs are not in the table.
            let _ = NODES.remove(node.handle);
        }
    }
}

impl Node {
    pub fn work(&self) -> Work {
        self.work.lock().clone()
    }

    pub fn set_work(&self, work: Work) {
        *self.work.lock() = work;
        *self.shown.lock() = None;
    }
}

impl Graph {
    fn empty(handle: CUgraph) -> Graph {
        Graph { handle, inner: Mutex::default(), objects: Mutex::default() }
    }

    /// Adds a node behind others of this graph.
    pub fn add(&self, work: Work, after: &[Arc<Node>]) -> Result<Arc<Node>> {
        let mut inner = self.inner.lock();
        let mut dependencies: Vec<CUgraphNode> = Vec::new();
        for node in after {
            if node.graph != self.handle || !inner.dependencies.contains_key(&node.handle) {
                return Err(INVALID_VALUE);
            }
            if dependencies.contains(&node.handle) {
                return Err(INVALID_VALUE);
            }
            dependencies.push(node.handle);
        }
        let node = NODES.insert_with(|handle| Node::new(handle, self.handle, 0, work));
        inner.dependencies.insert(node.handle, dependencies);
        inner.nodes.push(node.clone());
        Ok(node)
    }

    /// The node with this handle, if it is one of this graph.
    pub fn node(&self, handle: CUgraphNode) -> Result<Arc<Node>> {
        node(handle).and_then(|node| if node.graph == self.handle { Ok(node) } else { Err(INVALID_VALUE) })
    }

    /// Whether all nodes of `wanted` are among `last` or before them.
    pub fn reach(&self, last: &[Arc<Node>], wanted: &[Arc<Node>]) -> bool {
        let inner = self.inner.lock();
        let mut seen: Vec<CUgraphNode> = Vec::new();
        let mut open: Vec<CUgraphNode> = last.iter().map(|node| node.handle).collect();
        while let Some(handle) = open.pop() {
            if !seen.contains(&handle) {
                seen.push(handle);
                open.extend(inner.dependencies.get(&handle).into_iter().flatten());
            }
        }
        wanted.iter().all(|node| seen.contains(&node.handle))
    }

    /// The nodes, each behind those that it depends on, with the places of those; None if the dependencies form a ring.
    fn ordered(&self) -> Option<Vec<(Arc<Node>, Vec<usize>)>> {
        let inner = self.inner.lock();
        let mut place: BTreeMap<CUgraphNode, usize> = BTreeMap::new();
        let mut ordered = Vec::with_capacity(inner.nodes.len());
        // Mostly each node comes after its dependencies already, and one pass suffices.
        let mut left: Vec<&Arc<Node>> = inner.nodes.iter().collect();
        while !left.is_empty() {
            let before = left.len();
            left.retain(|node| {
                let dependencies = &inner.dependencies[&node.handle];
                let places: Option<Vec<usize>> = dependencies.iter().map(|d| place.get(d).copied()).collect();
                match places {
                    Some(places) => {
                        place.insert(node.handle, ordered.len());
                        ordered.push((Arc::clone(node), places));
                        false
                    }
                    None => true,
                }
            });
            if left.len() == before {
                return None;
            }
        }
        Some(ordered)
    }

    /// A copy with nodes of its own. Handles of the copy's nodes are in the table only if `public`.
    fn copy(&self, handle: CUgraph, public: bool) -> Graph {
        let copy = Graph::empty(handle);
        {
            let inner = self.inner.lock();
            let mut copied = copy.inner.lock();
            let mut names: BTreeMap<CUgraphNode, CUgraphNode> = BTreeMap::new();
            for node in &inner.nodes {
                let work = match node.work() {
                    // What is inside may be changed later through the original.
                    Work::Child(child) => Work::Child(Arc::new(child.copy(handle::next(), false))),
                    work => work,
                };
                let twin = Arc::new(Node::new(handle::next(), handle, node.handle, work));
                twin.enabled.store(node.enabled.load(Ordering::Relaxed), Ordering::Relaxed);
                names.insert(node.handle, twin.handle);
                if public {
                    NODES.insert(twin.handle, twin.clone());
                }
                copied.nodes.push(twin);
            }
            for (node, dependencies) in &inner.dependencies {
                let twins = dependencies.iter().map(|dependency| names[dependency]).collect();
                copied.dependencies.insert(names[node], twins);
            }
            *copy.objects.lock() = self.objects.lock().iter().map(Held::again).collect();
        }
        copy
    }

    /// Checks what captures put into the graph unseen.
    fn check(&self) -> Result {
        for node in &self.inner.lock().nodes {
            match &*node.work.lock() {
                Work::Set(set) => set.check_place()?,
                Work::Child(child) => child.check()?,
                _ => {}
            }
        }
        Ok(())
    }

    /// The graph's memory that begins at an address.
    pub fn memory_at(&self, address: u64) -> Option<Arc<GraphMemory>> {
        let memory = |node: &Arc<Node>| match &*node.work.lock() {
            Work::Memory(memory, MemoryNode::Alloc) if memory.address == address => Some(memory.clone()),
            _ => None,
        };
        self.inner.lock().nodes.iter().find_map(memory)
    }

    /// Queues the whole graph behind the operations of `before`; the returned operation ends last.
    pub fn start(self: Arc<Graph>, context: &'static Context, before: &[Arc<Op>]) -> Arc<Op> {
        let ordered = self.ordered().unwrap_or_default();
        let mut ops: Vec<Arc<Op>> = Vec::with_capacity(ordered.len());
        let mut is_last = vec![true; ordered.len()];
        for (node, places) in &ordered {
            let dependencies: Vec<Arc<Op>> = places.iter().map(|place| ops[*place].clone()).collect();
            places.iter().for_each(|place| is_last[*place] = false);
            let work = if node.enabled.load(Ordering::Relaxed) { node.work() } else { Work::Empty };
            let dependencies = if places.is_empty() { before } else { &dependencies };
            ops.push(work::start(work, context, dependencies));
        }
        let mut last: Vec<Arc<Op>> =
            ops.into_iter().zip(is_last).filter(|(_, is_last)| *is_last).map(|(op, _)| op).collect();
        if last.is_empty() {
            last = before.to_vec();
        }
        Op::submit(&last, Job::Marker(Box::new(move || drop(self))))
    }

    /// Loads the code of all kernels, in this graph and those inside.
    fn load_kernels(&self, context: &'static Context) {
        let nodes = self.inner.lock().nodes.clone();
        for node in nodes {
            match node.work() {
                Work::Kernel(launch) => launch.function.load(launch.function.context.unwrap_or(context)),
                Work::Child(child) => child.load_kernels(context),
                _ => {}
            }
        }
    }
}

impl Node {
    fn new(handle: CUgraphNode, graph: CUgraph, original: CUgraphNode, work: Work) -> Node {
        Node {
            handle,
            graph,
            original,
            work: Mutex::new(work),
            enabled: AtomicBool::new(true),
            shown: Mutex::new(None),
        }
    }
}
