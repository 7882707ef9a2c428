//! Checks of any document, for fuzzers and for the test that replays their corpus.
//!
//! It takes any bytes. It panics if a rule does not hold, and must not hang nor allocate without
//! bound.

use crate::{Config, ConfigFlags, Errors, Pool, Xstream};

/// As a document, and as the descriptions of a pool and of an xstream.
pub fn document(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    are_inside(text, Pool::from_json(text).err());
    are_inside(text, Xstream::from_json(text).err());
    // One that names another place for something may be wrong there.
    let _ = Config::check(text, &|_| Some(text.to_owned()));
    match Config::check(text, &no_env) {
        Ok((effective, _)) => {
            assert!(Config::from_json(text).is_ok(), "checked and not read");
            is_its_own_effect(text, &effective);
        }
        Err(errors) => {
            assert!(Config::from_json(text).is_err(), "read and not checked");
            are_inside(text, Some(errors));
        }
    }
}

fn no_env(_: &str) -> Option<String> {
    None
}

/// The configuration in effect is printed in three ways, each of which is accepted and means the
/// same.
fn is_its_own_effect(text: &str, effective: &Config) {
    let named = ConfigFlags { use_names: true, ..ConfigFlags::default() };
    let (by_name, _) = Config::check_as(text, &no_env, named).expect("it was accepted");
    for printed in [effective.to_json(), effective.to_json_pretty(), by_name.to_json()] {
        let again = Config::check(&printed, &no_env);
        let (again, _) = again.unwrap_or_else(|errors| panic!("{errors}: {printed}"));
        assert_eq!(again, *effective, "{printed}");
    }
    let read = Config::from_json(&effective.to_json()).expect("it was accepted");
    assert_eq!(read, *effective);
}

/// Each error has a place in the text.
fn are_inside(text: &str, errors: Option<Errors>) {
    for error in errors.iter().flatten() {
        let (Some(line), Some(column)) = (error.line, error.column) else {
            panic!("no place: {error}");
        };
        let found = text.split('\n').nth(line - 1).map_or(0, |line| line.chars().count());
        assert!((1..=found + 1).contains(&column), "{error}");
    }
}
