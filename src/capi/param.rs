//! Settings (NCCL_* and OXCCL_*) and their values.

use std::ffi::{c_char, c_int, c_void};

use super::boundary::{self, not_null, unfinished};
use super::types::*;

/// Opens a setting by its name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclParamBind(out: *mut ncclParamHandle_t, key: *const c_char) -> ncclResult_t {
    twin!(pncclParamBind = param_bind(out: *mut ncclParamHandle_t, key: *const c_char) -> ncclResult_t)
}

unsafe fn param_bind(out: *mut ncclParamHandle_t, key: *const c_char) -> ncclResult_t {
    boundary::run("ncclParamBind", || {
        not_null(out, "out")?;
        not_null(key, "key")?;
        Err(unfinished())
    })
}

/// Value of a setting of exactly this type.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclParamGetI8(h: ncclParamHandle_t, out: *mut i8) -> ncclResult_t {
    twin!(pncclParamGetI8 = param_get_i8(h: ncclParamHandle_t, out: *mut i8) -> ncclResult_t)
}

unsafe fn param_get_i8(h: ncclParamHandle_t, out: *mut i8) -> ncclResult_t {
    boundary::run("ncclParamGetI8", || {
        not_null(h, "h")?;
        not_null(out, "out")?;
        Err(unfinished())
    })
}

/// Value of a setting of exactly this type.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclParamGetI16(h: ncclParamHandle_t, out: *mut i16) -> ncclResult_t {
    twin!(pncclParamGetI16 = param_get_i16(h: ncclParamHandle_t, out: *mut i16) -> ncclResult_t)
}

unsafe fn param_get_i16(h: ncclParamHandle_t, out: *mut i16) -> ncclResult_t {
    boundary::run("ncclParamGetI16", || {
        not_null(h, "h")?;
        not_null(out, "out")?;
        Err(unfinished())
    })
}

/// Value of a setting of exactly this type.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclParamGetI32(h: ncclParamHandle_t, out: *mut i32) -> ncclResult_t {
    twin!(pncclParamGetI32 = param_get_i32(h: ncclParamHandle_t, out: *mut i32) -> ncclResult_t)
}

unsafe fn param_get_i32(h: ncclParamHandle_t, out: *mut i32) -> ncclResult_t {
    boundary::run("ncclParamGetI32", || {
        not_null(h, "h")?;
        not_null(out, "out")?;
        Err(unfinished())
    })
}

/// Value of a setting of exactly this type.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclParamGetI64(h: ncclParamHandle_t, out: *mut i64) -> ncclResult_t {
    twin!(pncclParamGetI64 = param_get_i64(h: ncclParamHandle_t, out: *mut i64) -> ncclResult_t)
}

unsafe fn param_get_i64(h: ncclParamHandle_t, out: *mut i64) -> ncclResult_t {
    boundary::run("ncclParamGetI64", || {
        not_null(h, "h")?;
        not_null(out, "out")?;
        Err(unfinished())
    })
}

/// Value of a setting of exactly this type.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclParamGetU8(h: ncclParamHandle_t, out: *mut u8) -> ncclResult_t {
    twin!(pncclParamGetU8 = param_get_u8(h: ncclParamHandle_t, out: *mut u8) -> ncclResult_t)
}

unsafe fn param_get_u8(h: ncclParamHandle_t, out: *mut u8) -> ncclResult_t {
    boundary::run("ncclParamGetU8", || {
        not_null(h, "h")?;
        not_null(out, "out")?;
        Err(unfinished())
    })
}

/// Value of a setting of exactly this type.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclParamGetU16(h: ncclParamHandle_t, out: *mut u16) -> ncclResult_t {
    twin!(pncclParamGetU16 = param_get_u16(h: ncclParamHandle_t, out: *mut u16) -> ncclResult_t)
}

unsafe fn param_get_u16(h: ncclParamHandle_t, out: *mut u16) -> ncclResult_t {
    boundary::run("ncclParamGetU16", || {
        not_null(h, "h")?;
        not_null(out, "out")?;
        Err(unfinished())
    })
}

