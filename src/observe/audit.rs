//! The audit file (`margo.security.audit`): a line of JSON for each refusal by the rules, for each
//! session with a peer that begins, ends or does not come about, and for each administrative act.
//!
//! A record is made only if there is room in its second, and handed to a thread that writes
//! (`queue.rs`): nobody waits for the disk. How many records were left out is a
//! record, too. A record says who asked for what, and no more: arguments and keys never come here.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use margo_config::AuditOptions;
use na::{SessionChange, SessionNews};
use rustix::fs::{FlockOperation, flock};
use serde::Serialize;
use ult::Eventual;

use crate::observe::queue::{Sender, Writer};
use crate::support::files::Growing;
use crate::support::log::{Log, log};

/// Records that wait for the thread, at most.
const QUEUE_MAX: usize = 4096;

/// The audit file of an instance.
pub(crate) struct Audit {
    sender: Sender<AuditRecord>,
    path: PathBuf,
    per_sec: u64,
    /// The second since the epoch, in the upper half, and how many records it has.
    second: AtomicU64,
}

/// A line of the file.
#[derive(Debug, Serialize)]
pub(crate) struct AuditRecord {
    /// Milliseconds since the epoch.
    unix_msec: u64,
    #[serde(flatten)]
    event: AuditEvent,
}

