//! Sending items, and the end of a stream.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use margo::bulk_memory::Exposable;
use margo::{Access, Exposed};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::SendError;
use crate::sender::connect::Sender;
use crate::sender::lent::{Lent, lend};
use crate::sender::link::{Outgoing, ReceiverConnection};
use crate::sender::open_batch::Items;
use crate::sender::route::Route;
use crate::sender::state::{Go, Shared, State};
use crate::sender::window::Content;
use crate::wire::EMPTY_ITEMS_MAX;

impl<T: Serialize + DeserializeOwned + 'static> Sender<T> {
    /// Sends an item: it is encoded, and goes with its batch. Waits only if the receiver's credit
    /// is used up.
    ///
    /// A ULT that is cancelled while it waits has put the item into a batch.
    ///
    /// # Errors
    ///
    /// [`SendError`].
    #[inline]
    pub fn send(&mut self, item: &T) -> Result<(), SendError> {
        let batch = match &self.route {
            Route::Hash(hash) => self.place_of(hash(item)),
            Route::Direct => return Err(self.no_receiver(usize::MAX)),
            _ => 0,
        };
        self.put(batch, item)
    }

    /// Sends an item to the receiver of that number, in the order of the addresses, with
    /// [`Route::Direct`] or by a hash.
    ///
    /// # Errors
    ///
    /// [`SendError`]; [`SendError::NoReceiver`] if there is none, or the route is another.
    pub fn send_to(&mut self, receiver: usize, item: &T) -> Result<(), SendError> {
        if receiver >= self.shared.since.len() || !self.is_by_receiver() {
            return Err(self.no_receiver(receiver));
        }
        self.put(receiver, item)
    }

    /// Sends all items, as [`send`](Self::send) does, with less to do for each.
    ///
    /// # Errors
    ///
    /// [`SendError`]; those before are sent, and the rest was not taken from the iterator.
    pub fn send_all(&mut self, items: impl IntoIterator<Item = T>) -> Result<(), SendError> {
        if self.is_by_receiver() {
            return items.into_iter().try_for_each(|item| self.send(&item));
        }
        let mut items = items.into_iter().fuse();
        while self.put_some(&mut items)? {
            self.go(0)?;
        }
        Ok(())
    }

    /// Encodes items until a batch is full; false if there are no more.
    fn put_some(&mut self, items: &mut impl Iterator<Item = T>) -> Result<bool, SendError> {
        // The iterator is code of the program, which may wait with the lock held: nobody waits for
        // the lock but in methods of this sender.
        let mut state = self.shared.state.lock();
        loop {
            match state.put_some(0, items, &self.shared)? {
                Put::More => {}
                Put::Full => return Ok(true),
                Put::Over => return Ok(false),
            }
        }
    }

    #[inline]
    fn put(&mut self, batch: usize, item: &T) -> Result<(), SendError> {
        let mut state = self.shared.state.lock();
        let goes = state.put(batch, item, &self.shared)?;
        drop(state);
        if goes {
            return self.go(batch);
        }
        Ok(())
    }

    /// Sends an item with data, which the receiver fetches from where it is: no copy is made of it
    /// here, and it is lent until the receiver has acknowledged the item. Keeps the order among the
    /// items. The bytes of both count as credit.
    ///
    /// # Errors
    ///
    /// [`SendError`]; the data is dropped.
    pub fn send_with<B>(&mut self, item: &T, data: B) -> Result<Lent<B>, SendError>
    where
        B: Exposable,
        Exposed<B>: Send,
    {
        let batch = match &self.route {
            Route::Hash(hash) => self.place_of(hash(item)),
            Route::Direct | Route::Broadcast => return Err(self.no_receiver(usize::MAX)),
            Route::RoundRobin | Route::OnDemand => 0,
        };
        // What is before it goes before it.
        self.go(batch)?;
        let stream = self.shared.stream;
        let why = |error: hg::ProcError| error.to_string();
        let bytes = hg::proc::to_vec(item)
            .map_err(|error| SendError::Encode { stream, why: why(error) })?;
        let (at, instance) = self.shared.state.lock().turn_of(batch, stream)?;
        let exposed = instance
            .expose(data, Access::ReadOnly)
            .map_err(|source| SendError::Memory { stream, source: Arc::new(source) })?;
        let (loan, lent) = lend(exposed, &self.shared, at);
        let len = loan.bulk.len();
        let credit = bytes.len() as u64 + len;
        let content = Content::Data(Arc::new((bytes, loan, len)));
        self.wait_for_room(at, credit)?;
        let mut state = self.shared.state.lock();
        state.links[at].launch(Outgoing::Data(content), 1, false)?;
        Ok(lent)
    }

    fn place_of(&self, hash: u64) -> usize {
        // No truncation: below the number of links.
        (hash % self.shared.since.len() as u64) as usize
    }
}

