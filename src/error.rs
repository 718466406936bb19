//! The one error type of the library, and the storage behind `ncclGetLastError`.
//!
//! An [`Error`] is a code that C callers receive and a sentence that says what was attempted, by which rank,
//! the system or CUDA code with its name, and the setting or fix. Whoever first knows the cause writes the
//! sentence; callers only pass it on or put their own view in front with [`Error::context`].

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char};
use std::fmt::Display;

use parking_lot::Mutex;

pub type Result<T> = std::result::Result<T, Error>;

/// The failure codes of `ncclResult_t`, by their values in nccl.h.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Code {
    UnhandledCuda = 1,
    System = 2,
    Internal = 3,
    InvalidArgument = 4,
    InvalidUsage = 5,
    Remote = 6,
    InProgress = 7,
    Timeout = 8,
}

impl Code {
    /// The code with this value in nccl.h; `None` for success and for values that no header names.
    pub fn from_raw(raw: i32) -> Option<Code> {
        Some(match raw {
            1 => Code::UnhandledCuda,
            2 => Code::System,
            3 => Code::Internal,
            4 => Code::InvalidArgument,
            5 => Code::InvalidUsage,
            6 => Code::Remote,
            7 => Code::InProgress,
            8 => Code::Timeout,
            _ => return None,
        })
    }
}

#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    code: Code,
    message: String,
}

impl Error {
    pub fn new(code: Code, message: impl Into<String>) -> Error {
        Error { code, message: message.into() }
    }

    pub fn internal(message: impl Into<String>) -> Error {
        Error::new(Code::Internal, message)
    }

    pub fn argument(message: impl Into<String>) -> Error {
        Error::new(Code::InvalidArgument, message)
    }

    pub fn usage(message: impl Into<String>) -> Error {
        Error::new(Code::InvalidUsage, message)
    }

    pub fn remote(message: impl Into<String>) -> Error {
        Error::new(Code::Remote, message)
    }

    pub fn timeout(message: impl Into<String>) -> Error {
        Error::new(Code::Timeout, message)
    }

    pub fn system(attempted: impl Display, source: impl Display) -> Error {
        Error::new(Code::System, format!("{attempted}: {source}"))
    }

    pub fn code(&self) -> Code {
        self.code
    }

    pub fn message(&self) -> &str {
        &self.message
    }

    /// The same failure, seen by the caller: `"{what}: {message}"`.
    pub fn context(mut self, what: impl Display) -> Error {
        self.message = format!("{what}: {}", self.message);
        self
    }
}

/// Bytes of a last-error text, its terminating zero included (as in NCCL).
const LAST_ERROR_BYTES: usize = 1024;

/// A text that C callers may read at any time through a pointer that stays valid as long as `self` does.
///
/// The text is replaced under a lock; a C caller that reads during a replacement sees a mixture of old and
/// new text, always with a zero at its end, because the last byte is never written.
#[derive(Debug)]
pub struct LastError {
    text: UnsafeCell<[u8; LAST_ERROR_BYTES]>,
    writer: Mutex<()>,
}

// SAFETY: writers hold `writer`; readers are C callers that take the bytes as they are (see the type's
// documentation).
unsafe impl Sync for LastError {}

impl LastError {
    pub const fn new() -> LastError {
        LastError { text: UnsafeCell::new([0; LAST_ERROR_BYTES]), writer: Mutex::new(()) }
    }

    pub fn set(&self, text: &str) {
        let _writer = self.writer.lock();
        let bytes = text.as_bytes();
        let mut length = bytes.len().min(LAST_ERROR_BYTES - 1);
        while !text.is_char_boundary(length) {
            length -= 1;
        }
        let base = self.text.get().cast::<u8>();
        for (index, byte) in bytes[..length].iter().chain(std::iter::once(&0)).enumerate() {
            // SAFETY: `index` is at most `length`, which is below the array's size; volatile because C
            // callers read concurrently.
            unsafe { base.add(index).write_volatile(*byte) };
        }
    }

    pub fn as_ptr(&self) -> *const c_char {
        self.text.get().cast::<c_char>()
    }

    pub fn get(&self) -> String {
        let _writer = self.writer.lock();
        // SAFETY: the array always holds a zero byte (the last one is never written), and no writer is
        // active.
        unsafe { CStr::from_ptr(self.as_ptr()) }.to_string_lossy().into_owned()
    }
}

impl Default for LastError {
    fn default() -> LastError {
        LastError::new()
    }
}

/// The text that `ncclGetLastError(NULL)` returns: the last failure of any call in this process.
pub static PROCESS_LAST_ERROR: LastError = LastError::new();

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_error_is_cut_at_a_character_and_terminated() {
        let last = LastError::new();
        assert_eq!(last.get(), "");
        last.set(&"é".repeat(LAST_ERROR_BYTES));
        assert_eq!(last.get(), "é".repeat((LAST_ERROR_BYTES - 1) / 2));
        last.set("short");
        assert_eq!(last.get(), "short");
    }
}
