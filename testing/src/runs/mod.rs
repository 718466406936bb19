//! Everything that is tested, as a table of runs by name: which teams, in which environment, and what they must report.
//!
//! `OXCCL_TEST_FULL=1` makes the matrix complete (each case in and out of place, aligned and not); a real driver makes it
//! small, since ranks that share a GPU take turns.

mod kill;
mod programs;

use crate::driver::Outcome;
use crate::machine::Machine;
use crate::team::Team;

pub struct Run {
    pub name: &'static str,
    /// Whether it makes sense on a real driver.
    pub real: bool,
    work: fn(&Machine) -> Outcome<String>,
}

impl Run {
    /// Makes the run; the text says how much was checked.
    pub fn make(&self, machine: &Machine) -> Outcome<String> {
        if machine.is_real() && !self.real {
            return Err("this run needs the emulated driver".into());
        }
        (self.work)(machine)
    }
}

pub fn find(name: &str) -> Option<&'static Run> {
    ALL.iter().find(|run| run.name == name)
}

const fn any(name: &'static str, work: fn(&Machine) -> Outcome<String>) -> Run {
    Run { name, real: true, work }
}

const fn emulated(name: &'static str, work: fn(&Machine) -> Outcome<String>) -> Run {
    Run { name, real: false, work }
}

/// Runs teams one after the other and adds up the checks that they report.
fn all(machine: &Machine, teams: Vec<Team>) -> Outcome<String> {
    let mut checks = 0u64;
    for team in teams {
        for report in team.run(machine)? {
            checks += report.strip_prefix("checks ").and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
        }
    }
    Ok(format!("{checks} checks"))
}

fn one(machine: &Machine, team: Team) -> Outcome<String> {
    all(machine, vec![team])
}

fn is_full() -> bool {
    std::env::var_os("OXCCL_TEST_FULL").is_some_and(|value| value != "0")
}

fn set(machine: &Machine) -> &'static str {
    match (machine.is_real(), is_full()) {
        (true, false) => "small",
        (_, true) => "full",
        _ => "usual",
    }
}

/// The matrix with a protocol forced.
fn matrix(machine: &Machine, layout: &[usize], protocol: &str) -> Outcome<String> {
    let large = if protocol == "Simple" { "simple" } else { "ll" };
    let team = Team::new("matrix", layout).env("NCCL_PROTO", protocol).arg("large", large);
    one(machine, team.arg("set", set(machine)).seconds(if is_full() { 1500 } else { 280 }))
}

/// The small matrix and the special values with both protocols, the environment changed by `change`.
fn small(machine: &Machine, layout: &[usize], change: impl Fn(Team) -> Team) -> Outcome<String> {
    let teams = [("LL", "ll"), ("Simple", "simple")].into_iter().map(|(protocol, large)| {
        let team = Team::new("matrix", layout).env("NCCL_PROTO", protocol).arg("large", large);
        change(team.arg("set", "small"))
    });
    all(machine, teams.collect())
}

/// Team of processes with one rank each.
fn processes(scenario: &'static str, count: usize) -> Team {
    Team::new(scenario, &vec![1; count])
}

fn misuse(machine: &Machine, case: &str) -> Outcome<String> {
    one(machine, processes("misuse", 2).arg("case", case))
}

/// Ranks that cannot come up must be told soon, so time-outs are short where a rank is waited for in vain.
fn misuse_init(machine: &Machine, case: &str) -> Outcome<String> {
    one(machine, processes("misuse_init", 2).arg("case", case).env("OXCCL_INIT_TIMEOUT", 60))
}

fn scaled(machine: &Machine, protocol: &str) -> Outcome<String> {
    let team = |layout: &[usize]| {
        let large = if protocol == "Simple" { "simple" } else { "ll" };
        Team::new("scaled", layout).env("NCCL_PROTO", protocol).arg("large", large).arg("set", set(machine))
    };
    all(machine, vec![team(&[1]), team(&[1, 1]), team(&[2, 1]), team(&[1, 1, 1, 1])])
}

