//! Reduction operations made by the caller.

use std::ffi::c_void;

use super::boundary::{self, not_null};
use super::types::*;
use crate::comm::{PreMulSum, Scalar};
use crate::error::Error;
use crate::schedule::DataType;

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
    boundary::on_comm("ncclRedOpCreatePreMulSum", comm, |comm| {
        not_null(op, "op")?;
        not_null(scalar, "scalar")?;
        let datatype = DataType::from_raw(datatype.0)
            .ok_or_else(|| Error::argument(format!("datatype {} is no ncclDataType_t", datatype.0)))?;
        let scalar = match residence {
            ncclScalarDevice => Scalar::Device(scalar.addr() as u64),
            ncclScalarHostImmediate => {
                let mut bits = [0; 8];
                // SAFETY: not NULL, and the caller promises one element of the type there; none is larger than 8 bytes.
                unsafe { scalar.cast::<u8>().copy_to_nonoverlapping(bits.as_mut_ptr(), datatype.size()) };
                Scalar::Value(u64::from_le_bytes(bits))
            }
            other => {
                return Err(Error::argument(format!("residence {} is no ncclScalarResidence_t", other.0)));
            }
        };
        let number = comm.make_operation(PreMulSum { datatype, scalar })?;
        put!(op, ncclRedOp_t(number))
    })
}

/// Ends an operation; collectives that were enqueued with it keep it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclRedOpDestroy(op: ncclRedOp_t, comm: ncclComm_t) -> ncclResult_t {
    twin!(pncclRedOpDestroy = red_op_destroy(op: ncclRedOp_t, comm: ncclComm_t) -> ncclResult_t)
}

unsafe fn red_op_destroy(op: ncclRedOp_t, comm: ncclComm_t) -> ncclResult_t {
    boundary::on_comm("ncclRedOpDestroy", comm, |comm| comm.end_operation(op.0))
}
