//! Peers that send nothing or take nothing, and new attempts to connect.
//!
//! # Ticks
//!
//! A connection that is up costs no clock reads. Instead the poller *ticks*, four times within the
//! shortest limit that anyone here or among the peers has set, and not at all when there is none. A
//! tick looks at what has happened to each connection since the last one:
//!
//! | nothing was | for | then |
//! |---|---|---|
//! | heard from a peer that owes us something | the liveness limit | the peer has gone |
//! | taken by a peer for which there is something | the slow-reader limit | the peer has gone |
//! | said to a peer that wants signs of life | half of what it wants | we send one |
//!
//! A peer *owes* something while a receive waits for a message from it, something is to be sent to
//! it, or a transfer is under way in either direction. A side with a limit asks in its hello to
//! hear something four times within the limit. So a live peer is heard even when it has nothing to
//! say, or does not read because its receives are missing. A stopped peer is not heard, though its
//! kernel still acknowledges everything. A peer whose hello says that it knows no signs of life is
//! not given up for its silence: it may be at work.
//!
//! # Only time in which we run
//!
//! See `ran.rs`. A tick counts at most the interval that was wanted, and comes after everything
//! that has arrived was read. The time limit of connections being made is looked at in [`LOOKS`]
//! steps, of which each counts at most its length.

use std::collections::HashSet;
use std::io::ErrorKind;
use std::time::{Duration, Instant};

use crate::peers::{Conn, Pause, Peer, PeerState, Phase, Stage};
use crate::state::{Core, Poller, Redial, Ticks, flush};
use crate::wire::frame::{CAN_BEAT, Hello, Kind};
use na_core::base::ran::{LIMIT_MIN, LOOKS, RunClock, limit};
use prim::sync::Arc;

/// Between attempts to connect: the first pause, and the longest.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// Returns whether the sender of `hello` sends signs of life when asked to.
pub(crate) fn can_beat(hello: &Hello) -> bool {
    hello.capabilities & CAN_BEAT != 0
}

/// How often the sender of `hello` wants to hear something, if we can do that.
pub(crate) fn alive_every(hello: &Hello) -> Option<Duration> {
    let asked = hello.alive_every_ms > 0 && can_beat(hello);
    let every = Duration::from_millis(hello.alive_every_ms.into());
    asked.then(|| every.max(LIMIT_MIN / LOOKS))
}

/// How often to tick for a connection whose peer wants to hear something every `alive_every`.
pub(crate) fn tick_for(core: &Core, alive_every: Option<Duration>) -> Option<Duration> {
    let ours = [core.liveness_limit, limit(core.options.slow_reader_limit)];
    let ours = ours.into_iter().filter(|limit| !limit.is_zero()).map(|limit| limit / LOOKS);
    ours.chain(alive_every.map(|every| every / 2)).min()
}

impl Poller {
    /// Looks at what must have happened until `deadline`, in steps.
    pub(crate) fn arm_steps(&mut self, core: &Core, deadline: Instant) {
        let step = Instant::now() + core.connect_timeout / LOOKS;
        self.arm(deadline.min(step));
    }

    /// Looks at every limit of time; the timer has fired.
    pub(crate) fn deadlines(&mut self, core: &Core) {
        let (now, step) = (Instant::now(), core.connect_timeout / LOOKS);
        let late = self.timer_at.take().map_or(Duration::ZERO, |at| now.duration_since(at));
        if late > step {
            self.postpone(late);
        }
        if self.accept_again_at.is_some_and(|at| at <= now) {
            self.accept_again_at = None;
            self.accept_ready = true;
        }
        let pending: Vec<(u64, Instant)> =
            self.conns.iter().filter_map(|conn| Some((conn.key, conn.deadline()?))).collect();
        self.tick(core, now);
        self.trim(now);
        let due = [self.accept_again_at, self.ticks.next, self.unread.trim_at];
        let mut next = due.into_iter().chain([self.redial_due(core, now)]).flatten().min();
        for (key, deadline) in pending {
            if deadline > now {
                let look_at = deadline.min(now + step);
                next = Some(next.map_or(look_at, |at| at.min(look_at)));
            } else {
                self.timed_out(core, key);
            }
        }
        if let Some(next) = next {
            self.arm(next);
        }
    }

    /// We did not run for so long: connections being made get that much more time.
    fn postpone(&mut self, late: Duration) {
        for conn in self.conns.iter_mut() {
            match &mut conn.stage {
                Stage::Connecting(attempt) | Stage::Greeting(attempt) => {
                    attempt.until += late;
                    attempt.deadline += late;
                }
                Stage::Accepted { since, deadline } => {
                    *since += late;
                    *deadline += late;
                }
                Stage::Up { .. } => {}
            }
        }
        for redial in &mut self.redials {
            redial.deadline += late;
        }
    }

