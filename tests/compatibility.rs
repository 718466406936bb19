//! docs/compatibility.md has one row per exported function, and its rows are not empty words.
//!
//! A function that refuses its work in src/capi cannot be called done, and a function that is called done names a test that exists.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

struct Row {
    state: String,
    test: String,
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn rows() -> BTreeMap<String, Row> {
    let mut rows = BTreeMap::new();
    for line in read("docs/compatibility.md").lines().filter(|line| line.starts_with("| `nccl")) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [name, _since, state, test, _notes] = cells[..] else { panic!("five columns: {line}") };
        let name = name.trim_matches('`').to_owned();
        let row = Row { state: state.to_owned(), test: test.trim_matches('`').to_owned() };
        assert!(rows.insert(name.clone(), row).is_none(), "{name} has two rows");
    }
    rows
}

/// The source of each exported function, with the hidden function behind it.
fn bodies() -> BTreeMap<String, String> {
    let mut bodies = BTreeMap::new();
    for entry in fs::read_dir(root().join("src/capi")).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            continue;
        }
        let text = fs::read_to_string(&path).expect("text");
        for part in text.split("#[unsafe(no_mangle)]").skip(1) {
            let name = part.split("fn ").nth(1).and_then(|rest| rest.split('(').next()).expect("a function");
            bodies.insert(name.to_owned(), part.to_owned());
        }
    }
    bodies
}

/// `path` of a C program, or `path::name` of a test in a Rust file.
fn exists(test: &str) -> bool {
    match test.split_once("::") {
        None => Path::new(&root().join(test)).is_file(),
        Some((path, name)) => {
            // A function, or a name in the list of a macro that makes functions.
            fs::read_to_string(root().join(path)).is_ok_and(|text| {
                text.contains(&format!("fn {name}(")) || text.lines().any(|line| line.trim() == name)
            })
        }
    }
}

#[test]
fn every_function_has_a_row() {
    let symbols = read("ctests/symbols.txt");
    let mut expected: BTreeSet<&str> = symbols.lines().filter(|line| line.starts_with("nccl")).collect();
    expected.insert("ncclCftBarrierCreateRequirement");
    let rows = rows();
    let listed: BTreeSet<&str> = rows.keys().map(String::as_str).collect();
    assert_eq!(listed, expected);
}

#[test]
fn states_agree_with_the_sources() {
    let bodies = bodies();
    for (name, row) in rows() {
        match row.state.as_str() {
            "done" => {
                assert!(exists(&row.test), "{name} is done, but its test {:?} does not exist", row.test)
            }
            "in work" | "not finished" => {
                assert!(row.test.is_empty(), "{name} is not done, but names a test")
            }
            state => panic!("{name}: no such state: {state}"),
        }
        let refuses = bodies.get(&name).is_some_and(|body| body.contains("unfinished()"));
        assert!(
            !refuses || row.state == "not finished",
            "{name} refuses its work and is called {}",
            row.state
        );
    }
}
