//! One transport's part of the demo: store, read back, compare, index, measure.

use std::fs;
use std::io::Read;
use std::sync::Arc;
use std::time::{Duration, Instant};

use margo::{Instance, ProviderHandle};
use margo_provider_blob::{BlobClient, Checksum};
use margo_provider_echo::EchoClient;
use margo_provider_kv::KvClient;

use super::bar::Bar;
use super::files::{File, Files};
use super::target::{ECHO, KEYS, STORE, Slot};
use crate::serve::pool_stats::{POOL_STATS, PoolRow};
use margo::daemon::Failure;

/// Calls whose time is measured, after some that are not.
const CALLS: usize = 2000;
const CALLS_WARM_UP: usize = 200;

/// Most keys of one batch.
const BATCH: usize = 1000;

/// Time for a call, whatever it moves; only a target that hangs takes longer.
const PATIENCE: Duration = Duration::from_secs(60);

/// The slowest transfer that is waited for, bytes per second.
const SLOWEST: u64 = 1 << 20;

/// How it went.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) files: u64,
    pub(super) bytes: u64,
    /// Time spent in calls that store, and in calls that read.
    pub(super) storing: Duration,
    pub(super) reading: Duration,
    /// The time to put the checksums into the key-value store, and that of each get, sorted.
    pub(super) putting: Duration,
    pub(super) gets: Vec<Duration>,
    /// The time of each echo RPC, sorted.
    pub(super) calls: Vec<Duration>,
    pub(super) pools: Vec<PoolRow>,
}

/// Everything that the ULT needs.
pub(super) struct Session {
    instance: Instance,
    blobs: BlobClient,
    keys: KvClient,
    echo: EchoClient,
    files: Arc<Files>,
    bar: Bar,
    slot: Arc<Slot>,
    /// Holds one file at a time; kept, so that no transfer pays for new memory.
    buffer: Vec<u8>,
}

/// A file that was stored.
struct Stored {
    len: usize,
    checksum: Checksum,
}

impl Session {
    pub(super) fn new(
        instance: &Instance,
        address: &str,
        files: Arc<Files>,
        bar: Bar,
        slot: Arc<Slot>,
    ) -> Result<Self, Failure> {
        let target =
            instance.lookup(address).map_err(|error| Failure::Failed(error.to_string()))?;
        Ok(Self {
            instance: instance.clone(),
            blobs: BlobClient::new(instance, ProviderHandle::new(target.clone(), STORE)),
            keys: KvClient::new(instance, ProviderHandle::new(target.clone(), KEYS)),
            echo: EchoClient::new(instance, ProviderHandle::new(target, ECHO)),
            files,
            bar,
            slot,
            buffer: Vec::new(),
        })
    }

    pub(super) fn run(mut self) -> Result<Outcome, Failure> {
        let files = self.files.clone();
        let (stored, storing) = self.store(&files)?;
        let reading = self.read_back(&files, &stored)?;
        let (putting, gets) = self.index(&files, &stored)?;
        Ok(Outcome {
            files: files.list.len() as u64,
            bytes: stored.iter().map(|file| file.len as u64).sum(),
            storing,
            reading,
            putting,
            gets,
            calls: self.measure_calls()?,
            pools: self.pools()?,
        })
    }

    fn store(&mut self, files: &Files) -> Result<(Vec<Stored>, Duration), Failure> {
        self.bar.begin("storing");
        let mut stored = Vec::with_capacity(files.list.len());
        let mut time = Duration::ZERO;
        for file in &files.list {
            self.slot.check()?;
            self.load(file)?;
            let begun = Instant::now();
            self.blobs
                .put(&file.blob, &self.buffer, limit(self.buffer.len()))
                .map_err(|error| Failure::new(doing("store", file), error))?;
            time += begun.elapsed();
            stored.push(Stored { len: self.buffer.len(), checksum: Checksum::of(&self.buffer) });
            self.bar.advance("storing", stored.len(), file.len);
        }
        Ok((stored, time))
    }

