//! Settings: what a user can ask for without touching the program.
//!
//! Every setting stands in one table with its form, its default and what it does; `docs/environment.md` shows the same table and
//! a test compares the two. A value comes from the environment, else from the file that `NCCL_CONF_FILE` names (or
//! `~/.nccl.conf`), else from `/etc/nccl.conf`, else it is the default. It is read once, when it is first asked for, unless
//! `NCCL_NO_CACHE` names it. A value of the wrong form is reported once, with the form that is accepted, and then ignored.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use once_cell::sync::OnceCell;

/// A setting: an index into the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setting(usize);

/// The form of a setting's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Bool,
    Int { min: i64, max: i64 },
    OneOf(&'static [&'static str]),
    Text,
}

/// One row of the table.
#[derive(Debug)]
pub struct Entry {
    pub name: &'static str,
    pub form: Form,
    /// What holds without a value; a word in parentheses means that the library chooses.
    pub default: &'static str,
    pub doc: &'static str,
}

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    Default,
    File(PathBuf),
    Environment,
}

impl std::fmt::Display for Source {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Source::Default => formatter.write_str("default"),
            Source::File(path) => write!(formatter, "{}", path.display()),
            Source::Environment => formatter.write_str("environment"),
        }
    }
}

macro_rules! settings {
    ($($key:ident $name:literal $form:expr, $default:literal, $doc:literal;)*) => {
        #[allow(non_camel_case_types, clippy::upper_case_acronyms)]
        enum Index { $($key),* }
        $(#[doc = $doc] pub const $key: Setting = Setting(Index::$key as usize);)*
        /// All settings, in the order of `docs/environment.md`.
        pub static TABLE: &[Entry] = &[$(Entry { name: $name, form: $form, default: $default, doc: $doc }),*];
        static VALUES: [OnceCell<Value>; TABLE.len()] = [const { OnceCell::new() }; TABLE.len()];
    };
}

const COUNT: Form = Form::Int { min: 1, max: 1024 };

settings! {
    DEBUG "NCCL_DEBUG" Form::OneOf(&["NONE", "VERSION", "WARN", "ATTN", "INFO", "ABORT", "TRACE"]), "NONE",
        "What to log.";
    DEBUG_SUBSYS "NCCL_DEBUG_SUBSYS" Form::Text, "INIT,BOOTSTRAP,ENV",
        "Which parts log at INFO and below: a comma list of subsystems, or ALL; a leading ^ inverts the list.";
    DEBUG_FILE "NCCL_DEBUG_FILE" Form::Text, "(stderr)",
        "Where the log goes; %h becomes the host name, %p the process id.";
    DEBUG_TIMESTAMP_FORMAT "NCCL_DEBUG_TIMESTAMP_FORMAT" Form::Text, "[%F %T] ",
        "Time stamp of log lines, in the manner of strftime; %3f gives three digits of the second's fraction.";
    DEBUG_TIMESTAMP_LEVELS "NCCL_DEBUG_TIMESTAMP_LEVELS" Form::Text, "WARN",
        "Levels whose lines get a time stamp: a comma list, or ALL; a leading ^ inverts the list.";
    SET_THREAD_NAME "NCCL_SET_THREAD_NAME" Form::Bool, "1",
        "Name the library's threads, so that debuggers and top tell them from the program's.";
    NO_CACHE "NCCL_NO_CACHE" Form::Text, "",
        "Comma list of settings that are read anew at every use, or ALL.";
    SOCKET_IFNAME "NCCL_SOCKET_IFNAME" Form::Text, "(all but loopback and virtual bridges)",
        "Network interfaces to use: a comma list of prefixes; a leading = asks for exact names, ^ excludes, ^= excludes exact names.";
    SOCKET_FAMILY "NCCL_SOCKET_FAMILY" Form::OneOf(&["AF_INET", "AF_INET6"]), "(both)",
        "Use addresses of this family only.";
    PORT_RANGE "OXCCL_PORT_RANGE" Form::Text, "(the system's)",
        "TCP ports on which to listen, first-last, for firewalls.";
    UNIX_SOCKETS "OXCCL_UNIX_SOCKETS" Form::Bool, "1",
        "Let ranks of one host meet over Unix sockets; without them they meet over TCP, and processes cannot share memory.";
    COMM_ID "NCCL_COMM_ID" Form::Text, "",
        "host:port on which rank 0 listens; replaces the exchange of a unique id.";
    COMM_KEY "OXCCL_COMM_KEY" Form::Text, "",
        "Secret shared by all ranks that use NCCL_COMM_ID; without it NCCL_COMM_ID works on loopback and private addresses only.";
    HOSTID "NCCL_HOSTID" Form::Text, "(the machine's)",
        "Identity of this host: ranks with the same value are taken to be on one host.";
    INIT_TIMEOUT "OXCCL_INIT_TIMEOUT" Form::Int { min: 1, max: 86_400 }, "300",
        "Seconds after which creating a communicator gives up and names the ranks that are missing.";
    MULTI_RANK_GPU_ENABLE "NCCL_MULTI_RANK_GPU_ENABLE" Form::Bool, "0",
        "Allow several ranks of a communicator on one GPU.";
    P2P_DISABLE "NCCL_P2P_DISABLE" Form::Bool, "0",
        "Do not let GPUs access each other's memory.";
    SHM_DISABLE "NCCL_SHM_DISABLE" Form::Bool, "0",
        "Do not use host memory shared between processes.";
    CUMEM_ENABLE "NCCL_CUMEM_ENABLE" Form::Int { min: -2, max: 1 }, "(automatic)",
        "Share GPU memory through the driver's virtual memory management: 0 never (legacy IPC takes its place), else where the driver can.";
    PROTO "NCCL_PROTO" Form::Text, "(all)",
        "Protocols to choose from: a comma list of LL, LL128, Simple; a leading ^ inverts the list.";
    MIN_CTAS "NCCL_MIN_CTAS" COUNT, "(automatic)",
        "Least number of thread blocks of an operation.";
    MAX_CTAS "NCCL_MAX_CTAS" COUNT, "(automatic)",
        "Greatest number of thread blocks of an operation.";
    MIN_NCHANNELS "NCCL_MIN_NCHANNELS" COUNT, "(automatic)",
        "Older name of NCCL_MIN_CTAS, which wins.";
    MAX_NCHANNELS "NCCL_MAX_NCHANNELS" COUNT, "(automatic)",
        "Older name of NCCL_MAX_CTAS, which wins.";
    NTHREADS "NCCL_NTHREADS" Form::Int { min: 32, max: 1024 }, "(automatic)",
        "Accepted without effect: each kernel has the number of threads that it is made for.";
    BUFFSIZE "NCCL_BUFFSIZE" Form::Int { min: 4096, max: 1 << 30 }, "(automatic)",
        "Accepted without effect: the sizes of staging buffers are fixed.";
    CHECK_POINTERS "NCCL_CHECK_POINTERS" Form::Bool, "0",
        "Accepted without effect: every call checks that its buffers belong to the communicator's GPU.";
    CHECK_MODE "NCCL_CHECK_MODE" Form::OneOf(&["DEFAULT", "DEBUG_LOCAL", "DEBUG_GLOBAL"]), "DEFAULT",
        "Accepted without effect: arguments are always checked, and whether the calls of all ranks match, too.";
    SEQUENCE_START "OXCCL_SEQUENCE_START" Form::Int { min: 0, max: u32::MAX as i64 }, "0",
        "First sequence number of a communicator: lets a test reach the wrap-around soon.";
}

/// All settings, in the table's order.
pub fn all() -> impl ExactSizeIterator<Item = Setting> {
    (0..TABLE.len()).map(Setting)
}

/// The setting of exactly this name.
pub fn find(name: &str) -> Option<Setting> {
    all().find(|setting| entry(*setting).name == name)
}

impl Setting {
    /// Its place in the table.
    pub fn index(self) -> usize {
        self.0
    }
}

/// The value of a yes-or-no setting; its default when it is not set.
pub fn bool(setting: Setting) -> bool {
    let entry = entry(setting);
    debug_assert_eq!(entry.form, Form::Bool, "{}", entry.name);
    match value(setting).text {
        Some(text) => parse_bool(&text).expect("checked when read"),
        None => parse_bool(entry.default).expect("the table's defaults have the right form"),
    }
}

/// The value of a number; its default, or `None` when the library is to choose.
pub fn int(setting: Setting) -> Option<i64> {
    let entry = entry(setting);
    debug_assert!(matches!(entry.form, Form::Int { .. }), "{}", entry.name);
    match value(setting).text {
        Some(text) => parse_int(&text),
        None => parse_int(entry.default),
    }
}

/// The value as the user wrote it (names of a fixed choice in upper case); its default, or `None` when the library is to choose.
pub fn text(setting: Setting) -> Option<String> {
    let default = entry(setting).default;
    let default = (!default.starts_with('(') && !default.is_empty()).then(|| default.to_owned());
    value(setting).text.or(default)
}

/// Where the value in force comes from.
pub fn source(setting: Setting) -> Source {
    value(setting).source
}

/// The table row of a setting.
pub fn entry(setting: Setting) -> &'static Entry {
    &TABLE[setting.0]
}

