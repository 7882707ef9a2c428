//! The poll: the one place that reads, accepts, connects, and ends peers.
//!
//! Behind one lock; nothing in it blocks, and it calls nothing of the user: completions and memory
//! to be dropped are collected, and passed on after the lock is released.
//!
//! Sockets are registered edge-triggered, once. `readable` and `writable` of a connection remember
//! an edge until reading or writing has found its end; `queue` names the connections to look at. A
//! poll
//!
//! 1. takes the mail: completions of other threads, peers to dial, flush or give up;
//! 2. resumes connections that were paused for lack of room;
//! 3. asks for events, if no connection is *hot*, that is, had something lately, or more than a few
//!    are, or else now and then. Reading without asking first saves a system call when a message is
//!    awaited. While nobody sleeps, hot connections are *muted*, that is, taken out of the epoll
//!    set, because an event costs the sender's system call 0.15 us (measured; not to ask for
//!    arrivals only would not help). One that is muted and waits for room in its socket is put
//!    back;
//! 4. puts each hot connection at the end of the queue, unless it is there, then reads and flushes
//!    the connections of the queue in their order. When that fills the budget, the rest of the
//!    queue comes first in the next poll, so each connection is read once before any is read again;
//! 5. looks at the limits of time, if the timer has fired: after reading, so that nobody is blamed
//!    for what lies in our socket.
//!
//! | state | owner | others |
//! |---|---|---|
//! | `Poller` | poll, prepare_wait, cancel, close; under its lock | nobody |
//! | `PeerState` | whoever holds the peer's lock; taken after the poller's | senders |
//! | the mail, the matcher | their own locks, taken last | any thread |

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::time::{Itimerspec, TimerfdTimerFlags, Timespec};

use crate::peers::{BELL_NAME, Broken, Conn, Pause, Peer, PeerState, Phase, Stage};
use crate::state::{BELL, Core, DESK, EVENTS, INBOX, LISTENER, Poller, TIMER, TIMER_NAME, flush};
use crate::system::leaving::Leaving;
use crate::wire::frame::Kind;
use na_core::{Error, OpId, Tag};
use prim::lost;
use prim::sync::Arc;

/// Connections that are read in every poll.
const HOT_MAX: usize = 4;

/// Reads in a row that find nothing before a connection is hot no more.
const HOT_READS: u32 = 1000;

/// Polls without a sleep after which hot connections are muted.
const MUTE_AFTER: u32 = 256;

/// With hot connections, one poll of this many asks for events.
const EVENTS_EVERY: u32 = 16;

/// Events taken by one call.
const EVENTS_MAX: usize = 64;

/// Calls for events in one poll, as long as each is full.
const EVENT_CALLS_MAX: usize = 64;

const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
const NO_EVENT: epoll::Event =
    epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) };

impl Poller {
    /// Polls once; stops reading when about `budget` completions are collected.
    pub(crate) fn progress(&mut self, core: &Core, budget: usize) -> Result<(), Error> {
        core.mail.end_sleep();
        self.take_mail(core);
        self.resume_paused(core);
        self.polls_awake = self.polls_awake.saturating_add(1);
        self.polls = self.polls.wrapping_add(1);
        let few_are_hot = (1..HOT_MAX).contains(&self.hot.len());
        if !few_are_hot || self.polls.is_multiple_of(EVENTS_EVERY) {
            self.take_events(core)?;
        }
        if std::mem::take(&mut self.desk_ready) {
            self.take_secured(core);
        }
        // What others have completed does not count, or who sends without end would never read.
        let full = self.batch.len().saturating_add(budget);
        self.enqueue_hot();
        for _ in 0..self.queue.len() {
            if self.batch.len() >= full {
                break;
            }
            let Some(key) = self.queue.pop_front() else { break };
            self.look_at(core, key);
        }
        // Last, so that a hello which is there has been read before room is made for others.
        if self.accept_ready {
            self.accept(core);
        }
        self.give_up_broken(core);
        self.look_after_budget(core);
        if std::mem::take(&mut self.timer_fired) {
            self.deadlines(core);
        }
        Ok(())
    }

    /// Collects what other threads completed, and looks at the peers that they name.
    pub(crate) fn take_mail(&mut self, core: &Core) {
        core.mail.take(&mut self.batch, &mut self.mail);
        while let Some(peer) = self.mail.pop() {
            self.attend(core, &peer);
        }
    }