    /// Reads a file into the buffer.
    fn load(&mut self, file: &File) -> Result<(), Failure> {
        self.buffer.clear();
        fs::File::open(&file.path)
            .and_then(|mut source| source.read_to_end(&mut self.buffer))
            .map(drop)
            .map_err(|error| Failure::new(doing("read", file), error))
    }

    fn read_back(&mut self, files: &Files, stored: &[Stored]) -> Result<Duration, Failure> {
        self.bar.begin("reading back");
        let mut time = Duration::ZERO;
        for (index, (file, before)) in files.list.iter().zip(stored).enumerate() {
            self.slot.check()?;
            // So that a read that does nothing is noticed.
            self.buffer.clear();
            self.buffer.resize(before.len, 0xA5);
            let begun = Instant::now();
            let done = self
                .blobs
                .read(&file.blob, 0, &mut self.buffer, limit(before.len))
                .map_err(|error| Failure::new(doing("read back", file), error))?;
            time += begun.elapsed();
            if done.total != before.len as u64 {
                let detail = format!("{} bytes came back, {} were stored", done.total, before.len);
                return Err(Failure::new(doing("read back", file), detail));
            }
            let after = Checksum::of(&self.buffer);
            if after != before.checksum {
                let detail = format!("checksum {after} came back, {} was stored", before.checksum);
                return Err(Failure::new(doing("read back", file), detail));
            }
            self.bar.advance("reading back", index + 1, file.len);
        }
        Ok(time)
    }

    /// Puts the checksum of each file under its name into the key-value store, in batches that are
    /// on the disk when they return; gets them again, one by one, and compares.
    fn index(
        &self,
        files: &Files,
        stored: &[Stored],
    ) -> Result<(Duration, Vec<Duration>), Failure> {
        let failed = |error| Failure::new("cannot store the checksums", error);
        let sums: Vec<_> = stored.iter().map(|file| file.checksum.to_string()).collect();
        let pairs: Vec<_> = files.list.iter().map(|file| &*file.blob).zip(&sums).collect();
        let begun = Instant::now();
        for some in pairs.chunks(BATCH) {
            let batch = some.iter().fold(self.keys.batch().atomic(), |batch, (name, sum)| {
                batch.put(name.as_bytes(), sum.as_bytes())
            });
            batch.run(PATIENCE).map_err(failed)?;
        }
        let putting = begun.elapsed();
        let mut gets = Vec::with_capacity(sums.len());
        for (name, sum) in pairs {
            self.slot.check()?;
            let begun = Instant::now();
            let found = self.keys.get(name.as_bytes(), PATIENCE);
            gets.push(begun.elapsed());
            let found = found.map_err(|error| Failure::new("cannot get a checksum", error))?;
            if *found.value != *sum.as_bytes() {
                return Err(Failure::new("another checksum came back than was stored", name));
            }
        }
        gets.sort_unstable();
        Ok((putting, gets))
    }

    fn measure_calls(&self) -> Result<Vec<Duration>, Failure> {
        const TEXT: &str = "margo demo";
        let mut calls = Vec::with_capacity(CALLS);
        for call in 0..CALLS_WARM_UP + CALLS {
            let begun = Instant::now();
            let answer = self
                .echo
                .echo(TEXT, PATIENCE)
                .map_err(|error| Failure::new("cannot measure the latency", error))?;
            let time = begun.elapsed();
            if answer != TEXT {
                return Err(Failure::new("the echo is not what was sent", answer));
            }
            if call >= CALLS_WARM_UP {
                calls.push(time);
            }
        }
        calls.sort_unstable();
        Ok(calls)
    }

    fn pools(&self) -> Result<Vec<PoolRow>, Failure> {
        let target = ProviderHandle::from(self.blobs.target().addr().clone());
        self.instance
            .forward_timed(POOL_STATS, &target, &(), PATIENCE)
            .map_err(|error| Failure::new("cannot ask for pool statistics", error))
    }
}

fn limit(bytes: usize) -> Duration {
    PATIENCE + Duration::from_secs(bytes as u64 / SLOWEST)
}

fn doing(what: &str, file: &File) -> String {
    format!("cannot {what} {}", file.path.display())
}
