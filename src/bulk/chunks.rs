//! Large transfers in chunks: while the caller works on one chunk, the next are on their way.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use hg::{BulkOp, HgError};

use crate::bulk::bulk_transfer::BulkTransfer;
use crate::{Addr, Bulk, BulkError, BulkPool, BulkPoolError, BulkRequest, LocalBulk, PooledBuffer};

impl BulkTransfer<'_> {
    /// Pulls `range` of the remote memory chunk by chunk, and calls `f` with each chunk and its
    /// offset in that memory, in order. While `f` works on one chunk, those after it are being
    /// pulled: as many as there are `buffers` beside the one in `f`. A chunk is as long as the
    /// shortest buffer, the last one perhaps shorter.
    ///
    /// With one buffer nothing overlaps; two are enough if `f` takes about as long as a transfer.
    /// The transfers proceed while `f` waits (for a file, a lock, another service), or while it
    /// computes if another execution stream runs the progress ULT.
    ///
    /// ```
    /// # use std::io::Write;
    /// # use margo::{Bulk, Instance, ProviderHandle, Rpc};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// const STORE: Rpc<Bulk, Result<u64, String>> = Rpc::new("store");
    ///
    /// let service = Instance::builder("na+sm://").start()?;
    /// let spec = margo::bulk_memory::BulkPoolSpec::geometric(1, 8, 65_536, 1);
    /// let pool = service.memory().bulk_pool(&spec)?;
    /// service.register(STORE, move |handle| {
    ///     let remote = handle.args();
    ///     let mut file = Vec::new(); // say
    ///     let mut store = || -> Result<(), Box<dyn std::error::Error>> {
    ///         let mut buffers = pool.get_up_to(3, 65_536)?;
    ///         handle.bulk(remote).pull_chunks(0..remote.len(), &mut buffers, |_offset, chunk| {
    ///             Ok::<_, Box<dyn std::error::Error>>(file.write_all(chunk)?)
    ///         })
    ///     };
    ///     let result = store().map(|()| remote.len()).map_err(|error| error.to_string());
    ///     let _ = handle.respond(&result);
    /// })?;
    ///
    /// let client = Instance::builder("na+sm://").listen(false).start()?;
    /// let target = ProviderHandle::from(client.lookup(service.self_addr().uri())?);
    /// let data = vec![7; 1_000_000];
    /// let memory = client.memory();
    /// let stored = memory.expose_ref(&data, |bulk| client.forward(STORE, &target, bulk))??;
    /// assert_eq!(stored, Ok(1_000_000));
    /// # client.finalize_and_wait()?;
    /// # service.finalize_and_wait()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`BulkError::Transfer`] if `range` is no part of the remote memory; `f` was not called. Else
    /// the first error, of a transfer ([`BulkError`]) or of `f`, which is not called any more. The
    /// transfers in flight are cancelled, and over when this returns. `buffers` has all buffers
    /// again, in any order, unless `f` panicked.
    ///
    /// # Panics
    ///
    /// If there is no buffer, or one without bytes.
    ///
    /// Counterpart: `margo_bulk_parallel_transfer`, which has no window and hands nothing out.
    pub fn pull_chunks<B, E>(
        self,
        range: Range<u64>,
        buffers: &mut Vec<B>,
        mut f: impl FnMut(u64, &mut [u8]) -> Result<(), E>,
    ) -> Result<(), E>
    where
        B: LocalBulk + AsMut<[u8]> + Send + 'static,
        E: From<BulkError>,
    {
        if ult::is_tasklet() {
            return Err(BulkError::Tasklet.into());
        }
        check_range(self.peer, self.remote, &range)?;
        let deadline = self.deadline();
        let mut window = Window::new(buffers);
        let mut chunks = Chunks { range, bytes: window.chunk_bytes() };
        loop {
            while let Some(buffer) = window.free.pop() {
                let Some((at, len)) = chunks.next() else {
                    window.free.push(buffer);
                    break;
                };
                let plan = self.plan(BulkOp::Pull, at, 0..len);
                let request = self.instance.start_request_of(plan, buffer, deadline);
                window.flying.push_back((at, len, request));
            }
            let Some((at, len)) = window.wait_for_first()? else { return Ok(()) };
            // The buffer that has just come back.
            let Some(buffer) = window.free.last_mut() else { return Ok(()) };
            f(at, &mut buffer.as_mut()[..len])?;
        }
    }

    /// Pushes into `range` of the remote memory chunk by chunk: calls `f` with the offset in that
    /// memory and the buffer to be filled, in order. While `f` fills one chunk, those before it are
    /// being pushed. Otherwise as [`pull_chunks`](Self::pull_chunks). All have arrived when it
    /// returns without an error.
    ///
    /// # Errors
    ///
    /// As `pull_chunks`; chunks before the error may have arrived.
    ///
    /// # Panics
    ///
    /// If there is no buffer, or one without bytes.
    pub fn push_chunks<B, E>(
        self,
        range: Range<u64>,
        buffers: &mut Vec<B>,
        mut f: impl FnMut(u64, &mut [u8]) -> Result<(), E>,
    ) -> Result<(), E>
    where
        B: LocalBulk + AsMut<[u8]> + Send + 'static,
        E: From<BulkError>,
    {
        if ult::is_tasklet() {
            return Err(BulkError::Tasklet.into());
        }
        check_range(self.peer, self.remote, &range)?;
        let deadline = self.deadline();
        let mut window = Window::new(buffers);
        let chunks = Chunks { range, bytes: window.chunk_bytes() };
        for (at, len) in chunks {
            // Also while others are free: what has failed is told before `f` works in vain.
            while window.free.is_empty() || window.is_first_over() {
                if window.wait_for_first()?.is_none() {
                    break;
                }
            }
            let Some(buffer) = window.free.last_mut() else { break };
            f(at, &mut buffer.as_mut()[..len])?;
            if let Some(buffer) = window.free.pop() {
                let plan = self.plan(BulkOp::Push, at, 0..len);
                let request = self.instance.start_request_of(plan, buffer, deadline);
                window.flying.push_back((at, len, request));
            }
        }
        while window.wait_for_first()?.is_some() {}
        Ok(())
    }
}

