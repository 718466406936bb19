//! Ranks that are processes: memory passed between them, kills, exits, forks, settings.

use std::sync::Arc;
use std::time::Duration;

use nccl::bootstrap::{Bootstrap, PeerEvent, unique_id};
use nix::sys::signal::kill;
use nix::unistd::Pid;

use crate::common::*;
use crate::process::{Process, group, group_of};

#[test]
fn processes_exchange_bytes_and_memory() {
    let mut all = group(3);
    for (rank, process) in all.iter_mut().enumerate() {
        process.tell(&format!("gather from-{rank}"));
    }
    for process in &all {
        assert_eq!(process.hear("@gathered"), "from-0 from-1 from-2");
    }
    for (asker, process) in all.iter_mut().enumerate() {
        for asked in 0..3 {
            process.tell(&format!("request {asked}"));
            assert_eq!(process.hear("@answer"), format!("rank {asked} to {asker}"));
        }
    }
    all.iter_mut().for_each(|process| process.tell("leave"));
    all.into_iter().for_each(Process::ends_well);
}

#[test]
fn ranks_without_unix_sockets_ask_by_way_of_the_rendezvous() {
    let far = [("OXCCL_UNIX_SOCKETS", "0")];
    let mut all = [Process::start(&[]), Process::start(&far), Process::start(&far)];
    all[0].tell("id");
    let id = unhex(&all[0].hear("@id"));
    for (rank, process) in (0..).zip(&mut all) {
        process.join(&id, rank, 3);
    }
    all.iter().for_each(|process| drop(process.hear("@joined")));
    for (asker, process) in all.iter_mut().enumerate() {
        for asked in 0..3 {
            process.tell(&format!("ask {asked}"));
            assert_eq!(process.hear("@answer"), format!("plain answer of {asked} to {asker}"));
        }
    }
    all[1].tell("request 2");
    let error = all[1].hear("@error");
    assert!(error.contains("memory cannot be passed"), "{error}");
    all[2].kill();
    all[1].hear("@event Died { rank: 2");
    all[1].tell("ask 2");
    let error = all[1].hear("@error");
    assert!(error.contains("rank 2 is gone"), "{error}");
}

#[test]
fn a_killed_rank_is_noticed_by_all_and_ends_their_waits() {
    let mut all = group(3);
    all[0].tell("gather x");
    all[1].kill();
    let error = all[0].hear("@error");
    assert!(error.starts_with("rank 1 died: its ") && error.contains("process "), "{error}");
    assert!(all[0].hear("@event").starts_with("Died { rank: 1,"));
    assert!(all[2].hear("@event").starts_with("Died { rank: 1,"));
    all[2].tell("request 0");
    assert_eq!(all[2].hear("@answer"), "rank 0 to 2", "the living still answer each other");
    all[2].tell("request 1");
    assert!(all[2].hear("@error").contains("rank 1 is gone"));
}

#[test]
fn the_end_of_the_process_with_the_rendezvous_is_the_end_of_its_rank() {
    let mut all = group(3);
    all[0].kill();
    for process in &all[1..] {
        let event = process.hear("@event");
        assert!(event.starts_with("Died { rank: 0,") && event.contains("holds the rendezvous"), "{event}");
    }
    all[1].tell("gather x");
    assert!(all[1].hear("@error").starts_with("rank 0 died: "));
}

#[test]
fn a_rendezvous_without_a_rank_can_be_lost() {
    let mut hub = Process::start(&[]);
    hub.tell("id");
    let id = unhex(&hub.hear("@id"));
    let mut all = [Process::start(&[]), Process::start(&[])];
    for (rank, process) in (0..).zip(&mut all) {
        process.join(&id, rank, 2);
    }
    all.iter().for_each(|process| drop(process.hear("@joined")));
    hub.kill();
    for process in &all {
        assert!(process.hear("@event").starts_with("RendezvousLost {"));
    }
    all[0].tell("request 1");
    assert_eq!(all[0].hear("@answer"), "rank 1 to 0");
    all.into_iter().for_each(Process::ends_well);
}

#[test]
fn a_rank_killed_while_joining_is_named_to_those_who_wait() {
    let mut hub = Process::start(&[("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", "BOOTSTRAP")]);
    hub.tell("id");
    let id = unhex(&hub.hear("@id"));
    let (mut first, mut second) = (Process::start(&[]), Process::start(&[]));
    first.join(&id, 0, 3);
    second.join(&id, 1, 3);
    let mut arrived = [hub.hear("NCCL INFO rank "), hub.hear("NCCL INFO rank ")];
    arrived.sort();
    assert!(arrived[0].starts_with("0 of 3 has arrived") && arrived[1].starts_with("1 of 3"), "{arrived:?}");
    second.kill();
    let error = first.hear("@error");
    assert!(error.starts_with("rank 1 died: "), "{error}");
    let mut late = Process::start(&[]);
    late.join(&id, 2, 3);
    assert!(late.hear("@error").starts_with("rank 1 died: "));
}

