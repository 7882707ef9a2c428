//! Rows `services.blob.*`: a blob provider over files, one blob of a gibibyte in pieces of 1 MiB.
//!
//! - `services.blob.{sm,tcp}.write`: bytes per second of 4 ULTs at the origin, which write the next
//!   piece over what was there. The data ends in the page cache of the target.
//! - `services.blob.{sm,tcp}.write.persist`: the same, and at the end of each gibibyte one call
//!   that returns when it is on the disk.
//! - `services.blob.{sm,tcp}.read`: reads of the same pieces, which are in the page cache.
//!
//! Each moves over the network, is covered by checksums and goes through a thread for blocking
//! work; the target has one core for all of that. Floor, alternating, on the origin's core: system
//! calls alone, for a file of as many bytes in the same folder, in the same pieces, with one
//! `fdatasync` at the end where the row has `persist`. The folder is that for temporary files. The
//! memory of the callers is that of vectors, that of the floor begins with a page.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use margo::{Access, Exposed, Instance, ProviderHandle, ProviderId};
use margo_provider_blob::{BlobClient, BlobConfig, BlobProvider, Extent};
use ult::PoolRef;

use crate::base::{Doing, Effort, Figure, Result, ensure};
use crate::floors::memcpy::touched;
use crate::floors::transport::Transport;
use crate::process::Context;
use crate::rows::rpc::pair::{Pair, Settings, WaitPolicy, serve};
use crate::rows::ult::on_ult::{join_each, on_ult};

const PROVIDER: ProviderId = ProviderId::new(1);

/// Bytes of the blob, and of the file of the floor.
const BYTES: u64 = 1 << 30;

/// Bytes of a call, and of a system call of the floor.
const PIECE: usize = 1 << 20;

/// Bytes of a page.
const PAGE: usize = 4096;

/// ULTs that call.
const CALLERS: usize = 4;

const NAME: &str = "blob";

/// For a call.
const LIMIT: Duration = Duration::from_secs(60);

/// The use that a row makes of the blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    /// Writes it.
    Write,
    /// Writes it, and has it on the disk.
    WriteAndPersist,
    /// Reads it.
    Read,
}

/// The subject of a row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spec {
    pub(crate) transport: Transport,
    pub(crate) work: Work,
}

impl Spec {
    fn settings(self) -> Settings {
        // The threads that use the file need the core.
        Settings { transport: self.transport, patience: WaitPolicy::Default }
    }
}

/// The peer's part: serves blobs in a folder.
///
/// # Errors
///
/// When margo or the provider does not start.
pub(crate) fn peer(_context: &Context, spec: Spec, folder: &Path) -> Result<()> {
    let mut kept = None;
    serve(
        spec.settings(),
        |instance| {
            let provider = instance.provider(PROVIDER, &instance.layout().rpc_pool());
            let running = BlobProvider::start(provider, &BlobConfig::new(folder));
            kept = Some(running.doing("starting the provider")?);
            Ok(())
        },
        || Ok(()),
    )?;
    drop(kept);
    Ok(())
}

/// Calls `piece` for the offset of each piece, on several ULTs that take the next one, and then
/// `end`. Returns how long that takes. On a ULT.
fn pass<F>(
    pool: &PoolRef,
    bytes: u64,
    piece: &Arc<F>,
    end: impl FnOnce() -> Result<()>,
) -> Result<Duration>
where
    F: Fn(usize, u64) -> Result<()> + Send + Sync + 'static,
{
    let (next, begin) = (Arc::new(AtomicU64::new(0)), Instant::now());
    let callers = (0..CALLERS).map(|caller| {
        let (next, piece) = (next.clone(), piece.clone());
        pool.spawn(move || {
            loop {
                let offset = next.fetch_add(PIECE as u64, Ordering::Relaxed);
                if offset >= bytes {
                    return Ok(());
                }
                piece(caller, offset)?;
            }
        })
    });
    join_each(callers.collect::<Result<Vec<_>, _>>()?)?;
    end()?;
    Ok(begin.elapsed())
}

/// The file of the floor.
struct Floor {
    file: File,
    /// Memory for a piece, which begins with a page: in others copies may be slower.
    buffer: Vec<u8>,
    begin: usize,
    bytes: u64,
}

impl Floor {
    fn new(folder: &Path, bytes: u64) -> Result<Self> {
        let file = File::create_new(folder.join("floor")).doing("making the file of the floor")?;
        let buffer = touched(PIECE + PAGE);
        let begin = buffer.as_ptr().addr().next_multiple_of(PAGE) - buffer.as_ptr().addr();
        let floor = Self { file, buffer, begin, bytes };
        floor.write()?;
        Ok(floor)
    }