impl BulkPool {
    /// Up to `count` buffers of at least `len` bytes: waits for the first as [`get`](Self::get)
    /// does, and takes more only if they are free. So those who need several at once do not wait
    /// for each other. For [`BulkTransfer::pull_chunks`]. None if `count` is zero.
    ///
    /// # Errors
    ///
    /// As `get`.
    pub fn get_up_to(&self, count: usize, len: usize) -> Result<Vec<PooledBuffer>, BulkPoolError> {
        self.up_to(count, len, || self.get(len))
    }

    /// As [`get_up_to`](Self::get_up_to), waiting for at most `limit`.
    ///
    /// # Errors
    ///
    /// As [`get_timed`](Self::get_timed).
    pub fn get_up_to_timed(
        &self,
        count: usize,
        len: usize,
        limit: Duration,
    ) -> Result<Vec<PooledBuffer>, BulkPoolError> {
        self.up_to(count, len, || self.get_timed(len, limit))
    }

    fn up_to(
        &self,
        count: usize,
        len: usize,
        first: impl FnOnce() -> Result<PooledBuffer, BulkPoolError>,
    ) -> Result<Vec<PooledBuffer>, BulkPoolError> {
        // `count` may be far more than there are.
        let mut buffers = Vec::new();
        if count > 0 {
            buffers.push(first()?);
        }
        while buffers.len() < count
            && let Some(buffer) = self.try_get(len)?
        {
            buffers.push(buffer);
        }
        Ok(buffers)
    }
}

/// As for a transfer of all of it at once. Chunks alone would not notice: those of an empty range,
/// or of one that ends before it begins, are none.
fn check_range(peer: &Addr, remote: &Bulk, range: &Range<u64>) -> Result<(), BulkError> {
    let (start, end, size) = (range.start, range.end, remote.len());
    if start <= end && end <= size {
        return Ok(());
    }
    let what = format!("{start}..{end} is no part of the remote memory of {size} bytes");
    Err(BulkError::Transfer { peer: peer.to_string(), source: HgError::Bulk(what) })
}

/// The part of a transfer that is left to be moved, and the size of a chunk.
struct Chunks {
    range: Range<u64>,
    bytes: usize,
}

impl Iterator for Chunks {
    /// Offset and length.
    type Item = (u64, usize);

    fn next(&mut self) -> Option<(u64, usize)> {
        let at = self.range.start;
        let left = self.range.end.checked_sub(at).filter(|left| *left > 0)?;
        let len = left.min(self.bytes as u64);
        self.range.start += len;
        // No truncation: at most `bytes`.
        Some((at, len as usize))
    }
}

/// The buffers of one call: those that are free, and those in flight, oldest first.
struct Window<'a, B: LocalBulk + Send + 'static> {
    home: &'a mut Vec<B>,
    free: Vec<B>,
    flying: VecDeque<(u64, usize, BulkRequest<B>)>,
}

