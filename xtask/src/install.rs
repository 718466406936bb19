//! `cargo xtask install`: library, headers, pkg-config and CMake files below a prefix.
//!
//! What is installed can be moved: the pkg-config and CMake files find the library from their own place. The version
//! in all names comes from include/nccl.h, the only place that states it.

use std::fs;
use std::path::{Path, PathBuf};

use crate::shell::{copy, make_dir, read, root, symlink, write};
use crate::{library, setup};

pub fn run(args: &[String]) -> Result<(), String> {
    let (mut prefix, mut destdir) = (None, PathBuf::new());
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let value = args.next().ok_or_else(|| format!("{arg} needs a folder"))?;
        match arg.as_str() {
            "--prefix" => prefix = Some(PathBuf::from(value)),
            "--destdir" => destdir = PathBuf::from(value),
            _ => return Err(format!("install takes --prefix and --destdir, got {arg}")),
        }
    }
    let prefix = prefix.ok_or("install needs --prefix DIR")?;
    setup::kernel_compiler()?;
    let library = library::build(true)?;
    let place = if destdir.as_os_str().is_empty() {
        prefix
    } else {
        destdir.join(prefix.strip_prefix("/").unwrap_or(&prefix))
    };
    stage(&library, &place)?;
    println!("installed in {}", place.display());
    Ok(())
}

/// Puts everything below `prefix`.
pub fn stage(library: &Path, prefix: &Path) -> Result<(), String> {
    let version = version()?;
    let lib = prefix.join("lib");
    let include = prefix.join("include");
    let (pkgconfig, cmake) = (lib.join("pkgconfig"), lib.join("cmake/nccl"));
    for dir in [&lib, &include, &pkgconfig, &cmake] {
        make_dir(dir)?;
    }

    let real = format!("libnccl.so.{version}");
    copy(library, &lib.join(&real))?;
    symlink(Path::new(&real), &lib.join(library::SONAME))?;
    symlink(Path::new(library::SONAME), &lib.join("libnccl.so"))?;

    let headers = root().join("include");
    for entry in fs::read_dir(&headers).map_err(|e| format!("{}: {e}", headers.display()))? {
        let path = entry.map_err(|e| e.to_string())?.path();
        if let (true, Some(name)) = (path.extension().is_some_and(|e| e == "h"), path.file_name()) {
            copy(&path, &include.join(name))?;
        }
    }

    let fill = |template: &str, to: PathBuf| -> Result<(), String> {
        write(&to, &read(&root().join(template))?.replace("@VERSION@", &version))
    };
    fill("pkgconfig/nccl.pc.in", pkgconfig.join("nccl.pc"))?;
    fill("cmake/NCCLConfig.cmake.in", cmake.join("NCCLConfig.cmake"))?;
    fill("cmake/NCCLConfigVersion.cmake.in", cmake.join("NCCLConfigVersion.cmake"))
}

/// MAJOR.MINOR.PATCH of include/nccl.h.
pub fn version() -> Result<String, String> {
    let header = read(&root().join("include/nccl.h"))?;
    let number = |name: &str| {
        header
            .lines()
            .filter_map(|line| line.trim().strip_prefix("#define")?.trim().strip_prefix(name))
            .find_map(|rest| rest.trim().parse::<u32>().ok())
            .ok_or_else(|| format!("include/nccl.h does not define {name}"))
    };
    Ok(format!("{}.{}.{}", number("NCCL_MAJOR")?, number("NCCL_MINOR")?, number("NCCL_PATCH")?))
}