    /// Returns whether the caller may sleep on the epoll descriptor.
    pub(crate) fn prepare_wait(&mut self, core: &Core) -> bool {
        if !core.mail.prepare_sleep() {
            return false;
        }
        self.resume_paused(core);
        self.polls_awake = 0;
        let mut watched = true;
        for key in &self.hot {
            if let Some(conn) = self.conns.get_mut(*key) {
                watched &= mute(&self.epoll, conn, false);
            }
        }
        let idle = watched && self.is_idle(core);
        if !idle {
            core.mail.end_sleep();
        }
        idle
    }

    /// Returns whether there is nothing to do after a sleep was announced.
    pub(crate) fn is_idle(&mut self, core: &Core) -> bool {
        // Edges that reading has overtaken would end the sleep at once.
        self.take_events(core).is_ok()
            // Mail that came meanwhile has ended the announcement, and taking its event would let
            // nothing end the sleep.
            && core.mail.is_sleeping()
            && self.queue.is_empty()
            && !self.is_hot_work_left()
            && self.batch.is_empty()
            // Whose it is waits for it.
            && self.memories.is_empty()
            && self.broken.is_empty()
            && !core.budget.calls()
            && !self.timer_fired
            && !self.accept_ready
            && !self.desk_ready
    }

    /// Returns whether a hot connection has more for the next poll, and no event to come for it.
    fn is_hot_work_left(&mut self) -> bool {
        let conns = &mut self.conns;
        self.hot.iter().any(|key| conns.get_mut(*key).is_some_and(|conn| conn.has_work()))
    }

    /// Looks at `key` in the next round; at hot connections it does anyway.
    pub(crate) fn enqueue(&mut self, key: u64) {
        if let Some(conn) = self.conns.get_mut(key)
            && !conn.queued
            && !conn.hot
        {
            conn.queued = true;
            self.queue.push_back(key);
        }
    }

    /// Looks at the hot connections in this round, whatever the events say.
    fn enqueue_hot(&mut self) {
        for key in &self.hot {
            let Some(conn) = self.conns.get_mut(*key) else { continue };
            conn.readable = true;
            if self.polls_awake >= MUTE_AFTER {
                mute(&self.epoll, conn, true);
            }
            if !conn.queued {
                conn.queued = true;
                self.queue.push_back(*key);
            }
        }
    }

    fn take_events(&mut self, core: &Core) -> Result<(), Error> {
        for _ in 0..EVENT_CALLS_MAX {
            if self.take_some_events(core)? < EVENTS_MAX {
                break;
            }
        }
        Ok(())
    }

    fn take_some_events(&mut self, core: &Core) -> Result<usize, Error> {
        let mut events = [NO_EVENT; EVENTS_MAX];
        let count = match epoll::wait(&self.epoll, &mut events, Some(&NOW)) {
            Ok(count) => count,
            Err(rustix::io::Errno::INTR) => 0,
            // Also where other code has closed the set: an error reaches everybody who waits.
            Err(errno) => return Err(Error::io("cannot take events", errno)),
        };
        for event in &events[..count] {
            let flags = event.flags;
            match event.data.u64() {
                LISTENER => self.accept_ready = true,
                INBOX => {
                    core.group.bells.silence(core.shard);
                    self.accept_ready = true;
                }
                DESK => self.desk_ready = true,
                BELL => lost::silence(core.mail.bell(), BELL_NAME),
                TIMER => {
                    lost::silence(&self.timer, TIMER_NAME);
                    self.timer_fired = true;
                }
                key => self.event(core, key, flags),
            }
        }
        Ok(count)
    }