impl<'a, B: LocalBulk + AsMut<[u8]> + Send + 'static> Window<'a, B> {
    fn new(home: &'a mut Vec<B>) -> Self {
        let free = std::mem::take(home);
        Self { home, free, flying: VecDeque::new() }
    }

    fn chunk_bytes(&mut self) -> usize {
        let shortest = self.free.iter_mut().map(|buffer| buffer.as_mut().len()).min();
        let bytes = shortest.unwrap_or(0);
        assert!(bytes > 0, "transfers in chunks need a buffer, and each needs bytes");
        bytes
    }

    /// Returns whether waiting for the oldest transfer would not wait.
    fn is_first_over(&self) -> bool {
        self.flying.front().is_some_and(|(_, _, request)| request.test())
    }

    /// Waits for the oldest transfer; its buffer is the last one that is free then. `None`: there
    /// is none in flight.
    fn wait_for_first(&mut self) -> Result<Option<(u64, usize)>, BulkError> {
        let Some((at, len, request)) = self.flying.pop_front() else { return Ok(None) };
        if request.is_lost() {
            // `f` has forked. Its buffer stays with it.
            return Err(request.lost());
        }
        let (result, buffer) = request.wait();
        self.free.push(buffer);
        result.map(|()| Some((at, len)))
    }
}

impl<B: LocalBulk + Send + 'static> Drop for Window<'_, B> {
    fn drop(&mut self) {
        // A ULT that unwinds must not wait; the requests see to the buffers.
        if !std::thread::panicking() {
            self.flying.iter().for_each(|(_, _, request)| request.cancel());
            let ours = |request: &BulkRequest<B>| !request.is_lost();
            for (_, _, request) in self.flying.drain(..).filter(|(_, _, it)| ours(it)) {
                request.wait_fully();
                self.free.push(request.wait().1);
            }
        }
        self.home.append(&mut self.free);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Access, BulkPoolSpec, Instance};

    #[test]
    fn a_range_that_is_no_part_of_the_memory_is_an_error_before_anything_moves() {
        let instance = Instance::builder("na+sm://").start().unwrap();
        let exposed = instance.expose(vec![7; 1000], Access::ReadWrite).unwrap();
        let (own, remote) = (instance.self_addr(), exposed.bulk());
        let mut buffers = vec![instance.memory().bulk_buffer(100).unwrap()];
        let mut moved = |start, end, push| {
            let mut chunks = 0;
            let count = |_: u64, _: &mut [u8]| {
                chunks += 1;
                Ok::<_, BulkError>(())
            };
            let range = Range { start, end };
            let result = match push {
                false => instance.bulk(&own, remote).pull_chunks(range, &mut buffers, count),
                true => instance.bulk(&own, remote).push_chunks(range, &mut buffers, count),
            };
            result.map(|()| chunks)
        };
        for push in [false, true] {
            for (start, end) in [(500, 100), (5000, 5000), (1001, 1001), (0, 1001), (u64::MAX, 0)] {
                match moved(start, end, push) {
                    Err(BulkError::Transfer { source: HgError::Bulk(what), .. }) => {
                        assert!(what.starts_with(&format!("{start}..{end} ")), "{what}");
                    }
                    other => panic!("{start}..{end}: {other:?}"),
                }
            }
            for (start, end, chunks) in [(1000, 1000, 0), (0, 0, 0), (950, 1000, 1), (0, 1000, 10)]
            {
                assert_eq!(moved(start, end, push).unwrap(), chunks);
            }
        }
        assert_eq!(buffers.len(), 1);
        drop(exposed);
        instance.finalize_and_wait().unwrap();
    }

    #[test]
    fn nothing_is_filled_for_an_owner_that_has_refused() {
        let instance = Instance::builder("na+sm://").start().unwrap();
        let exposed = instance.expose(vec![7; 1000], Access::ReadOnly).unwrap();
        let (own, remote) = (instance.self_addr(), exposed.bulk());
        let buffer = |_| instance.memory().bulk_buffer(100).unwrap();
        let mut buffers: Vec<_> = (0..8).map(buffer).collect();
        let mut filled = 0;
        let pushed = instance.bulk(&own, remote).push_chunks(0..1000, &mut buffers, |_, _| {
            filled += 1;
            Ok::<_, BulkError>(())
        });
        assert!(matches!(pushed, Err(BulkError::Transfer { .. })), "{pushed:?}");
        assert_eq!((filled, buffers.len()), (1, 8));
        drop(exposed);
        instance.finalize_and_wait().unwrap();
    }

    #[test]
    fn who_asks_for_any_number_of_buffers_gets_those_that_are_free() {
        let instance = Instance::builder("na+sm://").start().unwrap();
        let pool = instance.memory().bulk_pool(&BulkPoolSpec::geometric(1, 3, 100, 1)).unwrap();
        assert_eq!(pool.get_up_to(usize::MAX, 100).unwrap().len(), 3);
        let limit = Duration::from_secs(60);
        assert_eq!(pool.get_up_to_timed(usize::MAX, 1, limit).unwrap().len(), 3);
        drop(pool);
        instance.finalize_and_wait().unwrap();
    }
}
