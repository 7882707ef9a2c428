//! Records the compiler that built the figures, for the header of the report.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=RUSTC");
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = Command::new(rustc).arg("-V").output().ok();
    let version = version.and_then(|output| String::from_utf8(output.stdout).ok());
    if let Some(version) = version {
        println!("cargo::rustc-env=MARGO_BENCH_RUSTC={}", version.trim());
    }
}
