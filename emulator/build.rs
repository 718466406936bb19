//! Builds the C++ half of the emulator: the project's kernels, from the source that NVRTC also compiles, and the probe
//! kernels of the unit tests.
//!
//! The floating-point flags are those of the GPU build in g++'s words: no contraction and no fast math, so that both
//! give the same bits. Optimisation is fixed: the kernels are the emulator's speed, also in a debug build.

use std::path::Path;

fn main() {
    let kernels = Path::new("../kernels");
    println!("cargo::rerun-if-changed=../kernels");
    println!("cargo::rerun-if-changed=src/kernel/probe.cpp");
    println!("cargo::rustc-check-cfg=cfg(no_project_kernels)");

    let project = kernels.join("kernels.cu");
    if project.exists() {
        compiler(kernels).file(project).compile("emulator_kernels");
    } else {
        println!("cargo::rustc-cfg=no_project_kernels");
    }
    compiler(kernels).file("src/kernel/probe.cpp").compile("emulator_probe");

    // Threads and signal handlers outlive a dlclose, and no other library may take the kernels' functions over.
    for argument in ["-Wl,-soname,libcuda.so.1", "-Wl,-z,nodelete", "-Wl,-Bsymbolic"] {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
}

fn compiler(include: &Path) -> cc::Build {
    let mut build = cc::Build::new();
    build
        .cpp(true)
        .cpp_link_stdlib(None)
        .std("c++17")
        .include(include)
        .opt_level(2)
        .warnings(true)
        .extra_warnings(true);
    for flag in [
        "-ffp-contract=off",
        "-fno-fast-math",
        "-fno-strict-aliasing",
        "-fno-exceptions",
        "-fno-rtti",
        "-fvisibility=hidden",
        "-xc++",
    ] {
        build.flag(flag);
    }
    // Rust names only the tables; everything behind them has to come along.
    build.link_lib_modifier("+whole-archive");
    build
}
