//! The work of each RPC.
//!
//! The data passes through buffers of `chunk_bytes` that are registered for bulk transfer, of which
//! there are `buffers` for all requests together, taken first come, first served. Requests that
//! suspend with a file open are bounded ([`PLACES`]), and so are files, however many ask at once.
//!
//! Other threads use the files, in closures of the handlers ([`Service::on_store`]). They
//! have let go of the store when they return, so that the directory is free when the last handler
//! is over.

use std::fmt;
use std::sync::{Arc, OnceLock};

use margo::bulk_memory::{BulkPool, BulkPoolError, BulkPoolSpec, PooledBuffer};
use margo::cancel::CancelToken;
use margo::{Bulk, BulkRequest, Handle, Instance, ult};

use super::places::{Place, Places};
use super::transfer::{Buffers, Filled, Piece, Pieces, SLACK, Span, WINDOW, pull, push};
use crate::error::given_up;
use crate::rpc::{
    AppendArgs, BlobStat, Checksum, CreateArgs, EXTENTS_MAX, Extent, ListArgs, ListPage,
    PersistArgs, PutArgs, ReadArgs, ReadDone, RemoveArgs, ScrubArgs, Scrubbed, StatArgs,
    TruncateArgs, WriteArgs,
};
use crate::store::{self, BLOCK_BYTES, Blob, LEN_MAX, Stat, Store};
use crate::{BlobConfig, BlobError, BlobName, StartError};

/// Requests that may be under way with a file open while they suspend; others wait for their turn.
/// With what each thread opens for a moment they are a small part of the 1024 files that a process
/// may usually have open (`RLIMIT_NOFILE`): the rest is for connections, and for other providers.
/// Far more than a disk or a network needs to be busy.
pub(super) const PLACES: usize = 128;

/// Threads that use files at a time. Half of those that the process has for blocking work, so that
/// a disk that hangs leaves some to others.
const THREADS: usize = 32;

/// Bytes that a request reads on one thread without a pause for others.
const TURN_BYTES: u64 = 16 << 20;

/// Blocks that are checked for one call of scrub: a gibibyte, some seconds.
const SCRUB_BLOCKS: u64 = (1 << 30) / BLOCK_BYTES;

/// Damaged blocks that one answer tells of.
const DAMAGED_MAX: usize = 1000;

type Request<A, R> = Handle<A, Result<R, BlobError>>;

/// The state that the handlers share.
pub(super) struct Service {
    pub(super) store: Arc<dyn Store>,
    chunk_bytes: usize,
    pub(super) places: Places,
    threads: ult::Semaphore,
    /// A place for each buffer of the pool, so that who waits for one can be canceled.
    pub(super) buffer_places: Places,
    buffer_count: usize,
    /// Made when the first buffer is needed.
    buffers: OnceLock<BulkPool>,
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service").field("store", &self.store).finish_non_exhaustive()
    }
}

impl Service {
    pub(super) fn new(config: &BlobConfig) -> Result<Self, StartError> {
        config.check()?;
        Ok(Self {
            store: store::open(config)?,
            chunk_bytes: config.chunk_bytes,
            places: Places::new(PLACES),
            threads: ult::Semaphore::new(THREADS),
            buffer_places: Places::new(config.buffers),
            buffer_count: config.buffers,
            buffers: OnceLock::new(),
        })
    }

    pub(super) fn create(&self, request: &Request<CreateArgs, ()>) -> Result<(), BlobError> {
        let token = request.cancel_token();
        let CreateArgs { name, len } = request.args();
        let (name, len) = (BlobName::new(name)?, *len);
        self.on_store(move |store| {
            let incoming = store.begin(&name)?;
            incoming.blob().set_len(len)?;
            incoming.publish(false, &still_wanted(&token))
        })
    }

    pub(super) fn put(&self, request: &Request<PutArgs, u64>) -> Result<u64, BlobError> {
        let token = request.cancel_token();
        let PutArgs { name, len, extents, bulk, overwrite } = request.args();
        let (name, len, overwrite) = (BlobName::new(name)?, *len, *overwrite);
        let (spans, bytes) = spans(&name, extents, bulk)?;
        if let Some(Extent { offset, len: part }) =
            extents.iter().find(|extent| extent.offset + extent.len > len)
        {
            let (offset, part, what) = (*offset, *part, "the blob".to_owned());
            return Err(BlobError::OutOfRange { offset, len: part, size: len, what });
        }
        let _place = self.place(name.as_str(), &token)?;
        let buffers = self.buffers(request.instance(), &name, bytes, &token)?;
        let own = name.clone();
        // Before any data moves, so that a refusal is cheap; `publish` decides.
        let incoming = self.on_store(move |store| {
            if !overwrite {
                store.refuse_existing(&own)?;
            }
            let incoming = store.begin(&own)?;
            incoming.blob().set_len(len)?;
            Ok::<_, BlobError>(incoming)
        })?;
        let blob = incoming.blob();
        self.pull_into(request, bulk, &name, &blob, spans, buffers)?;
        drop(blob);
        self.on_store(move |_| incoming.publish(overwrite, &still_wanted(&token)))?;
        Ok(bytes)
    }