    fn offsets(&self) -> impl Iterator<Item = u64> + use<> {
        (0..self.bytes).step_by(PIECE)
    }

    fn write(&self) -> Result<()> {
        let data = &self.buffer[self.begin..self.begin + PIECE];
        let write = |offset| self.file.write_all_at(data, offset).doing("writing a file");
        self.offsets().try_for_each(write)
    }

    fn pass(&mut self, work: Work) -> Result<Duration> {
        let begin = Instant::now();
        match work {
            Work::Write => self.write()?,
            Work::WriteAndPersist => {
                self.write()?;
                self.file.sync_data().doing("syncing a file")?;
            }
            Work::Read => {
                for offset in self.offsets() {
                    let into = &mut self.buffer[self.begin..self.begin + PIECE];
                    self.file.read_exact_at(into, offset).doing("reading a file")?;
                }
            }
        }
        Ok(begin.elapsed())
    }
}

/// Calls by the origin, each of whose ULTs has a buffer.
struct Origin {
    client: BlobClient,
    buffers: Vec<Exposed<Vec<u8>>>,
}

impl Origin {
    fn new(instance: &Instance, target: &ProviderHandle) -> Result<Self> {
        let target = ProviderHandle::new(target.addr().clone(), PROVIDER);
        let client = BlobClient::new(instance, target);
        let buffers = (0..CALLERS).map(|_| instance.expose(touched(PIECE), Access::ReadWrite));
        Ok(Self { client, buffers: buffers.collect::<Result<_, _>>().doing("exposing memory")? })
    }

    fn write(&self, caller: usize, offset: u64) -> Result<()> {
        let (extent, data) = ([Extent::new(offset, PIECE as u64)], self.buffers[caller].bulk());
        let write = self.client.start_write(NAME, &extent, data, LIMIT).doing("writing")?;
        moved(write.wait().doing("writing")?.doing("writing")?)
    }

    fn read(&self, caller: usize, offset: u64) -> Result<()> {
        let (extent, into) = ([Extent::new(offset, PIECE as u64)], self.buffers[caller].bulk());
        let read = self.client.start_read(NAME, &extent, into, LIMIT).doing("reading")?;
        moved(read.wait().doing("reading")?.doing("reading")?.bytes)
    }
}

fn moved(bytes: u64) -> Result<()> {
    ensure!(bytes == PIECE as u64, "{bytes} bytes of {PIECE} were moved");
    Ok(())
}

/// Measures a row.
///
/// # Errors
///
/// When one of the two sides does not do its part in time.
pub(crate) fn run(context: &Context, spec: Spec) -> Result<Figure> {
    let (deadline, work) = (context.deadline, spec.work);
    let (effort, bytes) =
        (Effort::runs(context.quick), if context.quick { 16 << 20 } else { BYTES });
    let folder = tempfile::tempdir().doing("making a folder for the blobs")?;
    let mut floor = Floor::new(folder.path(), bytes)?;
    let (pair, ()) = Pair::start(context, spec.settings(), folder.path().join("blobs"), || Ok(()))?;
    let (instance, target) = (pair.instance.clone(), pair.target.clone());
    let pool = instance.layout().rpc_pool();
    let callers = pool.clone();
    let figure = on_ult(&pool, deadline, move || {
        let origin = Arc::new(Origin::new(&instance, &target)?);
        origin.client.create(NAME, LIMIT).doing("making the blob")?;
        let (writer, reader) = (origin.clone(), origin.clone());
        let write = Arc::new(move |caller, offset| writer.write(caller, offset));
        let read = Arc::new(move |caller, offset| reader.read(caller, offset));
        let persist = || origin.client.persist(NAME, LIMIT).doing("persisting");
        pass(&callers, bytes, &write, || Ok(()))?;
        let rounds = effort.in_turns(
            [1, 1],
            |floors| floors.told(|| floor.pass(work)),
            |samples| {
                samples.told(|| match work {
                    Work::Write => pass(&callers, bytes, &write, || Ok(())),
                    Work::WriteAndPersist => pass(&callers, bytes, &write, persist),
                    Work::Read => pass(&callers, bytes, &read, || Ok(())),
                })
            },
        )?;
        Ok(Figure::bandwidth(rounds, bytes as usize))
    })?;
    pair.stop(deadline)?;
    Ok(figure)
}
