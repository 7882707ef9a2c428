//! Progress: rounds over the connections, looks at the epoll set, sleep.
//!
//! A *round* touches only memory: for each connection the commit word at our position and two
//! flags. A *look* asks the kernel for new connections, welcomes and deaths; it happens after a
//! sleep, after [`LOOK_POLLS`] polls, and at least every [`LOOK_EVERY`] of polling (a coarse clock
//! is read every 8th poll). Limits of time are checked after the round that follows a look, so that
//! nobody is blamed for what lies in a ring or a socket here, and count only time in which we run
//! (`ran.rs`). A poll that finds the [report](crate::wake::reports) of a transfer that was done at
//! once tells that and makes no round, a few times in a row.
//!
//! # Sleep
//!
//! `prepare_wait` announces the sleep at every bell (each peer's segment, our own), settles, and
//! makes one more round. If that moves anything, the announcement is taken back; otherwise whoever
//! makes work for us now finds a bell to ring, and all bells are in the epoll set. Limits are
//! covered by a timer in the same set.

use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::time::{ClockId, Itimerspec, TimerfdTimerFlags};

use crate::link::socket;
use crate::link::{Control, sleep_reasons};
use crate::peers::{ConnectionStage, RxLink, sent};
use crate::state::{INBOX, LISTENER, PROCESS, PollState, Sink, SmEndpoint, TIMER, WAKE};
use crate::wake::doorbell::{RECORDS, settle};
use na_core::base::ran::RunClock;
use na_core::loopback::Outcome;
use na_core::{Completion, Error, OpId};
use prim::lock::biased::PLACES;
use prim::lost;
use prim::sync::atomic::Ordering;
use prim::sync::lock;

/// How the timer is called, should it be lost.
const TIMER_NAME: &str = "the timer of an sm endpoint";

/// Polls after which the kernel is asked, at the latest.
const LOOK_POLLS: u32 = 1024;

/// Polls after which a clock is read.
const CLOCK_POLLS: u32 = 8;

/// As `LOOK_POLLS`, while a handshake is under way.
const LOOK_POLLS_GREETING: u32 = 16;

/// Time of polling after which the kernel is asked.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Polls in a row that only report a transfer which was done at once, without a round.
const REPORTS_MAX: u32 = 7;

/// Bulk bytes that one round moves.
const BULK_BYTES: u64 = 4 << 20;

/// Events that one look takes.
const EVENTS: usize = 64;

impl PollState {
    /// Returns whether this poll may end with the report of a transfer that was done at once.
    #[inline]
    fn may_only_report(&self) -> bool {
        self.reports < REPORTS_MAX && !self.asleep && self.arrived.is_empty()
    }

    /// Returns whether it is time to ask the kernel.
    #[inline]
    fn is_look_due(&mut self) -> bool {
        self.polls = self.polls.wrapping_add(1);
        (self.look_now || self.polls.is_multiple_of(CLOCK_POLLS)) && self.is_time_to_look()
    }

    #[inline(never)]
    fn is_time_to_look(&self) -> bool {
        if self.look_now || self.polls.is_multiple_of(LOOK_POLLS) {
            return true;
        }
        if self.polls.is_multiple_of(LOOK_POLLS_GREETING) && self.is_greeting() {
            return true;
        }
        let now = rustix::time::clock_gettime(ClockId::MonotonicCoarse);
        let elapsed = (now.tv_sec - self.looked_at.tv_sec) * 1_000_000_000
            + (now.tv_nsec - self.looked_at.tv_nsec);
        elapsed >= LOOK_EVERY.as_nanos() as i64
    }

    fn is_greeting(&self) -> bool {
        !self.strangers.is_empty() || self.links.is_greeting()
    }
}

impl SmEndpoint {
    /// See [`Endpoint::poll`](na_core::Endpoint::poll).
    #[inline]
    pub(crate) fn poll_once(
        &self,
        budget: usize,
        sink: &mut dyn FnMut(Completion),
    ) -> Result<usize, Error> {
        let mut guard = self.poll.lock();
        let place = guard.place();
        let state = &mut *guard;
        if state.may_only_report()
            && budget > 0
            && let Some(op) = place.and_then(|place| self.reports.take(place))
        {
            state.reports += 1;
            sink(Completion::Transfer { op: OpId(op), result: Ok(()) });
            return Ok(1);
        }
        state.reports = 0;
        let mut sink = Sink::new(sink, budget);
        let looks = state.is_look_due();
        if looks || budget == 0 || state.asleep || !state.arrived.is_empty() {
            let polled = self.poll_more(state, &mut sink, looks);
            return polled.map(|()| budget - sink.left);
        }
        // Nearly always there is nothing but a round to make. It stands in no further frame: what
        // arrives waits for all that comes before it.
        self.round(state, &mut sink);
        if !state.arrived.is_empty() || self.is_closed() {
            self.end_poll(state, &mut sink);
        }
        Ok(budget - sink.left)
    }

