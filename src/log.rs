//! The log, as NCCL's users know it: `NCCL_DEBUG` says how much, `NCCL_DEBUG_SUBSYS` which parts, `NCCL_DEBUG_FILE` where.
//!
//! The library writes `tracing` events whose target is the subsystem ("INIT", "BOOTSTRAP", "P2P"…). [`init`] installs a
//! dispatcher for this library's own copy of `tracing`, so the host program's subscriber is neither used nor touched. Nothing is
//! written unless asked for, and never to standard output. Every warning also becomes the process's last error, whatever
//! `NCCL_DEBUG` says. Each line is written by one call, so that lines of several threads do not mix.

use std::cell::Cell;
use std::fmt::{self, Write as _};
use std::fs::File;
use std::io::Write as _;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use once_cell::sync::OnceCell;
use parking_lot::{Mutex, RwLock};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::fmt::format::{DefaultFields, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields, MakeWriter};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

use crate::error::PROCESS_LAST_ERROR;
use crate::param;

/// Subsystem of the line that names the library's version: it is shown from `NCCL_DEBUG=VERSION` on.
pub const VERSION: &str = "VERSION";

const SUBSYSTEMS: &[&str] = &[
    "INIT",
    "COLL",
    "P2P",
    "SHM",
    "NET",
    "GRAPH",
    "TUNING",
    "ENV",
    "ALLOC",
    "CALL",
    "PROXY",
    "NVLS",
    "BOOTSTRAP",
    "REG",
    "PROFILE",
    "RAS",
    "DESTROY",
];

/// Makes the log ready; every entry point calls it, and all calls but the first cost one load.
pub fn init() {
    static INSTALLED: OnceCell<()> = OnceCell::new();
    INSTALLED.get_or_init(|| {
        reset();
        let lines = tracing_subscriber::fmt::layer()
            .event_format(Line)
            .fmt_fields(DefaultFields::new())
            .with_ansi(false)
            .with_writer(Output);
        let filtered =
            tracing_subscriber::filter::FilterFn::new(|metadata| active().settings.shows(metadata));
        let subscriber = tracing_subscriber::registry().with(LastWarning).with(lines.with_filter(filtered));
        // A Rust program that links this library and has a subscriber already keeps its own: nothing is lost but NCCL's form.
        let _ = tracing::dispatcher::set_global_default(subscriber.into());
    });
}

/// Reads the settings anew, as `ncclResetDebugInit` asks.
pub fn reset() {
    let read = |setting| match std::env::var_os(param::entry(setting).name) {
        Some(value) => Some(value.to_string_lossy().into_owned()),
        None => param::text(setting),
    };
    let settings = Settings {
        verbosity: Verbosity::parse(&read(param::DEBUG).unwrap_or_default()),
        subsystems: Subsystems::parse(&read(param::DEBUG_SUBSYS).unwrap_or_default()),
        stamp_format: read(param::DEBUG_TIMESTAMP_FORMAT).unwrap_or_default(),
        stamped: Stamped::parse(&read(param::DEBUG_TIMESTAMP_LEVELS).unwrap_or_default()),
    };
    let pattern = read(param::DEBUG_FILE).filter(|_| settings.verbosity > Verbosity::None);
    let log = Log { settings, sink: Mutex::new(Sink::open(pattern.clone())), pattern };
    *LOG.write() = Some(Arc::new(log));
    tracing::callsite::rebuild_interest_cache();
}

/// While the guard lives, lines of this thread carry the device's number, as NCCL's do.
pub fn device(ordinal: i32) -> DeviceGuard {
    DeviceGuard { previous: DEVICE.replace(ordinal) }
}

#[derive(Debug)]
pub struct DeviceGuard {
    previous: i32,
}

impl Drop for DeviceGuard {
    fn drop(&mut self) {
        DEVICE.set(self.previous);
    }
}

thread_local! {
    static DEVICE: Cell<i32> = const { Cell::new(-1) };
}

