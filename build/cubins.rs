//! kernels/kernels.cu -> one image per target, compressed, cached, with the rule on stack frames enforced.
//!
//! The cache lies in `target/kernels-cache/` (or OXCCL_KERNELS_CACHE) and is shared by all profiles and packages of
//! that target folder. A file in it is named after the SHA-256 of everything it came from (all of `kernels/`, the
//! options, NVRTC's version) and appears by a rename, so that builds side by side and interrupted ones do no harm.
//! Release builds carry every target; OXCCL_KERNEL_TARGETS=sm_90a,... chooses others.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

use crate::nvrtc::Nvrtc;
use crate::{report, sources};

/// Machine code for what exists (one per major architecture: newer minors run it), PTX for what comes later.
pub const TARGETS: [&str; 5] = ["sm_90a", "sm_80", "sm_100", "sm_120", "compute_90"];

/// What a debug build carries. It mostly serves tests on the emulated driver, which calls itself such a GPU and takes
/// its kernels from g++; compiling for all targets takes minutes.
pub const DEBUG_TARGETS: [&str; 1] = ["sm_90a"];

/// One finished image.
pub struct Image {
    pub target: String,
    pub is_ptx: bool,
    /// Bytes after decompression.
    pub len: usize,
    /// The raw DEFLATE stream.
    pub file: PathBuf,
    pub report: String,
}

/// Options for every target. FMA contraction is off because results must not depend on which kernel computed them.
fn options(kernels: &Path, target: &str) -> Vec<String> {
    let mut options: Vec<String> =
        ["-fmad=false", "--std=c++17", "-default-device", "-I"].iter().map(|s| s.to_string()).collect();
    options.push(kernels.display().to_string());
    options.push(format!("-arch={target}"));
    if !target.starts_with("compute_") {
        options.push("--ptxas-options=-v".into());
    }
    options
}

/// Makes every image that is not in the cache. `jobs` compilations run at a time.
pub fn make(
    kernels: &Path,
    cache: &Path,
    nvrtc: &Nvrtc,
    targets: &[&str],
    jobs: usize,
) -> Result<Vec<Image>, String> {
    let main = kernels.join("kernels.cu");
    let source = fs::read_to_string(&main).map_err(|e| {
        format!("{}: {e}. It holds the device code that is compiled into the library.", main.display())
    })?;
    let hash = sources::hash_dir(kernels).map_err(|e| format!("{}: {e}", kernels.display()))?;
    fs::create_dir_all(cache).map_err(|e| format!("{}: {e}", cache.display()))?;

    let queue = Mutex::new(targets.iter().enumerate().collect::<Vec<_>>().into_iter());
    let results = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..jobs.clamp(1, targets.len().max(1)) {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().expect("no thread panics with the lock held").next();
                    let Some((index, target)) = next else { break };
                    let made = make_one(&source, &hash, kernels, cache, nvrtc, target)
                        .map_err(|e| format!("kernels.cu for {target}: {e}"));
                    if made.is_err() {
                        // Nothing will come of the build: leave out what nobody has begun.
                        queue.lock().expect("no thread panics with the lock held").by_ref().for_each(drop);
                    }
                    results.lock().expect("no thread panics with the lock held").push((index, made));
                }
            });
        }
    });
    let mut results = results.into_inner().expect("no thread panics with the lock held");
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, made)| made).collect()
}

fn make_one(
    source: &str,
    hash: &str,
    kernels: &Path,
    cache: &Path,
    nvrtc: &Nvrtc,
    target: &str,
) -> Result<Image, String> {
    let is_ptx = target.starts_with("compute_");
    let options = options(kernels, target);
    // The folder's own name is not part of the identity: other checkouts share the cache.
    let named: Vec<&str> = options.iter().filter(|o| !o.starts_with('/')).map(String::as_str).collect();
    let identity = format!("{hash}\n{named:?}\nNVRTC {}.{}\nformat 1", nvrtc.version.0, nvrtc.version.1);
    let key = &sources::hash_bytes(identity.as_bytes())[..32];
    let file = cache.join(format!("{key}.{target}.deflate"));
    let note = cache.join(format!("{key}.{target}.txt"));

    // The note is written last; with it the image is whole.
    if let (Ok(text), true) = (fs::read_to_string(&note), file.exists())
        && let Some((len, report)) = text.split_once('\n')
        && let Ok(len) = len.parse()
    {
        return Ok(Image { target: target.into(), is_ptx, len, file, report: report.into() });
    }

    let start = Instant::now();
    let mut compiled = nvrtc.compile(source, "kernels.cu", &options, is_ptx)?;
    let mut report =
        format!("{target}: {} bytes in {:.1} s\n", compiled.image.len(), start.elapsed().as_secs_f64());
    if is_ptx {
        // NVRTC counts a terminating NUL, which cuModuleLoadData needs: keep exactly one.
        while compiled.image.last() == Some(&0) {
            compiled.image.pop();
        }
        compiled.image.push(0);
    } else {
        let functions = report::parse(&compiled.log)?;
        for function in &functions {
            report.push_str(&format!("  {function}\n"));
        }
        let bad: Vec<String> = functions.iter().filter(|f| !f.is_lean()).map(|f| format!("  {f}")).collect();
        if !bad.is_empty() {
            return Err(format!(
                "these functions use a stack frame or spill registers, which is not allowed (a kernel with a frame \
                 costs hundreds of MiB of GPU memory); use fewer live values, no arrays indexed at run time, no \
                 function pointers:\n{}",
                bad.join("\n")
            ));
        }
    }
    let packed = miniz_oxide::deflate::compress_to_vec(&compiled.image, 9);
    write_whole(&file, &packed)?;
    write_whole(&note, format!("{}\n{report}", compiled.image.len()).as_bytes())?;
    Ok(Image { target: target.into(), is_ptx, len: compiled.image.len(), file, report })
}

/// Writes beside the place and renames: a reader sees the old file or the whole new one.
fn write_whole(path: &Path, data: &[u8]) -> Result<(), String> {
    let part = path.with_extension(format!("{}.part", std::process::id()));
    fs::write(&part, data)
        .and_then(|()| fs::rename(&part, path))
        .map_err(|e| format!("{}: {e}", path.display()))
}
