//! Where the library under test and the driver are, and the environment in which ranks see them.
//!
//! Both lie beside the program: `target/<profile>` after `cargo build`, or any folder that the files were carried to.
//! `OXCCL_LIBRARY` names another library, `OXCCL_TEST_DRIVER=real` takes the machine's own CUDA driver instead of the
//! emulated one.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::driver::Outcome;

#[derive(Debug, Clone)]
pub struct Machine {
    program: PathBuf,
    library: PathBuf,
    /// Folder with libcuda.so.1; none for the real driver.
    emulator: Option<PathBuf>,
}

impl Machine {
    /// `program` is oxccl-check itself.
    pub fn find(program: &Path) -> Outcome<Machine> {
        let dir = program.parent().ok_or("the program has no folder")?;
        let library = match std::env::var_os("OXCCL_LIBRARY") {
            Some(path) => PathBuf::from(path),
            None => dir.join("libnccl.so"),
        };
        if !library.exists() {
            return Err(format!(
                "there is no {}: `cargo build` makes it, or OXCCL_LIBRARY names another",
                library.display()
            ));
        }
        let real = std::env::var_os("OXCCL_TEST_DRIVER").is_some_and(|value| value == "real");
        let emulator = if real { None } else { Some(emulator(dir)?) };
        let library = library.canonicalize().map_err(|e| format!("{}: {e}", library.display()))?;
        Ok(Machine { program: program.to_path_buf(), library, emulator })
    }

    pub fn is_real(&self) -> bool {
        self.emulator.is_none()
    }

    /// A command that runs the program with nothing in its environment that could change a test's outcome.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            let for_gpu = self.is_real() && text == "CUDA_VISIBLE_DEVICES";
            let ours = text.starts_with("OXCCL_TEST_");
            if ["NCCL_", "OXCCL_", "CUDA_"].iter().any(|prefix| text.starts_with(prefix)) && !for_gpu && !ours
            {
                command.env_remove(&name);
            }
        }
        // A user's own settings file must not matter.
        command.env("HOME", "/nonexistent").env("OXCCL_LIBRARY", &self.library);
        if let Some(dir) = &self.emulator {
            let mut path = OsString::from(dir);
            if let Some(old) = std::env::var_os("LD_LIBRARY_PATH").filter(|old| !old.is_empty()) {
                path.push(":");
                path.push(old);
            }
            command.env("LD_LIBRARY_PATH", path);
        }
        command
    }

    /// GPUs that the driver shows to a process.
    pub fn device_count(&self) -> Outcome<usize> {
        let output = self.command().arg("device-count").output().map_err(|e| e.to_string())?;
        let text = String::from_utf8_lossy(&output.stdout).trim().to_string();
        text.parse().map_err(|_| format!("no driver: {}", String::from_utf8_lossy(&output.stderr)))
    }
}

/// The folder in which the emulated driver has its real names: `OXCCL_TEST_EMULATOR`, or one that is made here for the
/// emulator that was built last.
fn emulator(dir: &Path) -> Outcome<PathBuf> {
    if let Some(path) = std::env::var_os("OXCCL_TEST_EMULATOR") {
        let folder = PathBuf::from(path);
        return folder.canonicalize().map_err(|e| format!("{}: {e}", folder.display()));
    }
    let folder = dir.join("../emulator");
    let time = |path: &PathBuf| path.metadata().and_then(|data| data.modified()).ok();
    let built = ["../release/libcuda_emulator.so", "libcuda_emulator.so"].map(|name| dir.join(name));
    let Some(built) = built.iter().filter(|path| path.exists()).max_by_key(|path| time(path)) else {
        return Err(format!(
            "there is no emulated driver in {}: `cargo build --release -p cuda-emulator` makes it (without --release it \
             is slow); on a machine with a GPU, OXCCL_TEST_DRIVER=real takes the real one",
            dir.display()
        ));
    };
    let told = |e: std::io::Error| format!("{}: {e}", folder.display());
    let built = built.canonicalize().map_err(told)?;
    if ["libcuda.so.1", "libcuda.so"]
        .iter()
        .all(|name| folder.join(name).canonicalize().is_ok_and(|at| at == built))
    {
        return folder.canonicalize().map_err(told);
    }
    std::fs::create_dir_all(&folder).map_err(told)?;
    // Both names: programs look for libcuda.so first, and a toolkit's stub of that name would win otherwise. A rename
    // puts each in place whole, whoever else does the same.
    for name in ["libcuda.so.1", "libcuda.so"] {
        let part = folder.join(format!("{name}.{}", std::process::id()));
        std::os::unix::fs::symlink(&built, &part).map_err(told)?;
        std::fs::rename(&part, folder.join(name)).map_err(told)?;
    }
    folder.canonicalize().map_err(told)
}
