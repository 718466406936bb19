//! What has to be there before anything is built or run: the kernel compiler, the emulated driver under its real
//! name, CMake. Each is looked for on the system first or made below `target/`; nothing else is touched.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::shell::{capture, cargo, has_program, make_dir, run, symlink, target_dir, write};

/// The pinned kernel compiler and the hashes of its wheels (x86_64, aarch64). pip refuses anything else.
const NVRTC: &str = "nvidia-cuda-nvrtc-cu12==12.9.86 \
     --hash=sha256:210cf05005a447e29214e9ce50851e83fc5f4358df8b453155d5e1918094dcb4 \
     --hash=sha256:096d4de6bda726415dfaf3198d4f5c522b8e70139c97feef5cd2ca6d4cd9cead";
const NVRTC_FILES: [&str; 2] = ["libnvrtc.so.12", "libnvrtc-builtins.so.12.9"];

const QUICK: Duration = Duration::from_secs(60);
const DOWNLOAD: Duration = Duration::from_secs(600);
const BUILD: Duration = Duration::from_secs(900);

pub fn all() -> Result<(), String> {
    kernel_compiler()?;
    emulator().map(|_| ())
}

/// Makes sure that the library's build script finds NVRTC 12.9.
pub fn kernel_compiler() -> Result<(), String> {
    let dir = target_dir().join("nvrtc");
    if std::env::var_os("OXCCL_NVRTC").is_some() || NVRTC_FILES.iter().all(|f| dir.join(f).exists()) {
        return Ok(());
    }
    if system_nvrtc() {
        return Ok(());
    }
    eprintln!("fetching the kernel compiler (NVRTC 12.9, 86 MB) into {}", dir.display());
    fetch_nvrtc(&dir).map_err(|why| {
        format!(
            "{why}\nThe device code needs NVRTC 12.9 at build time. Either install Python 3 with pip (Debian, Ubuntu: \
             python3-pip), with which it is fetched from NVIDIA's wheel, or install NVIDIA's package cuda-nvrtc-12-9, \
             or set OXCCL_NVRTC to the path of a libnvrtc.so.12."
        )
    })
}

/// Whether a libnvrtc.so.12 of 12.9 lies where the loader or the build script looks.
fn system_nvrtc() -> bool {
    let toolkit = ["/usr/local/cuda/lib64", "/usr/local/cuda-12.9/lib64"];
    if toolkit.iter().any(|dir| NVRTC_FILES.iter().all(|f| Path::new(dir).join(f).exists())) {
        return true;
    }
    ["/sbin/ldconfig", "ldconfig"].iter().any(|ldconfig| {
        capture(Command::new(ldconfig).arg("-p"), QUICK)
            .is_ok_and(|out| NVRTC_FILES.iter().all(|f| out.text.contains(&format!("{f} "))))
    })
}

fn fetch_nvrtc(dir: &Path) -> Result<(), String> {
    let python = python_with_pip()?;
    make_dir(dir)?;
    let list = dir.join("requirements.txt");
    write(&list, &format!("{NVRTC}\n"))?;
    let platform = format!("manylinux2014_{}", std::env::consts::ARCH);
    let mut pip = Command::new(&python);
    pip.args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"])
        .args(["--only-binary=:all:", "--require-hashes", "--platform", &platform, "--dest"])
        .arg(dir)
        .arg("--requirement")
        .arg(&list);
    run(&mut pip, DOWNLOAD)?;
    let wheel = fs::read_dir(dir)
        .map_err(|e| e.to_string())?
        .filter_map(|entry| entry.ok().map(|e| e.path()))
        .find(|path| path.extension().is_some_and(|e| e == "whl"))
        .ok_or("pip left no wheel behind")?;
    // Python's zipfile is sure to be there. Files appear by a rename: a broken-off run leaves nothing half.
    let unpack = "import os, sys, zipfile\n\
                  wheel, out = sys.argv[1:3]\n\
                  with zipfile.ZipFile(wheel) as z:\n\
                  \x20   for name in sys.argv[3:]:\n\
                  \x20       data = z.read('nvidia/cuda_nvrtc/lib/' + name)\n\
                  \x20       part = os.path.join(out, name + '.part')\n\
                  \x20       open(part, 'wb').write(data)\n\
                  \x20       os.rename(part, os.path.join(out, name))\n";
    run(Command::new(&python).args(["-c", unpack]).arg(&wheel).arg(dir).args(NVRTC_FILES), QUICK)?;
    fs::remove_file(&wheel).map_err(|e| e.to_string())
}

/// The system's Python when it has pip, else one in a virtual environment of our own.
fn python_with_pip() -> Result<PathBuf, String> {
    if !has_program("python3") {
        return Err("there is no python3 on PATH".into());
    }
    let with_pip = |python: &Path| {
        capture(Command::new(python).args(["-m", "pip", "--version"]), QUICK).is_ok_and(|out| out.ok)
    };
    let system = PathBuf::from("python3");
    if with_pip(&system) { Ok(system) } else { venv() }
}

/// Python of `target/venv`, which is made on first use.
fn venv() -> Result<PathBuf, String> {
    let dir = target_dir().join("venv");
    let python = dir.join("bin/python3");
    let works =
        || capture(Command::new(&python).args(["-m", "pip", "--version"]), QUICK).is_ok_and(|out| out.ok);
    if !works() {
        run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&dir), DOWNLOAD)
            .map_err(|why| format!("{why}; Python's venv module is needed (Debian, Ubuntu: python3-venv)"))?;
    }
    Ok(python)
}

/// CMake and Ninja: the folder to put in front of PATH, none when the system has them.
pub fn cmake() -> Result<Option<PathBuf>, String> {
    if has_program("cmake") && (has_program("ninja") || has_program("make")) {
        return Ok(None);
    }
    let python = venv()?;
    let bin = python.parent().expect("python lies in a folder").to_path_buf();
    if !bin.join("cmake").exists() || !bin.join("ninja").exists() {
        eprintln!("fetching CMake and Ninja into {}", bin.display());
        let mut pip = Command::new(&python);
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary=:all:"])
            .args(["cmake>=3.25,<5", "ninja>=1.11,<2"]);
        run(&mut pip, DOWNLOAD)
            .map_err(|why| format!("{why}; the C tests need CMake: install it, or Python 3 with pip"))?;
    }
    Ok(Some(bin))
}

/// Builds the emulated driver and gives it the names that programs ask for. Returns the folder for LD_LIBRARY_PATH.
///
/// Always optimised: its kernels are the device code, which tests run millions of times.
pub fn emulator() -> Result<PathBuf, String> {
    run(cargo().args(["build", "--quiet", "--release", "--package", "cuda-emulator"]), BUILD)?;
    let dir = target_dir().join("emulator");
    make_dir(&dir)?;
    // Both names: programs look for libcuda.so first, and a toolkit's stub of that name would win otherwise.
    for name in ["libcuda.so.1", "libcuda.so"] {
        symlink(Path::new("../release/libcuda_emulator.so"), &dir.join(name))?;
    }
    Ok(dir)
}

/// Whether this machine has an NVIDIA GPU with a driver.
pub fn has_gpu() -> bool {
    fs::read_dir("/dev").is_ok_and(|dir| {
        dir.filter_map(Result::ok).any(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            name.strip_prefix("nvidia")
                .is_some_and(|n| !n.is_empty() && n.chars().all(|c| c.is_ascii_digit()))
        })
    })
}