    pub(super) fn write(&self, request: &Request<WriteArgs, u64>) -> Result<u64, BlobError> {
        let token = request.cancel_token();
        let WriteArgs { name, extents, bulk, persist } = request.args();
        let name = BlobName::new(name)?;
        let (spans, bytes) = spans(&name, extents, bulk)?;
        let _place = self.place(name.as_str(), &token)?;
        let buffers = self.buffers(request.instance(), &name, bytes, &token)?;
        let (blob, _) = self.open(&name)?;
        self.pull_into(request, bulk, &name, &blob, spans, buffers)?;
        self.persist_if(*persist, blob)?;
        Ok(bytes)
    }

    pub(super) fn append(&self, request: &Request<AppendArgs, u64>) -> Result<u64, BlobError> {
        let token = request.cancel_token();
        let AppendArgs { name, len, bulk, persist } = request.args();
        let (name, len) = (BlobName::new(name)?, *len);
        let (spans, _) = spans(&name, &[Extent::new(0, len)], bulk)?;
        let _place = self.place(name.as_str(), &token)?;
        let buffers = self.buffers(request.instance(), &name, len, &token)?;
        let (blob, stat) = self.open(&name)?;
        // Where it begins is decided when the first of it is there.
        let mut begun = None;
        let pieces = Pieces::new(spans, self.chunk_bytes);
        let start =
            |piece: &Piece, buffer, part| request.bulk(bulk).start_pull(piece.memory, buffer, part);
        let appended = pull(&name, pieces, buffers, start, |filled| {
            let blob = blob.clone();
            let (at, buffer) = self.on_store(move |_| {
                let at = match begun {
                    None => blob.append(filled.bytes(), len)?,
                    Some(at) => {
                        filled.piece.write_to(&*blob, filled.bytes(), at)?;
                        at
                    }
                };
                Ok::<_, BlobError>((at, filled.into_buffer()))
            })?;
            begun = Some(at);
            Ok(buffer)
        });
        if let (Err(_), Some(at)) = (&appended, begun) {
            let blob = blob.clone();
            // What failed is told; this is what can still be done about it.
            let _ = self.on_store(move |_| blob.take_back(at, at + len));
        }
        appended?;
        self.persist_if(*persist, blob)?;
        Ok(begun.unwrap_or(stat.len))
    }

    pub(super) fn truncate(&self, request: &Request<TruncateArgs, ()>) -> Result<(), BlobError> {
        let TruncateArgs { name, len } = request.args();
        let (name, len) = (BlobName::new(name)?, *len);
        self.on_store(move |store| store.open(&name)?.set_len(len))
    }

    pub(super) fn persist(&self, request: &Request<PersistArgs, ()>) -> Result<(), BlobError> {
        let name = BlobName::new(&request.args().name)?;
        self.on_store(move |store| store.open(&name)?.persist())
    }

    pub(super) fn read(
        &self,
        request: &Request<ReadArgs, ReadDone>,
    ) -> Result<ReadDone, BlobError> {
        let token = request.cancel_token();
        let ReadArgs { name, extents, bulk } = request.args();
        let name = BlobName::new(name)?;
        let (mut spans, bytes) = spans(&name, extents, bulk)?;
        let _place = self.place(name.as_str(), &token)?;
        let buffers = self.buffers(request.instance(), &name, bytes, &token)?;
        let (blob, Stat { len: total, .. }) = self.open(&name)?;
        for Span { offset, len, .. } in &mut spans {
            let Some(rest) = total.checked_sub(*offset) else {
                let (offset, len, what) = (*offset, *len, "the blob".to_owned());
                return Err(BlobError::OutOfRange { offset, len, size: total, what });
            };
            *len = rest.min(*len);
        }
        let bytes = spans.iter().map(|span| span.len).sum();
        let start =
            |piece: &Piece, buffer, part| request.bulk(bulk).start_push(piece.memory, buffer, part);
        push(&name, Pieces::new(spans, self.chunk_bytes), buffers, start, |piece, buffer| {
            let blob = blob.clone();
            self.on_store(move |_| Filled::read(&*blob, piece, buffer))
        })?;
        Ok(ReadDone { bytes, total })
    }

