//! Every run of the table as a test. The program `oxccl-check` makes the same runs where there is no Rust.

#![allow(clippy::print_stdout)] // what was checked

use std::path::Path;

use oxccl_testing::machine::Machine;
use oxccl_testing::runs;

fn make(name: &str) {
    let machine = match Machine::find(Path::new(env!("CARGO_BIN_EXE_oxccl-check"))) {
        Ok(machine) => machine,
        Err(why) => panic!("{why}"),
    };
    let run = runs::find(name).expect("the test names a run of the table");
    if machine.is_real() && !run.real {
        println!("{name} needs the emulated driver");
        return;
    }
    match run.make(&machine) {
        Ok(text) => println!("{name}: {text}"),
        Err(why) => panic!("{name}: {why}"),
    }
}

macro_rules! tests {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            make(stringify!($name));
        })*

        #[test]
        fn every_run_is_a_test() {
            let tests = [$(stringify!($name)),*];
            let runs: Vec<&str> = runs::ALL.iter().map(|run| run.name).collect();
            assert_eq!(runs, tests);
        }
    };
}

tests! {
    matrix_1_rank_ll
    matrix_1_rank_simple
    matrix_2_ranks_ll
    matrix_2_ranks_simple
    matrix_3_ranks_ll
    matrix_3_ranks_simple
    matrix_4_ranks_ll
    matrix_4_ranks_simple
    matrix_8_ranks_ll
    matrix_8_ranks_simple
    matrix_chosen_protocol
    special_values
    more_than_two_to_the_31
    same_bits_everywhere
    scaled_sum_ll
    scaled_sum_simple
    scaled_sum_misuse
    fibers_64
    fibers_64_3_ranks
    fibers_7
    weak_memory
    weak_memory_3_ranks
    weak_memory_messages
    host_memory_p2p_disabled
    host_memory_in_one_process
    no_peer_access
    some_peer_access
    without_vmm
    virtual_memory_disabled
    without_fds
    without_ipc_and_fds
    one_process_without_vmm
    cumem_disabled
    other_visible_devices
    shared_gpu_processes
    shared_gpu_threads
    shared_gpu_8_threads
    shared_gpu_communicators_come_and_go
    ten_thousand_broadcasts_ll
    ten_thousand_broadcasts_simple
    sequence_near_2_31
    sequence_near_2_32
    opposite_messages
    many_messages
    many_messages_3_ranks
    empty_messages
    random_messages
    messages_to_itself
    two_communicators_in_opposite_order
    first_message_while_another_communicator_waits
    root_leaves_before_the_others_call
    grouped_calls
    end_in_group
    grouped_calls_fibers
    several_streams
    null_stream
    current_device
    capture_every_function
    capture_first_operation
    capture_first_operation_of_threads
    graph_update
    graph_outlives_its_communicator
    graph_goes_before_its_communicator
    graph_of_several_ranks
    replay_between_calls
    init_all
    init_in_a_group
    many_inits_in_a_group
    init_with_several_ids
    reset_of_the_log
    queries_and_finalize
    many_communicators
    concurrent_init
    exit_without_destroy
    abort
    killed_ranks
    memory_for_communication
    memory_for_communication_without_vmm
    memory_for_communication_on_a_shared_gpu
    registered_buffers
    calls_with_settings
    split_by_color_and_key
    split_with_operations_in_flight
    split_and_parent_at_the_same_time
    split_outlives_its_parent
    split_of_a_split
    split_config
    split_in_a_group
    split_with_a_bad_color
    killed_during_splits
    random_programs
    random_programs_leave_nothing
    shared_gpu_gives_memory_back
    null_communicator
    garbage_communicator
    stale_communicator
    double_destroy
    rank_out_of_range
    unknown_device
    two_ranks_with_one_number
    different_nranks
    unique_id_reused
    unique_id_corrupted
    unknown_type
    unknown_op
    unknown_root
    unknown_peer
    config_without_magic
    config_of_impossible_size
    config_out_of_range
    config_of_other_versions
    group_end_without_start
    simulated_group
    failure_in_group
    null_data
    host_pointer
    buffer_of_another_device
    count_too_large
    gpu_memory_full
    no_driver
    driver_too_old
    no_gpu
    duplicate_gpu
    one_rank_ends_its_listener
    port_scan
    mismatched_function
    mismatched_count
    mismatched_type
    mismatched_op
    mismatched_root
    mismatched_root_of_reduce
    mismatched_scaled_sum
    mismatched_reduce_scatter
    mismatched_group
    mismatched_group_with_a_message
    mismatched_message
    calls_that_nobody_matches
}