static LOG: RwLock<Option<Arc<Log>>> = RwLock::new(None);

/// The log in force. Before [`init`], and in a child whose parent forked while it wrote the settings, nothing is shown.
fn active() -> Arc<Log> {
    static SILENT: std::sync::LazyLock<Arc<Log>> = std::sync::LazyLock::new(Arc::default);
    LOG.try_read().and_then(|log| log.clone()).unwrap_or_else(|| SILENT.clone())
}

#[derive(Debug, Default)]
struct Log {
    settings: Settings,
    /// `NCCL_DEBUG_FILE`, kept so that a forked child gets a file of its own when the pattern has %p.
    pattern: Option<String>,
    sink: Mutex<Sink>,
}

#[derive(Debug, Default)]
struct Settings {
    verbosity: Verbosity,
    subsystems: Subsystems,
    stamp_format: String,
    stamped: Stamped,
}

impl Settings {
    fn shows(&self, metadata: &Metadata<'_>) -> bool {
        if metadata.is_span() {
            return self.verbosity >= Verbosity::Warn;
        }
        if metadata.target() == VERSION {
            return self.verbosity >= Verbosity::Version;
        }
        match *metadata.level() {
            Level::ERROR | Level::WARN => self.verbosity >= Verbosity::Warn,
            Level::INFO => self.verbosity >= Verbosity::Info && self.subsystems.contains(metadata.target()),
            _ => self.verbosity >= Verbosity::Trace && self.subsystems.contains(metadata.target()),
        }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Verbosity {
    #[default]
    None,
    Version,
    Warn,
    Info,
    Trace,
}

impl Verbosity {
    fn parse(text: &str) -> Verbosity {
        match text.trim().to_ascii_uppercase().as_str() {
            "VERSION" => Verbosity::Version,
            "WARN" | "ATTN" => Verbosity::Warn,
            "INFO" | "ABORT" => Verbosity::Info,
            "TRACE" => Verbosity::Trace,
            _ => Verbosity::None,
        }
    }
}

/// A set of names, given as a list or as what is left when a list is taken away.
#[derive(Debug, Default)]
struct Subsystems {
    inverted: bool,
    names: Vec<String>,
}

impl Subsystems {
    fn parse(text: &str) -> Subsystems {
        let text = text.trim();
        let (inverted, list) = match text.strip_prefix('^') {
            Some(list) => (true, list),
            None => (false, text),
        };
        let names =
            list.split(',').map(|name| name.trim().to_ascii_uppercase()).filter(|name| !name.is_empty());
        Subsystems { inverted, names: names.collect() }
    }

    fn contains(&self, name: &str) -> bool {
        // A target that is no subsystem comes from a dependency: not ours to show.
        SUBSYSTEMS.contains(&name)
            && self.names.iter().any(|item| item == name || item == "ALL") != self.inverted
    }
}

#[derive(Debug, Default)]
struct Stamped {
    warn: bool,
    info: bool,
    trace: bool,
}

impl Stamped {
    fn parse(text: &str) -> Stamped {
        let list = Subsystems::parse(text);
        let has = |name: &str| list.names.iter().any(|item| item == name || item == "ALL") != list.inverted;
        Stamped { warn: has("WARN"), info: has("INFO"), trace: has("TRACE") }
    }

    fn has(&self, level: Level) -> bool {
        match level {
            Level::ERROR | Level::WARN => self.warn,
            Level::INFO => self.info,
            _ => self.trace,
        }
    }
}

/// `host:pid:tid [device] NCCL INFO text`, the form that log collectors know.
#[derive(Debug)]
struct Line;

impl<S, N> FormatEvent<S, N> for Line
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let metadata = event.metadata();
        let mut text = Text::default();
        event.record(&mut text);
        if metadata.target() == VERSION {
            return writeln!(writer, "{}", text.message);
        }
        let log = active();
        let level = *metadata.level();
        if log.settings.stamped.has(level) {
            writer.write_str(&stamp(&log.settings.stamp_format))?;
        }
        // SAFETY: gettid has no precondition.
        let thread = unsafe { libc::gettid() };
        write!(writer, "{}:{}:{thread} ", host(), std::process::id())?;
        let device = DEVICE.get();
        if device >= 0 {
            write!(writer, "[{device}] ")?;
        }
        let name = match level {
            Level::ERROR | Level::WARN => {
                let file = metadata.file().map(|file| file.rsplit('/').next().unwrap_or(file));
                write!(writer, "{}:{} ", file.unwrap_or("?"), metadata.line().unwrap_or(0))?;
                "WARN"
            }
            Level::INFO => "INFO",
            _ => "TRACE",
        };
        write!(writer, "NCCL {name} {}{}", text.message, text.fields)?;
        for span in context.event_scope().into_iter().flatten() {
            if let Some(fields) =
                span.extensions().get::<FormattedFields<N>>().filter(|fields| !fields.is_empty())
            {
                write!(writer, " [{} {fields}]", span.name())?;
            }
        }
        writeln!(writer)
    }
}

