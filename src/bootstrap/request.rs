//! Requests from rank to rank: a few bytes there, a few bytes and descriptors of memory back.
//!
//! The asked rank's process answers on its service side, whatever its own threads do: the question is read by the service thread and
//! answered by a worker, so a handler may take its time. A question that comes before the rank has said how to answer waits.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use parking_lot::Mutex;

use crate::bootstrap::dial::flush;
use crate::bootstrap::link::{Receiver, Sender};
use crate::bootstrap::wire::Message;
use crate::error::{Code, Error, Result};
use crate::process::service;
use crate::process::service::{Actor, Interest, Io, Ready};
use crate::sys::fork::PrivateFd;
use crate::sys::{Deadline, fd};

/// Answers rank `.0` that asks `.1`.
pub type Handler = Arc<dyn Fn(u32, &[u8]) -> Result<(Vec<u8>, Vec<PrivateFd>)> + Send + Sync>;

/// A question must be complete after this time.
const QUESTION: Duration = Duration::from_secs(30);
/// An answer must be taken after this time.
const ANSWER: Duration = Duration::from_secs(30);
/// Questions that wait for a handler.
const MAX_WAITING: usize = 1024;

/// A rank of this process that can be asked.
pub struct Served {
    pub session: [u8; 16],
    pub rank: u32,
    pub key: [u8; 32],
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    handler: Option<Handler>,
    waiting: Vec<Question>,
    gone: bool,
}

/// What a rank asks, and how the answer goes back.
pub struct Question {
    pub asker: u32,
    pub payload: Vec<u8>,
    pub reply: Reply,
}

pub type Outcome = Result<(Vec<u8>, Vec<PrivateFd>)>;
/// Called on a worker thread; may block for a while.
pub type Reply = Box<dyn FnOnce(Outcome) + Send>;

impl Served {
    pub fn new(session: [u8; 16], rank: u32, key: [u8; 32]) -> Served {
        Served { session, rank, key, state: Mutex::new(State::default()) }
    }

    /// From now on `handler` answers, questions that wait included.
    pub fn set_handler(&self, handler: Handler) {
        let waiting = {
            let mut state = self.state.lock();
            state.handler = Some(handler.clone());
            std::mem::take(&mut state.waiting)
        };
        for question in waiting {
            question.answer_by(handler.clone());
        }
    }

    /// The handler is dropped, and nobody is answered any more.
    pub fn close(&self) {
        let taken = {
            let mut state = self.state.lock();
            state.gone = true;
            (state.handler.take(), std::mem::take(&mut state.waiting))
        };
        drop(taken);
    }

    /// Has the question answered, now or when there is a handler. A question that is dropped is one that is not answered.
    pub fn take(&self, question: Question) {
        let mut state = self.state.lock();
        if state.gone || state.waiting.len() >= MAX_WAITING {
            drop(state);
            return;
        }
        match state.handler.clone() {
            Some(handler) => {
                drop(state);
                question.answer_by(handler);
            }
            None => state.waiting.push(question),
        }
    }
}

impl Question {
    fn answer_by(self, handler: Handler) {
        let work = move || self.answer(&handler);
        let started = service().and_then(|service| service.worker(Box::new(work)));
        if let Err(error) = started {
            tracing::warn!(target: "BOOTSTRAP", "a peer's request is not answered: {error}");
        }
    }

    fn answer(self, handler: &Handler) {
        let call = std::panic::AssertUnwindSafe(|| handler(self.asker, &self.payload));
        let outcome = std::panic::catch_unwind(call)
            .unwrap_or_else(|_| Err(Error::internal("the code that answers requests panicked")));
        (self.reply)(outcome);
    }
}

/// Answers on the connection on which the question came.
fn answer_directly(mut sender: Sender, socket: &PrivateFd, outcome: Outcome) {
    let (descriptors, result, passed) = match outcome {
        Ok((_, passed)) if passed.len() > fd::MAX_PASSED => {
            let most = fd::MAX_PASSED;
            let message =
                format!("an answer has {} descriptors, more than the {most} that fit", passed.len());
            (0, Err((Code::Internal, message)), Vec::new())
        }
        Ok((payload, passed)) => (passed.len() as u32, Ok(payload), passed),
        Err(error) => (0, Err((error.code(), error.message().to_owned())), Vec::new()),
    };
    let message = Message::Answer { descriptors, result };
    sender.push_encoded(message.encode().into(), passed);
    // An asker that has given up needs no answer.
    let _ = flush(&mut sender, socket, Deadline::after(ANSWER), &AtomicBool::new(false));
}

/// A connection whose question is still arriving.
pub struct Incoming {
    served: Arc<Served>,
    asker: u32,
    link: Option<(Sender, Receiver)>,
}

impl Incoming {
    pub fn new(served: Arc<Served>, asker: u32, sender: Sender, receiver: Receiver) -> Incoming {
        Incoming { served, asker, link: Some((sender, receiver)) }
    }
}

impl Actor for Incoming {
    fn start(&mut self, io: &mut Io<'_>) {
        if let Some((sender, receiver)) = &mut self.link {
            sender.push(&Message::Welcome { session: self.served.session });
            // A fresh connection has room for it.
            let _ = sender.flush();
            io.watch(0, receiver.socket(), Interest::Read);
            io.timer(0, QUESTION);
        }
    }

    fn ready(&mut self, io: &mut Io<'_>, _key: u64, _ready: Ready) {
        let Some((_, receiver)) = &mut self.link else { return };
        let end = receiver.fill();
        match receiver.next() {
            Ok(None) if end.is_ok() => {}
            Ok(Some(Message::Ask(payload))) => {
                io.stop();
                if let Some((sender, receiver)) = self.link.take() {
                    let socket = receiver.socket().clone();
                    let reply = Box::new(move |outcome| answer_directly(sender, &socket, outcome));
                    self.served.take(Question { asker: self.asker, payload, reply });
                }
            }
            _ => io.stop(),
        }
    }

    fn timer(&mut self, io: &mut Io<'_>, _key: u64) {
        io.stop();
    }
}

impl std::fmt::Debug for Served {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Served").field("rank", &self.rank).finish_non_exhaustive()
    }
}
