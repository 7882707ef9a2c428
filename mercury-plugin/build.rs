//! Asks the linker to keep the library in memory once a program has loaded it.

fn main() {
    // Mercury closes its plugins when the program ends, and threads of ours may still run then.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rerun-if-changed=build.rs");
}