/// A case of splitting, with ranks as processes and mixed.
fn split(machine: &Machine, case: &str) -> Outcome<String> {
    let team = |layout: &[usize]| Team::new("split", layout).arg("case", case);
    all(machine, vec![team(&[1, 1, 1, 1]), team(&[3, 2])])
}

fn mismatch(machine: &Machine, case: &str) -> Outcome<String> {
    one(machine, processes("mismatch", 2).arg("case", case))
}

fn without_gpu(machine: &Machine, case: &str, name: &str, value: &str) -> Outcome<String> {
    one(machine, processes("misuse_init", 1).arg("case", case).env(name, value))
}

/// Results of all protocols and of mixed layouts have the same bits.
fn same_bits(machine: &Machine) -> Outcome<String> {
    let repeats = if machine.is_real() { 20 } else { 200 };
    let mut first: Option<(String, String)> = None;
    let layouts: [(&str, &[usize]); 3] = [("LL", &[1, 1, 1]), ("Simple", &[1, 2]), ("LL,Simple", &[3])];
    for (protocol, layout) in layouts {
        let team = Team::new("bits", layout).env("NCCL_PROTO", protocol).arg("repeats", repeats);
        for report in team.run(machine)? {
            let (before, by) = first.get_or_insert_with(|| (report.clone(), team.to_string()));
            if *before != report {
                return Err(format!("{team} gave {report}, {by} gave {before}"));
            }
        }
    }
    Ok(format!("{repeats} repetitions"))
}

fn sequences(machine: &Machine, start: &str) -> Outcome<String> {
    let team = |protocol: &str, layout: &[usize]| {
        Team::new("sequences", layout).env("OXCCL_SEQUENCE_START", start).env("NCCL_PROTO", protocol)
    };
    all(
        machine,
        vec![team("LL", &[1, 2]), team("Simple", &[1, 2]), team("LL", &[1, 1]), team("Simple", &[1, 1])],
    )
}

/// How many of something that the real driver, shared by ranks, does more slowly.
fn amount(machine: &Machine, usual: usize) -> usize {
    if machine.is_real() { usual.div_ceil(20) } else { usual }
}

