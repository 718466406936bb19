//! Builds the library and checks the file that came out: soname, what it needs, what it exports, how large it is.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::shell::{capture, cargo, read, root, run, symlink, target_dir};

pub const SONAME: &str = "libnccl.so.2";
/// The whole library, device code for all targets included.
const MAX_BYTES: u64 = 16 << 20;
const BUILD: Duration = Duration::from_secs(1200);
const QUICK: Duration = Duration::from_secs(60);

/// Builds libnccl.so and puts the link libnccl.so.2 beside it. Returns the link.
pub fn build(release: bool) -> Result<PathBuf, String> {
    let mut command = cargo();
    command.args(["build", "--package", "oxccl"]);
    if release {
        command.arg("--release");
    }
    run(&mut command, BUILD)?;
    let link = target_dir().join(if release { "release" } else { "debug" }).join(SONAME);
    symlink(Path::new("libnccl.so"), &link)?;
    Ok(link)
}

/// The hash that the library's build script wrote for these sources.
pub fn kernels_hash() -> Result<String, String> {
    build(true)?;
    let folder = target_dir().join("release/build");
    let newest = std::fs::read_dir(&folder)
        .map_err(|e| format!("{}: {e}", folder.display()))?
        .filter_map(|entry| Some(entry.ok()?.path().join("out/images.rs")))
        .filter_map(|path| Some((path.metadata().ok()?.modified().ok()?, path)))
        .max()
        .ok_or("no build of the library left an images.rs")?;
    let text = read(&newest.1)?;
    let value = text.split("KERNELS_SHA256: &str = \"").nth(1).and_then(|rest| rest.split('"').next());
    value.map(str::to_string).ok_or_else(|| format!("{} names no hash", newest.1.display()))
}

/// Checks of the finished file; one line per check, `Err` for those that failed.
pub fn checks(file: &Path) -> Vec<(&'static str, Result<String, String>)> {
    vec![
        ("soname", soname(file)),
        ("needed libraries", needed(file)),
        ("exported symbols", exported(file)),
        ("size", size(file)),
    ]
}

fn dynamic_entries(file: &Path, tag: &str) -> Result<Vec<String>, String> {
    let out = capture(Command::new("readelf").args(["-d", "-W"]).arg(file), QUICK)?;
    if !out.ok {
        return Err(format!("readelf: {}", out.text));
    }
    let values = out.text.lines().filter(|line| line.contains(tag));
    Ok(values.filter_map(|line| Some(line.split_once('[')?.1.split_once(']')?.0.to_string())).collect())
}

fn soname(file: &Path) -> Result<String, String> {
    let names = dynamic_entries(file, "(SONAME)")?;
    if names == [SONAME] { Ok(SONAME.into()) } else { Err(format!("soname {names:?}, wanted {SONAME}")) }
}

fn needed(file: &Path) -> Result<String, String> {
    let names = dynamic_entries(file, "(NEEDED)")?;
    let allowed = |name: &String| {
        ["libc.so.6", "libm.so.6", "libgcc_s.so.1"].contains(&name.as_str()) || name.starts_with("ld-linux")
    };
    let foreign: Vec<_> = names.iter().filter(|name| !allowed(name)).collect();
    if foreign.is_empty() {
        Ok(names.join(" "))
    } else {
        Err(format!("needs {foreign:?}; only libc, libm, libgcc_s and ld-linux are allowed"))
    }
}

fn exported(file: &Path) -> Result<String, String> {
    let list = root().join("ctests/symbols.txt");
    let wanted: BTreeSet<String> = read(&list)?
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default().trim().to_string())
        .filter(|name| !name.is_empty())
        .collect();
    let out = capture(Command::new("nm").args(["-D", "--defined-only"]).arg(file), QUICK)?;
    if !out.ok {
        return Err(format!("nm: {}", out.text));
    }
    let found: BTreeSet<String> = out
        .text
        .lines()
        .filter_map(|line| line.split_whitespace().last())
        .map(|name| name.split('@').next().unwrap_or(name).to_string())
        .collect();
    let missing: Vec<_> = wanted.difference(&found).cloned().collect();
    // Extensions may come and go with oxccl.h, whose own test covers them; anything else is a leak.
    let extra: Vec<_> =
        found.difference(&wanted).filter(|name| !name.starts_with("oxccl")).cloned().collect();
    if missing.is_empty() && extra.is_empty() {
        Ok(format!("{} symbols", found.len()))
    } else {
        Err(format!("against ctests/symbols.txt: missing {missing:?}, not listed {extra:?}"))
    }
}

fn size(file: &Path) -> Result<String, String> {
    let bytes = std::fs::metadata(file).map_err(|e| e.to_string())?.len();
    let text = format!("{:.2} MiB", bytes as f64 / f64::from(1 << 20));
    if bytes <= MAX_BYTES { Ok(text) } else { Err(format!("{text}, more than {} MiB", MAX_BYTES >> 20)) }
}
