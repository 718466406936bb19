//! Tests of the kernel runtime, with the kernels of `probe.cpp`.

use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{Config, KernelFault, Threads, find, launch, run};

fn config(threads: u32, seed: u64, weak_memory: bool) -> Config {
    Config { threads: Threads::Fixed(threads), seed, weak_memory }
}

/// Launches a probe kernel with a `#[repr(C)]` argument.
fn launch<T>(config: &Config, name: &str, grid: u32, arg: &T) -> Result<(), KernelFault> {
    let info = find(name).expect("a probe kernel");
    // SAFETY: the arguments below have no padding that matters; bytes are only copied.
    let bytes = unsafe { std::slice::from_raw_parts(ptr::from_ref(arg).cast::<u8>(), size_of::<T>()) };
    launch::run(config, info, grid, 1, bytes)
}

#[repr(C)]
struct Fill {
    data: *mut u32,
    count: u64,
    value: u32,
    padding: u32,
}

fn check_fill(config: &Config, grid: u32) {
    let mut data = vec![0u32; 1000];
    let arg = Fill { data: data.as_mut_ptr(), count: 999, value: 7, padding: 0 };
    launch(config, "emu_probe_fill", grid, &arg).unwrap();
    assert!(data[..999].iter().zip(7..).all(|(&found, expected)| found == expected));
    assert_eq!(data[999], 0);
}

#[test]
fn unknown_kernels_are_not_found() {
    assert!(find("emu_probe_fill").is_some());
    assert!(find("emu_probe_fil").is_none());
}

#[test]
fn every_thread_of_every_block_runs() {
    for (grid, threads) in [(1, 1), (1, 64), (7, 1), (5, 33), (2, 1024), (6000, 1)] {
        check_fill(&config(threads, 3, false), grid);
        check_fill(&config(threads, 3, true), grid);
    }
}

#[test]
fn arguments_may_lie_anywhere() {
    let mut data = [0u32; 4];
    let arg = Fill { data: data.as_mut_ptr(), count: 4, value: 1, padding: 0 };
    let mut bytes = vec![0u8; size_of::<Fill>() + 1];
    // SAFETY: the destination has room behind its first byte.
    unsafe {
        ptr::copy_nonoverlapping((&raw const arg).cast::<u8>(), bytes.as_mut_ptr().add(1), size_of::<Fill>())
    };
    run(find("emu_probe_fill").unwrap(), 1, 1, &bytes[1..]).unwrap();
    assert_eq!(data, [1, 2, 3, 4]);
}

#[repr(C)]
struct Spin {
    flag: *const AtomicU32,
    until: u32,
    padding: u32,
    started: *const AtomicU32,
}

#[test]
fn all_blocks_run_at_once_and_launches_do_too() {
    let (flag, started) = (AtomicU32::new(0), AtomicU32::new(0));
    std::thread::scope(|scope| {
        for threads in [1, 1, 16] {
            let (flag, started) = (&flag, &started);
            scope.spawn(move || {
                let arg = Spin { flag, until: 1, padding: 0, started };
                launch(&config(threads, 0, false), "emu_probe_spin", 8, &arg).unwrap();
            });
        }
        // Ends only if no block waits for another one to end.
        while started.load(Ordering::Acquire) < 8 + 8 + 8 * 16 {
            std::thread::yield_now();
        }
        flag.store(1, Ordering::Release);
    });
}

#[repr(C)]
struct Rounds {
    out: *mut u32,
    rounds: u32,
    padding: u32,
}

#[test]
fn barriers_order_shared_memory() {
    for threads in [1, 2, 3, 64, 1024] {
        for seed in 0..5 {
            let mut mistakes = [0u32; 3];
            let arg = Rounds { out: mistakes.as_mut_ptr(), rounds: 20, padding: 0 };
            launch(&config(threads, seed, seed % 2 == 1), "emu_probe_barriers", 3, &arg).unwrap();
            assert_eq!(mistakes, [0; 3], "{threads} threads, seed {seed}");
        }
    }
}