pub const ALL: &[Run] = &[
    // Functions, types, operations, counts.
    any("matrix_1_rank_ll", |m| matrix(m, &[1], "LL")),
    any("matrix_1_rank_simple", |m| matrix(m, &[1], "Simple")),
    any("matrix_2_ranks_ll", |m| matrix(m, &[1, 1], "LL")),
    any("matrix_2_ranks_simple", |m| matrix(m, &[1, 1], "Simple")),
    any("matrix_3_ranks_ll", |m| matrix(m, &[1, 2], "LL")),
    any("matrix_3_ranks_simple", |m| matrix(m, &[2, 1], "Simple")),
    any("matrix_4_ranks_ll", |m| matrix(m, &[1, 1, 1, 1], "LL")),
    any("matrix_4_ranks_simple", |m| matrix(m, &[1, 1, 1, 1], "Simple")),
    any("matrix_8_ranks_ll", |m| matrix(m, &[2, 2, 2, 2], "LL")),
    any("matrix_8_ranks_simple", |m| matrix(m, &[8], "Simple")),
    any("matrix_chosen_protocol", |m| {
        one(m, Team::new("matrix", &[1, 1, 1]).arg("large", "simple").arg("set", "small"))
    }),
    any("special_values", |m| {
        let team = |protocol: &str| processes("specials", 3).env("NCCL_PROTO", protocol);
        all(m, vec![team("LL"), team("Simple")])
    }),
    any("more_than_two_to_the_31", |m| one(m, processes("large", 2).seconds(250))),
    any("same_bits_everywhere", same_bits),
    any("scaled_sum_ll", |m| scaled(m, "LL")),
    any("scaled_sum_simple", |m| scaled(m, "Simple")),
    any("scaled_sum_misuse", |m| one(m, processes("scaled_misuse", 2))),
    // How blocks run and memory orders.
    emulated("fibers_64", |m| small(m, &[1, 1], |team| team.env("OXCCL_EMU_THREADS", 64).seconds(250))),
    emulated("fibers_64_3_ranks", |m| {
        small(m, &[1, 2], |team| team.env("OXCCL_EMU_THREADS", 64).seconds(250))
    }),
    emulated("fibers_7", |m| small(m, &[2, 1], |team| team.env("OXCCL_EMU_THREADS", 7).seconds(250))),
    emulated("weak_memory", |m| small(m, &[1, 1], |team| team.env("OXCCL_EMU_WEAK", 1).seconds(250))),
    emulated("weak_memory_3_ranks", |m| {
        small(m, &[1, 2], |team| {
            team.env("OXCCL_EMU_WEAK", 1).env("OXCCL_EMU_THREADS", 8).env("OXCCL_EMU_SEED", 7).seconds(250)
        })
    }),
    emulated("weak_memory_messages", |m| {
        let teams = [1, 8].into_iter().flat_map(|threads| {
            let team = |scenario, count| {
                let team = processes(scenario, count).env("OXCCL_EMU_WEAK", 1);
                team.env("OXCCL_EMU_THREADS", threads).env("OXCCL_EMU_SEED", 3)
            };
            let broadcasts =
                |protocol: &str| team("slow_broadcast", 3).arg("broadcasts", 500).env("NCCL_PROTO", protocol);
            [
                team("random_messages", 2).arg("turns", 200),
                team("opposite_messages", 2).arg("turns", 2),
                broadcasts("LL"),
                broadcasts("Simple"),
            ]
        });
        all(m, teams.collect())
    }),
    // Paths between ranks.
    any("host_memory_p2p_disabled", |m| small(m, &[1, 1, 1], |team| team.env("NCCL_P2P_DISABLE", 1))),
    any("host_memory_in_one_process", |m| small(m, &[2], |team| team.env("NCCL_P2P_DISABLE", 1))),
    emulated("no_peer_access", |m| small(m, &[1, 2], |team| team.env("OXCCL_EMU_PEERS", "none"))),
    emulated("some_peer_access", |m| small(m, &[1, 1, 1], |team| team.env("OXCCL_EMU_PEERS", "110/110/001"))),
    emulated("without_vmm", |m| small(m, &[1, 2], |team| team.env("OXCCL_EMU_WITHOUT", "vmm"))),
    emulated("virtual_memory_disabled", |m| {
        let never =
            |team: Team| team.env("NCCL_CUMEM_ENABLE", "0").env("OXCCL_EMU_FAIL", "cuMemCreate:*:801");
        small(m, &[1, 2], never)
    }),
    emulated("without_fds", |m| small(m, &[1, 2], |team| team.env("OXCCL_EMU_WITHOUT", "fd"))),
    emulated("without_ipc_and_fds", |m| small(m, &[1, 1], |team| team.env("OXCCL_EMU_WITHOUT", "ipc,fd"))),
    emulated("one_process_without_vmm", |m| {
        small(m, &[1, 1], |team| team.env_of(1, "OXCCL_EMU_WITHOUT", "vmm"))
    }),
    emulated("cumem_disabled", |m| small(m, &[1, 1], |team| team.env("NCCL_CUMEM_ENABLE", 0))),
    emulated("other_visible_devices", |m| {
        let teams = [["0", "1", "2"], ["2", "0", "5"], ["3,1", "0,2", "4,5,6,7"]].map(|devices| {
            let team = processes("matrix", 3).arg("set", "small").arg("large", "ll");
            let first = [0, 1, 2].map(|process| devices[process]);
            first
                .iter()
                .enumerate()
                .fold(team, |team, (process, list)| team.env_of(process, "CUDA_VISIBLE_DEVICES", list))
        });
        // In the last, ranks use their process's first, second and third device, which the others do not see.
        all(m, teams.into_iter().collect())
    }),
    emulated("shared_gpu_processes", |m| {
        small(m, &[1, 1], |team| team.env("OXCCL_EMU_DEVICES", 1).env("NCCL_MULTI_RANK_GPU_ENABLE", 1))
    }),
    emulated("shared_gpu_threads", |m| {
        small(m, &[2, 1], |team| {
            let team = team.env("OXCCL_EMU_DEVICES", 1).env("NCCL_MULTI_RANK_GPU_ENABLE", 1);
            team.env("CUDA_MODULE_LOADING", "EAGER")
        })
    }),
    // What one rank gives back must not stop the launches of the others.
    emulated("shared_gpu_8_threads", |m| {
        small(m, &[8], |team| {
            let team = team.env("OXCCL_EMU_DEVICES", 1).env("NCCL_MULTI_RANK_GPU_ENABLE", 1);
            team.env("CUDA_MODULE_LOADING", "EAGER")
        })
    }),
    emulated("shared_gpu_communicators_come_and_go", |m| {
        let team = Team::new("bits", &[3]).arg("repeats", 20).env("OXCCL_EMU_DEVICES", 1);
        let team = team.env("NCCL_MULTI_RANK_GPU_ENABLE", 1).env("CUDA_MODULE_LOADING", "EAGER");
        one(m, team)
    }),
    // Order, reuse, wrap-around.
    any("ten_thousand_broadcasts_ll", |m| {
        let team = processes("slow_broadcast", 3).arg("broadcasts", amount(m, 10_000));
        one(m, team.env("NCCL_PROTO", "LL"))
    }),
    any("ten_thousand_broadcasts_simple", |m| {
        let team = processes("slow_broadcast", 3).arg("broadcasts", amount(m, 10_000));
        one(m, team.env("NCCL_PROTO", "Simple"))
    }),
    emulated("sequence_near_2_31", |m| sequences(m, "0x7ffffff0")),
    emulated("sequence_near_2_32", |m| sequences(m, "0xfffffff0")),
    any("opposite_messages", |m| {
        all(m, vec![processes("opposite_messages", 2), Team::new("opposite_messages", &[1, 2])])
    }),
    any("many_messages", |m| one(m, processes("many_messages", 2).arg("messages", amount(m, 5_000)))),
    any("many_messages_3_ranks", |m| {
        one(m, Team::new("many_messages", &[2, 1]).arg("messages", amount(m, 2_000)))
    }),
    any("empty_messages", |m| all(m, vec![processes("empty_messages", 2), processes("empty_messages", 1)])),
    any("random_messages", |m| one(m, processes("random_messages", 3).arg("turns", amount(m, 2_000)))),
    any("messages_to_itself", |m| all(m, vec![processes("own_messages", 3), processes("own_messages", 1)])),
    any("two_communicators_in_opposite_order", |m| {
        one(m, processes("two_comms", 2).arg("turns", amount(m, 300)))
    }),
    any("first_message_while_another_communicator_waits", |m| one(m, processes("lazy_path", 2))),
    any("root_leaves_before_the_others_call", |m| {
        let team = processes("root_leaves", 3).env("NCCL_PROTO", "Simple").arg("turns", amount(m, 100));
        one(m, team)
    }),
    // Streams and graphs.
    any("grouped_calls", |m| {
        let team = |layout: &[usize]| Team::new("grouped", layout).arg("turns", amount(m, 20));
        all(m, vec![team(&[1, 1]), team(&[2, 1]), team(&[1, 1, 1, 1])])
    }),
    any("end_in_group", |m| all(m, vec![processes("end_in_group", 2), Team::new("end_in_group", &[1, 2])])),
    emulated("grouped_calls_fibers", |m| {
        let team = Team::new("grouped", &[1, 1, 1]).arg("turns", 2);
        one(m, team.env("OXCCL_EMU_THREADS", 64).env("OXCCL_EMU_WEAK", 1))
    }),
    any("several_streams", |m| one(m, processes("streams", 3).arg("turns", amount(m, 200)))),
    any("null_stream", |m| one(m, processes("null_stream", 2))),
    emulated("current_device", |m| {
        all(m, vec![processes("current_device", 2), Team::new("current_device", &[3])])
    }),
    any("capture_every_function", |m| all(m, vec![processes("capture", 2), Team::new("capture", &[1, 2])])),
    any("capture_first_operation", |m| one(m, processes("capture_first", 2))),
    any("capture_first_operation_of_threads", |m| one(m, Team::new("capture_first", &[2]))),
    any("graph_update", |m| all(m, vec![processes("graph_update", 2), processes("graph_update", 4)])),
    any("graph_outlives_its_communicator", |m| one(m, processes("graph_outlives", 2))),
    any("graph_goes_before_its_communicator", |m| one(m, processes("graph_is_gone", 2))),
    any("graph_of_several_ranks", |m| one(m, processes("graph_of_several_ranks", 1))),
    any("replay_between_calls", |m| one(m, processes("capture_interleaved", 2).arg("turns", amount(m, 100)))),
    // Life of a communicator.
    emulated("init_all", |m| one(m, processes("init_all", 1))),
    emulated("init_in_a_group", |m| one(m, processes("group_init", 2))),
    any("many_inits_in_a_group", |m| {
        all(m, vec![processes("inits_in_a_group", 3), Team::new("inits_in_a_group", &[2, 1])])
    }),
    any("init_with_several_ids", |m| all(m, vec![processes("scalable", 3), processes("scalable", 1)])),
    any("reset_of_the_log", |m| one(m, processes("reset_debug", 2).env("NCCL_DEBUG", "WARN"))),
    any("queries_and_finalize", |m| one(m, processes("queries", 2))),
    any("many_communicators", |m| one(m, processes("many_comms", 2))),
    any("concurrent_init", |m| one(m, processes("concurrent_init", 2))),
    any("exit_without_destroy", |m| {
        all(m, vec![processes("exit_without_destroy", 2), Team::new("exit_without_destroy", &[2])])
    }),
    any("abort", |m| all(m, vec![processes("abort", 2), Team::new("abort", &[1, 2])])),
    any("killed_ranks", kill::run),
    // Memory, and settings for one call.
    any("memory_for_communication", |m| {
        all(m, vec![processes("mem_alloc", 2), Team::new("mem_alloc", &[2, 1])])
    }),
    emulated("memory_for_communication_without_vmm", |m| {
        one(m, Team::new("mem_alloc", &[2, 1]).arg("memory", "legacy").env("OXCCL_EMU_WITHOUT", "vmm"))
    }),
    emulated("memory_for_communication_on_a_shared_gpu", |m| {
        let team = Team::new("mem_alloc", &[2, 1]).env("OXCCL_EMU_DEVICES", 1);
        one(m, team.env("NCCL_MULTI_RANK_GPU_ENABLE", 1).env("CUDA_MODULE_LOADING", "EAGER"))
    }),
    any("registered_buffers", |m| one(m, processes("register", 2))),
    any("calls_with_settings", |m| all(m, vec![processes("configured", 2), processes("configured", 1)])),
    // Children.
    any("split_by_color_and_key", |m| split(m, "colors")),
    any("split_with_operations_in_flight", |m| split(m, "in_flight")),
    any("split_and_parent_at_the_same_time", |m| split(m, "interleaved")),
    any("split_outlives_its_parent", |m| split(m, "lives")),
    any("split_of_a_split", |m| split(m, "of_a_split")),
    any("split_config", |m| split(m, "config")),
    any("split_in_a_group", |m| split(m, "in_a_group")),
    any("split_with_a_bad_color", |m| split(m, "bad_color")),
    any("killed_during_splits", kill::splits),
    // Everything mixed.
    any("random_programs", programs::run),
    any("random_programs_leave_nothing", programs::flat),
    emulated("shared_gpu_gives_memory_back", programs::give_back),
    // Bad input.
    any("null_communicator", |m| misuse(m, "null_communicator")),
    any("garbage_communicator", |m| misuse(m, "garbage_communicator")),
    any("stale_communicator", |m| misuse(m, "stale_communicator")),
    any("double_destroy", |m| misuse(m, "double_destroy")),
    any("rank_out_of_range", |m| misuse_init(m, "rank_out_of_range")),
    any("unknown_device", |m| misuse_init(m, "unknown_device")),
    any("two_ranks_with_one_number", |m| misuse_init(m, "two_ranks_with_one_number")),
    any("different_nranks", |m| misuse_init(m, "different_nranks")),
    any("unique_id_reused", |m| misuse_init(m, "unique_id_reused")),
    any("unique_id_corrupted", |m| {
        one(m, processes("misuse_init", 2).arg("case", "unique_id_corrupted").env("OXCCL_INIT_TIMEOUT", 4))
    }),
    any("unknown_type", |m| misuse(m, "unknown_type")),
    any("unknown_op", |m| misuse(m, "unknown_op")),
    any("unknown_root", |m| misuse(m, "unknown_root")),
    any("unknown_peer", |m| misuse(m, "unknown_peer")),
    any("config_without_magic", |m| misuse_init(m, "config_without_magic")),
    any("config_of_impossible_size", |m| misuse_init(m, "config_of_impossible_size")),
    any("config_out_of_range", |m| misuse_init(m, "config_out_of_range")),
    any("config_of_other_versions", |m| misuse_init(m, "config_of_other_versions")),
    any("group_end_without_start", |m| misuse(m, "group_end_without_start")),
    any("simulated_group", |m| misuse(m, "simulated_group")),
    any("failure_in_group", |m| misuse(m, "failure_in_group")),
    any("null_data", |m| misuse(m, "null_data")),
    any("host_pointer", |m| misuse(m, "host_pointer")),
    emulated("buffer_of_another_device", |m| misuse(m, "buffer_of_another_device")),
    any("count_too_large", |m| misuse(m, "count_too_large")),
    emulated("gpu_memory_full", |m| {
        one(m, processes("misuse_init", 3).arg("case", "gpu_memory_full").env("OXCCL_EMU_MEMORY", "256M"))
    }),
    emulated("no_driver", |m| without_gpu(m, "no_driver", "LD_LIBRARY_PATH", "/nonexistent")),
    emulated("driver_too_old", |m| without_gpu(m, "driver_too_old", "OXCCL_EMU_DRIVER", "11040")),
    emulated("no_gpu", |m| without_gpu(m, "no_gpu", "OXCCL_EMU_DEVICES", "0")),
    emulated("duplicate_gpu", |m| misuse_init(m, "duplicate_gpu")),
    any("one_rank_ends_its_listener", |m| one(m, processes("one_rank", 1))),
    any("port_scan", |m| one(m, processes("port_scan", 2))),
    any("mismatched_function", |m| mismatch(m, "function")),
    any("mismatched_count", |m| mismatch(m, "count")),
    any("mismatched_type", |m| mismatch(m, "type")),
    any("mismatched_op", |m| mismatch(m, "op")),
    any("mismatched_root", |m| mismatch(m, "root")),
    any("mismatched_root_of_reduce", |m| mismatch(m, "root_of_reduce")),
    any("mismatched_scaled_sum", |m| mismatch(m, "scaled_sum")),
    any("mismatched_reduce_scatter", |m| mismatch(m, "reduce_scatter")),
    any("mismatched_group", |m| mismatch(m, "group")),
    any("mismatched_group_with_a_message", |m| mismatch(m, "group_with_a_message")),
    any("mismatched_message", |m| mismatch(m, "message")),
    any("calls_that_nobody_matches", |m| all(m, vec![processes("stalls", 2), Team::new("stalls", &[1, 2])])),
];
