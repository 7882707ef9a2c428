//! Files that an instance writes: their names, and how no reader sees half of one.

use std::collections::BTreeMap;
use std::fs::File;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use na::file_limit;

/// A file that is written, through a buffer.
pub(crate) type Out = BufWriter<Growing>;

/// A file to write to. At the limit on file sizes (`ulimit -f`) that is an error, which names it,
/// and not the end of the process by SIGXFSZ.
#[derive(Debug)]
pub(crate) struct Growing(File);

impl Growing {
    /// `file`, without a buffer.
    pub(crate) fn new(file: File) -> Self {
        Self(file)
    }

    /// `file`, with the buffer that makes few writes of many.
    pub(crate) fn buffered(file: File) -> Out {
        BufWriter::new(Self::new(file))
    }
}

impl Write for Growing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        file_limit::grow(|| self.0.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// `<prefix>.<host>.<pid>.<kind>`, as in C. Further instances of a process, which overwrite each
/// other's there, have a number before the kind.
pub(crate) fn path(prefix: &str, number: u32, kind: &str) -> PathBuf {
    let (host, process) = (hostname(), std::process::id());
    let number = if number == 0 { String::new() } else { format!("{number}.") };
    PathBuf::from(format!("{prefix}.{host}.{process}.{number}{kind}"))
}

/// How many instances of this process have written files with that prefix before, however they
/// spell its folder.
pub(crate) fn number(prefix: &str) -> u32 {
    static USED: Mutex<BTreeMap<(PathBuf, String), u32>> = Mutex::new(BTreeMap::new());
    let (folder, name) = prefix.rsplit_once('/').map_or((".", prefix), |(folder, name)| {
        let folder = if folder.is_empty() { "/" } else { folder };
        (folder, name)
    });
    // One that is not there yet, or cannot be asked, counts as it is spelled.
    let folder = Path::new(folder).canonicalize().unwrap_or_else(|_| folder.into());
    let mut used = USED.lock().unwrap_or_else(PoisonError::into_inner);
    let next = used.entry((folder, name.to_owned())).or_default();
    *next += 1;
    *next - 1
}

pub(crate) fn hostname() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Writes a file beside it, then gives that its name, so that no reader sees half of it. Several
/// writers at once each have a file of their own beside it; the last one that is ready has the
/// name.
///
/// # Errors
///
/// Those of the system, and of `write`, with the file's name.
pub(crate) fn replace(
    path: &Path,
    write: impl FnOnce(&mut Out) -> io::Result<()>,
) -> io::Result<()> {
    replace_by(path, &beside(path), write)
}

fn replace_by(
    path: &Path,
    beside: &Path,
    write: impl FnOnce(&mut Out) -> io::Result<()>,
) -> io::Result<()> {
    let write_all = |file: File| {
        let mut out = Growing::buffered(file);
        write(&mut out)?;
        close(out)?;
        std::fs::rename(beside, path)
    };
    let written = |file| {
        // It may not be there.
        write_all(file).inspect_err(|_| _ = std::fs::remove_file(beside))
    };
    // What is there already is somebody else's.
    File::create_new(beside)
        .and_then(written)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

/// Ends a file: all of it is on its disk. Some file systems, over a network or with a quota, say
/// only then that there is no room for what they have taken; that dropping it does not tell.
pub(crate) fn close(out: Out) -> io::Result<()> {
    out.into_inner().map_err(io::IntoInnerError::into_error)?.0.sync_data()
}

/// Looks whether [`replace`] could make that file, and leaves nothing behind.
///
/// # Errors
///
/// Those of the system, with the file's name.
pub(crate) fn probe(path: &Path) -> io::Result<()> {
    let beside = beside(path);
    File::create_new(&beside)
        .and_then(|_| std::fs::remove_file(&beside))
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

/// Returns a name that no other writer has, in whatever process or container, or on whatever host.
fn beside(path: &Path) -> PathBuf {
    // Keys that the system has drawn at random, and others at each call. A child that was forked
    // off goes on with those of its parent.
    let drawn = RandomState::new().build_hasher().finish();
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}.{drawn:016x}.part", std::process::id()));
    PathBuf::from(beside)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_do_not_overwrite_each_others_files() {
        let numbers = ["a prefix", "a prefix", "another one"].map(number);
        assert_eq!(numbers, [0, 1, 0]);
        let names = numbers.map(|number| path("p", number, "stats.json").display().to_string());
        assert!(names[1].ends_with(".1.stats.json") && !names[0].contains(".0."), "{names:?}");
    }

    #[test]
    fn a_folder_is_the_same_however_it_is_spelled() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().display();
        let spelled = ["", "/.", "/"].map(|more| number(&format!("{folder}{more}/x")));
        assert_eq!(spelled, [0, 1, 2]);
        assert_eq!(number(&format!("{folder}/")), 0, "another name");
        let here = ["in this folder", "./in this folder", ".//in this folder"].map(number);
        assert_eq!(here, [0, 1, 2]);
        assert_eq!(["/in the root", "/./in the root"].map(number), [0, 1]);
        let nowhere = format!("{folder}/nowhere/x");
        assert_eq!([&nowhere, &nowhere].map(|prefix| number(prefix)), [0, 1]);
    }

    #[test]
    fn of_two_writers_at_once_each_writes_a_whole_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("x.json");
        replace(&file, |outer| {
            outer.write_all(b"begun first, ")?;
            outer.flush()?;
            replace(&file, |inner| inner.write_all(b"begun last"))?;
            assert_eq!(std::fs::read_to_string(&file)?, "begun last");
            outer.write_all(b"ready last")
        })
        .unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "begun first, ready last");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left over");
    }

    /// Run again as a process of its own.
    #[test]
    fn naming_process() {
        if std::env::var_os(NAMES).is_some() {
            println!("name: {}", beside(Path::new("x")).display());
        }
    }

    const NAMES: &str = "MARGO_TEST_NAMES_A_FILE";

    /// One of the tests here, alone in a process of its own.
    fn alone(test: &str, variable: &str, value: &Path) -> std::process::Output {
        std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &format!("support::files::tests::{test}"), "--nocapture"])
            .env(variable, value)
            .output()
            .unwrap()
    }

    #[test]
    fn two_processes_do_not_write_to_the_same_file() {
        let name = || {
            let run = alone("naming_process", NAMES, Path::new("1"));
            let said = String::from_utf8(run.stdout).unwrap();
            said.split_once("name: ").unwrap().1.split_whitespace().next().unwrap().to_owned()
        };
        assert_ne!(name(), name());
    }

    const LIMITED: &str = "MARGO_TEST_LIMITED_FILES";

    #[test]
    fn at_the_limit_on_file_sizes_there_is_an_error_and_no_signal() {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        const LIMIT: u64 = 64 << 10;
        let Some(folder) = std::env::var_os(LIMITED) else {
            let folder = tempfile::tempdir().unwrap();
            let test = "at_the_limit_on_file_sizes_there_is_an_error_and_no_signal";
            let run = alone(test, LIMITED, folder.path());
            let text = String::from_utf8_lossy(&run.stdout);
            assert!(run.status.success() && text.contains("1 passed"), "{run:?}");
            return;
        };
        let limit = Rlimit { current: Some(LIMIT), ..getrlimit(Resource::Fsize) };
        setrlimit(Resource::Fsize, limit).unwrap();
        let file = Path::new(&folder).join("x.json");
        let all = vec![7; LIMIT as usize];
        replace(&file, |out| out.write_all(&all)).unwrap();
        let error = replace(&file, |out| {
            out.write_all(b"one more")?;
            out.write_all(&all)
        });
        let error = error.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        for part in ["x.json: ", "65536 bytes", "`ulimit -f`"] {
            assert!(error.to_string().contains(part), "{part}: {error}");
        }
        assert_eq!(std::fs::metadata(&file).unwrap().len(), LIMIT, "as before");
        assert_eq!(std::fs::read_dir(folder).unwrap().count(), 1, "nothing is left over");
    }

    #[test]
    fn what_has_the_name_beside_it_already_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let [file, beside, other] = ["x", "x.part", "other"].map(|name| folder.path().join(name));
        std::fs::write(&other, "precious").unwrap();
        std::os::unix::fs::symlink(&other, &beside).unwrap();
        let error = replace_by(&file, &beside, |out| out.write_all(b"new")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read_to_string(&beside).unwrap(), "precious");
        assert!(!file.exists());
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

    #[test]
    fn a_file_ends_when_its_disk_has_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = File::create(folder.path().join("x")).unwrap();
        close(Growing::buffered(file)).unwrap();
        // It takes everything, and stores nothing.
        let mut nowhere = Growing::buffered(File::create("/dev/null").unwrap());
        nowhere.write_all(b"lost").unwrap();
        assert_eq!(close(nowhere).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn a_probe_leaves_what_is_there_and_names_what_cannot_be() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("x.json");
        probe(&file).unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left over");
        std::fs::write(&file, "old").unwrap();
        probe(&file).unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "old");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left over");
        let error = probe(&file.join("y.json")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotADirectory);
        assert!(error.to_string().contains("x.json/y.json: "), "{error}");
    }
}
