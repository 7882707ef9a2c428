//! `enable_abt_profiling`, and profiles at run time.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::common::bounded;
use margo::{
    InitError, Instance, InstanceBuilder, ProviderHandle, Rpc, config::Config,
    errors::ProfileError, ult,
};
use serde_json::Value;

const TWICE: Rpc<u32, u32> = Rpc::new("twice");

fn builder(folder: &Path, enable: bool) -> InstanceBuilder {
    let mut config = Config { enable_abt_profiling: enable, ..Config::default() };
    config.argobots.profiling_dir = folder.to_str().unwrap().to_owned();
    InstanceBuilder::from_config(config)
}

/// A handler that yields and ends.
fn serve(own: &Instance) {
    own.serve(TWICE)
        .function(|n| {
            ult::yield_now();
            2 * n
        })
        .unwrap();
}

fn work(own: &Instance) {
    let target = ProviderHandle::from(own.self_addr());
    (0..10).for_each(|n| assert_eq!(own.forward(TWICE, &target, &n).unwrap(), 2 * n));
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn events(file: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(file).unwrap();
    let document: Value = serde_json::from_str(&text).unwrap();
    document["traceEvents"].as_array().unwrap().clone()
}

/// Runs of handlers, by how they ended.
fn runs(file: &Path, ended: &str) -> usize {
    let is_run = |event: &&Value| event["name"] == "twice" && event["args"]["ended"] == ended;
    events(file).iter().filter(is_run).count()
}

fn end(own: &Instance) {
    let own = own.clone();
    bounded("finalize", move || own.finalize_and_wait().unwrap());
}

#[test]
fn the_configuration_asks_for_a_file_at_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let own = builder(folder.path(), true).start().unwrap();
    assert!(own.config().enable_abt_profiling);
    serve(&own);
    work(&own);
    assert_eq!(files(folder.path()), [""; 0].map(PathBuf::from), "before the end");
    end(&own);
    let written = files(folder.path());
    assert_eq!(written.len(), 1, "{written:?}");
    let name = written[0].file_name().unwrap().to_str().unwrap();
    let pid = format!(".{}.", std::process::id());
    assert!(name.starts_with("margo-profile.") && name.contains(&pid), "{name}");
    assert!(name.ends_with(".abt.json"), "{name}");
    assert_eq!(runs(&written[0], "finish"), 10);
    // There may be nobody to yield to.
    assert!(runs(&written[0], "yield") <= 10);
    let tracks = events(&written[0]);
    assert!(tracks.iter().any(|e| e["args"]["name"] == "__primary__"), "no execution stream");
}

#[test]
fn without_the_key_nothing_is_recorded_or_written() {
    let folder = tempfile::tempdir().unwrap();
    let own = builder(folder.path(), false).start().unwrap();
    serve(&own);
    work(&own);
    assert_eq!(own.monitoring().write_profile().unwrap_err().kind(), ErrorKind::NotFound);
    // Somebody else can.
    drop(own.runtime().record(&ult::RecordOptions::new()).unwrap());
    end(&own);
    assert_eq!(files(folder.path()).len(), 0);
}

#[test]
fn a_profile_can_be_started_written_and_stopped_at_any_time() {
    let folder = tempfile::tempdir().unwrap();
    let own = builder(folder.path(), false).start().unwrap();
    serve(&own);
    own.monitoring().start_profiling().unwrap();
    own.monitoring().start_profiling().unwrap();
    work(&own);
    let file = own.monitoring().write_profile().unwrap();
    assert_eq!(files(folder.path()), std::slice::from_ref(&file));
    let first = events(&file).len();
    work(&own);
    own.monitoring().stop_profiling();
    own.monitoring().stop_profiling();
    work(&own);
    assert_eq!(own.monitoring().write_profile().unwrap(), file, "in place of the first one");
    assert!(events(&file).len() > first);
    // Of two rounds, not of three.
    assert!((10..=20).contains(&runs(&file, "finish")), "{}", runs(&file, "finish"));
    end(&own);
    assert_eq!(own.monitoring().start_profiling().unwrap_err(), ProfileError::Ended);
    assert_eq!(own.monitoring().write_profile().unwrap_err().kind(), ErrorKind::NotFound);
    // Only the configuration asks for a file at the end: what is there was written before.
    assert_eq!(files(folder.path()).len(), 1);
}

#[test]
fn a_child_has_the_execution_streams_and_the_profile_of_its_parent() {
    let folder = tempfile::tempdir().unwrap();
    let parent = builder(folder.path(), true).start().unwrap();
    let child = Instance::builder("na+tcp://127.0.0.1:0").parent(&parent).start().unwrap();
    let error = child.monitoring().start_profiling().unwrap_err();
    assert_eq!(error, ProfileError::Recording(ult::RecordError::AlreadyRecording));
    serve(&child);
    work(&child);
    end(&child);
    end(&parent);
    let written = files(folder.path());
    assert_eq!(written.len(), 1, "{written:?}");
    assert_eq!(runs(&written[0], "finish"), 10);
}

#[test]
fn a_file_that_cannot_be_written_is_an_error_and_does_not_stop_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let nowhere = folder.path().join("nowhere");
    std::fs::create_dir(&nowhere).unwrap();
    let own = builder(&nowhere, true).start().unwrap();
    // Meanwhile it goes away.
    std::fs::remove_dir(&nowhere).unwrap();
    serve(&own);
    work(&own);
    let error = own.monitoring().write_profile().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("nowhere/margo-profile."), "{error}");
    end(&own);
    assert!(own.is_finalized() && !nowhere.exists());
}

#[test]
fn a_profile_that_cannot_be_written_at_the_end_is_an_error_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let nowhere = folder.path().join("none");
    let error = builder(&nowhere, true).start().unwrap_err();
    let InitError::Destination { key, path, .. } = &error else { panic!("{error}") };
    assert_eq!((*key, path.parent()), ("argobots.profiling_dir", Some(&*nowhere)));
    let said = error.to_string();
    for part in ["argobots.profiling_dir: cannot write ", "none/margo-profile.", "No such file"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    // Nobody asks for the file.
    end(&builder(&nowhere, false).start().unwrap());
    // It is there by then, and the first one of this process has no number.
    std::fs::create_dir(&nowhere).unwrap();
    let own = builder(&nowhere, true).start().unwrap();
    assert_eq!(files(&nowhere), [""; 0].map(PathBuf::from), "nothing is left over");
    end(&own);
    assert_eq!(files(&nowhere), std::slice::from_ref(path));
}
