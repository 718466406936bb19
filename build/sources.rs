//! The identity of the kernel sources: one SHA-256 over every file of `kernels/`, names included.
//!
//! The build script embeds it in the library and keys its cache of compiled kernels with it, and
//! `cargo xtask test` compares it with the hash that results taken on GPUs carry. Both compile this file, so that
//! there is one definition. The hash depends on the names and contents alone, not on times or on the order of readdir.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

/// SHA-256, in hexadecimal, of all files under `dir`.
pub fn hash_dir(dir: &Path) -> io::Result<String> {
    let mut files = Vec::new();
    collect(dir, &mut files)?;
    files.sort();
    let mut hash = Sha256::new();
    for file in &files {
        let name = file.strip_prefix(dir).unwrap_or(file).to_string_lossy().into_owned();
        let data = fs::read(file)?;
        // Lengths go in front, so that no two different trees feed the same bytes.
        hash.update((name.len() as u64).to_le_bytes());
        hash.update(name.as_bytes());
        hash.update((data.len() as u64).to_le_bytes());
        hash.update(&data);
    }
    Ok(hex(&hash.finalize()))
}

/// SHA-256 of some bytes, in hexadecimal.
pub fn hash_bytes(data: &[u8]) -> String {
    hex(&Sha256::digest(data))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Files of `dir` and of its folders, without what editors leave (`.x.swp`, `x~`).
fn collect(dir: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with('.') || name.ends_with('~') {
            continue;
        }
        if entry.file_type()?.is_dir() {
            collect(&entry.path(), files)?;
        } else {
            files.push(entry.path());
        }
    }
    Ok(())
}
