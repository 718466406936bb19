//! Settings (NCCL_* and OXCCL_*) and their values.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int, c_void};
use std::io::Write;

use super::boundary::{self, not_null};
use super::param_values::{self, Value};
use super::types::*;
use crate::error::{Error, Result};
use crate::param;

/// Opens a setting by its name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclParamBind(out: *mut ncclParamHandle_t, key: *const c_char) -> ncclResult_t {
    twin!(pncclParamBind = param_bind(out: *mut ncclParamHandle_t, key: *const c_char) -> ncclResult_t)
}

unsafe fn param_bind(out: *mut ncclParamHandle_t, key: *const c_char) -> ncclResult_t {
    boundary::run("ncclParamBind", || {
        not_null(out, "out")?;
        not_null(key, "key")?;
        // SAFETY: not NULL, and the caller promises a text.
        let setting = unsafe { param_values::of_key(key) }?;
        put!(out, param_values::handle(setting))
    })
}

/// Value of a setting of exactly this type; here no setting has it, numbers are int64_t.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclParamGetI8(h: ncclParamHandle_t, out: *mut i8) -> ncclResult_t {
    twin!(pncclParamGetI8 = param_get_i8(h: ncclParamHandle_t, out: *mut i8) -> ncclResult_t)
}

unsafe fn param_get_i8(h: ncclParamHandle_t, out: *mut i8) -> ncclResult_t {
    boundary::run("ncclParamGetI8", || {
        not_null(h, "h")?;
        not_null(out, "out")?;
        Err(param_values::other_type(param_values::of_handle(h)?, "int8_t"))
    })
}

/// Value of a setting of exactly this type; here no setting has it, numbers are int64_t.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclParamGetI16(h: ncclParamHandle_t, out: *mut i16) -> ncclResult_t {
    twin!(pncclParamGetI16 = param_get_i16(h: ncclParamHandle_t, out: *mut i16) -> ncclResult_t)
}

unsafe fn param_get_i16(h: ncclParamHandle_t, out: *mut i16) -> ncclResult_t {
    boundary::run("ncclParamGetI16", || {
        not_null(h, "h")?;
        not_null(out, "out")?;
        Err(param_values::other_type(param_values::of_handle(h)?, "int16_t"))
    })
}

/// Value of a setting of exactly this type; here no setting has it, numbers are int64_t.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclParamGetI32(h: ncclParamHandle_t, out: *mut i32) -> ncclResult_t {
    twin!(pncclParamGetI32 = param_get_i32(h: ncclParamHandle_t, out: *mut i32) -> ncclResult_t)
}

unsafe fn param_get_i32(h: ncclParamHandle_t, out: *mut i32) -> ncclResult_t {
    boundary::run("ncclParamGetI32", || {
        not_null(h, "h")?;
        not_null(out, "out")?;
        Err(param_values::other_type(param_values::of_handle(h)?, "int32_t"))
    })
}

/// Value of a setting of exactly this type: a number, or -2 where the library is to choose.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclParamGetI64(h: ncclParamHandle_t, out: *mut i64) -> ncclResult_t {
    twin!(pncclParamGetI64 = param_get_i64(h: ncclParamHandle_t, out: *mut i64) -> ncclResult_t)
}

unsafe fn param_get_i64(h: ncclParamHandle_t, out: *mut i64) -> ncclResult_t {
    boundary::run("ncclParamGetI64", || {
        not_null(h, "h")?;
        not_null(out, "out")?;
        let setting = param_values::of_handle(h)?;
        match param_values::value(setting) {
            Value::Int(value) => put!(out, value),
            _ => Err(param_values::other_type(setting, "int64_t")),
        }
    })
}

/// Value of a setting of exactly this type; here no setting has it, numbers are int64_t.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclParamGetU8(h: ncclParamHandle_t, out: *mut u8) -> ncclResult_t {
    twin!(pncclParamGetU8 = param_get_u8(h: ncclParamHandle_t, out: *mut u8) -> ncclResult_t)
}

unsafe fn param_get_u8(h: ncclParamHandle_t, out: *mut u8) -> ncclResult_t {
    boundary::run("ncclParamGetU8", || {
        not_null(h, "h")?;
        not_null(out, "out")?;
        Err(param_values::other_type(param_values::of_handle(h)?, "uint8_t"))
    })
}

/// Value of a setting of exactly this type; here no setting has it, numbers are int64_t.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclParamGetU16(h: ncclParamHandle_t, out: *mut u16) -> ncclResult_t {
    twin!(pncclParamGetU16 = param_get_u16(h: ncclParamHandle_t, out: *mut u16) -> ncclResult_t)
}