#[derive(Debug, Clone)]
struct Value {
    /// `None` when not set, or when what was set has the wrong form.
    text: Option<String>,
    source: Source,
}

fn value(setting: Setting) -> Value {
    if setting != NO_CACHE && uncached(entry(setting).name) {
        return read(entry(setting), &mut environment, &FILES);
    }
    VALUES[setting.0].get_or_init(|| read(entry(setting), &mut environment, &FILES)).clone()
}

fn uncached(name: &str) -> bool {
    static LISTED: LazyLock<Vec<String>> = LazyLock::new(|| {
        let list = text(NO_CACHE).unwrap_or_default();
        list.split(',').map(|item| item.trim().to_ascii_uppercase()).collect()
    });
    LISTED.iter().any(|item| item == name || item == "ALL")
}

fn environment(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

/// An empty value counts as not set, as shells make it easy to export one by accident.
fn read(entry: &Entry, environment: &mut dyn FnMut(&str) -> Option<String>, files: &[File]) -> Value {
    let from_file = || {
        files.iter().find_map(|file| {
            let found = file.lines.iter().find(|(name, _)| name == entry.name);
            found.map(|(_, value)| (value.clone(), Source::File(file.path.clone())))
        })
    };
    let found = environment(entry.name).map(|value| (value, Source::Environment)).or_else(from_file);
    let Some((given, source)) = found.filter(|(value, _)| !value.trim().is_empty()) else {
        return Value { text: None, source: Source::Default };
    };
    match check(entry.form, &given) {
        Ok(text) => {
            if entry.name != TABLE[COMM_KEY.0].name {
                tracing::info!(target: "ENV", "{} set by {source} to {text}", entry.name);
            }
            Value { text: Some(text), source }
        }
        Err(accepted) => {
            tracing::warn!(
                target: "ENV",
                "{}={given} is ignored, the default {} holds: the value must be {accepted}",
                entry.name,
                entry.default
            );
            Value { text: None, source: Source::Default }
        }
    }
}

/// The value in its plain form, or what would have been accepted.
fn check(form: Form, given: &str) -> Result<String, String> {
    let trimmed = given.trim();
    match form {
        Form::Text => Ok(given.to_owned()),
        Form::Bool => match parse_bool(trimmed) {
            Some(_) => Ok(trimmed.to_owned()),
            None => Err("0 or 1".to_owned()),
        },
        Form::Int { min, max } => match parse_int(trimmed) {
            Some(number) if (min..=max).contains(&number) => Ok(number.to_string()),
            _ => Err(format!("a number from {min} to {max}")),
        },
        Form::OneOf(names) => match names.iter().find(|name| name.eq_ignore_ascii_case(trimmed)) {
            Some(name) => Ok((*name).to_owned()),
            None => Err(format!("one of {}", names.join(", "))),
        },
    }
}

fn parse_bool(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" => Some(true),
        "false" | "no" | "off" => Some(false),
        number => parse_int(number).map(|number| number != 0),
    }
}

