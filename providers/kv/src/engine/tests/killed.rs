//! Processes that are killed while they write.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use rustix::process::Signal;

use super::*;

/// Tells the child where its database is.
const PLACE: &str = "MARGO_TEST_KV_KILLED";

const WRITERS: u64 = 3;

#[test]
fn redb() {
    killed("redb", StoreKind::Redb);
}

#[test]
fn fjall() {
    killed("fjall", StoreKind::Fjall);
}

#[cfg(feature = "lmdb")]
#[test]
fn lmdb() {
    killed("lmdb", StoreKind::Lmdb);
}

fn killed(test: &str, kind: StoreKind) {
    if let Some(place) = std::env::var_os(PLACE) {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
        write_for_ever(&StoreConfig::new(kind, place));
    }
    let dir = tempfile::tempdir().unwrap();
    let config = StoreConfig::new(kind, dir.path().join("database"));
    drop(Database::open(&config).unwrap());
    let mut random = fastrand::Rng::with_seed(11);
    for _ in 0..times(5) {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &format!("engine::tests::killed::{test}"), "--nocapture"])
            .env(PLACE, config.path.as_ref().unwrap())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut acknowledged = [0; WRITERS as usize];
        let mut hear = |line: std::io::Result<String>| {
            // The test program's own output may stand before it; the last line may be cut.
            let line = line.unwrap();
            let said = line.split_once("made ").and_then(|(_, said)| said.split_once(' '));
            if let Some((writer, number)) = said
                && let Some(number) = number.strip_suffix('.')
            {
                acknowledged[writer.parse::<usize>().unwrap()] = number.parse().unwrap();
            }
        };
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        lines.by_ref().take(random.usize(0..100)).for_each(&mut hear);
        child.kill().unwrap();
        lines.for_each(hear);
        child.wait().unwrap();
        let database = Database::open(&config).unwrap();
        for (writer, acknowledged) in (0..).zip(acknowledged) {
            let made = rounds(&database, writer);
            assert!(made >= acknowledged, "of {acknowledged} rounds {made} are left");
        }
    }
}

/// In the child: several threads, so that commits have several batches.
fn write_for_ever(config: &StoreConfig) -> ! {
    let database = Database::open(config).unwrap();
    let out = Mutex::new(std::io::stdout());
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (database, out) = (&database, &out);
            scope.spawn(move || {
                for number in rounds(database, writer) + 1.. {
                    database.now(round(writer, number)).unwrap();
                    let mut out = out.lock().unwrap();
                    writeln!(out, "made {writer} {number}.").unwrap();
                    out.flush().unwrap();
                }
            });
        }
    });
    unreachable!("it goes on until it is killed")
}
