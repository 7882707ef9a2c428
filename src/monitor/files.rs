//! The files of the default monitor.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde_json::Value;

use super::api;
use crate::instance::Inner;

/// Writes those that the configuration asks for, or both if it has switched nothing on.
pub(super) fn write(inner: &Inner) -> io::Result<Vec<PathBuf>> {
    let options = inner.resolved.monitor.clone().unwrap_or_default();
    let (stats, series) = api::dump(inner, false);
    let prefix = &options.filename_prefix;
    let number = *inner.monitoring.shared.file_number.get_or_init(|| number(prefix));
    let wanted = [
        (!options.statistics.disable, "stats", stats, options.statistics.pretty_json),
        (!options.time_series.disable, "series", series, options.time_series.pretty_json),
    ];
    let mut written = Vec::new();
    let mut result = Ok(());
    // One that cannot be written is no reason to go without the other one.
    for (_, kind, document, pretty) in wanted.into_iter().filter(|(wanted, ..)| *wanted) {
        let path = path(prefix, number, kind);
        match replace(&path, &document, pretty) {
            Ok(()) => written.push(path),
            Err(error) => result = Err(error),
        }
    }
    result.map(|()| written)
}

/// `<prefix>.<host>.<pid>.<kind>.json`, as in C. Further instances of a process, which overwrite
/// each other's there, have a number before the kind.
fn path(prefix: &str, number: u32, kind: &str) -> PathBuf {
    let (host, process) = (hostname(), std::process::id());
    let number = if number == 0 { String::new() } else { format!("{number}.") };
    PathBuf::from(format!("{prefix}.{host}.{process}.{number}{kind}.json"))
}

/// How many instances of this process have written files with that prefix before.
fn number(prefix: &str) -> u32 {
    static USED: Mutex<BTreeMap<String, u32>> = Mutex::new(BTreeMap::new());
    let mut used = USED.lock().unwrap_or_else(PoisonError::into_inner);
    let next = used.entry(prefix.to_owned()).or_default();
    *next += 1;
    *next - 1
}

pub(super) fn hostname() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Writes beside it, then gives it the name: nobody sees half of it.
fn replace(path: &Path, document: &Value, pretty: bool) -> io::Result<()> {
    let mut text = match pretty {
        true => serde_json::to_string_pretty(document),
        false => serde_json::to_string(document),
    }?;
    text.push('\n');
    let mut beside = path.as_os_str().to_owned();
    beside.push(".part");
    let beside = PathBuf::from(beside);
    let done = std::fs::write(&beside, text).and_then(|()| std::fs::rename(&beside, path));
    done.map_err(|error| {
        // It may not be there.
        let _ = std::fs::remove_file(&beside);
        io::Error::new(error.kind(), format!("{}: {error}", path.display()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_do_not_overwrite_each_others_files() {
        let numbers = ["a prefix", "a prefix", "another one"].map(number);
        assert_eq!(numbers, [0, 1, 0]);
        let names = numbers.map(|number| path("p", number, "stats").display().to_string());
        assert!(names[1].ends_with(".1.stats.json") && !names[0].contains(".0."), "{names:?}");
    }

    #[test]
    fn a_file_is_replaced_as_a_whole_and_an_error_names_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("x.json");
        replace(&file, &serde_json::json!({ "a": 1 }), false).unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "{\"a\":1}\n");
        replace(&file, &serde_json::json!([]), true).unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "[]\n");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left over");
        let nowhere = folder.path().join("none").join("x.json");
        let error = replace(&nowhere, &Value::Null, false).unwrap_err();
        assert!(error.to_string().contains("x.json"), "{error}");
    }
}
