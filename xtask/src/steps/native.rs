//! The steps about what comes out: device code as C++, the release library, the install, C programs on it.

use std::process::Command;
use std::time::Duration;

use super::rust::{number_before, on_emulator};
use super::{Outcome, stage_dir};
use crate::shell::{capture, has_program, make_dir, path_list, read, root, run, target_dir, tee};
use crate::{install as installer, library as lib, setup};

const QUICK: Duration = Duration::from_secs(120);
const BUILD: Duration = Duration::from_secs(900);

/// The kernels once more as C++ with the undefined-behaviour checks that g++ can prove while compiling.
pub fn sanitize() -> Result<Outcome, String> {
    let source = root().join("kernels/kernels.cu");
    let dir = target_dir().join("sanitize");
    make_dir(&dir)?;
    let mut command = Command::new(std::env::var_os("CXX").unwrap_or_else(|| "g++".into()));
    command
        .args([
            "-std=c++17",
            "-O1",
            "-g0",
            "-ffp-contract=off",
            "-fsanitize=undefined",
            "-Wall",
            "-Wextra",
            "-Werror",
        ])
        .args(["-x", "c++", "-c", "-I"])
        .arg(root().join("kernels"))
        .arg(&source)
        .arg("-o")
        .arg(dir.join("kernels.o"));
    Ok(Outcome::one(run(&mut command, BUILD)))
}

/// Results from GPUs in perf/results carry `kernels: HASH`; one of other kernels proves nothing about these.
pub fn results() -> Result<Outcome, String> {
    let dir = root().join("perf/results");
    if !dir.exists() {
        return Ok(Outcome::Skipped("there is no perf/results".into()));
    }
    let hash = lib::kernels_hash()?;
    let mut stale = Vec::new();
    for entry in std::fs::read_dir(&dir).map_err(|e| format!("{}: {e}", dir.display()))? {
        let path = entry.map_err(|e| e.to_string())?.path();
        if path.is_file() && !read(&path)?.contains(&hash) {
            stale.push(path.display().to_string());
        }
    }
    // Stale is a reminder, not a fault: a machine without a GPU cannot take them anew.
    for path in &stale {
        println!("stale, of other kernels: {path}");
    }
    if stale.is_empty() {
        Ok(Outcome::one(Ok(())))
    } else {
        Ok(Outcome::Skipped(format!(
            "{} result(s) belong to other kernels; take them anew on a GPU",
            stale.len()
        )))
    }
}

pub fn library() -> Result<Outcome, String> {
    let file = lib::build(true)?;
    let (mut passed, mut failed) = (0, 0);
    for (what, result) in lib::checks(&file) {
        match result {
            Ok(text) => {
                println!("{what}: {text}");
                passed += 1;
            }
            Err(why) => {
                println!("FAILED: {what}: {why}");
                failed += 1;
            }
        }
    }
    Ok(Outcome::Ran { passed, failed })
}

/// A staged install, moved to another place, then used by pkg-config.
pub fn install() -> Result<Outcome, String> {
    let stage = staged()?;
    let version = installer::version()?;
    for file in ["lib/libnccl.so", "lib/libnccl.so.2", "include/nccl.h", "lib/cmake/nccl/NCCLConfig.cmake"] {
        if !stage.join(file).exists() {
            return Ok(Outcome::one(Err(format!("{file} is not in the install"))));
        }
    }
    if !has_program("pkg-config") {
        println!("pkg-config is not installed: nccl.pc was not tried");
        return Ok(Outcome::one(Ok(())));
    }
    let ask = |args: &[&str]| {
        let mut command = Command::new("pkg-config");
        command.args(args).arg("nccl").env("PKG_CONFIG_PATH", stage.join("lib/pkgconfig"));
        capture(&mut command, QUICK).map(|out| out.text.trim().to_string())
    };
    let (found, flags) = (ask(&["--modversion"])?, ask(&["--cflags", "--libs"])?);
    println!("pkg-config: {found}: {flags}");
    let right =
        found == version && flags.contains("-lnccl") && flags.contains(&*stage.join("lib").to_string_lossy());
    Ok(Outcome::one(if right { Ok(()) } else { Err(format!("pkg-config says {found:?} {flags:?}")) }))
}