    pub(super) fn stat(
        &self,
        request: &Request<StatArgs, BlobStat>,
    ) -> Result<BlobStat, BlobError> {
        let StatArgs { name, checksum } = request.args();
        let name = BlobName::new(name)?;
        if !checksum {
            let Stat { len, allocated, modified } =
                self.on_store(move |store| store.open(&name)?.stat())?;
            return Ok(BlobStat::new(len, allocated, modified, None));
        }
        let token = request.cancel_token();
        let _place = self.place(name.as_str(), &token)?;
        let (blob, Stat { len, allocated, modified }) = self.open(&name)?;
        let checksum = self.checksum(&name, &blob, len, &still_wanted(&token))?;
        Ok(BlobStat::new(len, allocated, modified, Some(checksum)))
    }

    pub(super) fn checksum(
        &self,
        name: &BlobName,
        blob: &Arc<dyn Blob>,
        len: u64,
        still_wanted: &dyn Fn() -> bool,
    ) -> Result<Checksum, BlobError> {
        let mut hasher = blake3::Hasher::new();
        let mut bytes = vec![0; self.chunk_bytes];
        let mut done = 0;
        while done < len {
            let (blob, end) = (blob.clone(), len.min(done + TURN_BYTES));
            (hasher, bytes) = self.on_store(move |_| {
                while done < end {
                    let part = usize::try_from(end - done).unwrap_or(usize::MAX).min(bytes.len());
                    blob.read_at(done, &mut bytes[..part])?;
                    hasher.update(&bytes[..part]);
                    done += part as u64;
                }
                Ok::<_, BlobError>((hasher, bytes))
            })?;
            done = end;
            if !still_wanted() {
                return Err(given_up(name.as_str()));
            }
        }
        Ok(Checksum(hasher.finalize().into()))
    }

    pub(super) fn list(
        &self,
        request: &Request<ListArgs, ListPage>,
    ) -> Result<ListPage, BlobError> {
        let token = request.cancel_token();
        let ListArgs { prefix, after, max } = request.args().clone();
        let _place = self.place(&prefix, &token)?;
        let max = usize::try_from(max).unwrap_or(usize::MAX);
        self.on_store(move |store| store.list(&prefix, &after, max, &still_wanted(&token)))
    }

    pub(super) fn remove(&self, request: &Request<RemoveArgs, ()>) -> Result<(), BlobError> {
        let token = request.cancel_token();
        let name = BlobName::new(&request.args().name)?;
        self.on_store(move |store| store.remove(&name, &still_wanted(&token)))
    }

    pub(super) fn scrub(
        &self,
        request: &Request<ScrubArgs, Scrubbed>,
    ) -> Result<Scrubbed, BlobError> {
        let token = request.cancel_token();
        let ScrubArgs { name, first } = request.args();
        let (name, mut next) = (BlobName::new(name)?, *first);
        let _place = self.place(name.as_str(), &token)?;
        let (blob, Stat { len, .. }) = self.open(&name)?;
        let (end, turn) = (len.div_ceil(BLOCK_BYTES), TURN_BYTES / BLOCK_BYTES);
        let last = end.min(next.saturating_add(SCRUB_BLOCKS));
        let mut all = Scrubbed { blocks: 0, sealed: 0, damaged: Vec::new(), next: None };
        while next < last && all.damaged.len() < DAMAGED_MAX {
            let (blob, first) = (blob.clone(), next);
            let mut found = self.on_store(move |_| blob.scrub(first, turn))?;
            all.blocks += found.blocks;
            all.sealed += found.sealed;
            all.damaged.append(&mut found.damaged);
            next = next.saturating_add(turn);
            if token.is_canceled() {
                return Err(given_up(name.as_str()));
            }
        }
        all.next = (next < end).then_some(next);
        Ok(all)
    }

