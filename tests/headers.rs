//! include/nccl.h and include/oxccl.h are what cbindgen prints from src/capi; `UPDATE=1` writes them anew.
//!
//! cbindgen sees the `ncclX` functions, which are plain; the twin declaration `pncclX` is added here, so that no prototype can be
//! declared once only. The number of declarations is checked against the list of exported symbols.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The chapters of nccl.h, in the order in which they are printed.
const CHAPTERS: &[&str] = &[
    "types/c_enums",
    "types/host",
    "types/device",
    "version",
    "errors",
    "init",
    "lifecycle",
    "derive",
    "query",
    "group",
    "collectives",
    "point_to_point",
    "redop",
    "collectives_config",
    "register",
    "memory",
    "rma",
    "encryption",
    "param",
    "device",
    "device_requirements",
];

/// Declared and not defined, as in NCCL 2.32.3: a program that calls it does not link there either.
const DECLARED_ONLY: &str = "\
/**
 * Memory that barriers over logical endpoints need. Declared for source compatibility; like NCCL 2.32.3, the library does
 * not define it.
 */
ncclResult_t ncclCftBarrierCreateRequirement(ncclTeam_t team, int nBarriers, ncclCftBarrierHandle_t *outHandle, \
ncclDevResourceRequirements_t *outReq);
";
/// Columns of the headers.
const WIDTH: usize = 110;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn print(sources: &[String], config: cbindgen::Config) -> String {
    let mut builder = cbindgen::Builder::new().with_config(config);
    for source in sources {
        let path = root().join(format!("src/capi/{source}.rs"));
        assert!(path.exists(), "{} is gone", path.display());
        builder = builder.with_src(path);
    }
    let mut printed = Vec::new();
    builder.generate().expect("cbindgen reads the sources").write(&mut printed);
    String::from_utf8(printed).expect("cbindgen prints text")
}

fn nccl_h() -> String {
    let config = cbindgen::Config::from_file(root().join("cbindgen.toml")).expect("cbindgen.toml is valid");
    let sources: Vec<String> = CHAPTERS.iter().map(|chapter| (*chapter).to_owned()).collect();
    let printed = print(&sources, config);
    let at = printed.find("\n#ifdef __cplusplus\n} /* extern").expect("the trailer closes the C part");
    tidy(&format!("{}\n{DECLARED_ONLY}{}", &printed[..at], &printed[at..]), true)
}

fn oxccl_h() -> String {
    let config =
        cbindgen::Config::from_file(root().join("cbindgen-oxccl.toml")).expect("a valid configuration");
    tidy(&print(&["oxccl".to_owned()], config), false)
}

/// Shortens comments, breaks prototypes, and puts the declaration of `pncclX` behind each of `ncclX`.
fn tidy(header: &str, twins: bool) -> String {
    let mut out = String::new();
    let mut lines = header.lines().peekable();
    while let Some(line) = lines.next() {
        let indent = &line[..line.len() - line.trim_start().len()];
        if line.trim() == "/**" {
            let mut text = Vec::new();
            for line in lines.by_ref().take_while(|line| line.trim() != "*/") {
                text.push(line.trim_start().trim_start_matches('*').trim().to_owned());
            }
            let one_line = format!("{indent}/* {} */", text.join(" "));
            if one_line.len() <= WIDTH {
                out.push_str(&one_line);
            } else {
                out.push_str(&format!("{indent}/* {}", text.remove(0)));
                text.iter().for_each(|line| out.push_str(&format!("\n{indent} * {line}")));
                out.push_str(" */");
            }
        } else if let Some(name) = prototype(line) {
            let plain = line.replace("enum nccl", "nccl").replace("struct nccl", "nccl");
            out.push_str(&broken(&plain));
            if twins && name != "ncclCftBarrierCreateRequirement" {
                out.push('\n');
                out.push_str(&broken(&plain.replacen(name, &format!("p{name}"), 1)));
            }
        } else if line.is_empty() && out.ends_with("\n\n") {
            continue;
        } else {
            out.push_str(line);
        }
        out.push('\n');
    }
    out
}

/// The name of the function that a line declares, if it does.
fn prototype(line: &str) -> Option<&str> {
    if !line.ends_with(");") || line.starts_with([' ', '#']) {
        return None;
    }
    let name = line[..line.find('(')?].rsplit([' ', '*']).next()?;
    (name.starts_with("nccl") || name.starts_with("oxccl")).then_some(name)
}