impl State {
    /// Encodes an item into an open batch; true if the batch is to go.
    #[inline]
    pub(super) fn put<T: Serialize>(
        &mut self,
        batch: usize,
        item: &T,
        shared: &Shared,
    ) -> Result<bool, SendError> {
        let max = self.links[batch].credit();
        let open = &mut self.open[batch];
        if let Err(error) = open.push(item, max) {
            return Err(shared.refused(error, max));
        }
        let (count, len) = (open.count(), open.len());
        let spec = &shared.spec;
        if len >= spec.batch_bytes || count >= spec.batch_items {
            return Ok(true);
        }
        if !count.is_power_of_two() {
            return Ok(false);
        }
        Ok(self.goes_early(batch, shared))
    }

    /// Encodes items into an open batch: until it is to go, or it is time to look around, or there
    /// are no more.
    fn put_some<T: Serialize>(
        &mut self,
        batch: usize,
        items: &mut impl Iterator<Item = T>,
        shared: &Shared,
    ) -> Result<Put, SendError> {
        let max = self.links[batch].credit();
        let (spec, open) = (&shared.spec, &mut self.open[batch]);
        let look = (open.count() + 1).next_power_of_two().min(spec.batch_items);
        let filled = open.fill(items, (spec.batch_bytes, look), max);
        let is_full = open.len() >= spec.batch_bytes || open.count() >= spec.batch_items;
        let is_begun = open.count() > 0;
        match filled {
            Err(error) => Err(shared.refused(error, max)),
            Ok(_) if is_full => Ok(Put::Full),
            Ok(more) => Ok(match (is_begun && self.goes_early(batch, shared), more) {
                (true, _) => Put::Full,
                (false, true) => Put::More,
                (false, false) => Put::Over,
            }),
        }
    }

    /// Returns whether a batch that is not full is to go.
    fn goes_early(&mut self, batch: usize, shared: &Shared) -> bool {
        let (count, len) = (self.open[batch].count(), self.open[batch].len());
        // Now and then: items without bytes, whether the receiver has nothing to do, and whether
        // somebody else sends the batch if nothing follows. The next look is at twice as many
        // items, of which there may be no more than bytes then.
        let is_light = count >= EMPTY_ITEMS_MAX && len / 2 < count as usize;
        if is_light || self.is_idle(batch) {
            return true;
        }
        if shared.since[batch].load(Relaxed) == 0 {
            self.begun(batch, shared);
        }
        false
    }
}

/// The state of an open batch after some items.
enum Put {
    /// It takes more.
    More,
    /// It is to go.
    Full,
    /// It takes more, and there are none.
    Over,
}

impl Shared {
    #[cold]
    fn refused(&self, error: Result<u64, hg::ProcError>, max: u64) -> SendError {
        let stream = self.stream;
        match error {
            Ok(bytes) => SendError::TooLarge { stream, bytes, max },
            Err(error) => SendError::Encode { stream, why: error.to_string() },
        }
    }
}

impl<T> Sender<T> {
    fn is_by_receiver(&self) -> bool {
        matches!(self.route, Route::Hash(_) | Route::Direct)
    }

    fn no_receiver(&self, index: usize) -> SendError {
        let (stream, count) = (self.shared.stream, self.shared.since.len());
        SendError::NoReceiver { stream, index, count }
    }

