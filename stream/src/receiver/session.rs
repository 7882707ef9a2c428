//! The order of a session: which items of a sender have arrived, which were taken, which answers
//! are owed. Knows no network; `A` is what an answer is owed to, `P` what has arrived.
//!
//! ```text
//!   acknowledged            next                        a gap
//!        │  taken, or waiting │  early: arrived out of turn │
//!   ─────┴────────────────────┴──────────┬──────┬───────────┴──▶ numbers of items
//! ```
//!
//! Whatever arrives below `next` has arrived before: its items are dropped, and its answer is that
//! of those that came first.

use std::collections::BTreeMap;

use crate::wire::{BATCHES_MAX, EMPTY_ITEMS_MAX};

/// Something that has arrived, to be handed out.
#[derive(Debug)]
pub(crate) struct Arrived<A, P> {
    /// The number of its first item that is to be handed out.
    pub(crate) first: u64,
    /// Items before that, which were handed out already.
    pub(crate) skip: u64,
    /// The number behind its last item.
    pub(crate) end: u64,
    /// Bytes of credit, and the connection of which they are.
    pub(crate) bytes: u64,
    pub(crate) connection: u32,
    pub(crate) answer: A,
    pub(crate) payload: P,
}

/// A batch that was handed out, as its session knows it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BatchRef {
    pub(crate) first: u64,
    pub(crate) end: u64,
    pub(crate) bytes: u64,
    pub(crate) connection: u32,
}

impl<A, P> Arrived<A, P> {
    pub(crate) fn batch(&self) -> BatchRef {
        let &Self { first, end, bytes, connection, .. } = self;
        BatchRef { first, end, bytes, connection }
    }
}

/// The state of a session.
#[derive(Debug)]
pub(crate) struct Order<A, P> {
    credit: u64,
    next: u64,
    early: BTreeMap<u64, Arrived<A, P>>,
    /// Answers of batches that came again, by the number behind their last item.
    again: Vec<(u64, A)>,
    /// The number below which all was acknowledged, and what was above it, by its first item.
    acknowledged: u64,
    acknowledged_early: BTreeMap<u64, u64>,
    /// The number of the connection that the sender has now.
    connection: u32,
    /// Bytes and batches without an answer, of this connection.
    bytes: u64,
    batches: usize,
    /// The number behind the last item of all, once it is known.
    end: Option<u64>,
}

impl<A, P> Order<A, P> {
    pub(crate) fn new(credit: u64, next: u64) -> Self {
        Self {
            credit,
            next,
            early: BTreeMap::new(),
            again: Vec::new(),
            acknowledged: next,
            acknowledged_early: BTreeMap::new(),
            connection: 0,
            bytes: 0,
            batches: 0,
            end: None,
        }
    }

    /// The item that is to arrive next.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// All items below are acknowledged.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// Bytes without an answer.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The number of the connection that the sender has now.
    pub(crate) fn connection(&self) -> u32 {
        self.connection
    }

    /// The number behind the last item of all, once all of them have arrived.
    pub(crate) fn end(&self) -> Option<u64> {
        self.end.filter(|_| self.has_ended())
    }

    /// Returns whether all items have arrived.
    pub(crate) fn has_ended(&self) -> bool {
        self.end == Some(self.next)
    }

    /// Takes credit for a batch whose bytes are going to be fetched. It is given back by
    /// [`refuse`](Self::refuse), or goes with what [`arrives`](Self::arrive).
    ///
    /// # Errors
    ///
    /// The breach, if there is not as much.
    pub(crate) fn reserve(&mut self, bytes: u64, items: u32) -> Result<(), String> {
        if u64::from(items) > bytes.max(u64::from(EMPTY_ITEMS_MAX)) {
            return Err(format!("{items} items were said to be in {bytes} bytes"));
        }
        if bytes > self.credit - self.bytes {
            let (credit, held) = (self.credit, self.bytes);
            return Err(format!(
                "{bytes} bytes were sent beyond {held} that are not acknowledged; the credit is \
                 {credit}"
            ));
        }
        if self.batches >= BATCHES_MAX {
            return Err(format!("more than {BATCHES_MAX} batches were sent without an answer"));
        }
        self.bytes += bytes;
        self.batches += 1;
        Ok(())
    }

