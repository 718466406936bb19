//! Ranks that are threads of one process.

use std::io::{Read, Seek, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use nccl::bootstrap::{Bootstrap, Handler, PeerEvent, unique_id};
use nccl::error::{Code, Error};
use nccl::sys::Deadline;

use crate::common::*;

#[test]
fn all_gather_gives_every_rank_everything_in_rank_order() {
    let id = unique_id().unwrap();
    ranks(4, |rank| {
        let bootstrap = join(&id, rank, 4).unwrap();
        for round in 0..20u32 {
            // Sizes differ by rank and round; rank 0 sends nothing at all, and one round more than a socket buffer holds.
            let size = if round == 7 { 300_000 } else { round as usize * 10 };
            let payload = |rank: u32| vec![rank as u8 ^ round as u8; size * rank as usize];
            let got = bootstrap.all_gather(&payload(rank), ample()).unwrap();
            assert_eq!(got, (0..4).map(payload).collect::<Vec<_>>());
        }
        assert_eq!(bootstrap.peers().len(), 4);
        assert!((0..4).all(|peer| bootstrap.same_process(peer) && bootstrap.same_host(peer)));
        bootstrap.leave();
    });
}

#[test]
fn over_tcp_everything_works_as_well() {
    let id = tcp_only(&unique_id().unwrap());
    ranks(3, |rank| {
        let bootstrap = join(&id, rank, 3).unwrap();
        let got = bootstrap.all_gather(&[rank as u8; 100_000], ample()).unwrap();
        assert_eq!(got[2], [2; 100_000]);
        bootstrap.leave();
    });
}

#[test]
fn communicators_do_not_disturb_each_other() {
    let ids: Vec<Id> = (0..6).map(|_| unique_id().unwrap()).collect();
    std::thread::scope(|scope| {
        for (number, id) in ids.iter().enumerate() {
            scope.spawn(move || {
                ranks(3, |rank| {
                    let bootstrap = join(id, rank, 3).unwrap();
                    for _ in 0..10 {
                        let got = bootstrap.all_gather(&[number as u8, rank as u8], ample()).unwrap();
                        assert_eq!(got, (0..3).map(|rank| vec![number as u8, rank]).collect::<Vec<_>>());
                    }
                    bootstrap.leave();
                });
            });
        }
    });
}

#[test]
fn a_rank_that_leaves_is_said_to_have_left() {
    let mut all = communicator(3);
    let heard: Vec<_> = all[..2].iter().map(events).collect();
    all.pop().unwrap().leave();
    for receiver in &heard {
        assert_eq!(receiver.recv_timeout(AMPLE).unwrap(), PeerEvent::Left { rank: 2 });
    }
    let error = all[0].all_gather(b"", ample()).unwrap_err();
    assert_eq!((error.code(), error.message()), (Code::Remote, "rank 2 has left the communicator"));
    // Who asks late is told as well.
    assert_eq!(
        events(&all[1]).recv_timeout(Duration::from_millis(100)).ok(),
        None,
        "each event is told once"
    );
}

#[test]
fn a_dropped_rank_has_left_too() {
    let mut all = communicator(2);
    drop(all.pop());
    assert_eq!(events(&all[0]).recv_timeout(AMPLE).unwrap(), PeerEvent::Left { rank: 1 });
}

#[test]
fn a_failure_reaches_all_waiting_ranks_with_its_words() {
    let id = unique_id().unwrap();
    let results = ranks(3, |rank| {
        let bootstrap = join(&id, rank, 3).unwrap();
        if rank == 1 {
            bootstrap.fail(&Error::usage("two ranks use GPU 0"));
            assert_eq!(bootstrap.failure().unwrap().message(), "two ranks use GPU 0");
            // The others know when `fail` returns, so nothing more is needed of this rank.
            return None;
        }
        Some(bootstrap.all_gather(b"", ample()).unwrap_err())
    });
    for error in [&results[0], &results[2]].into_iter().flatten() {
        assert_eq!((error.code(), error.message()), (Code::Remote, "rank 1 failed: two ranks use GPU 0"));
    }
    assert!(results[0].is_some() && results[2].is_some());
}

#[test]
fn who_is_missing_is_named_when_joining_takes_too_long() {
    let id = unique_id().unwrap();
    let results = ranks(2, |rank| {
        let abort = Arc::new(AtomicBool::new(false));
        // The second gives up long after the first, so the first one's words must reach it.
        let time = if rank == 0 { Duration::from_millis(300) } else { AMPLE };
        Bootstrap::join(&id, rank, 4, abort, Deadline::after(time)).unwrap_err()
    });
    assert_eq!(results[0].code(), Code::Timeout);
    // Rank 1 may or may not have been there when rank 0 gave up.
    let message = results[0].message();
    assert!(message.starts_with("waited in vain for ranks ") && message.contains("2, 3"), "{message}");
    assert_eq!(results[1].code(), Code::Remote);
    assert!(results[1].message().starts_with("rank 0 failed: waited in vain for ranks "), "{}", results[1]);
}

#[test]
fn who_is_missing_is_named_when_an_exchange_takes_too_long() {
    let all = communicator(3);
    let error = all[1].all_gather(b"", Deadline::after(Duration::from_millis(200))).unwrap_err();
    assert_eq!(error.code(), Code::Timeout);
    assert!(error.message().starts_with("waited in vain for ranks 0, 2 in an exchange"), "{error}");
    // The ranks are out of step now: the others are told rather than left to wait.
    let error = all[0].all_gather(b"", ample()).unwrap_err();
    assert!(error.message().starts_with("rank 1 failed: waited in vain"), "{error}");
}

#[test]
fn an_abort_ends_every_wait() {
    let id = unique_id().unwrap();
    let abort = Arc::new(AtomicBool::new(false));
    let flag = abort.clone();
    let joining = std::thread::spawn(move || Bootstrap::join(&id, 0, 2, flag, ample()));
    std::thread::sleep(Duration::from_millis(50));
    abort.store(true, Ordering::Release);
    assert!(joining.join().unwrap().unwrap_err().message().contains("aborted"));

    let id = unique_id().unwrap();
    let results = ranks(2, |rank| {
        let abort = Arc::new(AtomicBool::new(false));
        let bootstrap = Bootstrap::join(&id, rank, 2, abort.clone(), ample()).unwrap();
        if rank == 1 {
            return bootstrap.all_gather(b"", ample()).unwrap_err();
        }
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| bootstrap.request(1, b"", ample()).unwrap_err());
            std::thread::sleep(Duration::from_millis(50));
            abort.store(true, Ordering::Release);
            waiting.join().unwrap()
        })
    });
    assert!(results[0].message().contains("aborted"), "{}", results[0]);
    assert_eq!(results[1].message(), "rank 0 has left the communicator");
}