    /// Sends an open batch, waiting for credit.
    fn go(&mut self, batch: usize) -> Result<(), SendError> {
        loop {
            let gone = self.shared.state.lock().go(batch, &self.shared)?;
            match gone {
                Go::Gone => return Ok(()),
                Go::Waits(at) => self.shared.wait_for_answer(at)?,
            }
        }
    }

    fn wait_for_room(&mut self, at: usize, bytes: u64) -> Result<(), SendError> {
        loop {
            let mut state = self.shared.state.lock();
            let link = &mut state.links[at];
            link.reap();
            if let Some(error) = &link.failed {
                return Err(error.clone());
            }
            let (stream, max) = (self.shared.stream, link.credit());
            if bytes > max {
                return Err(SendError::TooLarge { stream, bytes, max });
            }
            if link.connection.is_some() && link.window.has_room(bytes, max) {
                return Ok(());
            }
            drop(state);
            self.shared.wait_for_answer(at)?;
        }
    }

    /// Returns whether no receiver is about to have worked off what it was sent.
    pub(crate) fn is_busy(&self) -> bool {
        let mut state = self.shared.state.lock();
        let enough = 2 * self.shared.spec.batch_bytes as u64;
        state.links.iter_mut().all(|link| {
            link.reap();
            link.window.bytes() >= enough
        })
    }

    /// Sends all that was encoded, and returns when it has gone; not when it was taken.
    ///
    /// # Errors
    ///
    /// [`SendError`].
    pub fn flush(&mut self) -> Result<(), SendError> {
        (0..self.shared.since.len()).try_for_each(|batch| self.go(batch))
    }

    /// Waits until all that was sent is acknowledged.
    ///
    /// # Errors
    ///
    /// [`SendError`].
    pub fn wait_until_taken(&mut self) -> Result<(), SendError> {
        self.flush()?;
        let links = self.shared.state.lock().links.len();
        for at in 0..links {
            loop {
                let mut state = self.shared.state.lock();
                let link = &mut state.links[at];
                link.reap();
                if link.window.is_empty() {
                    break;
                }
                drop(state);
                self.shared.wait_for_answer(at)?;
            }
        }
        Ok(())
    }

    /// Says the end of the stream: sends what was encoded, and that nothing follows, and waits
    /// until all of it is acknowledged.
    ///
    /// # Errors
    ///
    /// [`SendError`]: a receiver has not taken all.
    pub fn finish(mut self) -> Result<(), SendError> {
        self.end()?;
        self.wait_until_taken()?;
        self.is_finished = true;
        Ok(())
    }

    /// As [`finish`](Self::finish), by a ULT of the instance: returns when all has gone. An error
    /// is logged. The instance has to live until the receivers have taken all.
    ///
    /// # Errors
    ///
    /// [`SendError`]: something could not be sent.
    pub fn finish_without_waiting(mut self) -> Result<(), SendError>
    where
        T: 'static,
    {
        self.end()?;
        let pool = self.shared.state.lock().links[0].peer.instances[0].layout().rpc_pool();
        let stream = self.shared.stream;
        let finish = move || match self.wait_until_taken() {
            Ok(()) => self.is_finished = true,
            Err(error) => tracing::warn!(stream, %error, "a stream was not taken to its end"),
        };
        // One that cannot be spawned is dropped: a loss, which its receivers see.
        let _ = pool.ult().name("margo_stream.finish").spawn_detached(finish);
        Ok(())
    }

    fn end(&mut self) -> Result<(), SendError> {
        self.flush()?;
        let links = self.shared.state.lock().links.len();
        for at in 0..links {
            self.wait_for_room(at, 0)?;
            let mut state = self.shared.state.lock();
            let nothing = Arc::new(Items::Long(Vec::new()));
            state.links[at].launch(Outgoing::Items(nothing), 0, true)?;
        }
        Ok(())
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        if !self.is_finished {
            return;
        }
        let mut state = self.shared.state.lock();
        state
            .links
            .iter_mut()
            .filter_map(|link| link.connection.take())
            .for_each(ReceiverConnection::detach);
    }
}
