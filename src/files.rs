//! Files that an instance writes: what they are called, and how nobody sees half of one.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// `<prefix>.<host>.<pid>.<kind>`, as in C. Further instances of a process, which overwrite each
/// other's there, have a number before the kind.
pub(crate) fn path(prefix: &str, number: u32, kind: &str) -> PathBuf {
    let (host, process) = (hostname(), std::process::id());
    let number = if number == 0 { String::new() } else { format!("{number}.") };
    PathBuf::from(format!("{prefix}.{host}.{process}.{number}{kind}"))
}

/// How many instances of this process have written files with that prefix before.
pub(crate) fn number(prefix: &str) -> u32 {
    static USED: Mutex<BTreeMap<String, u32>> = Mutex::new(BTreeMap::new());
    let mut used = USED.lock().unwrap_or_else(PoisonError::into_inner);
    let next = used.entry(prefix.to_owned()).or_default();
    *next += 1;
    *next - 1
}

pub(crate) fn hostname() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Writes beside it, then gives it the name: nobody sees half of it.
///
/// # Errors
///
/// Those of the system, and of `write`, with the file's name.
pub(crate) fn replace(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".part");
    let beside = PathBuf::from(beside);
    let write_all = |file: File| {
        let mut out = BufWriter::new(file);
        write(&mut out)?;
        out.into_inner().map(drop).map_err(io::IntoInnerError::into_error)
    };
    let done = File::create(&beside).and_then(write_all);
    done.and_then(|()| std::fs::rename(&beside, path)).map_err(|error| {
        // It may not be there.
        let _ = std::fs::remove_file(&beside);
        io::Error::new(error.kind(), format!("{}: {error}", path.display()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn instances_do_not_overwrite_each_others_files() {
        let numbers = ["a prefix", "a prefix", "another one"].map(number);
        assert_eq!(numbers, [0, 1, 0]);
        let names = numbers.map(|number| path("p", number, "stats.json").display().to_string());
        assert!(names[1].ends_with(".1.stats.json") && !names[0].contains(".0."), "{names:?}");
    }

    #[test]
    fn a_file_is_replaced_as_a_whole_and_an_error_names_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("x.json");
        replace(&file, |out| out.write_all(b"first, and longer")).unwrap();
        replace(&file, |out| out.write_all(b"second")).unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "second");
        let error = replace(&file, |out| {
            out.write_all(b"half")?;
            Err(io::Error::other("no more"))
        });
        assert!(error.unwrap_err().to_string().ends_with("x.json: no more"));
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "second");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left over");
        let nowhere = folder.path().join("none").join("x.json");
        let error = replace(&nowhere, |_| Ok(())).unwrap_err();
        assert!(error.to_string().contains("x.json"), "{error}");
    }
}