/// Value of a setting of exactly this type.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclParamGetU32(h: ncclParamHandle_t, out: *mut u32) -> ncclResult_t {
    twin!(pncclParamGetU32 = param_get_u32(h: ncclParamHandle_t, out: *mut u32) -> ncclResult_t)
}

unsafe fn param_get_u32(h: ncclParamHandle_t, out: *mut u32) -> ncclResult_t {
    boundary::run("ncclParamGetU32", || {
        not_null(h, "h")?;
        not_null(out, "out")?;
        Err(unfinished())
    })
}

/// Value of a setting of exactly this type.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclParamGetU64(h: ncclParamHandle_t, out: *mut u64) -> ncclResult_t {
    twin!(pncclParamGetU64 = param_get_u64(h: ncclParamHandle_t, out: *mut u64) -> ncclResult_t)
}

unsafe fn param_get_u64(h: ncclParamHandle_t, out: *mut u64) -> ncclResult_t {
    boundary::run("ncclParamGetU64", || {
        not_null(h, "h")?;
        not_null(out, "out")?;
        Err(unfinished())
    })
}

/// Value of a text setting; valid until the next such call on this thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclParamGetStr(h: ncclParamHandle_t, out: *mut *const c_char) -> ncclResult_t {
    twin!(pncclParamGetStr = param_get_str(h: ncclParamHandle_t, out: *mut *const c_char) -> ncclResult_t)
}

unsafe fn param_get_str(h: ncclParamHandle_t, out: *mut *const c_char) -> ncclResult_t {
    boundary::run("ncclParamGetStr", || {
        not_null(h, "h")?;
        not_null(out, "out")?;
        Err(unfinished())
    })
}

/// Bytes of the value of a setting.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclParamGet(
    h: ncclParamHandle_t,
    out: *mut c_void,
    maxLen: c_int,
    len: *mut c_int,
) -> ncclResult_t {
    twin!(
        pncclParamGet = param_get(
            h: ncclParamHandle_t,
            out: *mut c_void,
            maxLen: c_int,
            len: *mut c_int,
        ) -> ncclResult_t
    )
}

unsafe fn param_get(h: ncclParamHandle_t, out: *mut c_void, maxLen: c_int, len: *mut c_int) -> ncclResult_t {
    boundary::run("ncclParamGet", || {
        let _ = maxLen;
        not_null(h, "h")?;
        not_null(out, "out")?;
        not_null(len, "len")?;
        Err(unfinished())
    })
}

/// Value of a setting by its name, as text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclParamGetParameter(
    key: *const c_char,
    value: *mut *const c_char,
    valueLen: *mut c_int,
) -> ncclResult_t {
    twin!(
        pncclParamGetParameter = param_get_parameter(
            key: *const c_char,
            value: *mut *const c_char,
            valueLen: *mut c_int,
        ) -> ncclResult_t
    )
}

unsafe fn param_get_parameter(
    key: *const c_char,
    value: *mut *const c_char,
    valueLen: *mut c_int,
) -> ncclResult_t {
    boundary::run("ncclParamGetParameter", || {
        not_null(key, "key")?;
        not_null(value, "value")?;
        not_null(valueLen, "valueLen")?;
        Err(unfinished())
    })
}

/// Names of all settings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclParamGetAllParameterKeys(
    table: *mut *mut *const c_char,
    tableLen: *mut c_int,
) -> ncclResult_t {
    twin!(
        pncclParamGetAllParameterKeys = param_get_all_parameter_keys(
            table: *mut *mut *const c_char,
            tableLen: *mut c_int,
        ) -> ncclResult_t
    )
}

unsafe fn param_get_all_parameter_keys(table: *mut *mut *const c_char, tableLen: *mut c_int) -> ncclResult_t {
    boundary::run("ncclParamGetAllParameterKeys", || {
        not_null(table, "table")?;
        not_null(tableLen, "tableLen")?;
        Err(unfinished())
    })
}

/// Prints all settings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclParamDumpAll() {
    twin!(pncclParamDumpAll = param_dump_all() -> ())
}

unsafe fn param_dump_all() {
    boundary::run("ncclParamDumpAll", || Err(unfinished()));
}