fn answer_with(text: &'static str) -> Handler {
    Arc::new(move |asker, payload| {
        let memory = nccl::sys::fd::memfd("answer", 64)?;
        write!(file(&memory), "{text}").map_err(|error| Error::system("writing", error))?;
        let payload = [&[asker as u8], payload].concat();
        Ok((payload, vec![memory]))
    })
}

#[test]
fn requests_are_answered_with_bytes_and_memory() {
    let all = communicator(3);
    all[1].serve(answer_with("memory of rank 1"));
    for asker in 0..3u32 {
        let (payload, passed) = all[asker as usize].request(1, b"please", ample()).unwrap();
        assert_eq!(payload, [&[asker as u8], b"please".as_slice()].concat());
        let mut file = file(&passed[0]);
        let mut text = String::new();
        file.rewind().unwrap();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text.trim_end_matches('\0'), "memory of rank 1");
    }
    let large = vec![7; 2_000_000];
    assert_eq!(all[0].request(1, &large, ample()).unwrap().0.len(), large.len() + 1);
}

#[test]
fn a_request_waits_until_the_rank_serves() {
    let all = communicator(2);
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| all[0].request(1, b"early", ample()).unwrap());
        std::thread::sleep(Duration::from_millis(50));
        all[1].serve(answer_with(""));
        assert_eq!(asking.join().unwrap().0, b"\0early");
    });
}

#[test]
fn slow_answers_block_nobody_else() {
    let all = communicator(2);
    let (open, gate) = channel::<()>();
    let gate = std::sync::Mutex::new(gate);
    all[1].serve(Arc::new(move |_, payload| {
        if payload == b"slow" {
            // Ends with an error when the other end is dropped.
            let _ = gate.lock().unwrap().recv();
        }
        Ok((payload.to_vec(), Vec::new()))
    }));
    std::thread::scope(|scope| {
        let slow: Vec<_> = (0..4).map(|_| scope.spawn(|| all[0].request(1, b"slow", ample()))).collect();
        assert_eq!(all[0].request(1, b"quick", ample()).unwrap().0, b"quick");
        let id = unique_id().unwrap();
        ranks(2, |rank| join(&id, rank, 2).unwrap().leave());
        drop(open);
        for thread in slow {
            assert_eq!(thread.join().unwrap().unwrap().0, b"slow");
        }
    });
}

