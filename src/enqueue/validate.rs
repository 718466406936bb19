//! The checks of a call, in NCCL's order: communicator, root or peer, type, operation, buffers.

use std::sync::Arc;

use super::{Call, Kind, Message, Operation, PointToPoint};
use crate::comm::{Comm, Scalar};
use crate::error::{Error, Result};
use crate::gpu::context::check_buffer;
use crate::gpu::stream::CallerStream;
use crate::schedule::{DataType, Function, Reduction, Signature};

/// The operations that a collective call comes to: none for zero elements, several where it is made of
/// messages.
pub fn prepare(comm: &Arc<Comm>, call: Call) -> Result<Vec<Operation>> {
    comm.check_usable()?;
    let (rank, nranks) = (comm.rank() as u64, comm.nranks() as u64);
    let root = if call.function.has_root() { in_range(comm, "root", call.root)? } else { 0 };
    let datatype = datatype(call.datatype)?;
    let (reduction, scalar) =
        if call.function.reduces() { reduction(comm, call.op, datatype)? } else { (Reduction::Sum, None) };
    if call.count == 0 {
        return Ok(Vec::new());
    }
    let bytes = bytes(call.count, datatype)?;
    let all = bytes.checked_mul(nranks).ok_or_else(|| too_large(call.count))?;
    // How much of each buffer this rank uses; 0 where NULL is legal.
    let is_root = u64::from(root) == rank;
    let at_root = |bytes: u64| if is_root { bytes } else { 0 };
    let (send_bytes, recv_bytes) = match call.function {
        Function::AllReduce => (bytes, bytes),
        Function::Broadcast => (at_root(bytes), bytes),
        Function::Reduce => (bytes, at_root(bytes)),
        Function::AllGather => (bytes, all),
        Function::ReduceScatter => (all, bytes),
        Function::AllToAll => (all, all),
        Function::Gather => (bytes, at_root(all)),
        Function::Scatter => (at_root(all), bytes),
    };
    check_range(comm, "sendbuff", call.send, send_bytes)?;
    check_range(comm, "recvbuff", call.recv, recv_bytes)?;

    let stream = CallerStream(call.stream);
    let operation = |kind: Kind| Operation { comm: comm.clone(), stream, kind };
    let message = |peer: u64, is_send: bool, buffer: u64| {
        operation(Kind::Message(Message { peer: peer as u32, is_send, buffer, bytes }))
    };
    let (send, recv) = (call.send, call.recv);
    let signature =
        Signature { function: call.function, datatype, reduction, root, count: call.count as u64 };
    if nranks == 1 && scalar.is_some() {
        return Ok(vec![operation(Kind::Local { signature, scalar, send, recv })]);
    }
    if nranks == 1 {
        // One rank: every collective is a copy of its own data. An average of one value is the value.
        let copy = (send != recv).then(|| operation(Kind::Copy { from: send, to: recv, bytes }));
        return Ok(copy.into_iter().collect());
    }
    let mut operations = Vec::new();
    match call.function {
        Function::AllToAll => {
            for peer in 0..nranks {
                operations.push(message(peer, true, send + peer * bytes));
                operations.push(message(peer, false, recv + peer * bytes));
            }
        }
        Function::Gather => {
            let in_place = is_root && send == recv + rank * bytes;
            if !in_place {
                operations.push(message(root.into(), true, send));
            }
            for peer in (0..nranks).filter(|peer| is_root && !(in_place && *peer == rank)) {
                operations.push(message(peer, false, recv + peer * bytes));
            }
        }
        Function::Scatter => {
            let in_place = is_root && recv == send + rank * bytes;
            if !in_place {
                operations.push(message(root.into(), false, recv));
            }
            for peer in (0..nranks).filter(|peer| is_root && !(in_place && *peer == rank)) {
                operations.push(message(peer, true, send + peer * bytes));
            }
        }
        _ => operations.push(operation(Kind::Collective { signature, scalar, send, recv })),
    }
    Ok(operations)
}

/// A send or receive of zero elements stays a message: it is matched like any other.
pub fn prepare_message(comm: &Arc<Comm>, call: PointToPoint) -> Result<Operation> {
    comm.check_usable()?;
    let peer = in_range(comm, "peer", call.peer)?;
    let bytes = bytes(call.count, datatype(call.datatype)?)?;
    check_range(comm, if call.is_send { "sendbuff" } else { "recvbuff" }, call.buffer, bytes)?;
    let message = Message { peer, is_send: call.is_send, buffer: call.buffer, bytes };
    Ok(Operation { comm: comm.clone(), stream: CallerStream(call.stream), kind: Kind::Message(message) })
}

fn in_range(comm: &Comm, name: &str, value: i32) -> Result<u32> {
    match u32::try_from(value) {
        Ok(value) if (value as i32) < comm.nranks() => Ok(value),
        _ => Err(Error::argument(format!(
            "{name} is {value}, it must be 0 to {} in this communicator of {} ranks",
            comm.nranks() - 1,
            comm.nranks()
        ))),
    }
}

fn datatype(raw: i32) -> Result<DataType> {
    DataType::from_raw(raw).ok_or_else(|| Error::argument(format!("datatype is {raw}, nccl.h knows 0 to 11")))
}

fn reduction(comm: &Comm, raw: i32, datatype: DataType) -> Result<(Reduction, Option<Scalar>)> {
    if let Some(builtin) = Reduction::from_raw(raw) {
        return Ok((builtin, None));
    }
    let made = comm.operation(raw).ok_or_else(|| {
        Error::argument(format!(
            "op is {raw}: nccl.h knows 0 to 4, and this communicator has no operation of its own with that number"
        ))
    })?;
    if made.datatype != datatype {
        return Err(Error::argument(format!(
            "op {raw} was made for {}, the call's datatype is {}",
            made.datatype.name(),
            datatype.name()
        )));
    }
    Ok((Reduction::PreMulSum, Some(made.scalar)))
}

fn bytes(count: usize, datatype: DataType) -> Result<u64> {
    (count as u64)
        .checked_mul(datatype.size() as u64)
        .filter(|bytes| *bytes < 1 << 56)
        .ok_or_else(|| too_large(count))
}

fn too_large(count: usize) -> Error {
    Error::argument(format!("count is {count}: that many elements do not fit into an address space"))
}

/// Checks that this rank can use `bytes` bytes at `address`.
fn check_range(comm: &Comm, name: &str, address: u64, bytes: u64) -> Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    if address == 0 {
        return Err(Error::argument(format!("{name} is NULL, but this rank uses {bytes} bytes of it")));
    }
    let _bound = comm.context().bind()?;
    check_buffer(comm.context().device(), address, name)
}