    /// Makes sure that ticks come at least every so often.
    pub(crate) fn tick_within(&mut self, every: Option<Duration>) {
        let Some(every) = every else { return };
        if self.ticks.every.is_some_and(|known| known <= every) {
            return;
        }
        let now = Instant::now();
        // Far limits are not points in time.
        let Some(next) = now.checked_add(every) else { return };
        self.ticks.every = Some(every);
        self.ticks.ran.get_or_insert(RunClock::since(now));
        self.ticks.next = Some(next);
        self.arm(next);
    }

    /// Looks after all connections, if it is time.
    pub(crate) fn tick(&mut self, core: &Core, now: Instant) {
        if self.ticks.next.is_none_or(|next| next > now) {
            return;
        }
        let Ticks { every, ran, .. } = std::mem::take(&mut self.ticks);
        let mut ran = ran.unwrap_or(RunClock::since(now));
        let elapsed = ran.look(now, every.unwrap_or(Duration::MAX));
        let up: Vec<u64> =
            self.conns.iter().filter(|conn| conn.up().is_some()).map(|conn| conn.key).collect();
        self.ticks.ran = Some(ran);
        let awaited = match core.liveness_limit.is_zero() {
            true => HashSet::default(),
            // Once for all connections: there may be as many receives.
            false => core.matcher.lock().awaited().map(|(peer, _)| peer).collect(),
        };
        for key in up {
            self.look_after(core, key, elapsed, &awaited);
        }
        if self.ticks.every.is_none() {
            self.ticks = Ticks::default();
        }
    }

    /// `awaited`: the peers for which receives wait.
    fn look_after(&mut self, core: &Core, key: u64, elapsed: Duration, awaited: &HashSet<u64>) {
        let Some(mut conn) = self.conns.take(key) else { return };
        let Some(peer) = conn.up().cloned() else { return self.conns.put_back(conn) };
        let mut every = None;
        let error = self.with_peer(&peer, |state| {
            let Phase::Up(link) = &state.phase else { return None };
            every = tick_for(core, link.alive_every);
            let slow = takes_nothing(core, &peer, &mut conn, state, elapsed);
            let is_awaited = awaited.contains(&peer.id);
            let gone = is_silent(core, is_awaited, &mut conn, state, elapsed);
            let limit = if gone { core.liveness_limit } else { core.options.slow_reader_limit };
            let what = if gone { "no sign of life from it" } else { "it has taken nothing" };
            (gone || slow).then(|| peer.gone(format!("{what} for {limit:?}")))
        });
        self.conns.put_back(conn);
        match error {
            Some(error) => return self.end_peer(core, &peer, error),
            None => self.tick_within(every),
        }
        if !core.liveness_limit.is_zero() {
            // Signs of life lie behind what is not read.
            self.try_unread(core, peer.id);
        }
    }

    /// Connects to `peer` again later, if the reason and the options allow it.
    pub(crate) fn redial(
        &mut self,
        core: &Core,
        peer: &Arc<Peer>,
        reason: ErrorKind,
        deadline: Instant,
    ) -> bool {
        let passes = matches!(
            reason,
            ErrorKind::ConnectionRefused
                | ErrorKind::ConnectionReset
                | ErrorKind::HostUnreachable
                | ErrorKind::NetworkUnreachable
                | ErrorKind::TimedOut
        );
        let began = deadline - core.connect_timeout;
        let until = began.checked_add(core.options.connect_retry);
        let until = until.map_or(deadline, |until| until.min(deadline));
        let known = self.redials.iter().position(|redial| Arc::ptr_eq(&redial.peer, peer));
        let before = known.map(|at| self.redials.swap_remove(at).pause);
        let pause = before.map_or(PAUSE_MIN, |pause| (pause * 2).min(PAUSE_MAX));
        let at = Instant::now() + pause;
        let mut state = peer.lock();
        let waits = matches!(state.phase, Phase::Dialing) && state.conn.is_none();
        state.redials = passes && waits && at < until;
        if !state.redials {
            return false;
        }
        drop(state);
        self.redials.push(Redial { peer: peer.clone(), at, pause, deadline });
        self.arm(at);
        true
    }