#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum AuditEvent {
    /// The instance begins.
    Started { address: String, process: u32 },
    /// The rules have refused a request.
    Refused {
        reason: &'static str,
        why: String,
        rpc: &'static str,
        provider: u16,
        caller: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        on_behalf_of: Option<String>,
        origin: String,
    },
    /// Messages can be exchanged with a peer; `dialed`: which this instance has connected to.
    SessionBegun { dialed: bool, transport: &'static str, principal: String, address: String },
    /// A session that had begun is over.
    SessionEnded { why: String, transport: &'static str, principal: String, address: String },
    /// A connection has come to nothing: a peer was not let in, or not believed.
    SessionRefused { why: String, transport: &'static str, principal: String, address: String },
    /// A peer has asked for the end of the instance.
    Shutdown { done: bool, caller: String, origin: String },
    /// A peer has asked for a change of the instance; `why`: the reason that it was not made.
    Admin { act: String, done: bool, why: Option<String>, caller: String, origin: String },
    /// So many records before this one were too many.
    LeftOut { count: u64 },
    /// The instance has ended.
    Ended {},
}

impl Audit {
    /// Opens the file of an instance that is about to open its network.
    pub(crate) fn start(options: &AuditOptions, log: Log) -> Result<Self, (PathBuf, io::Error)> {
        let path = PathBuf::from(&options.file);
        let AuditOptions { rotate_bytes, keep, .. } = *options;
        let started = Rotated::open(path.clone(), rotate_bytes, keep).and_then(|file| {
            let (lines, lost) = (Vec::new(), 0);
            let (has_failed, has_begun) = (false, false);
            let writer = AuditWriter { file, lines, lost, has_begun, has_failed, log };
            Sender::start("margo-audit", QUEUE_MAX, writer)
        });
        let sender = started.map_err(|error| (path.clone(), error))?;
        let (per_sec, second) = (options.records_per_sec.into(), AtomicU64::new(0));
        Ok(Self { sender, path, per_sec, second })
    }

    /// Records that the instance begins, with that address.
    pub(crate) fn started(&self, address: &str) {
        let (address, process) = (address.to_owned(), std::process::id());
        self.record(|| AuditEvent::Started { address, process });
    }

    /// Records a change in the session with a peer.
    pub(crate) fn session(&self, news: &SessionNews<'_>) {
        self.record(|| {
            let transport = news.transport;
            let (principal, address) = (news.principal.to_string(), news.address.to_owned());
            match news.change {
                SessionChange::Begun { dialed } => {
                    AuditEvent::SessionBegun { dialed, transport, principal, address }
                }
                SessionChange::Ended { reason } => {
                    let why = reason.to_owned();
                    AuditEvent::SessionEnded { why, transport, principal, address }
                }
                SessionChange::Refused { reason } => {
                    let why = reason.to_owned();
                    AuditEvent::SessionRefused { why, transport, principal, address }
                }
            }
        });
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Records an event, unless there were too many in this second. Never waits.
    pub(crate) fn record(&self, event: impl FnOnce() -> AuditEvent) {
        let unix_msec = unix_msec();
        if self.has_room(unix_msec / 1000) {
            self.sender.send(AuditRecord { unix_msec, event: event() });
        } else {
            self.sender.lose();
        }
    }

    fn has_room(&self, now: u64) -> bool {
        let count = |second: u64| match second >> 32 == now {
            true if second & u64::from(u32::MAX) >= self.per_sec => None,
            true => Some(second + 1),
            false => Some(now << 32 | 1),
        };
        self.second.fetch_update(Ordering::Relaxed, Ordering::Relaxed, count).is_ok()
    }

    /// Has what there is written, and the file ended; what tells that it is.
    pub(crate) fn close(&self) -> &Eventual<()> {
        self.sender.close()
    }
}

fn unix_msec() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_millis().try_into().unwrap_or(u64::MAX)
}

/// A file that makes room for a new one when it is long.
struct Rotated {
    path: PathBuf,
    out: Growing,
    bytes: u64,
    rotate_bytes: u64,
    keep: u32,
}

impl Rotated {
    fn open(path: PathBuf, rotate_bytes: u64, keep: u32) -> io::Result<Self> {
        let file = open(&path)?;
        let bytes = file.metadata()?.len();
        Ok(Self { path, out: Growing::new(file), bytes, rotate_bytes, keep })
    }

    /// Writes whole lines, to a new file if this one becomes too long. An error leaves some out.
    fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        let len = lines.len() as u64;
        if self.bytes > 0 && self.bytes + len > self.rotate_bytes {
            self.rotate()?;
        }
        self.bytes += len;
        self.out.write_all(lines)
    }

    fn rotate(&mut self) -> io::Result<()> {
        let name = |number: u32| match number {
            0 => self.path.clone(),
            number => {
                let mut name = self.path.clone().into_os_string();
                name.push(format!(".{number}"));
                name.into()
            }
        };
        for number in (0..self.keep).rev() {
            match std::fs::rename(name(number), name(number + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        if self.keep == 0 {
            std::fs::remove_file(&self.path)?;
        }
        // If no new one can be made this one goes on under its new name.
        self.bytes = 0;
        self.out = Growing::new(open(&self.path)?);
        Ok(())
    }
}

/// Opens a file to add to, which only its owner may read, and which no other instance adds to.
fn open(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Err(rustix::io::Errno::AGAIN) => {
            Err(io::Error::other("another instance writes to this file"))
        }
        locked => Ok(locked.map(|()| file)?),
    }
}

struct AuditWriter {
    file: Rotated,
    /// Lines, whole ones, that are not written yet.
    lines: Vec<u8>,
    /// Records that were lost, as far as they are told of.
    lost: u64,
    /// It has a record, so that the instance has begun.
    has_begun: bool,
    has_failed: bool,
    log: Log,
}

impl AuditWriter {
    fn line(&mut self, unix_msec: u64, event: AuditEvent) {
        // What is written to memory always fits.
        let _ = serde_json::to_writer(&mut self.lines, &AuditRecord { unix_msec, event });
        self.lines.push(b'\n');
        // So that no file is much longer than it may be.
        if self.lines.len() as u64 >= self.file.rotate_bytes / 4 {
            self.write();
        }
    }

    fn write(&mut self) {
        if self.lines.is_empty() {
            return;
        }
        let written = self.file.write(&self.lines);
        self.lines.clear();
        let path = self.file.path.display();
        match written {
            Err(error) if !self.has_failed => {
                self.has_failed = true;
                log!(self.log, ERROR, %path, %error, "the audit file cannot be written");
            }
            Ok(()) if self.has_failed => {
                self.has_failed = false;
                log!(self.log, WARN, %path, "the audit file is written again");
            }
            _ => {}
        }
        if self.has_failed {
            // A line that was cut off is by itself.
            self.lines.push(b'\n');
        }
    }
}

impl Writer for AuditWriter {
    type Record = AuditRecord;

    fn begin(&mut self) {}

    fn record(&mut self, record: AuditRecord) {
        self.has_begun = true;
        self.line(record.unix_msec, record.event);
    }

    fn lost(&mut self, lost: u64) {
        if lost > self.lost {
            let count = lost - self.lost;
            self.lost = lost;
            self.line(unix_msec(), AuditEvent::LeftOut { count });
        }
    }

    fn flush(&mut self) {
        self.write();
    }

    fn end(mut self) {
        if self.has_begun {
            self.line(unix_msec(), AuditEvent::Ended {});
            self.write();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(file: &Path, more: impl FnOnce(&mut AuditOptions)) -> AuditOptions {
        let mut options =
            AuditOptions { file: file.to_str().unwrap().to_owned(), ..AuditOptions::default() };
        more(&mut options);
        options
    }

    fn start(options: &AuditOptions) -> Audit {
        let audit = Audit::start(options, Log::default()).unwrap_or_else(|(_, error)| {
            panic!("{error}");
        });
        audit.started("na+sim://here");
        audit
    }

    fn refused(why: &str) -> AuditEvent {
        let (caller, origin) = ("user 7".to_owned(), "a peer\"\n".to_owned());
        let why = why.to_owned();
        let (reason, rpc, provider, on_behalf_of) = ("not_allowed", "get", 3, None);
        AuditEvent::Refused { reason, why, rpc, provider, caller, on_behalf_of, origin }
    }

    fn lines(path: &Path) -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(path).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn each_record_is_a_line_and_what_is_too_much_is_counted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        let options = options(&path, |options| options.records_per_sec = 2);
        for _ in 0..2 {
            let audit = start(&options);
            (0..10).for_each(|_| audit.record(|| refused("no rule allows it")));
            audit.close().wait();
        }
        let all = lines(&path);
        let of = |event: &str| all.iter().filter(|line| line["event"] == event).collect::<Vec<_>>();
        assert_eq!((of("started").len(), of("ended").len()), (2, 2), "it goes on");
        let left_out = of("left_out");
        let left_out: u64 = left_out.iter().map(|line| line["count"].as_u64().unwrap()).sum();
        assert_eq!(of("refused").len() as u64 + left_out, 20);
        assert!(left_out > 0, "not each has a second of its own");
        let first = of("refused")[0];
        assert!(first["unix_msec"].as_u64().unwrap() > 1_600_000_000_000);
        assert_eq!((&first["rpc"], &first["origin"]), (&"get".into(), &"a peer\"\n".into()));
        let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&path).unwrap());
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_long_file_makes_room_and_some_are_kept() {
        for keep in [0, 2] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("audit.jsonl");
            let mut file = Rotated::open(path.clone(), 100, keep).unwrap();
            for n in 0..5_u8 {
                file.write(&[b'0' + n; 60]).unwrap();
            }
            file.write(b"more").unwrap();
            let mut there: Vec<_> = std::fs::read_dir(folder.path())
                .unwrap()
                .map(|entry| std::fs::read_to_string(entry.unwrap().path()).unwrap())
                .map(|text| text[text.len() - 5..].to_owned())
                .collect();
            there.sort();
            let expected = ["22222", "33333", "4more"];
            assert_eq!(there, expected[2 - keep as usize..]);
        }
    }

    #[test]
    fn two_instances_do_not_write_to_one_file() {
        let folder = tempfile::tempdir().unwrap();
        let options = options(&folder.path().join("audit.jsonl"), |_| {});
        let first = start(&options);
        let (_, error) = Audit::start(&options, Log::default()).err().unwrap();
        assert!(error.to_string().contains("another instance"), "{error}");
        first.close().wait();
        drop(start(&options));
    }

    #[test]
    fn a_disk_that_is_full_costs_records_and_nothing_else() {
        let audit = start(&options(Path::new("/dev/full"), |_| {}));
        (0..100).for_each(|_| audit.record(|| refused("x")));
        audit.close().wait();
    }
}
