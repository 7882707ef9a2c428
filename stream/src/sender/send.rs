//! Sending items, and the end of a stream.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use margo::bulk_memory::Exposable;
use margo::trace::{self, TraceContext};
use margo::{Access, Exposed, Instance};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::base::turn::let_others_run;
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
    /// A ULT that is cancelled while it waits has put the item into a batch. The item's `Serialize`
    /// must not wait.
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
        self.put(batch, std::slice::from_ref(item))
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
        self.put(receiver, std::slice::from_ref(item))
    }

    /// Sends all items, each as [`send`](Self::send) does: the iterator may wait for the next one.
    ///
    /// # Errors
    ///
    /// [`SendError`]; those before are sent, and the rest was not taken from the iterator.
    pub fn send_all(&mut self, items: impl IntoIterator<Item = T>) -> Result<(), SendError> {
        items.into_iter().try_for_each(|item| self.send(&item))
    }

    /// Sends items that are there already, with less to do for each than [`send`](Self::send).
    ///
    /// # Errors
    ///
    /// [`SendError`]; those before the one that it is about are sent.
    pub fn send_slice(&mut self, items: &[T]) -> Result<(), SendError> {
        if self.is_by_receiver() {
            return items.iter().try_for_each(|item| self.send(item));
        }
        self.put(0, items)
    }

    #[inline]
    fn put(&mut self, batch: usize, mut items: &[T]) -> Result<(), SendError> {
        while !items.is_empty() {
            let put = self.shared.state.lock().put(batch, items, &self.shared);
            let (taken, goes) = put?;
            items = &items[taken..];
            if goes {
                self.go(batch)?;
            }
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
        let at = self.shared.state.lock().turn_of(batch);
        let exposed = self
            .instance_of(at)?
            .expose(data, Access::ReadOnly)
            .map_err(|source| SendError::Memory { stream, source: Arc::new(source) })?;
        let (loan, lent) = lend(exposed, &self.shared, at);
        let len = loan.bulk.len();
        let credit = bytes.len() as u64 + len;
        let data = Outgoing::Data(Content::Data(Arc::new((bytes, loan, len))));
        self.send_alone(at, credit, data, (1, false))?;
        Ok(lent)
    }

    /// The instance by which a link is connected, waiting until it is.
    fn instance_of(&self, at: usize) -> Result<Instance, SendError> {
        loop {
            let mut state = self.shared.state.lock();
            let link = &mut state.links[at];
            link.has_room(0)?;
            if let Some(connection) = &link.connection {
                return Ok(connection.target().0);
            }
            drop(state);
            self.shared.wait_for_answer(at)?;
        }
    }

    fn place_of(&self, hash: u64) -> usize {
        // No truncation: below the number of links.
        (hash % self.shared.since.len() as u64) as usize
    }
}

impl State {
    /// Encodes items into an open batch; returns how many, and whether the batch is to go.
    #[inline]
    fn put<T: Serialize + 'static>(
        &mut self,
        batch: usize,
        items: &[T],
        shared: &Shared,
    ) -> Result<(usize, bool), SendError> {
        let open = &mut self.open[batch];
        if open.count() == 0 {
            open.trace = trace::current();
        }
        // It is looked at with one item, two, four …
        let look = (open.count() + 1).next_power_of_two();
        let (taken, is_next_too_long) = match open.fill(items, look) {
            Ok(filled) => filled,
            Err(error) => return Err(shared.refused(error, open.max())),
        };
        let is_full = is_next_too_long || open.is_full();
        let goes = is_full || open.count() == look && self.goes_early(batch, shared);
        Ok((taken, goes))
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
                Go::Gone => {
                    let_others_run();
                    return Ok(());
                }
                Go::Waits(at) => self.shared.wait_for_answer(at)?,
            }
        }
    }

    /// Sends what is a batch by itself, waiting for room.
    fn send_alone(
        &self,
        at: usize,
        bytes: u64,
        outgoing: Outgoing,
        (count, is_last): (u32, bool),
    ) -> Result<(), SendError> {
        loop {
            let mut state = self.shared.state.lock();
            let link = &mut state.links[at];
            if bytes > link.credit {
                let (stream, max) = (self.shared.stream, link.credit);
                return Err(SendError::TooLarge { stream, bytes, max });
            }
            if link.has_room(bytes)? {
                return link.launch(outgoing, (count, is_last), trace::current());
            }
            drop(state);
            self.shared.wait_for_answer(at)?;
        }
    }

    /// The items that wait are part of a trace.
    pub(crate) fn mark(&self, trace: TraceContext) {
        let mut state = self.shared.state.lock();
        let open = state.open.iter_mut().filter(|open| open.count() > 0);
        open.for_each(|open| open.trace = open.trace.or(Some(trace)));
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
                link.has_room(0)?;
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
            let nothing = Outgoing::Items(Arc::new(Items::Long(Vec::new())));
            self.send_alone(at, 0, nothing, (0, true))?;
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