/// Installs anew into a place other than the one it was made in, so that a fixed path would show.
fn staged() -> Result<std::path::PathBuf, String> {
    let (first, stage) = (target_dir().join("stage-first"), stage_dir());
    for dir in [&first, &stage] {
        if dir.exists() {
            std::fs::remove_dir_all(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
        }
    }
    installer::stage(&lib::build(true)?, &first)?;
    std::fs::rename(&first, &stage).map_err(|e| format!("{}: {e}", stage.display()))?;
    Ok(stage)
}

pub fn ctests() -> Result<Outcome, String> {
    let source = root().join("ctests");
    let (stage, emulator, tools) = (staged()?, setup::emulator()?, setup::cmake()?);
    let path = path_list("PATH", &tools.into_iter().collect::<Vec<_>>());
    let build = target_dir().join("ctests");
    let in_path = |program: &str| {
        let mut command = Command::new("env");
        command.env("PATH", &path).arg(program);
        command
    };
    let mut configure = in_path("cmake");
    configure.arg("-S").arg(&source).arg("-B").arg(&build);
    configure.arg(format!("-DCMAKE_PREFIX_PATH={}", stage.display()));
    // A build folder keeps its generator.
    if !build.join("CMakeCache.txt").exists()
        && std::env::split_paths(&path).any(|d| d.join("ninja").is_file())
    {
        configure.args(["-G", "Ninja"]);
    }
    run(&mut configure, QUICK)?;
    run(in_path("cmake").arg("--build").arg(&build), BUILD)?;
    let mut ctest = in_path("ctest");
    ctest.arg("--test-dir").arg(&build).args(["--output-on-failure", "--timeout", "120"]);
    on_emulator(&mut ctest, emulator);
    let out = tee(&mut ctest, BUILD)?;
    let (passed, failed) = count_ctest(&out.text);
    Ok(Outcome::Ran { passed, failed: if out.ok && passed > 0 { failed } else { failed.max(1) } })
}

/// Counts the lines ` 1/4 Test #1: name ....   Passed    0.01 sec`; the closing line differs between versions.
fn count_ctest(text: &str) -> (usize, usize) {
    let ended = text.lines().filter(|line| {
        line.contains("/") && line.contains(" Test ") && line.contains(" sec") && !line.contains("***Skipped")
    });
    let (passed, failed): (Vec<_>, Vec<_>) =
        ended.filter(|line| line.contains(": ")).partition(|line| line.contains(" Passed "));
    (passed.len(), failed.len())
}

/// Programs that print what a driver does; the emulated one has to print what the real one did.
pub fn conformance() -> Result<Outcome, String> {
    let script = root().join("ctests/conformance/run.py");
    if !has_program("python3") {
        return Err("ctests/conformance/run.py needs python3".into());
    }
    let mut command = Command::new("python3");
    command.arg(&script).arg("--driver").arg(setup::emulator()?);
    let out = tee(&mut command, BUILD)?;
    let (passed, failed) = count_conformance(&out.text);
    Ok(Outcome::Ran { passed, failed: if out.ok { failed } else { failed.max(1) } })
}

/// Reads `driver libcuda_emulator.so: 14 passed, 1 failed, 0 cannot run here`.
fn count_conformance(text: &str) -> (usize, usize) {
    let line = text.lines().rev().find(|line| line.starts_with("driver ")).unwrap_or_default();
    (number_before(line, " passed"), number_before(line, " failed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_what_ctest_prints() {
        let text = "    Start 1: a\n1/3 Test #1: a ....   Passed    0.01 sec\n2/3 Test  #2: b ....***Failed    0.20 sec\n\
                    3/4 Test #3: c ....***Timeout 120.01 sec\n4/4 Test #4: d ....***Skipped   0.00 sec\nTotal Test time (real) =   0.02 sec\n";
        assert_eq!(count_ctest(text), (1, 2));
        assert_eq!(count_ctest("CMake Error: no tests"), (0, 0));
    }

    #[test]
    fn counts_what_the_conformance_runner_prints() {
        let text = "vmm: differs\ndriver libcuda_emulator.so: 14 passed, 1 failed, 2 cannot run here\n";
        assert_eq!(count_conformance(text), (14, 1));
    }
}
