//! The fuzzers' entry point over its seed corpus (`fuzz/corpus`): what a fuzzer finds stays found
//! without a fuzzer.

use margo_config::fuzzing;

#[test]
fn what_fuzzers_found_does_no_harm() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/corpus/config_document");
    let files: Vec<_> = std::fs::read_dir(folder).expect("a corpus").collect();
    assert!(!files.is_empty());
    for file in files {
        let path = file.expect("an entry").path();
        fuzzing::document(&std::fs::read(path).expect("a file"));
    }
}

/// Mutations of these are up to `properties.rs`, which knows what a document looks like.
#[test]
fn the_samples_are_its_first_seeds() {
    for (name, text) in margo_config::samples() {
        assert!(margo_config::Config::from_json(text).is_ok(), "{name}");
        fuzzing::document(text.as_bytes());
    }
}
