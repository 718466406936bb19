//! Reduction operations made by the caller.

use std::ffi::c_void;

use super::boundary::{self, not_null, unfinished};
use super::types::*;
use crate::error::Error;

/// Makes an operation that multiplies this rank's input by a scalar before summing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclRedOpCreatePreMulSum(
    op: *mut ncclRedOp_t,
    scalar: *mut c_void,
    datatype: ncclDataType_t,
    residence: ncclScalarResidence_t,
    comm: ncclComm_t,
) -> ncclResult_t {
    twin!(
        pncclRedOpCreatePreMulSum = red_op_create_pre_mul_sum(
            op: *mut ncclRedOp_t,
            scalar: *mut c_void,
            datatype: ncclDataType_t,
            residence: ncclScalarResidence_t,
            comm: ncclComm_t,
        ) -> ncclResult_t
    )
}

unsafe fn red_op_create_pre_mul_sum(
    op: *mut ncclRedOp_t,
    scalar: *mut c_void,
    datatype: ncclDataType_t,
    residence: ncclScalarResidence_t,
    comm: ncclComm_t,
) -> ncclResult_t {
    boundary::on_comm("ncclRedOpCreatePreMulSum", comm, |_| {
        not_null(op, "op")?;
        not_null(scalar, "scalar")?;
        if !(0..ncclNumTypes.0).contains(&datatype.0) {
            return Err(Error::argument(format!("datatype {} is no ncclDataType_t", datatype.0)));
        }
        if residence != ncclScalarDevice && residence != ncclScalarHostImmediate {
            return Err(Error::argument(format!("residence {} is no ncclScalarResidence_t", residence.0)));
        }
        Err(unfinished())
    })
}

/// Ends an operation; collectives that were enqueued with it keep it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclRedOpDestroy(op: ncclRedOp_t, comm: ncclComm_t) -> ncclResult_t {
    twin!(pncclRedOpDestroy = red_op_destroy(op: ncclRedOp_t, comm: ncclComm_t) -> ncclResult_t)
}

unsafe fn red_op_destroy(op: ncclRedOp_t, comm: ncclComm_t) -> ncclResult_t {
    boundary::on_comm("ncclRedOpDestroy", comm, |_| {
        // No operation of a caller can exist as long as none can be made.
        Err(Error::argument(if (0..ncclNumOps.0).contains(&op.0) {
            format!("op {} is built in and cannot be destroyed", op.0)
        } else {
            format!("op {} is no operation of this communicator", op.0)
        }))
    })
}
