//! Reading and changing what a node does, in a graph or in an executable one.

use super::exec;
use super::node;
use crate::context;
use crate::error::{INVALID_VALUE, Result};
use crate::graph::build::{copy_work, host_work, kernel_work, memop_work, set_work};
use crate::stream::event;
use crate::types::{
    CUbatchMemOpNodeParams, CUcontext, CUevent, CUgraph, CUgraphExec, CUgraphNode, CUhostNodeParams,
    CUkernelNodeParams, CUmemcpy3D, CUmemsetNodeParams, In, Out,
};
use crate::work::Work;

/// Changes a node of a graph; its kind must stay.
fn change(handle: CUgraphNode, work: Work) -> Result {
    let node = node(handle)?;
    if node.work().node_type() != work.node_type() {
        return Err(INVALID_VALUE);
    }
    node.set_work(work);
    Ok(())
}

/// Changes a node of an executable graph, named by the node that it was made from.
fn change_in(exec: CUgraphExec, handle: CUgraphNode, work: Work) -> Result {
    let twin = exec::get(exec)?.twin(handle)?;
    if twin.work().node_type() != work.node_type() {
        return Err(INVALID_VALUE);
    }
    if let Work::Kernel(launch) = &work {
        launch.function.load(launch.function.context.map_or_else(context::current, Ok)?);
    }
    twin.set_work(work);
    Ok(())
}

cu! {
    fn cuGraphKernelNodeGetParams_v2(handle: CUgraphNode, params: Out<CUkernelNodeParams>) {
        let node = node(handle)?;
        let Work::Kernel(launch) = node.work() else { return Err(INVALID_VALUE) };
        let mut shown = node.shown.lock();
        // The list stays valid until the node is changed or destroyed.
        let list = shown.get_or_insert_with(|| Box::new([launch.arg.as_ptr() as usize]));
        let (func, kern) = match launch.function.context {
            Some(_) => (launch.function.handle, 0),
            None => (0, launch.function.handle),
        };
        params.set(CUkernelNodeParams {
            func,
            grid: launch.grid,
            block: launch.block,
            shared_bytes: launch.shared_bytes,
            params: In::new(list.as_ptr()),
            extra: In::NULL,
            kern,
            ctx: launch.function.context.map_or(0, |context| context.handle),
        })
    }

    fn cuGraphKernelNodeSetParams_v2(handle: CUgraphNode, params: In<CUkernelNodeParams>) {
        change(handle, kernel_work(&params.get()?)?)
    }

    fn cuGraphExecKernelNodeSetParams_v2(exec: CUgraphExec, handle: CUgraphNode, params: In<CUkernelNodeParams>) {
        change_in(exec, handle, kernel_work(&params.get()?)?)
    }

    fn cuGraphMemcpyNodeGetParams(handle: CUgraphNode, params: Out<CUmemcpy3D>) {
        let Work::Copy(copy) = node(handle)?.work() else { return Err(INVALID_VALUE) };
        params.set(copy.to_params())
    }

    fn cuGraphMemcpyNodeSetParams(handle: CUgraphNode, params: In<CUmemcpy3D>) {
        change(handle, copy_work(&params.get()?)?)
    }

    fn cuGraphExecMemcpyNodeSetParams(
        exec: CUgraphExec, handle: CUgraphNode, params: In<CUmemcpy3D>, ctx: CUcontext,
    ) {
        context::get_or_current(ctx)?;
        change_in(exec, handle, copy_work(&params.get()?)?)
    }

    fn cuGraphMemsetNodeGetParams(handle: CUgraphNode, params: Out<CUmemsetNodeParams>) {
        let Work::Set(set) = node(handle)?.work() else { return Err(INVALID_VALUE) };
        params.set(set.to_params())
    }

    fn cuGraphMemsetNodeSetParams(handle: CUgraphNode, params: In<CUmemsetNodeParams>) {
        change(handle, set_work(&params.get()?)?)
    }

    fn cuGraphExecMemsetNodeSetParams(
        exec: CUgraphExec, handle: CUgraphNode, params: In<CUmemsetNodeParams>, ctx: CUcontext,
    ) {
        context::get_or_current(ctx)?;
        change_in(exec, handle, set_work(&params.get()?)?)
    }

    fn cuGraphHostNodeGetParams(handle: CUgraphNode, params: Out<CUhostNodeParams>) {
        let Work::Host { function, data } = node(handle)?.work() else { return Err(INVALID_VALUE) };
        params.set(CUhostNodeParams { function, data })
    }

    fn cuGraphHostNodeSetParams(handle: CUgraphNode, params: In<CUhostNodeParams>) {
        change(handle, host_work(&params.get()?)?)
    }

    fn cuGraphExecHostNodeSetParams(exec: CUgraphExec, handle: CUgraphNode, params: In<CUhostNodeParams>) {
        change_in(exec, handle, host_work(&params.get()?)?)
    }

    fn cuGraphBatchMemOpNodeSetParams(handle: CUgraphNode, params: In<CUbatchMemOpNodeParams>) {
        change(handle, memop_work(&params.get()?)?)
    }

    fn cuGraphExecBatchMemOpNodeSetParams(
        exec: CUgraphExec, handle: CUgraphNode, params: In<CUbatchMemOpNodeParams>,
    ) {
        change_in(exec, handle, memop_work(&params.get()?)?)
    }

    fn cuGraphChildGraphNodeGetGraph(handle: CUgraphNode, graph: Out<CUgraph>) {
        let Work::Child(child) = node(handle)?.work() else { return Err(INVALID_VALUE) };
        graph.set(child.handle)
    }

    fn cuGraphEventRecordNodeGetEvent(handle: CUgraphNode, event: Out<CUevent>) {
        let Work::Record(known) = node(handle)?.work() else { return Err(INVALID_VALUE) };
        event.set(known.handle())
    }

    fn cuGraphEventRecordNodeSetEvent(handle: CUgraphNode, event: CUevent) {
        change(handle, Work::Record(event::get(event)?))
    }

    fn cuGraphExecEventRecordNodeSetEvent(exec: CUgraphExec, handle: CUgraphNode, event: CUevent) {
        change_in(exec, handle, Work::Record(event::get(event)?))
    }

    fn cuGraphEventWaitNodeGetEvent(handle: CUgraphNode, event: Out<CUevent>) {
        let Work::Wait(known) = node(handle)?.work() else { return Err(INVALID_VALUE) };
        event.set(known.handle())
    }

    fn cuGraphEventWaitNodeSetEvent(handle: CUgraphNode, event: CUevent) {
        change(handle, Work::Wait(event::get(event)?))
    }

    fn cuGraphExecEventWaitNodeSetEvent(exec: CUgraphExec, handle: CUgraphNode, event: CUevent) {
        change_in(exec, handle, Work::Wait(event::get(event)?))
    }
}