#[test]
fn ids_of_a_process_that_has_ended_are_refused() {
    let mut hub = Process::start(&[]);
    hub.tell("id");
    let id = unhex(&hub.hear("@id"));
    hub.ends_well();
    let error = join(&id, 0, 2).unwrap_err();
    assert_eq!(error.code(), nccl::error::Code::Remote, "{error}");
    assert!(error.message().contains("or has ended"), "{error}");
    assert!(error.message().contains("must live until all ranks have joined"), "{error}");
}

#[test]
fn last_words_are_heard_even_when_the_process_exits_at_once() {
    for teller in [0, 1] {
        let mut all = group(2);
        all[teller].tell("leave-and-exit");
        assert_eq!(all[1 - teller].hear("@event"), format!("Left {{ rank: {teller} }}"));
        let mut all = group(2);
        all[teller].tell("fail-and-exit");
        let heard = all[1 - teller].hear("@event");
        assert_eq!(heard, format!("Failed {{ rank: {teller}, message: \"told to fail\" }}"));
        let mut all = group(2);
        all[teller].tell("exit");
        assert!(all[1 - teller].hear("@event").starts_with(&format!("Died {{ rank: {teller}, ")));
    }
}

#[test]
fn a_forked_child_that_lives_on_does_not_hide_its_parents_end() {
    for (killed, tcp) in [(0, false), (1, false), (0, true), (1, true)] {
        let mut all = group_of(2, |id| if tcp { tcp_only(id) } else { *id });
        all[killed].tell("fork-sleeper");
        let sleeper = Pid::from_raw(all[killed].hear("@forked").parse().unwrap());
        all[killed].kill();
        let event = all[1 - killed].hear("@event");
        assert!(event.starts_with(&format!("Died {{ rank: {killed}, ")), "{event}");
        // It ends when it loses its input with `all`, also when this test fails.
        assert_eq!(kill(sleeper, None), Ok(()), "the child lives on");
    }
}

#[test]
fn children_forked_at_any_moment_keep_no_descriptor_of_ours() {
    let mut process = Process::start(&[]);
    process.tell("forks 400");
    process.hear("@end");
    let kept = process.heard.take().into_iter().filter(|line| line.contains("@kept"));
    assert_eq!(kept.collect::<Vec<_>>(), Vec::<String>::new());
}

#[test]
fn a_forked_child_has_dead_communicators_and_can_make_its_own() {
    let mut all = group(2);
    all[0].tell("fork-user");
    assert!(all[0].hear("@child").starts_with("this communicator was made before fork()"));
    assert_eq!(all[0].hear("@child"), "has its own of [2, 2]");
    // The child has left, as far as it is concerned; the parent has not.
    for (rank, process) in all.iter_mut().enumerate() {
        process.tell(&format!("gather from-{rank}"));
    }
    assert_eq!(all[1].hear("@gathered"), "from-0 from-1");
}

#[test]
fn one_rank_needs_no_socket() {
    let id = unique_id().unwrap();
    let mut process = Process::start(&[]);
    process.tell(&format!("alone {}", hex(&id)));
    assert_eq!(process.hear("@alone"), "0");
    process.ends_well();
}

#[test]
fn a_fixed_address_serves_one_communicator_after_the_other() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("127.0.0.1:{port}");
    let mut all: Vec<Process> = (0..3).map(|_| Process::start(&[("NCCL_COMM_ID", &address)])).collect();
    // Rank 0, which listens, comes last.
    for (rank, process) in all.iter_mut().enumerate().rev() {
        process.tell(&format!("repeat {rank} 3 30"));
        if rank == 1 {
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    all.iter().for_each(|process| drop(process.hear("@repeated")));
    all.into_iter().for_each(Process::ends_well);
}

#[test]
fn a_rank_of_another_key_cannot_join_at_a_fixed_address() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("127.0.0.1:{port}");
    let mut owner = Process::start(&[("NCCL_COMM_ID", &address), ("OXCCL_COMM_KEY", "right")]);
    owner.tell("id");
    let id = unhex(&owner.hear("@id"));
    let mut stranger = Process::start(&[("NCCL_COMM_ID", &address), ("OXCCL_COMM_KEY", "wrong")]);
    stranger.tell("id");
    let other = unhex(&stranger.hear("@id"));
    assert_ne!(id, other);
    owner.join(&id, 0, 2);
    let abort = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let short = nccl::sys::Deadline::after(Duration::from_millis(500));
    let error = Bootstrap::join(&other, 1, 2, abort, short).unwrap_err();
    assert!(error.message().contains("cannot reach the rendezvous"), "{error}");
    let joined = join(&id, 1, 2).unwrap();
    assert_eq!(events(&joined).try_recv().ok(), None::<PeerEvent>);
    owner.hear("@joined");
}

