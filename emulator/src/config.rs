//! The settings: all of them environment variables, read once per process and described in `README.md`.
//!
//! A value that cannot be understood is reported in the log (`OXCCL_EMU_LOG`) and the default taken, because a driver
//! has no other way to complain.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::str::FromStr;
use std::sync::OnceLock;
use std::time::Instant;

use crate::fault::Rule;

#[derive(Default)]
pub struct Slow {
    pub copy: u64,
    pub set: u64,
    pub launch: u64,
    pub memop: u64,
    pub host: u64,
}

/// Features that can be taken away, each as on a machine whose driver or system lacks it.
#[derive(Default)]
pub struct Without {
    pub vmm: bool,
    pub fd: bool,
    pub ipc: bool,
    pub memops: bool,
    pub pools: bool,
    pub atomics: bool,
}

pub enum Peers {
    All,
    None,
    /// `matrix[a][b]`: device a can access device b.
    Matrix(Vec<Vec<bool>>),
}

pub struct Config {
    pub devices: u32,
    pub memory: u64,
    pub capability: (u32, u32),
    pub sms: u32,
    pub name: String,
    pub host: u32,
    pub peers: Peers,
    pub p2p_rank: u32,
    pub driver: i32,
    pub without: Without,
    pub fail: Vec<Rule>,
    pub slow: Slow,
    pub eager: bool,
    pub poison: Option<u8>,
}

/// The process's settings.
pub fn get() -> &'static Config {
    static CONFIG: OnceLock<Config> = OnceLock::new();
    CONFIG.get_or_init(|| Config {
        devices: number("OXCCL_EMU_DEVICES", 8).min(64),
        memory: size("OXCCL_EMU_MEMORY", 16 << 30),
        capability: capability(),
        sms: number("OXCCL_EMU_SMS", 132).max(1),
        name: variable("OXCCL_EMU_NAME").unwrap_or_else(|| "OxCCL emulated GPU".to_owned()),
        host: number("OXCCL_EMU_HOST", 0),
        peers: peers(),
        p2p_rank: number("OXCCL_EMU_P2P_RANK", 0),
        driver: number("OXCCL_EMU_DRIVER", 12080),
        without: without(),
        fail: fail(),
        slow: slow(),
        eager: variable("CUDA_MODULE_LOADING").is_some_and(|mode| mode.eq_ignore_ascii_case("EAGER")),
        poison: variable("OXCCL_EMU_POISON").and_then(|text| parse("OXCCL_EMU_POISON", &text)),
    })
}

/// The value of a variable that is set and not empty.
pub fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn parse<T: FromStr>(name: &str, text: &str) -> Option<T> {
    let value = text.trim().parse().ok();
    if value.is_none() {
        log(&format!("{name}={text}: not understood, ignored"));
    }
    value
}

fn number<T: FromStr>(name: &str, default: T) -> T {
    variable(name).and_then(|text| parse(name, &text)).unwrap_or(default)
}

/// A number of bytes with an optional K, M or G.
fn size(name: &str, default: u64) -> u64 {
    let Some(text) = variable(name) else { return default };
    let (digits, shift) = match text.trim().as_bytes().last() {
        Some(b'K' | b'k') => (&text.trim()[..text.trim().len() - 1], 10),
        Some(b'M' | b'm') => (&text.trim()[..text.trim().len() - 1], 20),
        Some(b'G' | b'g') => (&text.trim()[..text.trim().len() - 1], 30),
        _ => (text.trim(), 0),
    };
    parse::<u64>(name, digits).and_then(|n| n.checked_mul(1 << shift)).unwrap_or(default)
}

fn capability() -> (u32, u32) {
    let parsed = variable("OXCCL_EMU_CC").and_then(|text| {
        let (major, minor) = text.split_once('.')?;
        Some((major.trim().parse().ok()?, minor.trim().parse().ok()?))
    });
    parsed.unwrap_or((9, 0))
}

fn peers() -> Peers {
    match variable("OXCCL_EMU_PEERS").as_deref() {
        None | Some("all") => Peers::All,
        Some("none") => Peers::None,
        Some(rows) => Peers::Matrix(
            rows.split(['/', ','])
                .map(|row| row.bytes().filter(|b| *b == b'0' || *b == b'1').map(|b| b == b'1').collect())
                .collect(),
        ),
    }
}

fn without() -> Without {
    let mut without = Without::default();
    for word in variable("OXCCL_EMU_WITHOUT").unwrap_or_default().split(',').map(str::trim) {
        match word {
            "" => {}
            "vmm" => without.vmm = true,
            "fd" => without.fd = true,
            "ipc" => without.ipc = true,
            "memops" => without.memops = true,
            "pools" => without.pools = true,
            "atomics" => without.atomics = true,
            other => log(&format!("OXCCL_EMU_WITHOUT: no feature is called {other}")),
        }
    }
    without
}

fn fail() -> Vec<Rule> {
    let text = variable("OXCCL_EMU_FAIL").unwrap_or_default();
    let rules = text.split(',').filter(|rule| !rule.trim().is_empty());
    rules
        .filter_map(|rule| {
            let parsed = Rule::parse(rule);
            if parsed.is_none() {
                log(&format!("OXCCL_EMU_FAIL: {rule} is not function:call:code"));
            }
            parsed
        })
        .collect()
}

fn slow() -> Slow {
    let mut slow = Slow::default();
    for entry in variable("OXCCL_EMU_SLOW").unwrap_or_default().split(',').filter(|entry| !entry.is_empty()) {
        let (kind, micros) = entry.split_once(':').unwrap_or((entry, ""));
        let Some(micros) = parse("OXCCL_EMU_SLOW", micros) else { continue };
        match kind.trim() {
            "copy" => slow.copy = micros,
            "set" => slow.set = micros,
            "launch" => slow.launch = micros,
            "memop" => slow.memop = micros,
            "host" => slow.host = micros,
            other => log(&format!("OXCCL_EMU_SLOW: no operation is called {other}")),
        }
    }
    slow
}

struct Log {
    file: Option<File>,
    start: Instant,
}

fn sink() -> &'static Log {
    static LOG: OnceLock<Log> = OnceLock::new();
    LOG.get_or_init(|| {
        let file = match variable("OXCCL_EMU_LOG").as_deref() {
            None | Some("0") => None,
            Some("1" | "stderr") => std::io::stderr().as_fd().try_clone_to_owned().ok().map(File::from),
            Some(path) => File::options().append(true).create(true).open(path).ok(),
        };
        Log { file, start: Instant::now() }
    })
}

/// One line in the log, if there is one.
pub fn log(message: &str) {
    let log = sink();
    if let Some(mut file) = log.file.as_ref() {
        let micros = log.start.elapsed().as_micros();
        // One write per line keeps the lines of several processes apart. A log that cannot be written is not worth an
        // error of the driver.
        let _ = file.write_all(format!("emu {} {micros} {message}\n", std::process::id()).as_bytes());
    }
}

/// Notes a call, if there is a log.
pub fn log_call(name: &str, code: u32) {
    if sink().file.is_some() {
        log(&format!("{name} -> {code}"));
    }
}
