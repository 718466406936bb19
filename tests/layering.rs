//! Holds the library's modules to their rows (the table of ARCHITECTURE.md).
//!
//! A module may name only modules of rows above its own and, inside its row, those that stand left of it. Every
//! `crate::` path counts, in `use` lines with or without groups and in the code itself; comments and strings do not.
//! A module that the table does not list fails too, so that the table stays whole.

use std::fs;
use std::path::{Path, PathBuf};

/// Rows from the lowest; inside a row from left to right.
const ROWS: [&[&str]; 8] = [
    &["error", "param", "log"],
    &["sys"],
    &["gpu"],
    &["process"],
    &["bootstrap", "topo", "net", "schedule"],
    &["semaphore", "fifo", "proxy", "channel", "transport"],
    &["register", "comm", "enqueue", "executor", "group"],
    &["capi"],
];

#[test]
fn every_module_keeps_to_its_row() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    collect(&src, &mut files);
    assert!(files.len() > 5, "only {} files found below {}", files.len(), src.display());
    let mut faults = Vec::new();
    let mut edges = 0;
    for file in &files {
        let relative = file.strip_prefix(&src).expect("below src");
        let module = module_of(relative);
        if module == "lib" {
            continue;
        }
        let text = fs::read_to_string(file).expect("a readable source");
        for target in uses(&text) {
            edges += 1;
            if let Err(why) = check(&module, &target) {
                faults.push(format!("src/{}: {why}", relative.display()));
            }
        }
    }
    assert!(edges > 0, "no `crate::` path found: the reader of this test is broken");
    faults.dedup();
    assert!(faults.is_empty(), "edges against the module table:\n{}", faults.join("\n"));
}

#[test]
fn a_forbidden_edge_is_caught() {
    // Upwards, to the right inside a row, and to a module that nobody listed.
    let faults = |module: &str, text: &str| uses(text).iter().filter(|t| check(module, t).is_err()).count();
    assert_eq!(faults("sys", "use crate::capi::boundary;"), 1);
    assert_eq!(faults("comm", "use crate::{error::Error, group::Group, sys};"), 1);
    assert_eq!(faults("gpu", "use crate::{\n    error::{Error, Result},\n    comm::{self, Comm},\n};"), 1);
    assert_eq!(faults("net", "fn f() { crate::transport::p2p::open() }"), 1);
    assert_eq!(faults("net", "use crate::{sys, nowhere::At};"), 1);
    assert_eq!(faults("unlisted", "use crate::error::Error;"), 1);
}

#[test]
fn allowed_edges_and_comments_pass() {
    let text = "//! See [`crate::capi`].\n/* use crate::capi; */\nuse crate::error::{Error, Result};\n\
                use crate::{process::registry, gpu};\nlet s = \"crate::capi\"; // crate::group\n\
                pub(in crate::comm) fn f(p: crate::comm::Comm, q: &'a u8, c: char) -> bool { c == '\"' }";
    let found = uses(text);
    assert_eq!(found, ["error", "process", "gpu", "comm", "comm"]);
    assert!(found.iter().all(|target| check("enqueue", target).is_ok()));
    assert!(check("comm", "comm").is_ok());
}

/// Whether `module` may name `target`.
fn check(module: &str, target: &str) -> Result<(), String> {
    let place = |name: &str| {
        let all = ROWS.iter().flat_map(|row| row.iter());
        all.into_iter().position(|m| *m == name).ok_or_else(|| format!("module `{name}` is not in the table"))
    };
    if module == target || place(target)? < place(module)? {
        Ok(())
    } else {
        Err(format!("`{module}` uses `{target}`, which stands above it or right of it"))
    }
}

/// The module that a file below src/ belongs to: its first folder, or its own name.
fn module_of(relative: &Path) -> String {
    let first = relative.components().next().expect("a file has a name");
    first.as_os_str().to_string_lossy().trim_end_matches(".rs").to_string()
}

/// First segments of all `crate::` paths. Names of macros and re-exports at the crate's root count as well.
fn uses(text: &str) -> Vec<String> {
    let code = without_comments_and_strings(text);
    let mut found = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        // `$crate::` is the same path, `subcrate::` is not.
        if code[..at].chars().next_back().is_some_and(|c| c.is_alphanumeric() || c == '_') {
            continue;
        }
        let rest = code[at + "crate::".len()..].trim_start();
        match rest.strip_prefix('{') {
            Some(group) => found.extend(group_heads(group)),
            None => found.extend(head(rest)),
        }
    }
    found
}

/// First segments of the items of a `{a::b, c::{d, e}}`, whose opening brace has been read.
fn group_heads(group: &str) -> Vec<String> {
    let (mut depth, mut start, mut heads) = (0usize, 0, Vec::new());
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                heads.extend(head(group[start..at].trim_start()));
                start = at + 1;
                if c == '}' {
                    break;
                }
            }
            _ => {}
        }
    }
    heads
}

fn head(path: &str) -> Option<String> {
    let name: String = path.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    (!name.is_empty()).then_some(name)
}

/// Blanks out what is not code. Raw strings with quotes inside are not understood; the library has none with paths.
fn without_comments_and_strings(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let skip = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if c == '"' {
            string_end(rest)
        } else if rest.starts_with("'\"'") || rest.starts_with("'\\\"'") {
            rest[1..].find("'").map_or(rest.len(), |end| end + 2)
        } else {
            0
        };
        if skip == 0 {
            out.push(c);
            rest = &rest[c.len_utf8()..];
        } else {
            rest = &rest[skip..];
        }
    }
    out
}

/// Length of the string literal at the start of `text`, quotes included.
fn string_end(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

fn collect(dir: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("src is readable") {
        let path = entry.expect("a readable entry").path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|e| e == "rs") {
            files.push(path);
        }
    }
}
