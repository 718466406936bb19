//! The service thread: order, actors, timers, panics, signals, forks.

use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, channel};

use nix::sys::wait::WaitStatus;
use nix::unistd::ForkResult;

use super::*;

const SOON: Duration = Duration::from_secs(20);

#[test]
fn closures_run_in_order_and_survive_a_panic() {
    let (sender, receiver) = channel();
    let service = service().unwrap();
    for number in 0..10 {
        let sender = sender.clone();
        service.defer(Box::new(move || {
            sender.send(number).unwrap();
            assert_ne!(number, 3, "this panic is part of the test");
        }));
    }
    let got: Vec<i32> = (0..10).map(|_| receiver.recv_timeout(SOON).unwrap()).collect();
    assert_eq!(got, (0..10).collect::<Vec<_>>());
}

#[test]
fn timers_fire_in_the_order_of_their_times() {
    let (sender, receiver) = channel();
    let service = service().unwrap();
    for delay in [30, 10, 20] {
        let sender = sender.clone();
        service.after(Duration::from_millis(delay), Box::new(move || sender.send(delay).unwrap()));
    }
    let got: Vec<u64> = (0..3).map(|_| receiver.recv_timeout(SOON).unwrap()).collect();
    assert_eq!(got, [10, 20, 30]);
}

struct Echo {
    fd: Arc<PrivateFd>,
    heard: Sender<Vec<u8>>,
}

impl Actor for Echo {
    fn start(&mut self, io: &mut Io<'_>) {
        io.watch(7, &self.fd, Interest::Read);
        io.timer(9, Duration::ZERO);
    }

    fn ready(&mut self, io: &mut Io<'_>, key: u64, ready: Ready) {
        assert_eq!((key, ready), (7, Ready { readable: true, writable: false }));
        let mut buffer = [0; 64];
        match crate::sys::fd::receive(self.fd.as_fd(), &mut buffer, None) {
            Ok(0) => io.stop(),
            Ok(length) => self.heard.send(buffer[..length].to_vec()).unwrap(),
            Err(error) => panic!("{error}"),
        }
    }

    fn timer(&mut self, _io: &mut Io<'_>, key: u64) {
        self.heard.send(vec![key as u8]).unwrap();
    }
}

fn echo() -> (std::os::unix::net::UnixStream, ActorId, Receiver<Vec<u8>>) {
    let (left, right) = std::os::unix::net::UnixStream::pair().unwrap();
    let (heard, receiver) = channel();
    let actor = Echo { fd: Arc::new(PrivateFd::from(OwnedFd::from(right))), heard };
    (left, service().unwrap().add(Box::new(actor)), receiver)
}

#[test]
fn an_actor_is_told_of_its_descriptors_timers_and_messages() {
    use std::io::Write;
    let (mut left, id, receiver) = echo();
    assert_eq!(receiver.recv_timeout(SOON).unwrap(), [9]);
    left.write_all(b"hello").unwrap();
    assert_eq!(receiver.recv_timeout(SOON).unwrap(), b"hello");
    let service = service().unwrap();
    assert_eq!(service.ask(id, |_: &mut Echo, io: &mut Io<'_>| io.id()).unwrap(), id);
    drop(left);
    // The channel ends when the actor has stopped and was dropped.
    assert!(receiver.recv_timeout(SOON).is_err());
    let gone = service.ask(id, |_: &mut Echo, _: &mut Io<'_>| ()).unwrap_err();
    assert_eq!(gone.message(), "the service's part that was asked has ended");
}

#[test]
fn a_panic_ends_its_actor_only() {
    let (_left, id, receiver) = echo();
    assert_eq!(receiver.recv_timeout(SOON).unwrap(), [9]);
    let service = service().unwrap();
    service.tell(id, |_: &mut Echo, _: &mut Io<'_>| panic!("this panic is part of the test"));
    assert!(receiver.recv_timeout(SOON).is_err());
    let (_left, id, _receiver) = echo();
    assert!(service.ask(id, |_: &mut Echo, _: &mut Io<'_>| ()).is_ok());
}

#[test]
fn more_work_than_workers_is_all_done_and_blocks_nobody() {
    let (sender, receiver) = channel();
    let (open, gate) = channel::<()>();
    let gate = Arc::new(Mutex::new(gate));
    let service = service().unwrap();
    for _ in 0..MAX_WORKERS + 10 {
        let (sender, gate) = (sender.clone(), gate.clone());
        let work = move || {
            // Ends with an error when the other end is dropped: then all go on.
            let _ = gate.lock().recv();
            sender.send(()).unwrap();
        };
        service.worker(Box::new(work)).unwrap();
    }
    let (_left, id, _receiver) = echo();
    assert!(service.ask(id, |_: &mut Echo, _: &mut Io<'_>| ()).is_ok(), "the service thread itself is free");
    drop(open);
    for _ in 0..MAX_WORKERS + 10 {
        receiver.recv_timeout(SOON).unwrap();
    }
}

#[test]
fn all_signals_are_blocked_on_the_thread_and_none_on_its_creator() {
    let blocked =
        |set: &SigSet| nix::sys::signal::Signal::iterator().filter(|signal| set.contains(*signal)).count();
    let before = blocked(&SigSet::thread_get_mask().unwrap());
    let (sender, receiver) = channel();
    let report = sender.clone();
    let service = service().unwrap();
    service.defer(Box::new(move || report.send(SigSet::thread_get_mask().unwrap()).unwrap()));
    service.worker(Box::new(move || sender.send(SigSet::thread_get_mask().unwrap()).unwrap())).unwrap();
    for _ in 0..2 {
        let mask = receiver.recv_timeout(SOON).unwrap();
        assert!(
            mask.contains(nix::sys::signal::Signal::SIGTERM)
                && mask.contains(nix::sys::signal::Signal::SIGCHLD)
        );
    }
    assert_eq!(blocked(&SigSet::thread_get_mask().unwrap()), before);
}

#[test]
fn a_forked_child_gets_a_service_of_its_own() {
    let (_left, id, receiver) = echo();
    assert_eq!(receiver.recv_timeout(SOON).unwrap(), [9]);
    // SAFETY: the child uses the service, which takes no lock of the parent, and leaves through _exit.
    match unsafe { nix::unistd::fork() }.unwrap() {
        ForkResult::Child => {
            let (sender, receiver) = channel();
            let started = service().map(|service| {
                service.defer(Box::new(move || sender.send(()).unwrap()));
                service.ask(id, |_: &mut Echo, _: &mut Io<'_>| ()).is_err()
            });
            let works = started.is_ok_and(|strange| strange) && receiver.recv_timeout(SOON).is_ok();
            // SAFETY: ends the child without running the parent's exit handlers.
            unsafe { libc::_exit(i32::from(!works)) }
        }
        ForkResult::Parent { child } => {
            assert_eq!(nix::sys::wait::waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
            assert!(service().unwrap().ask(id, |_: &mut Echo, _: &mut Io<'_>| ()).is_ok());
        }
    }
}