    fn event(&mut self, core: &Core, key: u64, flags: EventFlags) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        let end = EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR;
        conn.readable |= flags.intersects(end | EventFlags::IN);
        conn.writable |= flags.intersects(EventFlags::OUT | EventFlags::HUP | EventFlags::ERR);
        conn.hung_up |= flags.intersects(end);
        if conn.hung_up
            && let Stage::Up { peer, .. } = &conn.stage
        {
            let id = peer.id;
            match conn.paused {
                Some(Pause::Room) => core.matcher.lock().lift_bound(id),
                Some(Pause::Unread) => self.read_again(core, id),
                None => {}
            }
        }
        self.enqueue(key);
    }

    fn look_at(&mut self, core: &Core, key: u64) {
        let Some(mut conn) = self.conns.take(key) else { return };
        conn.queued = false;
        if conn.securing.is_some() {
            return self.conns.put_back(conn);
        }
        if matches!(conn.stage, Stage::Connecting(_)) {
            self.conns.put_back(conn);
            return self.connecting(core, key);
        }
        let writable = std::mem::take(&mut conn.writable).then(|| conn.up().cloned()).flatten();
        if let Some(peer) = &writable {
            self.with_peer(peer, |state| {
                state.out.unblock();
                flush(core, peer, state);
            });
        }
        let read = if conn.paused.is_some() { Ok(()) } else { self.read(core, &mut conn) };
        self.note_heat(&mut conn);
        // One that is hot keeps its buffer.
        if !conn.hot {
            conn.incoming.rest(&mut self.buffers);
        }
        let again = conn.readable && conn.paused.is_none();
        self.conns.put_back(conn);
        if let Some(peer) = &writable {
            self.resume_reader(core, peer);
        }
        match read {
            Ok(()) if again => self.enqueue(key),
            Ok(()) => {}
            Err(error) => self.lose(core, key, error),
        }
    }

    fn note_heat(&mut self, conn: &mut Conn) {
        if conn.muted && conn.blocked {
            mute(&self.epoll, conn, false);
            self.polls_awake = 0;
        }
        let cools = conn.hot && (conn.idle_reads > HOT_READS || conn.paused.is_some());
        if cools && mute(&self.epoll, conn, false) {
            conn.hot = false;
            self.hot.retain(|key| *key != conn.key);
        } else if !conn.hot
            && conn.idle_reads == 0
            && conn.paused.is_none()
            && self.hot.len() < HOT_MAX
        {
            conn.hot = true;
            self.hot.push(conn.key);
        }
    }

    /// Puts a connection aside until the matcher has room for its peer, or the message in front of
    /// it has a receive.
    pub(crate) fn pause(&mut self, conn: &mut Conn) {
        conn.paused = Some(Pause::Room);
        self.paused.push(conn.key);
    }

    fn resume_paused(&mut self, core: &Core) {
        self.resume_unread(core);
        if self.paused.is_empty() {
            return;
        }
        let mut matcher = core.matcher.lock();
        let mut resumed = Vec::new();
        let conns = &mut self.conns;
        // No more than that many get on: the others would be refused again.
        let mut receives = matcher.receives_of_any();
        self.paused.retain(|key| {
            let Some(conn) = conns.get_mut(*key) else { return false };
            let Stage::Up { peer, addr } = &conn.stage else { return false };
            let goes_on = {
                let front = || conn.incoming.front().map(|header| (header.kind, header.number));
                matcher.has_room(addr)
                    || match front() {
                        Some((Kind::Expected, tag)) => matcher.is_awaited(peer.id, Tag(tag as u32)),
                        Some((Kind::Unexpected, _)) if receives > 0 => {
                            receives -= 1;
                            true
                        }
                        _ => false,
                    }
            };
            if goes_on {
                conn.paused = None;
                conn.readable = true;
                resumed.push(*key);
            }
            !goes_on
        });
        if !self.paused.is_empty() {
            matcher.still_refuses();
        }
        drop(matcher);
        resumed.into_iter().for_each(|key| self.enqueue(key));
    }

    /// Works on a peer's state and collects what that leaves behind.
    pub(crate) fn with_peer<R>(
        &mut self,
        peer: &Peer,
        work: impl FnOnce(&mut PeerState) -> R,
    ) -> R {
        let mut state = peer.lock();
        let result = work(&mut state);
        peer.note(&mut state);
        if !state.harvest.completions.is_empty() {
            self.batch.extend(state.harvest.completions.drain(..));
        }
        if !state.harvest.memories.is_empty() {
            self.memories.append(&mut state.harvest.memories);
        }
        result
    }

    /// Looks at a peer that was in the mail.
    fn attend(&mut self, core: &Core, peer: &Arc<Peer>) {
        let (dial, broken) = self.with_peer(peer, |state| {
            state.listed = false;
            flush(core, peer, state);
            (
                matches!(state.phase, Phase::Dialing) && state.conn.is_none() && !state.redials,
                state.broken.is_some(),
            )
        });
        self.resume_reader(core, peer);
        if dial {
            self.dial(core, peer, 0, Instant::now() + core.connect_timeout);
        }
        if broken && !self.broken.iter().any(|known| Arc::ptr_eq(known, peer)) {
            self.broken.push(peer.clone());
        }
    }

    /// Ends peers to which sending failed, once everything that they may have sent is read.
    fn give_up_broken(&mut self, core: &Core) {
        if self.broken.is_empty() {
            return;
        }
        for peer in std::mem::take(&mut self.broken) {
            let state = peer.lock();
            let Some(Broken { error, read_first }) = state.broken.clone() else { continue };
            let key = state.conn.filter(|_| read_first);
            drop(state);
            let mut unread = false;
            if let Some(key) = key
                && let Some(conn) = self.conns.get_mut(key)
            {
                // The first time round, read whatever the events said.
                if !conn.hung_up {
                    conn.hung_up = true;
                    conn.readable = true;
                    core.matcher.lock().lift_bound(peer.id);
                }
                unread |= conn.readable;
                self.read_again(core, peer.id);
                self.enqueue(key);
            }
            if unread {
                self.broken.push(peer);
            } else {
                self.end_peer(core, &peer, error);
            }
        }
    }

    /// Ends everything in flight with a peer and closes its connection. It can be dialed again,
    /// unless it is an origin.
    pub(crate) fn end_peer(&mut self, core: &Core, peer: &Arc<Peer>, error: Error) {
        tracing::debug!(%error, "peer ended");
        let (mut cut, mut was_up) = (false, false);
        let key = self.with_peer(peer, |state| {
            was_up = matches!(state.phase, Phase::Up(_));
            let phase = match &state.phase {
                Phase::Closed => Phase::Closed,
                _ if peer.dial.is_empty() => Phase::Gone(peer.gone("its connection has ended")),
                _ => Phase::Idle,
            };
            cut = !state.out.is_empty();
            state.end(phase, core.new_session(), &error)
        });
        if was_up {
            core.tell_of_end(peer, &error);
        }
        self.redials.retain(|redial| !Arc::ptr_eq(&redial.peer, peer));
        let mut receives = Vec::new();
        core.matcher.lock().fail_peer(peer.id, &error, &mut receives);
        self.batch.extend(receives);
        if let Some(key) = key {
            self.abandon(core, key, &error);
            if cut && let Some(conn) = self.conns.get_mut(key) {
                self.leaving.cut(&conn.socket);
            }
            self.drop_conn(key);
        }
    }

    /// Closes a connection, whatever depends on it.
    pub(crate) fn drop_conn(&mut self, key: u64) {
        let Some(conn) = self.release(key) else { return };
        self.leaving.closes(&conn.socket);
        let _ = rustix::net::shutdown(&conn.socket, rustix::net::Shutdown::Both);
        debug_assert!(!conn.incoming.is_claiming(), "a receive is lost");
    }

    /// Takes a connection out of everything that polls, and leaves it open.
    pub(crate) fn release(&mut self, key: u64) -> Option<Box<Conn>> {
        let conn = self.conns.remove(key)?;
        self.hot.retain(|hot| *hot != key);
        self.paused.retain(|paused| *paused != key);
        self.forget_unread(&conn);
        // A sender may still hold the socket for a moment.
        let _ = epoll::delete(&self.epoll, &conn.socket);
        if self.accept_again_at.take().is_some() {
            self.accept_ready = true;
        }
        Some(conn)
    }

    /// Fires the timer at `deadline` unless it fires earlier.
    pub(crate) fn arm(&mut self, deadline: Instant) {
        if self.timer_at.is_some_and(|at| at <= deadline) {
            return;
        }
        self.timer_at = Some(deadline);
        let delay = deadline.saturating_duration_since(Instant::now());
        // Zero would disarm it.
        let delay = delay.max(Duration::from_nanos(1));
        let value = Itimerspec {
            it_interval: NOW,
            it_value: Timespec {
                tv_sec: i64::try_from(delay.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: delay.subsec_nanos().into(),
            },
        };
        if let Err(errno) =
            rustix::time::timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &value)
        {
            lost::check(errno, TIMER_NAME);
            tracing::warn!(%errno, "cannot set a timer: connection attempts have no time limit");
        }
    }

    /// Returns the `wanted` ones among the peers that may have operations in flight.
    fn busy_peers(&self, core: &Core, wanted: impl Fn(&Peer) -> bool) -> Vec<Arc<Peer>> {
        let mut peers = core.mail.listed();
        peers.retain(|peer| wanted(peer));
        let connected = self.conns.iter().filter_map(|conn| conn.peer());
        let redialed = self.redials.iter().map(|redial| &redial.peer);
        peers.extend(connected.chain(redialed).filter(|peer| wanted(peer)).cloned());
        peers
    }

    /// Ends an operation, if it is in flight. The matcher was asked before, without our lock.
    pub(crate) fn cancel(&mut self, core: &Core, op: OpId) {
        if let Some(claimed) = self.conns.iter_mut().find_map(|conn| conn.incoming.unclaim(op)) {
            self.batch.push_back(claimed.failed(Error::Canceled));
            return;
        }
        // A receive may have gone back to the matcher since that was asked, which takes our lock.
        let receive = core.matcher.lock().cancel(op);
        if let Some(completion) = receive {
            self.batch.push_back(completion);
            return;
        }
        for peer in self.busy_peers(core, Peer::is_cancelable) {
            let found = self.with_peer(&peer, |state| {
                if let Some(completion) = state.out.cancel_send(op) {
                    state.harvest.completions.push(completion);
                    return Some(None);
                }
                let PeerState { transfers, out, harvest, .. } = state;
                let number = transfers.cancel(op, out, harvest)?;
                if !out.is_empty() {
                    core.mail.list(&peer, state);
                }
                Some(number.zip(state.conn))
            });
            let Some(found) = found else { continue };
            if let Some((number, key)) = found {
                let conn = self.conns.get_mut(key);
                self.memories.extend(conn.and_then(|conn| conn.incoming.discard(number)));
            }
            return;
        }
    }

    /// Leaves what comes to the group from now on to the other endpoints of it, and the listener.
    pub(crate) fn leave_group(&mut self, core: &Core) {
        let listener = self.listener.take();
        if let Some(listener) = &listener {
            let _ = epoll::delete(&self.epoll, listener);
        }
        core.group.close(core.shard, listener);
    }

    /// Ends everything with [`Error::Closed`].
    pub(crate) fn close(&mut self, core: &Core) {
        self.leaving = Leaving::unbounded();
        core.mail.take(&mut self.batch, &mut self.mail);
        let mut peers = core.mail.close();
        peers.append(&mut self.mail);
        peers.extend(self.busy_peers(core, |_| true));
        for peer in peers {
            let mut was_up = false;
            let key = self.with_peer(&peer, |state| {
                flush(core, &peer, state);
                was_up = matches!(state.phase, Phase::Up(_));
                state.end(Phase::Closed, core.new_session(), &Error::Closed)
            });
            if was_up {
                core.tell_of_end(&peer, &Error::Closed);
            }
            if let Some(key) = key {
                self.abandon(core, key, &Error::Closed);
                self.hang_up(key);
            }
        }
        let strangers: Vec<u64> = self.conns.iter().map(|conn| conn.key).collect();
        for key in strangers {
            self.abandon(core, key, &Error::Closed);
            self.drop_conn(key);
        }
        let mut receives = Vec::new();
        core.matcher.lock().fail_all(&Error::Closed, &mut receives);
        self.batch.extend(receives);
        self.leave_group(core);
        self.accept_ready = false;
        self.queue.clear();
        self.broken.clear();
        self.redials.clear();
    }

    /// Closes a connection such that what was sent on it still arrives: unread input would make the
    /// kernel reset it.
    fn hang_up(&mut self, key: u64) {
        if let Some(conn) = self.conns.get_mut(key) {
            let _ = rustix::net::shutdown(&conn.socket, rustix::net::Shutdown::Write);
            conn.incoming.drain(&conn.socket, &mut self.buffers);
        }
        self.drop_conn(key);
    }
}

/// Stops or restarts the events of a connection. Restarting reports what is the case already.
/// `false`: it could not, for lack of kernel memory; then it is read in every poll as before.
fn mute(epoll: &OwnedFd, conn: &mut Conn, muted: bool) -> bool {
    if conn.muted != muted {
        let done = match muted {
            true => epoll::delete(epoll, &conn.socket),
            false => epoll::add(epoll, &conn.socket, EventData::new_u64(conn.key), EVENTS),
        };
        if done.is_ok() {
            conn.muted = muted;
        }
    }
    conn.muted == muted
}