    /// Gives back what was [reserved](Self::reserve) for a batch that does not arrive, unless that
    /// was by a connection of before: the credit of each is its own.
    pub(crate) fn refuse(&mut self, connection: u32, bytes: u64) {
        if connection != self.connection {
            return;
        }
        self.bytes = self.bytes.saturating_sub(bytes);
        self.batches = self.batches.saturating_sub(1);
    }

    /// No item follows those before `end`.
    ///
    /// # Errors
    ///
    /// The breach, if one has arrived, or another end was said.
    pub(crate) fn end_at(&mut self, end: u64) -> Result<(), String> {
        let last = self.early.last_key_value().map_or(self.next, |(_, early)| early.end);
        if self.end.is_some_and(|other| other != end) || end < last.max(self.next) {
            return Err(format!("the stream was said to end at item {end}, and goes on"));
        }
        self.end = Some(end);
        Ok(())
    }

    /// A batch for which credit was [reserved](Self::reserve) has arrived. What can be handed out
    /// now goes to `hand_out`, in order, and answers that are due to `answer`.
    ///
    /// # Errors
    ///
    /// The breach, if it has items behind the end.
    pub(crate) fn arrive(
        &mut self,
        mut arrived: Arrived<A, P>,
        mut hand_out: impl FnMut(Arrived<A, P>),
        mut answer: impl FnMut(A),
    ) -> Result<(), (A, String)> {
        if self.end.is_some_and(|end| arrived.end > end) {
            self.refuse(arrived.connection, arrived.bytes);
            return Err((arrived.answer, "items were sent behind the end".to_owned()));
        }
        if arrived.end <= self.next {
            self.came_again(arrived, &mut answer);
            return Ok(());
        }
        if arrived.first > self.next {
            // Of two with the same first item the longer one.
            let key = arrived.first;
            if let Some(mut other) = self.early.remove(&key) {
                if other.end > arrived.end {
                    std::mem::swap(&mut other, &mut arrived);
                }
                self.came_again(other, &mut answer);
            }
            self.early.insert(key, arrived);
            return Ok(());
        }
        loop {
            if arrived.end <= self.next {
                self.came_again(arrived, &mut answer);
            } else {
                arrived.skip = self.next - arrived.first;
                arrived.first = self.next;
                self.next = arrived.end;
                hand_out(arrived);
            }
            // Those that begin before `next` were cut otherwise.
            match self.early.first_entry() {
                Some(early) if *early.key() <= self.next => arrived = early.remove(),
                _ => return Ok(()),
            }
        }
    }

    /// All items of a batch have come before: its answer is theirs.
    fn came_again(&mut self, arrived: Arrived<A, P>, answer: &mut impl FnMut(A)) {
        self.refuse(arrived.connection, arrived.bytes);
        match arrived.end <= self.acknowledged {
            true => answer(arrived.answer),
            false => self.again.push((arrived.end, arrived.answer)),
        }
    }

    /// The items of a batch are acknowledged. Answers of others that are due by this go to
    /// `answer`.
    pub(crate) fn acknowledge(&mut self, batch: BatchRef, answer: impl FnMut(A)) {
        self.refuse(batch.connection, batch.bytes);
        self.acknowledged_early.insert(batch.first, batch.end);
        while let Some(done) = self.acknowledged_early.first_entry()
            && *done.key() <= self.acknowledged
        {
            self.acknowledged = self.acknowledged.max(done.remove());
        }
        let due = self.acknowledged;
        self.again.extract_if(.., |(end, _)| *end <= due).map(|(_, it)| it).for_each(answer);
    }

    /// The connection is new: all that has arrived out of turn will come again, and all answers
    /// that are owed to the old one are without a purpose. They are returned.
    pub(crate) fn reconnect(&mut self) -> Vec<A> {
        let early = std::mem::take(&mut self.early).into_values();
        self.connection += 1;
        (self.bytes, self.batches) = (0, 0);
        let again = self.again.drain(..).map(|(_, answer)| answer);
        let mut old: Vec<A> = again.collect();
        old.extend(early.map(|early| early.answer));
        // What was said of an end counts once it is reached.
        self.end = self.end();
        old
    }
}

#[cfg(test)]
mod tests;