fn parse_int(text: &str) -> Option<i64> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => i64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

#[derive(Debug)]
struct File {
    path: PathBuf,
    lines: Vec<(String, String)>,
}

/// Largest settings file that is read.
const FILE_BYTES: u64 = 1 << 20;

static FILES: LazyLock<Vec<File>> = LazyLock::new(|| {
    let first = match environment("NCCL_CONF_FILE").filter(|path| !path.is_empty()) {
        Some(path) => Some(PathBuf::from(path)),
        None => home().map(|home| home.join(".nccl.conf")),
    };
    let paths = first.into_iter().chain([PathBuf::from("/etc/nccl.conf")]);
    paths.filter_map(|path| Some(File { lines: parse_file(&read_file(&path)?), path })).collect()
});

fn home() -> Option<PathBuf> {
    match std::env::var_os("HOME").filter(|home| !home.is_empty()) {
        Some(home) => Some(PathBuf::from(home)),
        None => nix::unistd::User::from_uid(nix::unistd::getuid()).ok()?.map(|user| user.dir),
    }
}

fn read_file(path: &Path) -> Option<String> {
    use std::io::Read;
    let mut text = Vec::new();
    let file =
        std::fs::File::open(path).ok().filter(|file| file.metadata().is_ok_and(|data| data.is_file()))?;
    file.take(FILE_BYTES).read_to_end(&mut text).ok()?;
    Some(String::from_utf8_lossy(&text).into_owned())
}

