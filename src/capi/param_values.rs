//! What the ncclParam functions say of a setting.
//!
//! A handle is a number that only [`handle`] gives out, never followed, so a garbage one is recognised. Numbers are `int64_t`, with -2
//! where the library is to choose; switches are `bool`; everything else is text. The key of a job is never told.

use std::ffi::{CStr, c_char};

use super::types::*;
use crate::error::{Error, Result};
use crate::param::{self, Form, Setting};

/// First handle, and the distance of two; see the registry of communicators for the idea.
const BASE: usize = 0x0cc3_0000_0000;
const STRIDE: usize = 64;
/// What NCCL's own numbers say when nobody has chosen.
const CHOSEN_BY_LIBRARY: i64 = -2;

pub(super) fn handle(setting: Setting) -> ncclParamHandle_t {
    std::ptr::without_provenance_mut(BASE + setting.index() * STRIDE)
}

pub(super) fn of_handle(handle: ncclParamHandle_t) -> Result<Setting> {
    let offset = handle.addr().checked_sub(BASE).filter(|offset| offset % STRIDE == 0);
    offset
        .and_then(|offset| param::all().nth(offset / STRIDE))
        .ok_or_else(|| Error::argument(format!("h {:#x} is no handle of ncclParamBind", handle.addr())))
}

/// # Safety
/// `key` points to a text that ends with NUL.
pub(super) unsafe fn of_key(key: *const c_char) -> Result<Setting> {
    // SAFETY: as the caller promises.
    let name = unsafe { CStr::from_ptr(key) }.to_string_lossy();
    param::find(&name).ok_or_else(|| {
        Error::argument(format!("key {name:?} is no setting: ncclParamGetAllParameterKeys lists them all"))
    })
}

pub(super) enum Value {
    Bool(bool),
    Int(i64),
    Text(String),
}

pub(super) fn value(setting: Setting) -> Value {
    match param::entry(setting).form {
        Form::Bool => Value::Bool(param::bool(setting)),
        Form::Int { .. } => Value::Int(param::int(setting).unwrap_or(CHOSEN_BY_LIBRARY)),
        Form::OneOf(_) | Form::Text => {
            let text = param::text(setting);
            let hidden = setting == param::COMM_KEY && text.is_some();
            Value::Text(if hidden { "(set)".to_owned() } else { text.unwrap_or_default() })
        }
    }
}

impl Value {
    /// The name of its C type, and the function that reads it.
    fn kind(&self) -> (&'static str, &'static str) {
        match self {
            Value::Bool(_) => ("bool", "ncclParamGet"),
            Value::Int(_) => ("int64_t", "ncclParamGetI64"),
            Value::Text(_) => ("text", "ncclParamGetStr"),
        }
    }

    pub(super) fn text(self) -> String {
        match self {
            Value::Bool(value) => if value { "TRUE" } else { "FALSE" }.to_owned(),
            Value::Int(value) => value.to_string(),
            Value::Text(value) => value,
        }
    }

    /// As they lie in memory; a text with its NUL.
    pub(super) fn bytes(self) -> Vec<u8> {
        match self {
            Value::Bool(value) => vec![u8::from(value)],
            Value::Int(value) => value.to_ne_bytes().to_vec(),
            Value::Text(value) => [value.as_bytes(), &[0]].concat(),
        }
    }
}

/// The failure of a function that reads another type than the setting's.
pub(super) fn other_type(setting: Setting, wanted: &str) -> Error {
    let (kind, reader) = value(setting).kind();
    let name = param::entry(setting).name;
    Error::argument(format!(
        "{name} is {kind}, not {wanted}: {reader} reads it, ncclParamGetParameter as text"
    ))
}

/// All settings with type, value, source and default, for people.
pub(super) fn dump() -> String {
    let mut text = "=== ncclParam Registry Dump ===\n".to_owned();
    for setting in param::all() {
        let (entry, value) = (param::entry(setting), value(setting));
        let (kind, _) = value.kind();
        text += &format!("{} ({kind}): {}\n", entry.name, entry.doc);
        text += &format!(
            "  Current value={} ({}), default={}\n",
            value.text(),
            param::source(setting),
            entry.default.trim()
        );
    }
    text
}