    /// A poll that does more than a round.
    #[inline(never)]
    fn poll_more(
        &self,
        state: &mut PollState,
        sink: &mut Sink<'_>,
        looks: bool,
    ) -> Result<(), Error> {
        if state.asleep {
            self.wake_up(state);
        }
        // More than the budget of the last poll.
        sink.drain(&mut state.arrived);
        let mut failed = None;
        if sink.left > 0 {
            // Also after a sleep, which says so.
            if looks || state.look_now {
                failed = self.look_and_round(state, sink);
            } else {
                self.round_apart(state, sink);
            }
        }
        self.end_poll(state, sink);
        failed.map_or(Ok(()), |error| Err(*error))
    }

    #[inline(never)]
    fn end_poll(&self, state: &mut PollState, sink: &mut Sink<'_>) {
        if state.shut_down {
            // Whoever polls on waits for nothing else.
            self.release_kept();
        }
        sink.drain(&mut state.arrived);
        if self.is_closed() {
            self.shut_down(state);
        }
    }

    /// See [`Endpoint::may_find`](na_core::Endpoint::may_find).
    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        // Somebody else polls, or the favour of the lock ends: a poll tells.
        let Some(state) = self.poll.try_lock() else { return true };
        // Who is not favoured leaves none; what is in the queues of others is for a poll.
        let is_left = |place| self.reports.is_left(place);
        self.has_opened.load(Ordering::Relaxed)
            || self.loopback.is_busy()
            || self.ready.is_filled()
            || state.place().is_some_and(is_left)
            || self.is_closed()
            || state.asleep
            || !state.arrived.is_empty()
            || state.links.has_work(&self.board)
    }

    #[inline(never)]
    fn look_and_round(&self, state: &mut PollState, sink: &mut Sink<'_>) -> Option<Box<Error>> {
        let looked = self.look(state);
        self.round_apart(state, sink);
        if let Ok(true) = looked {
            self.check_limits(state, Instant::now());
        }
        looked.err().map(Box::new)
    }

    /// As [`round`](Self::round), for polls that do more than that.
    #[inline(never)]
    fn round_apart(&self, state: &mut PollState, sink: &mut Sink<'_>) -> bool {
        self.round(state, sink)
    }

    /// Moves whatever can be moved without asking the kernel. Returns whether anything did.
    #[inline(always)]
    fn round(&self, state: &mut PollState, sink: &mut Sink<'_>) -> bool {
        let mut progress = self.adopt(state);
        progress |= state.links.read(&self.board);
        let mut budget = BULK_BYTES;
        let PollState { links, arrived, out, turn, asleep, .. } = state;
        let watched = links.watched();
        let count = watched.len();
        *turn = if *turn + 1 < count { *turn + 1 } else { 0 };
        let mut ended = false;
        for step in 0..count {
            let index = *turn + step;
            let link = &mut watched[if index < count { index } else { index - count }];
            let moved = self.serve(link, sink, arrived, out, &mut budget);
            link.quiet_rounds = if moved { 0 } else { link.quiet_rounds.saturating_add(1) };
            progress |= moved;
            ended |= link.end.is_some();
        }
        // A poll that is about to sleep has announced that to all peers. To leave one of them would
        // take the announcement to it back, and it would ring no bell.
        if *turn < count && !*asleep {
            links.leave_if_quiet(*turn);
        }
        if ended {
            progress = true;
            self.reap_ended(state);
        }
        let out = &mut state.out;
        progress |= self.loopback.run(
            &self.own_addr,
            || self.matcher.lock(),
            &self.regions,
            &mut budget,
            out,
        );
        if !out.completions.is_empty() {
            state.arrived.extend(out.completions.drain(..));
        }
        if !out.memory.is_empty() {
            // May run foreign code; only the poll's own lock is held here.
            out.memory.clear();
        }
        for place in 0..PLACES {
            while let Some(op) = self.reports.take(place) {
                state.arrived.push_back(Completion::Transfer { op: OpId(op), result: Ok(()) });
                progress = true;
            }
        }
        self.ready.take(&mut state.arrived) || progress
    }

    /// Gives one link its turn. Returns whether anything moved.
    #[inline]
    fn serve(
        &self,
        link: &mut RxLink,
        sink: &mut Sink<'_>,
        arrived: &mut VecDeque<Completion>,
        out: &mut Outcome,
        budget: &mut u64,
    ) -> bool {
        let mut progress = false;
        if link.rx.is_empty() {
            link.turn = 1;
            // There is nothing else to do.
            link.spares.fill(&link.addr);
        } else if link.stage == ConnectionStage::Up {
            progress |= self.pump(link, sink, arrived, out);
        }
        if !link.services.is_empty() {
            let moved = link.run_services(budget, out);
            if moved {
                self.regions.has_served();
            }
            progress |= moved;
        }
        if link.conn.has_backlog() {
            progress |= self.flush(link, sink, arrived, out, budget);
        }
        progress
    }

    #[inline]
    fn flush(
        &self,
        link: &mut RxLink,
        sink: &mut Sink<'_>,
        arrived: &mut VecDeque<Completion>,
        out: &mut Outcome,
        budget: &mut u64,
    ) -> bool {
        let mut lone = None;
        let progress = link.with_link(|tx| tx.flush(&mut lone, arrived, out, budget));
        let progress = progress.unwrap_or(false);
        if let Some(violation) = link.conn.fault() {
            link.breach(violation);
        }
        match lone {
            None => {}
            // Made where it is handed over: a completion is larger than what it says.
            Some(lone) if sink.takes(arrived) => sink.tell(sent(lone)),
            Some(lone) => arrived.push_back(sent(lone)),
        }
        progress
    }

    /// Takes over connections that senders made.
    #[inline]
    pub(crate) fn adopt(&self, state: &mut PollState) -> bool {
        self.has_opened.load(Ordering::Relaxed) && self.adopt_opened(state)
    }

    #[cold]
    fn adopt_opened(&self, state: &mut PollState) -> bool {
        let mut opened = lock(&self.opened);
        opened.drain(..).for_each(|link| state.links.push(link));
        self.has_opened.store(false, Ordering::Relaxed);
        true
    }

    /// Asks the kernel. Returns whether all that it knew was taken.
    fn look(&self, state: &mut PollState) -> Result<bool, Error> {
        state.looked_at = rustix::time::clock_gettime(ClockId::MonotonicCoarse);
        self.adopt(state);
        let mut buffer = [const { MaybeUninit::<epoll::Event>::uninit() }; EVENTS];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let events = match epoll::wait(&self.epoll, &mut buffer, Some(&now)) {
            Ok((events, _)) => events,
            Err(Errno::INTR) => return Ok(false),
            // Also where other code has closed the set: an error reaches everybody who waits.
            Err(errno) => return Err(Error::io("cannot read the endpoint's epoll set", errno)),
        };
        state.look_now = events.len() >= EVENTS;
        state.crowded = if state.look_now { state.crowded + EVENTS } else { 0 };
        for event in events {
            // Copied: the fields of the kernel's structure are not aligned.
            let data = event.data;
            match data.u64() {
                WAKE => self.ready.silence(),
                TIMER => lost::silence(&self.timer, TIMER_NAME),
                LISTENER => self.accept(state),
                INBOX => self.take_handed(state),
                token => self.hear(state, token),
            }
        }
        state.links.sweep_some();
        self.release_kept();
        // The kernel goes around, so after as many events as there are sockets each had its turn.
        let sockets = state.links.iter().count() + state.strangers.len();
        Ok(!state.look_now || state.crowded > sockets + EVENTS)
    }

    fn hear(&self, state: &mut PollState, token: u64) {
        let (token, has_ended) = (token & !PROCESS, token & PROCESS != 0);
        if let Some(at) = state.strangers.iter().position(|stranger| stranger.token == token) {
            return self.hear_stranger(state, at);
        }
        // Of one that has ended meanwhile there is nothing to hear.
        state.links.act_on(token, |link| {
            match link.stage {
                ConnectionStage::Dialing { .. } | ConnectionStage::Greeting { .. } => {
                    self.hear_welcome(link)
                }
                ConnectionStage::Up => link.hear(),
            }
            // After what it said last.
            if has_ended {
                link.gone("its process has ended");
            }
        });
    }

    /// Gives up who had time enough.
    #[inline(never)]
    fn check_limits(&self, state: &mut PollState, now: Instant) {
        let limit = self.options.connect_timeout;
        state.strangers.retain_mut(|stranger| {
            let late = stranger.waited.has_passed(now, limit);
            if late {
                let reason = format!("no hello within {limit:?}");
                self.tell_of_refusal(Some(stranger.credentials), &reason);
                self.drop_stranger(stranger);
            }
            !late
        });
        if state.accept_again.is_some_and(|again| now >= again) {
            self.resume_accepting(state);
        }
        self.leave_canceled(state, now);
        let mut acted = false;
        // The watched ones come first. Who is not watched is up, and has no limit but of liveness.
        let no_liveness = self.options.liveness_limit.is_zero();
        let count = if no_liveness { state.links.watched().len() } else { usize::MAX };
        for link in state.links.iter_mut().take(count) {
            acted |= match &mut link.stage {
                ConnectionStage::Dialing { waited } => {
                    let late = waited.has_passed(now, limit);
                    self.dial_again(link, late);
                    link.end.is_some()
                }
                ConnectionStage::Greeting { waited } => {
                    let late = waited.has_passed(now, limit);
                    if late {
                        link.gone("it listens, but did not answer in time");
                    }
                    late
                }
                ConnectionStage::Up => self.check_liveness(link, now),
            }
        }
        if acted {
            // The next round sees to all of them.
            state.links.sweep();
        }
    }

    /// Returns whether there is something to do now.
    fn check_liveness(&self, link: &mut RxLink, now: Instant) -> bool {
        let limit = self.options.liveness_limit;
        if limit.is_zero() {
            return false;
        }
        // What lies in the ring is a sign of life, also while messages are not taken.
        if std::mem::take(&mut link.heard) || !link.rx.is_empty() {
            (link.silent, link.pinged) = (RunClock::since(now), false);
            return false;
        }
        if !link.silent.has_passed(now, limit / 2) {
            return false;
        }
        if !self.is_owed(link) {
            (link.silent, link.pinged) = (RunClock::since(now), false);
            return false;
        }
        if link.pinged {
            link.gone(&format!("no sign of life for {limit:?}"));
        } else {
            (link.silent, link.pinged) = (RunClock::since(now), true);
            link.with_link(|tx| tx.push_control(Control::Ping));
        }
        true
    }

    /// Returns whether the peer owes us something. Unread records in its ring are no debt: it may
    /// compute between two calls for as long as it likes.
    fn is_owed(&self, link: &RxLink) -> bool {
        !link.services.is_empty()
            || link.with_link(|tx| tx.waits_for_peer()).unwrap_or(false)
            || self.matcher.lock().awaits(link.peer.id)
    }

    /// See [`Endpoint::prepare_wait`](na_core::Endpoint::prepare_wait).
    pub(crate) fn try_sleep(&self) -> bool {
        if !self.ready.sleeps() {
            return false;
        }
        let mut guard = self.poll.lock();
        let state = &mut *guard;
        if !state.arrived.is_empty() || state.look_now {
            return false;
        }
        state.asleep = true;
        for link in state.links.iter() {
            let wants_room = link.conn.has_backlog() || link.services.wants_room();
            let reasons = sleep_reasons(wants_room, link.conn.is_left());
            link.conn.segment.own_bell().announce(reasons);
        }
        self.ready.bell().announce(RECORDS);
        settle();
        // The announcement to the peers that this watches again is taken back.
        let found = state.links.sweep();
        let closing = self.is_closed() && !state.shut_down;
        if self.round_apart(state, &mut Sink::new(&mut |_| (), 0)) || found || closing {
            self.wake_up(state);
            return false;
        }
        self.set_timer(state);
        true
    }

    /// Ends the announcement of a sleep.
    fn wake_up(&self, state: &mut PollState) {
        for link in state.links.iter() {
            let bell = link.conn.segment.own_bell();
            if link.conn.is_left() { bell.leave() } else { bell.retract() }
        }
        self.ready.bell().retract();
        state.asleep = false;
        state.look_now = true;
    }

    /// Arms the timer for the next check that somebody needs, or disarms it.
    fn set_timer(&self, state: &PollState) {
        let (limit, connecting) = (self.options.liveness_limit, self.options.connect_timeout);
        let strangers = state.strangers.iter();
        let mut deadlines: Vec<Instant> =
            strangers.filter_map(|stranger| stranger.waited.next_look(connecting)).collect();
        deadlines.extend(state.accept_again);
        deadlines.extend(self.next_leave());
        let soon = Instant::now() + LOOK_EVERY;
        for link in state.links.iter() {
            match link.stage {
                ConnectionStage::Dialing { .. } => deadlines.push(soon),
                ConnectionStage::Greeting { waited } => {
                    deadlines.extend(waited.next_look(connecting))
                }
                ConnectionStage::Up if limit.is_zero() => {}
                ConnectionStage::Up => deadlines.extend(link.silent.next_look(limit / 2)),
            }
        }
        if !lock(&self.kept).is_empty() {
            deadlines.push(soon);
        }
        let wait = deadlines.into_iter().min().map_or(Duration::ZERO, |deadline| {
            // Zero would disarm.
            deadline.saturating_duration_since(Instant::now()).max(Duration::from_micros(1))
        });
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let value = Itimerspec { it_interval: zero, it_value: socket::timespec(wait) };
        let flags = TimerfdTimerFlags::empty();
        if let Err(errno) = rustix::time::timerfd_settime(&self.timer, flags, &value) {
            lost::check(errno, TIMER_NAME);
        }
    }
}
