//! `margo kv dump` and `margo kv load`.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::time::Duration;

use margo::daemon::Failure;
use margo_provider_kv::KvClient;

use super::progress::KeyBar;
use super::{beginning, failed, lines, unwritten};
use crate::support::output;

/// Keys that are stored by one call.
const BATCH_KEYS: usize = 1000;

/// Bytes of keys and values that are stored by one call, if it is more than one key.
const BATCH_BYTES: usize = 4 << 20;

/// Prints keys and values.
pub(super) fn dump(kv: &KvClient, prefix: &OsStr, limit: Duration) -> Result<(), Failure> {
    let mut stdout = std::io::BufWriter::new(std::io::stdout().lock());
    let bar = KeyBar::new("printing", None);
    for entry in kv.entries(beginning(prefix), limit) {
        let entry = entry.map_err(failed)?;
        let line = lines::write(entry.key.0, entry.value.unwrap_or_default().0)
            .map_err(|error| Failure::new("cannot print a key", error))?;
        writeln!(stdout, "{line}").map_err(unwritten)?;
        bar.advance(1);
    }
    stdout.flush().map_err(unwritten)
}

/// Lines that are stored by one call.
#[derive(Default)]
struct Group {
    pairs: Vec<(Vec<u8>, Vec<u8>)>,
    bytes: usize,
    /// The number of the first line.
    first: usize,
}

/// Stores what a dump has.
pub(super) fn load(kv: &KvClient, file: &Path, limit: Duration) -> Result<(), Failure> {
    let called = match file == Path::new("-") {
        true => "standard input".to_owned(),
        false => file.display().to_string(),
    };
    let unread = |error: std::io::Error| Failure::new(format_args!("cannot read {called}"), error);
    let input: Box<dyn BufRead> = match file == Path::new("-") {
        true => Box::new(std::io::stdin().lock()),
        false => Box::new(BufReader::new(File::open(file).map_err(unread)?)),
    };
    let bar = KeyBar::new("storing", None);
    let mut group = Group { first: 1, ..Group::default() };
    let mut total = 0;
    for (number, line) in (1..).zip(input.lines()) {
        let line = line.map_err(unread)?;
        if line.trim().is_empty() {
            continue;
        }
        let (key, value) = lines::read(&line).map_err(|why| {
            Failure::Failed(output::printable(&format!("{called}, line {number}: {why}")))
        })?;
        if group.pairs.is_empty() {
            group.first = number;
        }
        group.bytes += key.len() + value.len();
        group.pairs.push((key, value));
        if group.pairs.len() >= BATCH_KEYS || group.bytes >= BATCH_BYTES {
            total += group.store(kv, &called, limit)?;
            bar.advance(group.pairs.len() as u64);
            group = Group::default();
        }
    }
    total += group.store(kv, &called, limit)?;
    drop(bar);
    output::line(format_args!("{} stored", output::count(total, "key")))
}

impl Group {
    fn store(&self, kv: &KvClient, called: &str, limit: Duration) -> Result<u64, Failure> {
        let at = |offset: usize, error| {
            let line = self.first + offset;
            Failure::new(format_args!("{called}, line {line}"), failed(error))
        };
        let batch = self.pairs.iter().fold(kv.batch(), |batch, (key, value)| batch.put(key, value));
        let outcomes = batch.run(limit).map_err(|error| at(0, error))?;
        for (offset, outcome) in outcomes.into_iter().enumerate() {
            outcome.map_err(|error| at(offset, error.into()))?;
        }
        Ok(self.pairs.len() as u64)
    }
}