/// Keeps the text of every warning as the process's last error.
#[derive(Debug)]
struct LastWarning;

impl<S: Subscriber> Layer<S> for LastWarning {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> tracing::subscriber::Interest {
        match metadata.is_event() && *metadata.level() <= Level::WARN {
            true => tracing::subscriber::Interest::always(),
            // Not "never": the lines may still want it.
            false => tracing::subscriber::Interest::sometimes(),
        }
    }

    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        if *event.metadata().level() <= Level::WARN {
            let mut text = Text::default();
            event.record(&mut text);
            PROCESS_LAST_ERROR.set(&format!("{}{}", text.message, text.fields));
        }
    }
}

#[derive(Debug, Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }
}

#[derive(Debug)]
struct Output;

impl<'a> MakeWriter<'a> for Output {
    type Writer = Output;

    fn make_writer(&'a self) -> Output {
        Output
    }
}

impl std::io::Write for Output {
    /// Called once per line.
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        let log = active();
        // A child forked while another thread wrote finds the lock taken for good: it stays silent rather than hang.
        let Some(mut sink) = log.sink.try_lock_for(std::time::Duration::from_secs(1)) else {
            return Ok(line.len());
        };
        let forked = sink.process != std::process::id();
        if forked && log.pattern.as_deref().is_some_and(|pattern| pattern.contains("%p")) {
            *sink = Sink::open(log.pattern.clone());
        }
        // A log that cannot be written must not disturb the program.
        let _ = match &mut sink.file {
            Some(file) => file.write_all(line),
            None => std::io::stderr().write_all(line),
        };
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[derive(Debug, Default)]
struct Sink {
    /// Standard error without a file.
    file: Option<File>,
    process: u32,
}

impl Sink {
    fn open(pattern: Option<String>) -> Sink {
        let process = std::process::id();
        let Some(pattern) = pattern else {
            return Sink { file: None, process };
        };
        let path = expand(&pattern, &host(), process);
        match File::create(&path) {
            Ok(file) => Sink { file: Some(file), process },
            Err(error) => {
                let _ = writeln!(
                    std::io::stderr(),
                    "{}:{process} NCCL WARN NCCL_DEBUG_FILE: cannot open {path}: {error}",
                    host()
                );
                Sink { file: None, process }
            }
        }
    }
}

fn expand(pattern: &str, host: &str, process: u32) -> String {
    let mut path = String::new();
    let mut characters = pattern.chars();
    while let Some(character) = characters.next() {
        match (character, (character == '%').then(|| characters.next()).flatten()) {
            ('%', Some('h')) => path.push_str(host),
            ('%', Some('p')) => path.push_str(&process.to_string()),
            ('%', Some('%')) => path.push('%'),
            (first, second) => path.extend([first].into_iter().chain(second)),
        }
    }
    path
}

/// The host name up to its first dot.
fn host() -> String {
    static HOST: OnceCell<String> = OnceCell::new();
    let host = HOST.get_or_init(|| {
        let name = nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned());
        name.ok()
            .and_then(|name| name.split('.').next().map(str::to_owned))
            .unwrap_or_else(|| "unknown".to_owned())
    });
    host.clone()
}

