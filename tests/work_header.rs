//! `kernels/work.h` is what cbindgen makes of `src/gpu/work.rs`.
//!
//! `UPDATE=1 cargo test --test work_header` writes it anew. Device code includes no system header, so the file includes none either;
//! kernels/device.h names the fixed-width types for both compilers.

use std::path::Path;

const STRUCTS: [&str; 15] = [
    "DeviceError",
    "Mailbox",
    "FifoState",
    "LaneState",
    "State",
    "HostBlock",
    "PeerArgs",
    "CommArgs",
    "CollectiveWork",
    "GroupItem",
    "GroupWork",
    "Message",
    "Lane",
    "MessageWork",
    "ProbeWork",
];

fn generated() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut config = cbindgen::Config {
        language: cbindgen::Language::Cxx,
        header: Some("// Generated from src/gpu/work.rs by tests/work_header.rs: do not edit.".to_owned()),
        pragma_once: true,
        no_includes: true,
        documentation_style: cbindgen::DocumentationStyle::Cxx,
        line_length: 130,
        ..cbindgen::Config::default()
    };
    config.export.include = STRUCTS.iter().map(|name| (*name).to_owned()).collect();
    config.layout.aligned_n = Some("ALIGNED".to_owned());
    config.constant.allow_static_const = false;
    let mut text = Vec::new();
    cbindgen::Builder::new()
        .with_config(config)
        .with_src(root.join("src/gpu/work.rs"))
        .generate()
        .expect("work.rs holds nothing that cbindgen cannot print")
        .write(&mut text);
    String::from_utf8(text).expect("cbindgen writes UTF-8")
}

#[test]
fn work_header_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels/work.h");
    let new = generated();
    for name in STRUCTS {
        assert!(new.contains(&format!(" {name} {{")), "{name} is missing");
    }
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &new).unwrap();
    }
    let old = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        old == new,
        "kernels/work.h is not what src/gpu/work.rs says; run: UPDATE=1 cargo test --test work_header"
    );
}