#[test]
fn the_seed_decides_the_order_of_fibers() {
    #[repr(C)]
    struct Order {
        order: *mut u32,
        next: *mut u32,
    }
    let order = |seed| {
        let (mut order, mut next) = (vec![u32::MAX; 64], 0);
        let arg = Order { order: order.as_mut_ptr(), next: &mut next };
        launch(&config(64, seed, false), "emu_probe_order", 1, &arg).unwrap();
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..64), "each thread once");
        order
    };
    assert_ne!(order(1), (0..64).collect::<Vec<_>>());
    assert_ne!(order(1), order(2));
}

#[test]
fn a_barrier_that_cannot_complete_is_a_trap() {
    assert_eq!(launch(&config(64, 0, false), "emu_probe_stuck", 1, &()), Err(KernelFault::Trap));
    assert_eq!(launch(&config(64, 0, false), "emu_probe_stuck", 4, &()), Err(KernelFault::Trap));
    // Alone at its barrier, the only thread passes.
    assert_eq!(launch(&config(1, 0, false), "emu_probe_stuck", 1, &()), Ok(()));
    check_fill(&config(64, 0, false), 4);
}

#[repr(C)]
struct OutOfBounds {
    p: usize,
    block: u32,
    read: u32,
}

/// A page that cannot be accessed.
fn forbidden_page() -> usize {
    // SAFETY: a fresh mapping, never unmapped.
    let page = unsafe {
        libc::mmap(ptr::null_mut(), 4096, libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
    };
    assert_ne!(page, libc::MAP_FAILED);
    page as usize
}

#[test]
fn a_bad_access_ends_the_whole_grid() {
    let page = forbidden_page();
    for threads in [1, 64] {
        for (grid, block) in [(1, 0), (4, 0), (4, 3)] {
            for read in [0, 1] {
                let arg = OutOfBounds { p: page + 64, block, read };
                let result = launch(&config(threads, 1, false), "emu_probe_out_of_bounds", grid, &arg);
                assert_eq!(result, Err(KernelFault::IllegalAddress(page + 64)));
            }
        }
    }
    // The threads and stacks that were left in the middle of a kernel serve again.
    check_fill(&config(64, 0, false), 4);
    check_fill(&config(1, 0, false), 4);
}

#[test]
fn a_delayed_store_to_a_bad_address_is_caught_as_well() {
    let page = forbidden_page();
    let arg = Fill { data: page as *mut u32, count: 4, value: 1, padding: 0 };
    for threads in [1, 4] {
        let result = launch(&config(threads, 0, true), "emu_probe_fill", 1, &arg);
        assert!(matches!(result, Err(KernelFault::IllegalAddress(address)) if address & !15 == page));
    }
}

#[test]
fn other_faults_are_told_apart() {
    assert_eq!(launch(&config(1, 0, false), "emu_probe_trap", 2, &()), Err(KernelFault::Trap));
    let overrun = launch(&config(4, 0, false), "emu_probe_shared_overrun", 1, &());
    assert!(matches!(overrun, Err(KernelFault::IllegalAddress(_))));
    let deep = launch(&config(2, 0, false), "emu_probe_deep", 1, &[1u64 << 40, 0]);
    assert!(matches!(deep, Err(KernelFault::IllegalAddress(_))));
}

#[repr(C)]
struct Litmus {
    data: *mut u32,
    flag: *mut u32,
    stale: *mut u32,
    done: *mut u32,
    rounds: u32,
    release: u32,
}

/// Readers that saw the flag without the data, among `rounds`.
fn stale_reads(config: &Config, grid: u32, rounds: u32, release: u32) -> u32 {
    stale_reads_of("emu_probe_message_passing", config, grid, rounds, release)
}

fn stale_reads_of(kernel: &str, config: &Config, grid: u32, rounds: u32, release: u32) -> u32 {
    let mut words = vec![0u32; 64];
    let p = words.as_mut_ptr();
    // SAFETY: all inside the vector.
    let arg =
        unsafe { Litmus { data: p, flag: p.add(16), stale: p.add(32), done: p.add(48), rounds, release } };
    launch(config, kernel, grid, &arg).unwrap();
    words[32]
}

#[test]
fn weak_memory_shows_a_missing_release() {
    // Two fibers of one block: the seed alone decides what is seen.
    let stale: u32 = (0..20).map(|seed| stale_reads(&config(2, seed, true), 1, 10, 0)).sum();
    assert!(stale > 0, "no seed delayed the data behind the flag");
    assert!(stale < 200, "the data was never seen");
    // Two blocks on two OS threads.
    let stale: u32 = (0..20).map(|seed| stale_reads(&config(1, seed, true), 2, 20, 0)).sum();
    assert!(stale > 0, "no run delayed the data behind the flag");
}

#[test]
fn weak_memory_honours_release_and_fence() {
    for seed in 0..50 {
        for release in [1, 2] {
            assert_eq!(stale_reads(&config(2, seed, true), 1, 20, release), 0);
            assert_eq!(stale_reads(&config(1, seed, true), 2, 20, release), 0);
        }
    }
    // Without delayed stores the order of the program is what others see, on x86.
    assert_eq!(stale_reads(&config(2, 0, false), 1, 100, 0), 0);
}

/// A barrier alone says nothing to other blocks; the fence of one thread behind it speaks for all of its block.
#[test]
fn a_barrier_shows_stores_to_the_block_alone() {
    let stale = |threads, seed, release| {
        stale_reads_of("emu_probe_barrier_passing", &config(threads, seed, true), 2, 20, release)
    };
    for threads in [1, 4] {
        let without: u32 = (0..20).map(|seed| stale(threads, seed, 0)).sum();
        assert!(without > 0, "{threads} threads: no run delayed the data behind the flag");
        assert!(without < 400, "{threads} threads: the block does not see its own data: {without}");
        for seed in 0..20 {
            for release in [1, 2] {
                assert_eq!(stale(threads, seed, release), 0, "{threads} threads, seed {seed}");
            }
        }
    }
}

#[test]
fn a_thread_sees_its_own_delayed_stores() {
    for seed in 0..20 {
        let (mut data, mut mistakes) = ([0u128; 1], 0u32);
        let arg = (data.as_mut_ptr(), &raw mut mistakes);
        launch(&config(1, seed, true), "emu_probe_forwarding", 1, &arg).unwrap();
        assert_eq!(mistakes, 0, "seed {seed}");
    }
}

/// Runs in a process of its own, because only the first launch of a process looks for a previous handler.
#[test]
fn faults_outside_kernels_go_to_the_previous_handler() {
    extern "C" fn handler(_: libc::c_int) {
        // SAFETY: ends the process, which a handler may do.
        unsafe { libc::_exit(42) };
    }
    const CHILD: &str = "OXCCL_EMU_TEST_CHILD";
    if std::env::var_os(CHILD).is_some() {
        // SAFETY: the handler only calls _exit.
        unsafe { libc::signal(libc::SIGSEGV, handler as *const () as usize) };
        check_fill(&config(1, 0, false), 1);
        let page = forbidden_page();
        let arg = OutOfBounds { p: page, block: 0, read: 1 };
        assert!(launch(&config(1, 0, false), "emu_probe_out_of_bounds", 1, &arg).is_err());
        // SAFETY: not safe, on purpose: it faults.
        unsafe { ptr::read_volatile(page as *const u8) };
        panic!("the access did not fault");
    }
    let name = "kernel::tests::faults_outside_kernels_go_to_the_previous_handler";
    let program = std::env::current_exe().unwrap();
    let output =
        std::process::Command::new(program).args([name, "--exact"]).env(CHILD, "1").output().unwrap();
    assert_eq!(output.status.code(), Some(42), "{output:?}");
}