#[test]
fn failing_handlers_answer_with_their_failure() {
    let all = communicator(2);
    all[1].serve(Arc::new(|_, payload| match payload {
        b"panic" => panic!("this panic is part of the test"),
        _ => Err(Error::new(Code::UnhandledCuda, "cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY")),
    }));
    let error = all[0].request(1, b"memory", ample()).unwrap_err();
    assert_eq!(error.code(), Code::UnhandledCuda);
    assert!(error.message().starts_with("rank 0 asks rank 1 (host "), "{error}");
    assert!(error.message().ends_with("cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY"), "{error}");
    let error = all[0].request(1, b"panic", ample()).unwrap_err();
    assert_eq!(error.code(), Code::Internal);
    let late = all[0].request(0, b"", Deadline::after(Duration::from_millis(50))).unwrap_err();
    assert_eq!(late.code(), Code::Timeout, "rank 0 does not serve: {late}");
}

#[test]
fn a_rank_that_has_left_answers_no_requests() {
    let mut all = communicator(2);
    all[1].serve(answer_with(""));
    all.pop().unwrap().leave();
    let error = all[0].request(1, b"", ample()).unwrap_err();
    assert!(error.message().contains("it has left the communicator"), "{error}");
}

#[test]
fn contradictions_are_told_to_every_rank() {
    // One rank twice: nobody can be left waiting for the rank that is not there.
    let id = unique_id().unwrap();
    for result in ranks(2, |_| join(&id, 1, 3)) {
        let error = result.unwrap_err();
        assert_eq!(error.code(), Code::InvalidUsage);
        assert!(error.message().starts_with("rank 1 was given twice, to "), "{error}");
    }
    // A rank that comes when the job is broken hears the same.
    let error = join(&id, 0, 3).unwrap_err();
    assert!(error.message().starts_with("rank 1 was given twice, to "), "{error}");

    let id = unique_id().unwrap();
    for result in ranks(2, |rank| join(&id, rank, 3 + rank)) {
        let error = result.unwrap_err();
        assert_eq!(error.code(), Code::InvalidUsage);
        assert!(error.message().contains("all must pass the same number"), "{error}");
    }
}

#[test]
fn an_id_makes_one_communicator() {
    let id = unique_id().unwrap();
    let first = ranks(2, |rank| join(&id, rank, 2).unwrap());
    let error = join(&id, 0, 2).unwrap_err();
    assert_eq!(error.code(), Code::InvalidUsage);
    assert!(error.message().contains("has been used already"), "{error}");
    drop(first);
    let error = join(&id, 1, 2).unwrap_err();
    assert!(error.message().contains("has been used already"), "{error}");
}

#[test]
fn damaged_and_foreign_ids_are_refused_with_a_sentence() {
    let id = unique_id().unwrap();
    let mut damaged = id;
    damaged[40] ^= 4;
    assert!(join(&damaged, 0, 2).unwrap_err().message().contains("damaged"));
    assert!(join(&[0; 128], 0, 2).unwrap_err().message().contains("all zero"));
    let mut foreign = [0; 128];
    foreign[..4].copy_from_slice(&[0x02, 0, 0x9c, 0x40]);
    assert!(join(&foreign, 0, 2).unwrap_err().message().contains("not made by this library"));
    // With the checksum right, the other end notices that the key is another one.
    let other_key = changed(&id, |id| id[32] ^= 1);
    let error = join(&other_key, 0, 2).unwrap_err();
    assert!(error.message().contains("does not know the key"), "{error}");
    let other_job = changed(&id, |id| id[16] ^= 1);
    let error = join(&other_job, 0, 2).unwrap_err();
    assert!(error.message().contains("does not know this unique id"), "{error}");
    assert_eq!(join(&id, 2, 2).unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(join(&id, 0, 0).unwrap_err().code(), Code::InvalidArgument);
    // None of this has harmed the id.
    ranks(2, |rank| join(&id, rank, 2).unwrap().leave());
}

#[test]
fn thirty_ranks_find_each_other() {
    let id = unique_id().unwrap();
    ranks(30, |rank| {
        let bootstrap = join(&id, rank, 30).unwrap();
        let got = bootstrap.all_gather(&rank.to_le_bytes(), ample()).unwrap();
        assert!((0..30u32).all(|peer| got[peer as usize] == peer.to_le_bytes()));
        bootstrap.leave();
    });
}
