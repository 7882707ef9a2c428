//! The work of a poll: what the network has brought, and what has waited for it.

use ucx_sys::{ucp_ep_h, ucs_status_t};

use crate::operations::inbox::{ConnEvent, Event, Failing};
use crate::operations::slots::Work;
use crate::state::driver::Driver;
use crate::wire::{Chunk, Control};

/// Looks at the network in one poll, at most.
const TURNS_PER_POLL: usize = 64;

/// Looks that find nothing, in a row, after which what a peer sent before its end has come.
const QUIET_TURNS: usize = 4;

/// Turns of a busy endpoint after which a failure is handled all the same; of those that bring
/// messages every other one counts.
const BUSY_TURNS: u32 = 100;

impl Driver {
    /// Moves the network, and handles what that has brought: in the next turn, if this one has
    /// brought messages, which would wait for it.
    #[inline]
    pub(crate) fn turn(&mut self) {
        let (mut quiet, mut turns, mut has_brought) = (false, 0, false);
        while let Some(worker) = &self.worker {
            let moved = worker.progress();
            turns += 1;
            has_brought = !self.state().done.is_empty();
            // What has come is reported first: over TCP another look is a system call, and whoever
            // polls looks again.
            if !moved || turns >= TURNS_PER_POLL || has_brought {
                quiet = !moved;
                break;
            }
        }
        if self.discards.is_waiting() {
            self.settle_discards(quiet);
        }
        // Every other turn at the latest, whatever comes.
        self.is_behind = has_brought && !self.is_behind;
        if !self.is_behind {
            self.handle_all(quiet);
        }
    }

    /// Handles what turns have brought but messages. `quiet`: the network has nothing more.
    fn handle_all(&mut self, quiet: bool) {
        self.handle_events();
        if self.facts.group.count() > 1 {
            self.look_at_door();
        }
        if self.answers.calls() && self.answers.take_call() {
            self.end_overfull();
        }
        if std::mem::take(&mut self.state().has_written) {
            self.facts.regions.has_served();
        }
        if !self.state().failing.is_empty() {
            self.handle_failures(quiet);
        }
        self.send_chunks();
        self.reach();
        self.take_keys_back();
        self.look_after_peers();
        if self.connecting > 0 || !self.strangers.is_empty() {
            self.check_deadlines();
        }
        self.accept_callers();
        self.return_credits();
    }

    fn handle_events(&mut self) {
        loop {
            // Not in the loop's condition, which would borrow the state for its body.
            let Some(event) = self.state().events.pop_front() else { return };
            match event {
                Event::Connection(request) => self.called(request),
                Event::Conn(link, news) => self.came(link, news),
                Event::Finished(slot, status) => self.finished(slot, status),
            }
        }
    }

    /// An open connection has brought something.
    pub(crate) fn came(&mut self, link: ucp_ep_h, news: ConnEvent) {
        let result = match news {
            ConnEvent::Failed(status) => {
                self.state().failing.push(Failing { link, status, turns: BUSY_TURNS });
                Ok(())
            }
            ConnEvent::Broke(rule) => return self.broke(link, rule),
            ConnEvent::Control(bytes) => self.heard(link, &bytes),
            ConnEvent::Whole(chunk) => {
                self.is_whole(link, chunk);
                Ok(())
            }
            ConnEvent::Stray(chunk) => {
                self.greeted_peer(link).map_or(Ok(()), |index| self.stray(index, chunk))
            }
            ConnEvent::Piece(piece, offer) => self.piece_came(link, piece, offer),
            ConnEvent::Message(kind, tag, bytes) => {
                self.inbox().message(link, kind, tag, &bytes);
                Ok(())
            }
        };
        if let Err(rule) = result {
            self.broke(link, rule.to_owned());
        }
    }

    /// Ends the connections that have failed, once all that was sent before has come: over shared
    /// memory the news may overtake it. Nobody else's traffic can hold that up for ever.
    fn handle_failures(&mut self, mut quiet: bool) {
        for _ in 0..QUIET_TURNS {
            let Some(worker) = self.worker.as_ref().filter(|_| quiet) else { break };
            quiet = !worker.progress();
            self.handle_events();
        }
        let is_over = |failing: &Failing| quiet || failing.turns == 0;
        // One at a time: the end of one may end others, whose handles may then be in use again.
        loop {
            let mut state = self.state();
            let Some(at) = state.failing.iter().position(is_over) else { break };
            let Failing { link, status, .. } = state.failing.swap_remove(at);
            drop(state);
            self.failed(link, self.why_not(status));
        }
        self.state().failing.iter_mut().for_each(|failing| failing.turns -= 1);
    }