/// Lines `NAME=VALUE`; `#` starts a comment line, blanks around name and value do not count, the first of equal names holds.
fn parse_file(text: &str) -> Vec<(String, String)> {
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with('#'));
    let pairs = lines.filter_map(|line| line.split_once('='));
    pairs.map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_and_the_document_agree() {
        let document = include_str!("../docs/environment.md");
        let rows: Vec<&str> = document.lines().filter(|line| line.starts_with("| `")).collect();
        let expected: Vec<String> = TABLE
            .iter()
            .map(|entry| {
                let form = match entry.form {
                    Form::Bool => "0 or 1".to_owned(),
                    Form::Int { min, max } => format!("{min} to {max}"),
                    Form::OneOf(names) => names.join(", "),
                    Form::Text => "text".to_owned(),
                };
                format!("| `{}` | {form} | {} | {} |", entry.name, entry.default.trim(), entry.doc)
            })
            .collect();
        assert_eq!(rows, expected, "docs/environment.md should read:\n{}", expected.join("\n"));
    }

    #[test]
    fn defaults_have_the_right_form() {
        for entry in TABLE {
            if !entry.default.is_empty() && !entry.default.starts_with('(') {
                assert!(check(entry.form, entry.default).is_ok(), "{}", entry.name);
            }
        }
    }

    #[test]
    fn the_environment_wins_over_files_and_the_first_file_over_the_second() {
        let file = |path: &str, text: &str| File { path: PathBuf::from(path), lines: parse_file(text) };
        let files = [
            file(
                "/home/u/.nccl.conf",
                "# comment\r\n\r\n NCCL_DEBUG = info \r\nNCCL_BUFFSIZE=8192\nno equals sign\n",
            ),
            file("/etc/nccl.conf", "NCCL_DEBUG=TRACE\nNCCL_NTHREADS=64"),
        ];
        let mut environment = |name: &str| match name {
            "NCCL_BUFFSIZE" => Some("0x10000".to_owned()),
            "NCCL_NTHREADS" => Some("".to_owned()),
            _ => None,
        };
        let mut get = |setting: Setting| {
            let value = read(entry(setting), &mut environment, &files);
            (value.text, value.source)
        };
        assert_eq!(get(DEBUG), (Some("INFO".to_owned()), Source::File("/home/u/.nccl.conf".into())));
        assert_eq!(get(BUFFSIZE), (Some("65536".to_owned()), Source::Environment));
        assert_eq!(
            get(NTHREADS),
            (None, Source::Default),
            "an empty value in the environment hides the file's"
        );
        assert_eq!(get(HOSTID), (None, Source::Default));
    }

    #[test]
    fn values_of_the_wrong_form_name_the_accepted_one() {
        let reject = |setting: Setting, given: &str| check(entry(setting).form, given).expect_err(given);
        assert_eq!(reject(P2P_DISABLE, "maybe"), "0 or 1");
        assert_eq!(reject(NTHREADS, "4096"), "a number from 32 to 1024");
        assert_eq!(reject(NTHREADS, "many"), "a number from 32 to 1024");
        assert_eq!(reject(SOCKET_FAMILY, "AF_UNIX"), "one of AF_INET, AF_INET6");
        for (given, meaning) in [("1", true), ("0", false), ("2", true), ("True", true), ("off", false)] {
            assert_eq!(parse_bool(given), Some(meaning), "{given}");
        }
    }
}