#[test]
fn signals_interrupt_nothing() {
    let mut all = [Process::start(&[]), Process::start(&[])];
    all.iter_mut().for_each(|process| process.tell("signals"));
    all[0].tell("id");
    let id = unhex(&all[0].hear("@id"));
    all[0].join(&id, 0, 2);
    // While rank 0 waits it is interrupted many times.
    std::thread::sleep(Duration::from_millis(50));
    all[1].join(&id, 1, 2);
    all.iter().for_each(|process| drop(process.hear("@joined")));
    for round in 0..50 {
        all.iter_mut().for_each(|process| process.tell(&format!("gather {round}")));
        for process in &all {
            assert_eq!(process.hear("@gathered"), format!("{round} {round}"));
        }
        all[0].tell("request 1");
        assert_eq!(all[0].hear("@answer"), "rank 1 to 0");
    }
}

#[test]
fn the_oldest_unused_ids_make_room_for_new_ones() {
    let mut process = Process::start(&[]);
    process.tell("ids 4097");
    let ids = process.hear("@ids");
    let (first, last) = ids.split_once(' ').unwrap();
    let error = join(&unhex(first), 0, 2).unwrap_err();
    assert!(error.message().contains("does not know this unique id"), "{error}");
    let id = unhex(last);
    for bootstrap in ranks(2, |rank| join(&id, rank, 2).unwrap()) {
        bootstrap.leave();
    }
}

#[test]
fn a_kill_at_any_moment_leaves_nobody_waiting() {
    for round in 0..9u64 {
        let mut all: Vec<Process> = (0..3).map(|_| Process::start(&[])).collect();
        all[0].tell("id");
        let id = unhex(&all[0].hear("@id"));
        for process in &mut all {
            process.tell("ready");
            process.hear("@ready");
        }
        for (process, rank) in all.iter_mut().zip(0..) {
            process.tell(&format!("join-soon {} {rank} 3", hex(&id)));
        }
        // The moment differs from round to round and by chance; what must hold does not depend on it.
        std::thread::sleep(Duration::from_micros(700 * round));
        let victim = (round % 3) as usize;
        all[victim].kill();
        for process in
            all.iter_mut().enumerate().filter(|(rank, _)| *rank != victim).map(|(_, process)| process)
        {
            // Either it never joined, or it hears of the end.
            let outcome = process.hear("@outcome");
            if outcome == "joined" {
                let event = process.hear("@event");
                assert!(event.starts_with(&format!("Died {{ rank: {victim}, ")), "{event}");
            }
        }
    }
}

#[test]
fn ports_and_interfaces_are_chosen_by_the_settings() {
    let mut process = Process::start(&[("OXCCL_PORT_RANGE", "47310-47399")]);
    process.tell("id");
    let id = unhex(&process.hear("@id"));
    let port = u16::from_le_bytes([id[80], id[81]]);
    assert!((47310..=47399).contains(&port), "{port}");
    let mut process = Process::start(&[("OXCCL_PORT_RANGE", "47310")]);
    process.tell("id");
    assert!(process.hear("@error").contains("must be two ports, first-last"));
    let mut process = Process::start(&[("NCCL_SOCKET_IFNAME", "nosuch")]);
    process.tell("id");
    let error = process.hear("@error");
    assert!(error.contains("lo 127.0.0.1 (its name does not fit)"), "{error}");
    let mut process = Process::start(&[("NCCL_SOCKET_IFNAME", "=lo"), ("NCCL_SOCKET_FAMILY", "AF_INET")]);
    process.tell("id");
    let id = unhex(&process.hear("@id"));
    assert_eq!((id[82], &id[84..88]), (1, [127, 0, 0, 1].as_slice()));
}

#[test]
fn the_log_tells_no_secret() {
    let loud = [("NCCL_DEBUG", "TRACE"), ("NCCL_DEBUG_SUBSYS", "ALL"), ("OXCCL_COMM_KEY", "very secret")];
    let mut all = [Process::start(&loud), Process::start(&loud)];
    all[0].tell("id");
    let id = unhex(&all[0].hear("@id"));
    for (process, rank) in all.iter_mut().zip(0..) {
        process.join(&id, rank, 2);
    }
    all.iter().for_each(|process| drop(process.hear("@joined")));
    all[0].tell("request 1");
    all[0].hear("@answer");
    all[1].kill();
    all[0].hear("@event");
    let heard = all[0].heard.borrow();
    assert!(heard.iter().any(|line| line.contains("NCCL INFO")), "{heard:#?}");
    let secret = [hex(&id[32..40]), hex(&id[56..64]), format!("{:?}", &id[32..36]), "very secret".to_owned()];
    for line in heard.iter() {
        assert!(!secret.iter().any(|secret| line.contains(secret.trim_matches(['[', ']']))), "{line}");
    }
}

#[test]
fn more_communicators_than_the_soft_limit_of_descriptors_allows() {
    use nix::sys::resource::{Resource, getrlimit};
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    assert!(hard >= 1024, "this test needs a hard limit of 1024 open files, it is {hard}");
    let mut process = Process::start_by("ulimit -Sn 100; exec \"$0\" \"$@\"", &[]);
    process.tell("many 60");
    assert_eq!(process.hear("@many"), "60");
    process.ends_well();
}