    /// Runs `work`, which may wait for a disk, while the execution stream runs others.
    fn on_store<T: Send + 'static>(
        &self,
        work: impl FnOnce(&dyn Store) -> T + Send + 'static,
    ) -> T {
        match self.store.blocks() {
            false => work(&*self.store),
            true => {
                let _turn = self.threads.acquire(1);
                let store = self.store.clone();
                ult::blocking(move || work(&*store))
            }
        }
    }

    fn open(&self, name: &BlobName) -> Result<(Arc<dyn Blob>, Stat), BlobError> {
        let name = name.clone();
        self.on_store(move |store| {
            let blob = store.open(&name)?;
            let stat = blob.stat()?;
            Ok((blob, stat))
        })
    }

    fn persist_if(&self, wanted: bool, blob: Arc<dyn Blob>) -> Result<(), BlobError> {
        if wanted { self.on_store(move |_| blob.persist()) } else { Ok(()) }
    }

    /// Takes a place, which allows this ULT to suspend with a file open. Waits for its turn, as
    /// long as the origin waits for the answer.
    fn place(&self, name: &str, token: &CancelToken) -> Result<Place<'_>, BlobError> {
        self.places.take(token.event()).ok_or_else(|| given_up(name))
    }

    /// Takes buffers for a transfer of so many bytes: waits for one, as [`place`](Self::place)
    /// does, and takes more only if they are free.
    fn buffers(
        &self,
        instance: &Instance,
        name: &BlobName,
        bytes: u64,
        token: &CancelToken,
    ) -> Result<Buffers<'_>, BlobError> {
        let pieces = bytes.div_ceil(self.chunk_bytes as u64);
        let mut places = Vec::new();
        while places.len() < WINDOW && (places.len() as u64) < pieces {
            let place = match places.is_empty() {
                true => {
                    self.buffer_places.take(token.event()).ok_or_else(|| given_up(name.as_str()))?
                }
                false => match self.buffer_places.try_take() {
                    Some(place) => place,
                    None => break,
                },
            };
            places.push(place);
        }
        let get = |_: &Place<'_>| self.pool(instance)?.get(self.chunk_bytes + SLACK);
        let free: Result<Vec<PooledBuffer>, BulkPoolError> = places.iter().map(get).collect();
        let failed = |error: BulkPoolError| BlobError::Transfer {
            name: name.to_string(),
            detail: error.to_string(),
        };
        Ok(Buffers { free: free.map_err(failed)?, _places: places })
    }

    fn pool(&self, instance: &Instance) -> Result<&BulkPool, BulkPoolError> {
        if let Some(pool) = self.buffers.get() {
            return Ok(pool);
        }
        let spec = BulkPoolSpec::new().class(self.chunk_bytes + SLACK, self.buffer_count);
        let pool = instance.memory().bulk_pool(&spec)?;
        // Where two make one at a time, the second is dropped.
        Ok(self.buffers.get_or_init(|| pool))
    }

    /// Copies spans of the origin's memory into a blob.
    fn pull_into<A, R>(
        &self,
        request: &Handle<A, R>,
        bulk: &Bulk,
        name: &BlobName,
        blob: &Arc<dyn Blob>,
        spans: Vec<Span>,
        buffers: Buffers<'_>,
    ) -> Result<(), BlobError> {
        let start = |piece: &Piece, buffer, part| -> BulkRequest<PooledBuffer> {
            request.bulk(bulk).start_pull(piece.memory, buffer, part)
        };
        pull(name, Pieces::new(spans, self.chunk_bytes), buffers, start, |filled| {
            let blob = blob.clone();
            self.on_store(move |_| {
                filled.piece.write_to(&*blob, filled.bytes(), 0)?;
                Ok(filled.into_buffer())
            })
        })
    }
}

/// Tells if anybody still waits. To be asked with a token that was made before the work: not all
/// that ends a wait is seen by a later one.
fn still_wanted(token: &CancelToken) -> impl Fn() -> bool {
    || !token.is_canceled()
}

/// The places of extents in the origin's memory, one after the other, and their bytes together.
/// Refuses what leaves that memory, or what a blob can be.
fn spans(name: &BlobName, extents: &[Extent], bulk: &Bulk) -> Result<(Vec<Span>, u64), BlobError> {
    let bad = |reason: String| Err(BlobError::BadExtents { name: name.to_string(), reason });
    if extents.len() > EXTENTS_MAX {
        return bad(format!("{} of them are more than {EXTENTS_MAX}", extents.len()));
    }
    let (mut spans, mut memory, size) = (Vec::with_capacity(extents.len()), 0, bulk.len());
    for Extent { offset, len } in extents.iter().copied() {
        if len > size - memory {
            let what = "the origin's memory".to_owned();
            return Err(BlobError::OutOfRange { offset: memory, len, size, what });
        }
        if offset.checked_add(len).is_none_or(|end| end > LEN_MAX) {
            return bad(format!("{len} bytes at {offset} end beyond what a file can hold"));
        }
        spans.push(Span { memory, offset, len });
        memory += len;
    }
    Ok((spans, memory))
}
