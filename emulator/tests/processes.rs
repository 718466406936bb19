//! Several processes, and processes with other settings: IPC, imports, SIGKILL, fork, hidden devices, faults on demand.
//!
//! A process of another kind is this test program again, which then runs only the test `role`.

#![allow(clippy::macro_metavars_in_unsafe, clippy::unwrap_used, clippy::print_stdout)]

mod support;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use support::*;

/// A child that plays a role. What it says begins with `@`, so that the test harness's own lines are told apart.
struct Role {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Role {
    fn start(role: &str, settings: &[(&str, &str)]) -> Role {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "role", "--nocapture", "--test-threads=1"]).env("ROLE", role);
        command.envs(settings.iter().copied()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Role { child, stdin, stdout }
    }

    fn hear(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.stdout.read_line(&mut line).unwrap(), 0, "the child left");
            if let Some((_, said)) = line.trim_end().split_once('@') {
                return said.to_owned();
            }
        }
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.stdin, "{line}").unwrap();
    }

    fn finish(mut self) {
        drop(self.stdin);
        assert!(self.child.wait().unwrap().success());
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn say(line: &str) {
    println!("\n@{line}");
}

fn listen() -> String {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

fn handle(text: &str) -> CUipcHandle {
    CUipcHandle {
        reserved: std::array::from_fn(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap()),
    }
}

#[test]
fn role() {
    match std::env::var("ROLE").as_deref() {
        Err(_) => {}
        Ok("export") => export(),
        Ok("export event") => export_event(),
        Ok("export descriptor") => export_descriptor(),
        Ok("devices") => devices(),
        Ok("fork") => fork(),
        Ok("faults") => faults(),
        Ok("without") => without(),
        Ok("nothing") => nothing(),
        Ok("eager") => eager(),
        Ok("slow") => slow(),
        Ok("poison") => poison(),
        Ok("broken") => broken(),
        Ok(other) => panic!("no role is called {other}"),
    }
}

fn setup() {
    init(&[("OXCCL_EMU_DEVICES", "2")]);
    use_device(0);
}

fn export() {
    init(&[]);
    use_device(0);
    let _other = alloc(3000);
    let ptr = alloc(1000);
    ok!(cuMemsetD8_v2(ptr, 0x11, 1000));
    ok!(cuCtxSynchronize());
    let mut handle = CUipcHandle { reserved: [0; 64] };
    ok!(cuIpcGetMemHandle(Out::from(&mut handle), ptr + 10));
    say(&hex(&handle.reserved));
    say(&read_word(ptr + 996).to_string());
    listen();
    say(&read_word(ptr + 996).to_string());
    listen();
    ok!(cuMemFree_v2(ptr));
    let next = alloc(1000);
    ok!(cuIpcGetMemHandle(Out::from(&mut handle), next));
    say("freed");
    listen();
}

#[test]
fn memory_is_shared_by_legacy_ipc() {
    setup();
    let mut peer = Role::start("export", &[("OXCCL_EMU_DEVICES", "2")]);
    let handle = handle(&peer.hear());
    peer.hear();
    let mut ptr = 0u64;
    fails!(1, cuIpcOpenMemHandle_v2(Out::from(&mut ptr), handle, 0));
    ok!(cuIpcOpenMemHandle_v2(Out::from(&mut ptr), handle, 1));
    assert_eq!(read(ptr, 1000), [0x11; 1000]);
    let mut same = 0u64;
    ok!(cuIpcOpenMemHandle_v2(Out::from(&mut same), handle, 1));
    assert_eq!(ptr, same);
    fails!(1, cuMemFree_v2(ptr));
    fails!(1, cuMemsetD8_v2(ptr, 0, 1001));
    ok!(cuMemsetD32_v2(ptr + 996, 77, 1));
    ok!(cuCtxSynchronize());
    peer.tell("look");
    assert_eq!(peer.hear(), "77");

    ok!(cuIpcCloseMemHandle(ptr));
    ok!(cuIpcCloseMemHandle(ptr));
    fails!(1, cuIpcCloseMemHandle(ptr));
    peer.tell("free");
    peer.hear();
    fails!(1, cuIpcOpenMemHandle_v2(Out::from(&mut ptr), handle, 1));
    peer.kill();
    fails!(400, cuIpcOpenMemHandle_v2(Out::from(&mut ptr), handle, 1));
}

fn export_event() {
    init(&[]);
    use_device(0);
    const INTERPROCESS: u32 = 4 | 2;
    let event: usize = out!(|out| cuEventCreate(out, INTERPROCESS));
    let mut handle = CUipcHandle { reserved: [0; 64] };
    ok!(cuIpcGetEventHandle(Out::from(&mut handle), event));
    let s = stream(1);
    let gate = pinned_word();
    hold(s, gate);
    ok!(cuEventRecord(event, s));
    say(&hex(&handle.reserved));
    listen();
    store(gate, 1);
    listen();
}

#[test]
fn an_opened_piece_outlives_its_owner() {
    setup();
    let mut peer = Role::start("export", &[]);
    let handle = handle(&peer.hear());
    let mut ptr = 0u64;
    ok!(cuIpcOpenMemHandle_v2(Out::from(&mut ptr), handle, 1));
    peer.hear();
    peer.kill();
    assert_eq!(read(ptr, 1000), [0x11; 1000]);
    ok!(cuIpcCloseMemHandle(ptr));
}

#[test]
fn events_are_shared_by_ipc() {
    setup();
    let mut peer = Role::start("export event", &[]);
    let handle = handle(&peer.hear());
    let mut event = 0;
    ok!(cuIpcOpenEventHandle(Out::from(&mut event), handle));
    fails!(600, cuEventQuery(event));
    let s = stream(1);
    ok!(cuStreamWaitEvent(s, event, 0));
    assert_eq!(query(s), 600);
    peer.tell("go");
    ok!(cuStreamSynchronize(s));
    ok!(cuEventQuery(event));
    peer.finish();
    let plain = support::event();
    let mut none = CUipcHandle { reserved: [0; 64] };
    fails!(400, cuIpcGetEventHandle(Out::from(&mut none), plain));
}

#[test]
fn a_wait_for_a_dead_process_ends() {
    setup();
    let mut peer = Role::start("export event", &[]);
    let handle = handle(&peer.hear());
    let mut event = 0;
    ok!(cuIpcOpenEventHandle(Out::from(&mut event), handle));
    peer.kill();
    ok!(cuEventSynchronize(event));
}

fn export_descriptor() {
    init(&[]);
    use_device(0);
    let handle: u64 = out!(|out| cuMemCreate(out, GRANULE, In::from(&vmm_prop(0)), 0));
    let fd: i32 = out!(|out| cuMemExportToShareableHandle(out, handle, 1, 0));
    let ptr = map(handle, 0, GRANULE);
    ok!(cuMemsetD32_v2(ptr, 5, 1));
    ok!(cuCtxSynchronize());
    say(&fd.to_string());
    listen();
    assert_eq!(read_word(ptr), 6);
}

#[test]
fn memory_is_shared_by_descriptors() {
    setup();
    // The peer's first device is our second.
    let mut peer = Role::start("export descriptor", &[("CUDA_VISIBLE_DEVICES", "1,0")]);
    let path = format!("/proc/{}/fd/{}", peer.child.id(), peer.hear());
    let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
    let fd = std::os::fd::AsRawFd::as_raw_fd(&file) as usize;
    let imported: u64 = out!(|out| cuMemImportFromShareableHandle(out, fd, 1));
    let mut prop = vmm_prop(9);
    ok!(cuMemGetAllocationPropertiesFromHandle(Out::from(&mut prop), imported));
    assert_eq!(prop.location.id, 1);
    let ptr = map(imported, 0, GRANULE);
    assert_eq!(read_word(ptr), 5);
    ok!(cuMemsetD32_v2(ptr, 6, 1));
    ok!(cuCtxSynchronize());
    peer.tell("look");
    peer.finish();
    assert_eq!(read_word(ptr), 6, "an import outlives its maker");
}

fn devices() {
    init(&[]);
    let count: i32 = out!(|out| cuDeviceGetCount(out));
    for device in 0..count {
        let uuid: CUuuid = out!(|out| cuDeviceGetUuid_v2(out, device));
        let mut pci = [0i8; 13];
        ok!(cuDeviceGetPCIBusId(Out::new(pci.as_mut_ptr()), 13, device));
        let pci: String = pci.iter().take_while(|c| **c != 0).map(|c| *c as u8 as char).collect();
        let back: i32 =
            out!(|out| cuDeviceGetByPCIBusId(out, Text::new(&std::ffi::CString::new(pci.clone()).unwrap())));
        assert_eq!(back, device);
        let peers: Vec<i32> =
            (0..count).map(|peer| out!(|out| cuDeviceCanAccessPeer(out, device, peer))).collect();
        let (sms, major): (i32, i32) = (
            out!(|out| cuDeviceGetAttribute(out, 16, device)),
            out!(|out| cuDeviceGetAttribute(out, 75, device)),
        );
        let memory: usize = out!(|out| cuDeviceTotalMem_v2(out, device));
        say(&format!("{} {pci} {peers:?} {sms} {major} {memory}", uuid.bytes[15]));
    }
    say("end");
}

fn device_lines(settings: &[(&str, &str)]) -> Vec<String> {
    let mut role = Role::start("devices", settings);
    let lines = std::iter::from_fn(|| Some(role.hear()).filter(|line| line != "end")).collect();
    role.finish();
    lines
}

#[test]
fn devices_are_what_the_environment_says() {
    let all = device_lines(&[
        ("OXCCL_EMU_DEVICES", "3"),
        ("OXCCL_EMU_PEERS", "010/101/010"),
        ("OXCCL_EMU_SMS", "20"),
        ("OXCCL_EMU_CC", "8.0"),
        ("OXCCL_EMU_MEMORY", "3M"),
    ]);
    assert_eq!(
        all,
        [
            "0 0000:10:00.0 [0, 1, 0] 20 8 3145728",
            "1 0000:11:00.0 [1, 0, 1] 20 8 3145728",
            "2 0000:12:00.0 [0, 1, 0] 20 8 3145728",
        ]
    );
    let some = device_lines(&[
        ("OXCCL_EMU_DEVICES", "3"),
        ("OXCCL_EMU_PEERS", "none"),
        ("CUDA_VISIBLE_DEVICES", "GPU-6f786363-6c00-4000-8000-000000000002,0"),
    ]);
    assert_eq!(some.len(), 2);
    assert!(some[0].starts_with("2 0000:12:00.0 [0, 0]") && some[1].starts_with("0 0000:10:00.0 [0, 0]"));
}

fn fork() {
    init(&[]);
    use_device(0);
    let status = in_child(|| {
        fails!(3, cuInit(0));
        let mut count = 0;
        fails!(3, cuDeviceGetCount(Out::from(&mut count)));
        fails!(3, cuCtxSynchronize());
    });
    assert_eq!(status, 0);
    ok!(cuCtxSynchronize());
}

#[test]
fn a_forked_child_is_told_that_it_has_no_driver() {
    Role::start("fork", &[]).finish();
}

fn faults() {
    init(&[]);
    let context = use_device(0);
    assert_ne!(context, 0);
    let mut ptr = 0;
    ok!(cuMemAlloc_v2(Out::from(&mut ptr), 4));
    fails!(2, cuMemAlloc_v2(Out::from(&mut ptr), 4));
    ok!(cuMemAlloc_v2(Out::from(&mut ptr), 4));
    let mut handle = 0;
    fails!(999, cuStreamCreate(Out::from(&mut handle), 0));
    fails!(999, cuStreamCreate(Out::from(&mut handle), 0));
    ok!(cuEventCreate(Out::from(&mut handle), 0));
    fails!(1, cuEventCreate(Out::from(&mut handle), 0));
    fails!(1, cuEventCreate(Out::from(&mut handle), 0));
}

#[test]
fn calls_fail_on_demand() {
    Role::start("faults", &[("OXCCL_EMU_FAIL", "cuMemAlloc:2:2, cuStreamCreate:*:999,cuEventCreate:2+:1")])
        .finish();
}

fn without() {
    init(&[]);
    use_device(0);
    for attribute in [92, 93, 102, 103, 115] {
        let value: i32 = out!(|out| cuDeviceGetAttribute(out, attribute, 0));
        assert_eq!(value, 0, "attribute {attribute}");
    }
    let version: i32 = out!(|out| cuDriverGetVersion(out));
    assert_eq!(version, 11040);
    let mut handle = 0;
    fails!(801, cuMemCreate(Out::from(&mut handle), GRANULE, In::from(&vmm_prop(0)), 0));
    fails!(801, cuMemAddressReserve(Out::from(&mut handle), GRANULE, 0, 0, 0));
    let mut ipc = CUipcHandle { reserved: [0; 64] };
    fails!(801, cuIpcGetMemHandle(Out::from(&mut ipc), alloc(4)));
    fails!(801, cuStreamWriteValue32_v2(0, alloc(4), 0, 0));
    let mut ptr = 0;
    fails!(801, cuMemAllocAsync(Out::from(&mut ptr), 4, 0));
    let atomics: i32 = out!(|out| cuDeviceGetP2PAttribute(out, 3, 0, 1));
    assert_eq!(atomics, 0);
}

#[test]
fn features_can_be_taken_away() {
    let without = ("OXCCL_EMU_WITHOUT", "vmm,fd,ipc,memops,pools,atomics");
    Role::start("without", &[without, ("OXCCL_EMU_DRIVER", "11040")]).finish();
}

fn nothing() {
    fails!(100, cuInit(0));
    let mut count = 7;
    fails!(3, cuDeviceGetCount(Out::from(&mut count)));
    ok!(cuDriverGetVersion(Out::from(&mut count)));
    fails!(1, cuInit(1));
}

#[test]
fn a_machine_may_have_no_device() {
    Role::start("nothing", &[("OXCCL_EMU_DEVICES", "0")]).finish();
    Role::start("nothing", &[("CUDA_VISIBLE_DEVICES", "")]).finish();
}

fn eager() {
    init(&[]);
    use_device(0);
    let (spin, fill) = (function("emu_probe_spin"), function("emu_probe_fill"));
    let (a, b) = (stream(1), stream(1));
    let (gate, started, data) = (pinned_word(), pinned_word(), alloc(4));
    launch(spin, 1, a, &Spin { flag: gate, until: 1, pad: 0, started });
    launch(fill, 1, b, &Fill { data, count: 1, value: 1, pad: 0 });
    ok!(cuStreamSynchronize(b));
    store(gate, 1);
    ok!(cuStreamSynchronize(a));
}

#[test]
fn eager_loading_avoids_the_first_load_trap() {
    Role::start("eager", &[("CUDA_MODULE_LOADING", "EAGER")]).finish();
}

fn slow() {
    init(&[]);
    use_device(0);
    let (s, data) = (stream(1), alloc(4));
    let start = std::time::Instant::now();
    ok!(cuMemcpyDtoDAsync_v2(data, data, 4, s));
    ok!(cuStreamSynchronize(s));
    assert!(start.elapsed().as_millis() >= 30);
}

#[test]
fn operations_can_be_slow() {
    Role::start("slow", &[("OXCCL_EMU_SLOW", "copy:30000")]).finish();
}

fn poison() {
    init(&[]);
    use_device(0);
    assert_eq!(read(alloc(5000), 5000), [0xa5; 5000]);
    let handle: u64 = out!(|out| cuMemCreate(out, GRANULE, In::from(&vmm_prop(0)), 0));
    assert_eq!(read_word(map(handle, 0, GRANULE) + GRANULE as u64 - 4), 0xa5a5_a5a5);
}

fn broken() {
    init(&[("OXCCL_EMU_SMS", "many")]);
    use_device(0);
    let bad = function("emu_probe_out_of_bounds");
    launch(bad, 1, 0, &OutOfBounds { p: 4096, block: 0, read: 0 });
    fails!(700, cuCtxSynchronize());
}

#[test]
fn fresh_memory_can_hold_a_pattern() {
    Role::start("poison", &[("OXCCL_EMU_POISON", "165")]).finish();
}

#[test]
fn a_log_is_written_only_when_asked_for() {
    let path = std::env::temp_dir().join(format!("emu-log-{}", std::process::id()));
    device_lines(&[("OXCCL_EMU_LOG", path.to_str().unwrap())]);
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(text.contains("cuInit -> 0"));
    let silent = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "role", "--nocapture", "--test-threads=1"])
        .env("ROLE", "broken")
        .output()
        .unwrap();
    assert!(silent.status.success() && silent.stderr.is_empty(), "{silent:?}");
}