/// The present local time by a strftime pattern; `%Nf` (N from 1 to 9) stands for N digits of the second's fraction.
fn stamp(format: &str) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut pattern = String::with_capacity(format.len());
    let mut rest = format;
    while let Some(position) = rest.find('%') {
        pattern.push_str(&rest[..position]);
        let mut after = rest[position + 1..].chars();
        match (after.next(), after.next()) {
            (Some(digits @ '1'..='9'), Some('f')) => {
                let digits = digits.to_digit(10).expect("matched a digit") as usize;
                pattern.push_str(&format!("{:09}", now.subsec_nanos())[..digits]);
                rest = &rest[position + 3..];
            }
            (Some(letter), _) => {
                pattern.push('%');
                pattern.push(letter);
                rest = &rest[position + 1 + letter.len_utf8()..];
            }
            (None, _) => rest = "",
        }
    }
    pattern.push_str(rest);
    let Ok(pattern) = std::ffi::CString::new(pattern) else {
        return String::new();
    };
    let seconds = now.as_secs() as libc::time_t;
    let mut text = [0u8; 256];
    // SAFETY: `tm` is plain data for which all zeroes is a value; both functions get valid pointers, and strftime the buffer's size.
    let length = unsafe {
        let mut parts: libc::tm = std::mem::zeroed();
        libc::localtime_r(&seconds, &mut parts);
        libc::strftime(text.as_mut_ptr().cast(), text.len(), pattern.as_ptr(), &parts)
    };
    String::from_utf8_lossy(&text[..length]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_patterns_are_expanded() {
        assert_eq!(expand("/tmp/nccl.%h.%p", "node1", 42), "/tmp/nccl.node1.42");
        assert_eq!(expand("100%%.%q.%", "node1", 42), "100%.%q.%");
    }

    #[test]
    fn subsystem_lists_select_or_exclude() {
        let list = Subsystems::parse(" init, Net");
        assert!(list.contains("INIT") && list.contains("NET") && !list.contains("COLL"));
        let inverted = Subsystems::parse("^COLL,CALL");
        assert!(inverted.contains("INIT") && !inverted.contains("COLL"));
        assert!(Subsystems::parse("ALL").contains("CALL"));
        assert!(!Subsystems::parse("ALL").contains("some_dependency"));
        assert!(!Subsystems::parse("^ALL").contains("INIT"));
    }

    #[test]
    fn levels_follow_nccl() {
        assert_eq!(Verbosity::parse("warn"), Verbosity::Warn);
        assert_eq!(Verbosity::parse("ABORT"), Verbosity::Info);
        assert_eq!(Verbosity::parse(""), Verbosity::None);
        assert!(Verbosity::Version < Verbosity::Warn && Verbosity::Info < Verbosity::Trace);
        assert!(Stamped::parse("ALL").has(Level::INFO));
        assert!(!Stamped::parse("WARN").has(Level::INFO));
    }

    #[test]
    fn stamps_have_fractions() {
        let text = stamp("[%Y 100%% %3f] ");
        assert_eq!(text.len(), "[2026 100% 123] ".len(), "{text}");
        assert!(text.starts_with("[2") && text.contains(" 100% ") && text.ends_with("] "), "{text}");
    }

    /// The only test of this process's own dispatcher.
    #[test]
    fn warnings_become_the_last_error_without_being_shown() {
        init();
        tracing::warn!(target: "INIT", rank = 3, "the disc is full");
        assert_eq!(PROCESS_LAST_ERROR.get(), "the disc is full rank=3");
        tracing::info!(target: "INIT", "not an error");
        assert_eq!(PROCESS_LAST_ERROR.get(), "the disc is full rank=3");
    }
}