    /// Dials the peers whose pause is over; returns when the next one is.
    pub(crate) fn redial_due(&mut self, core: &Core, now: Instant) -> Option<Instant> {
        let due = self.redials.iter().filter(|redial| redial.at <= now);
        let due: Vec<(Arc<Peer>, Instant)> =
            due.map(|redial| (redial.peer.clone(), redial.deadline)).collect();
        for (peer, deadline) in due {
            let mut state = peer.lock();
            let waits = std::mem::take(&mut state.redials) && state.conn.is_none();
            drop(state);
            if waits {
                self.dial(core, &peer, 0, deadline);
            }
        }
        // What is still being tried stays, for the length of its next pause.
        self.redials.retain(|redial| matches!(redial.peer.lock().phase, Phase::Dialing));
        self.redials.iter().map(|redial| redial.at).filter(|at| *at > now).min()
    }
}

/// Says something if it is time; whether the peer has taken nothing for too long.
fn takes_nothing(
    core: &Core,
    peer: &Arc<Peer>,
    conn: &mut Conn,
    state: &mut PeerState,
    elapsed: Duration,
) -> bool {
    let times = &mut conn.times;
    let taken = state.out.taken();
    if taken != times.taken {
        (times.quiet, times.stuck) = (Duration::ZERO, Duration::ZERO);
    } else {
        times.quiet += elapsed;
        times.stuck += elapsed;
    }
    times.taken = taken;
    if state.out.is_empty() {
        times.stuck = Duration::ZERO;
        if let Phase::Up(link) = &state.phase
            && link.alive_every.is_some_and(|every| times.quiet >= every / 2)
        {
            state.out.push_small(Kind::Alive, 0, &[]);
            flush(core, peer, state);
        }
    }
    let limit = limit(core.options.slow_reader_limit);
    !limit.is_zero() && times.stuck >= limit
}

/// Returns whether a peer that owes us something has said nothing for too long.
fn is_silent(
    core: &Core,
    is_awaited: bool,
    conn: &mut Conn,
    state: &PeerState,
    elapsed: Duration,
) -> bool {
    if core.liveness_limit.is_zero() {
        return false;
    }
    // Nothing but what it happens to send would be heard of one that cannot send signs of life.
    let can_beat = matches!(&state.phase, Phase::Up(link) if link.can_beat);
    let owes = is_awaited
        || conn.incoming.is_claiming()
        || state.transfers.is_busy()
        || !state.out.is_empty();
    // While we do not read, we cannot hear.
    let unread = conn.paused == Some(Pause::Room) || conn.readable;
    if std::mem::take(&mut conn.heard) || unread || !owes || !can_beat {
        conn.times.silent = Duration::ZERO;
    } else {
        conn.times.silent += elapsed;
    }
    conn.times.silent >= core.liveness_limit
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::endpoint::TcpEndpoint;
    use na_core::{Endpoint, OpId, OpenOptions, Tag, Uri};

    #[test]
    fn a_tick_looks_at_the_receives_once_however_many_peers_are_awaited() {
        const PEERS: u64 = 5;
        let uri = Uri::parse("na+tcp://127.0.0.1:0").unwrap();
        let mut options = OpenOptions::listening(true);
        options.liveness_limit = Duration::from_secs(3600);
        let origin = TcpEndpoint::open(&uri, &options).unwrap();
        let open = |_| TcpEndpoint::open(&uri, &OpenOptions::listening(true)).unwrap();
        let peers: Vec<_> = (0..PEERS).map(open).collect();
        for (op, peer) in (0..).zip(&peers) {
            let peer = origin.lookup(peer.self_addr().uri()).unwrap();
            origin.recv_expected(OpId(op), &peer, Tag(1), origin.alloc_msg()).unwrap();
            let sent = OpId(PEERS + op);
            origin.send_unexpected(sent, &peer, Tag(1), origin.alloc_msg()).unwrap();
        }
        let mut sent = 0;
        while sent < PEERS as usize {
            sent += origin.poll(64, &mut drop).unwrap();
            for peer in &peers {
                peer.poll(64, &mut drop).unwrap();
            }
        }
        let mut poller = origin.poller.lock();
        let walks = || origin.core.matcher.lock().walks.get();
        // After the first one, in which they were heard.
        for ticks in 1..=3 {
            let now = Instant::now();
            poller.ticks.next = Some(now);
            poller.tick(&origin.core, now);
            assert_eq!(walks(), ticks);
        }
    }

    #[test]
    fn a_peer_cannot_ask_for_more_signs_of_life_than_there_may_be() {
        let hello = |capabilities, alive_every_ms| {
            let hello = Hello::ours(4096, 1, String::new());
            alive_every(&Hello { capabilities, alive_every_ms, ..hello })
        };
        assert_eq!(hello(CAN_BEAT, 1), Some(LIMIT_MIN / LOOKS));
        assert_eq!(hello(CAN_BEAT, 0), None);
        assert_eq!(hello(0, 1000), None, "it does not know them itself");
        assert_eq!(hello(CAN_BEAT | 0x8000, 1000), Some(Duration::from_secs(1)));
    }
}