unsafe fn param_get_u16(h: ncclParamHandle_t, out: *mut u16) -> ncclResult_t {
    boundary::run("ncclParamGetU16", || {
        not_null(h, "h")?;
        not_null(out, "out")?;
        Err(param_values::other_type(param_values::of_handle(h)?, "uint16_t"))
    })
}

/// Value of a setting of exactly this type; here no setting has it, numbers are int64_t.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclParamGetU32(h: ncclParamHandle_t, out: *mut u32) -> ncclResult_t {
    twin!(pncclParamGetU32 = param_get_u32(h: ncclParamHandle_t, out: *mut u32) -> ncclResult_t)
}

unsafe fn param_get_u32(h: ncclParamHandle_t, out: *mut u32) -> ncclResult_t {
    boundary::run("ncclParamGetU32", || {
        not_null(h, "h")?;
        not_null(out, "out")?;
        Err(param_values::other_type(param_values::of_handle(h)?, "uint32_t"))
    })
}

/// Value of a setting of exactly this type; here no setting has it, numbers are int64_t.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclParamGetU64(h: ncclParamHandle_t, out: *mut u64) -> ncclResult_t {
    twin!(pncclParamGetU64 = param_get_u64(h: ncclParamHandle_t, out: *mut u64) -> ncclResult_t)
}

unsafe fn param_get_u64(h: ncclParamHandle_t, out: *mut u64) -> ncclResult_t {
    boundary::run("ncclParamGetU64", || {
        not_null(h, "h")?;
        not_null(out, "out")?;
        Err(param_values::other_type(param_values::of_handle(h)?, "uint64_t"))
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
        let setting = param_values::of_handle(h)?;
        match param_values::value(setting) {
            Value::Text(value) => put!(out, TEXT_OF_HANDLE.with_borrow_mut(|place| keep(place, value))?.0),
            _ => Err(param_values::other_type(setting, "text")),
        }
    })
}

/// Bytes of the value of a setting: a text with its NUL, a switch as one byte, a number as int64_t.
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
        not_null(h, "h")?;
        not_null(out, "out")?;
        not_null(len, "len")?;
        let setting = param_values::of_handle(h)?;
        let room = usize::try_from(maxLen).ok().filter(|room| *room > 0);
        let room = room.ok_or_else(|| Error::argument(format!("maxLen is {maxLen}: there is no room")))?;
        let bytes = param_values::value(setting).bytes();
        if bytes.len() > room {
            put!(len, 0)?;
            let name = param::entry(setting).name;
            return Err(Error::argument(format!("maxLen is {maxLen}, {name} has {} bytes", bytes.len())));
        }
        // SAFETY: the caller promises `maxLen` writable bytes there, and these are no more.
        unsafe { out.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        put!(len, bytes.len() as c_int)
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
        put!(value, std::ptr::null())?;
        put!(valueLen, 0)?;
        // SAFETY: not NULL, and the caller promises a text.
        let setting = unsafe { param_values::of_key(key) }?;
        let text = param_values::value(setting).text();
        let (text, length) = TEXT_OF_KEY.with_borrow_mut(|place| keep(place, text))?;
        put!(value, text)?;
        put!(valueLen, length)
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
        let (keys, length) = KEYS.with_borrow_mut(|keys| {
            let name = |setting| CString::new(param::entry(setting).name).expect("names have no NUL");
            keys.names = param::all().map(name).collect();
            keys.table = keys.names.iter().map(|name| name.as_ptr()).collect();
            (keys.table.as_mut_ptr(), keys.table.len() as c_int)
        });
        put!(table, keys)?;
        put!(tableLen, length)
    })
}

/// Prints all settings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclParamDumpAll() {
    twin!(pncclParamDumpAll = param_dump_all() -> ())
}

unsafe fn param_dump_all() {
    boundary::run("ncclParamDumpAll", || {
        let mut output = std::io::stdout().lock();
        let written = output.write_all(param_values::dump().as_bytes()).and_then(|()| output.flush());
        written.map_err(|error| Error::system("printing the settings", error))
    });
}

#[derive(Default)]
struct Keys {
    names: Vec<CString>,
    /// Points into `names`.
    table: Vec<*const c_char>,
}

thread_local! {
    // What the last call on this thread handed out: valid until the next one.
    static TEXT_OF_HANDLE: RefCell<CString> = RefCell::default();
    static TEXT_OF_KEY: RefCell<CString> = RefCell::default();
    static KEYS: RefCell<Keys> = RefCell::default();
}

/// Keeps a text for the caller; its address and length.
fn keep(place: &mut CString, text: String) -> Result<(*const c_char, c_int)> {
    *place = CString::new(text).map_err(|_| Error::internal("a setting has a NUL in it"))?;
    let length = c_int::try_from(place.as_bytes().len());
    Ok((place.as_ptr(), length.map_err(|_| Error::internal("a setting of 2 GiB"))?))
}