    fn heard(&mut self, link: ucp_ep_h, bytes: &[u8]) -> Result<(), &'static str> {
        let control = match Control::from_bytes(bytes)? {
            Control::Hello(hello) => return self.greeted(link, hello),
            Control::Elsewhere { port, token } => return self.sent_on(link, port, token),
            control => control,
        };
        let index = self.greeted_peer(link).ok_or("it speaks before it says hello")?;
        if self.ends_deaf(index) {
            return Ok(());
        }
        match control {
            Control::Hello(_) | Control::Elsewhere { .. } | Control::Alive => Ok(()),
            Control::Taken(counts) => {
                if let Some(peer) = self.peer(index) {
                    for (credit, count) in peer.credits.iter_mut().zip(counts) {
                        *credit = credit.saturating_add(count).min(peer.window);
                    }
                }
                self.pump(index);
                Ok(())
            }
            Control::Ask { id, key, offset, len, write } => {
                self.asked(index, id, (key, offset, len), write)
            }
            Control::Grant { id } => self.granted(index, id),
            Control::Done { id } => self.owner_done(index, id),
            Control::Deny { id, reason } => {
                self.denied(index, id, reason);
                Ok(())
            }
            Control::Release { id } => {
                self.released(index, id);
                Ok(())
            }
            Control::Want { key } => self.wanted(index, key),
            Control::Key(given) => self.key_came(index, &given),
            Control::NoKey { key } => self.no_key_came(index, key),
            Control::Revoke { key } => self.key_revoked(index, key),
            Control::Returned { key } => self.returned(index, key),
        }
    }

    /// All of a transfer is there.
    fn is_whole(&mut self, link: ucp_ep_h, chunk: Chunk) {
        match self.greeted_peer(link) {
            Some(index) if chunk.put => self.check_lease(index, chunk.id),
            Some(index) => self.check_own(chunk.id, index),
            None => {}
        }
    }

    /// Returns whether a poll has something to do at once.
    pub(crate) fn is_busy(&self) -> bool {
        self.state().is_busy()
            || !self.sending.is_empty()
            || self.is_behind
            || self.discards.is_busy()
            || self.has_callers()
            || self.has_keys_due()
    }

    fn return_credits(&mut self) {
        loop {
            let mut state = self.state();
            let Some(index) = state.due.pop() else { return };
            let counts = state.settle(index);
            drop(state);
            if counts != [0; 2] {
                self.tell(index, &Control::Taken(counts));
                self.ends_deaf(index);
            }
        }
    }

    /// An operation in a slot is over.
    pub(crate) fn finished(&mut self, slot: u32, status: ucs_status_t) {
        match self.slots.take(slot) {
            Some(Work::Send { op, buf, peer, end, answer }) => {
                if end.is_none() {
                    self.answer_left(peer, answer);
                }
                self.sent(op, buf, peer, end, status);
            }
            Some(Work::Chunk(stream, _)) => {
                self.chunk_left(stream);
                self.chunk_sent(stream, status);
            }
            Some(Work::Packed(stream, memory)) => {
                self.chunk_left(stream);
                self.packed(stream, memory, status);
            }
            Some(Work::Lent(stream, memory)) => {
                self.memory.push(memory);
                self.piece_sent(stream, status);
            }
            Some(Work::Landing(landing)) => self.landed(landing, status),
            Some(Work::Reached(stream, memory, _key)) => {
                self.memory.push(memory);
                self.reached(stream, false, status);
            }
            Some(Work::Flushed(stream)) => self.reached(stream, true, status),
            Some(Work::Close(ended)) => self.closed(ended),
            Some(Work::Discarded(ended)) => self.discarded(ended, status),
            Some(Work::Alive(_, peer, session)) => self.alive_sent(peer, session),
            Some(Work::Told(_, peer, session)) => self.told_sent(peer, session),
            Some(Work::Hello(_, peer)) => self.hello_sent(peer, status),
            Some(Work::Elsewhere(_)) | None => {}
        }
    }
}