/// The prototype in lines of at most [`WIDTH`], aligned with its parenthesis.
fn broken(prototype: &str) -> String {
    let open = prototype.find('(').expect("a prototype") + 1;
    let mut lines = vec![prototype[..open].to_owned()];
    for (index, argument) in prototype[open..].split(", ").enumerate() {
        let last = lines.last_mut().expect("one line at least");
        if index == 0 {
            last.push_str(argument);
        } else if last.len() + 2 + argument.len() < WIDTH {
            last.push_str(&format!(", {argument}"));
        } else {
            last.push(',');
            lines.push(format!("{}{argument}", " ".repeat(open)));
        }
    }
    lines.join("\n")
}

fn check(name: &str, printed: &str) {
    let path = root().join("include").join(name);
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, printed).expect("a writable include folder");
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    if committed != printed {
        let line = committed.lines().zip(printed.lines()).take_while(|(old, new)| old == new).count();
        panic!(
            "include/{name} differs from src/capi at line {}:\n  there:   {:?}\n  printed: {:?}\n\
             UPDATE=1 cargo test --test headers writes it anew",
            line + 1,
            committed.lines().nth(line).unwrap_or_default(),
            printed.lines().nth(line).unwrap_or_default()
        );
    }
}

/// The functions that a header declares, in C's own form: at the left margin, a name and a parenthesis.
fn declared(header: &str) -> BTreeSet<String> {
    let at_margin = header.lines().filter(|line| line.starts_with(|first: char| first.is_ascii_lowercase()));
    at_margin
        .filter(|line| !line.starts_with("typedef") && !line.starts_with("inline"))
        .filter_map(|line| line[..line.find('(')?].rsplit([' ', '*']).next())
        .map(str::to_owned)
        .collect()
}

fn symbols() -> BTreeSet<String> {
    let text = fs::read_to_string(root().join("ctests/symbols.txt")).expect("the list of symbols");
    text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).map(str::to_owned).collect()
}

#[test]
fn nccl_h_is_printed_from_the_sources() {
    check("nccl.h", &nccl_h());
}

#[test]
fn oxccl_h_is_printed_from_the_sources() {
    check("oxccl.h", &oxccl_h());
}

#[test]
fn everything_exported_is_declared_and_the_reverse() {
    let declared = declared(&nccl_h());
    let mut expected = symbols();
    assert!(expected.remove("ncclResetDebugInitInternal"), "exported, in no header");
    expected.insert("ncclCftBarrierCreateRequirement".to_owned());
    assert_eq!(declared, expected);
    assert_eq!(declared.iter().filter(|name| name.starts_with("nccl")).count(), 97);
    assert_eq!(declared.iter().filter(|name| name.starts_with("pnccl")).count(), 96);
}

#[test]
fn versions_in_the_header_are_the_librarys() {
    let header = nccl_h();
    let number = |name: &str| {
        let line = header.lines().find(|line| line.starts_with(&format!("#define {name} ")));
        let value = line.and_then(|line| line.rsplit(' ').next()).unwrap_or_else(|| panic!("no {name}"));
        value.parse::<i32>().unwrap_or_else(|_| panic!("{name} is {value}"))
    };
    assert_eq!(number("NCCL_VERSION_CODE"), nccl::capi::types::REPORTED_VERSION);
    assert_eq!(number("OXCCL_NCCL_API_VERSION"), nccl::capi::types::API_VERSION as i32);
    let parts = number("NCCL_MAJOR") * 10000 + number("NCCL_MINOR") * 100 + number("NCCL_PATCH");
    assert_eq!(parts, number("NCCL_VERSION_CODE"));
}

#[test]
fn every_chapter_is_printed() {
    // A new file with exported functions that is not in the list would be missing from the header.
    let listed: BTreeSet<&str> = CHAPTERS.iter().copied().chain(["oxccl"]).collect();
    for entry in fs::read_dir(root().join("src/capi")).expect("a folder") {
        let path = entry.expect("an entry").path();
        let text = if path.is_file() { fs::read_to_string(&path).expect("a text") } else { String::new() };
        let exports = text.lines().any(|line| line == "#[unsafe(no_mangle)]");
        let chapter = path.file_stem().and_then(|stem| stem.to_str()).expect("a name").to_owned();
        assert!(
            !exports || listed.contains(chapter.as_str()),
            "{} is in no header",
            Path::new(&chapter).display()
        );
    }
}
