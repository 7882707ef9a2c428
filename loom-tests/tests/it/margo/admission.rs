//! Does a gate ever have more requests inside than its bound, or forget one that waits in it?
#![allow(dead_code, unreachable_pub, reason = "what only the runtime needs of the file below")]

// Counts of the model itself: what has happened, whatever the memory order.
use std::sync::atomic::AtomicUsize as Count;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;
use margo_loom_tests::check;

use crate::Addr;

#[path = "../../../../src/admission/gate.rs"]
mod gate;

use gate::{Entrance, Gate};
use margo_config::{Admission, Overload};

/// The number of requests inside, and of those that ran or were refused.
#[derive(Default)]
struct Seen {
    inside: Count,
    ran: Count,
    refused: Count,
}

impl Seen {
    fn enter(&self, max: usize) {
        let before = self.inside.fetch_add(1, Ordering::SeqCst);
        assert!(before < max, "{before} are inside already");
    }

    fn leave(&self) {
        self.inside.fetch_sub(1, Ordering::SeqCst);
        self.ran.fetch_add(1, Ordering::SeqCst);
    }

    fn counts(&self) -> (usize, usize) {
        (self.ran.load(Ordering::SeqCst), self.refused.load(Ordering::SeqCst))
    }
}

/// Handlers leave while `several` threads, or the one, let in.
fn plain(several: bool) {
    check(move || {
        const MAX: usize = 1;
        let gate = Arc::new(Gate::<()>::of_pool(Admission::new(MAX), several));
        let seen = Arc::new(Seen::default());
        let let_in = |gate: Arc<Gate<()>>, seen: Arc<Seen>, requests: usize| {
            let mut handlers = Vec::new();
            for _ in 0..requests {
                if gate.enter_plain(&0, || None) {
                    seen.enter(MAX);
                    let (gate, seen) = (gate.clone(), seen.clone());
                    handlers.push(thread::spawn(move || {
                        seen.leave();
                        gate.leave(&0);
                    }));
                } else {
                    seen.refused.fetch_add(1, Ordering::SeqCst);
                }
            }
            handlers.into_iter().for_each(|handler| handler.join().unwrap());
        };
        let other = several.then(|| {
            let (gate, seen) = (gate.clone(), seen.clone());
            thread::spawn(move || let_in(gate, seen, 1))
        });
        let requests = if several { 1 } else { 2 };
        let_in(gate.clone(), seen.clone(), requests);
        other.into_iter().for_each(|other| other.join().unwrap());
        let (ran, refused) = seen.counts();
        assert_eq!(ran + refused, 2);
        assert!(ran >= 1, "the gate was open");
        let load = gate.load();
        assert_eq!((load.in_hand, load.refused), (0, refused as u64));
        assert!(gate.enter_plain(&0, || None), "there is room again");
    });
}

#[test]
fn a_plain_gate_with_one_that_lets_in_keeps_its_bound() {
    plain(false);
}

#[test]
fn a_plain_gate_with_several_that_let_in_keeps_its_bound() {
    plain(true);
}

/// One thread lets in; it passes the top of its loop after the gate was told of others, and these
/// begin: no request is let in beyond the bound, and none is forgotten.
#[test]
fn a_plain_gate_gets_a_second_that_lets_in() {
    check(|| {
        const MAX: usize = 2;
        let gate = Arc::new(Gate::<()>::of_pool(Admission::new(MAX), false));
        let seen = Arc::new(Seen::default());
        let let_in = |gate: &Gate<()>, seen: &Seen| match gate.enter_plain(&0, || None) {
            true => seen.enter(MAX),
            false => _ = seen.refused.fetch_add(1, Ordering::SeqCst),
        };
        let (own, own_seen) = (gate.clone(), seen.clone());
        let before = thread::spawn(move || let_in(&own, &own_seen));
        gate.become_several();
        // It has passed.
        before.join().unwrap();
        let (own, own_seen) = (gate.clone(), seen.clone());
        let after = thread::spawn(move || let_in(&own, &own_seen));
        let_in(&gate, &seen);
        after.join().unwrap();
        let inside = seen.inside.load(Ordering::SeqCst);
        assert_eq!((inside, seen.refused.load(Ordering::SeqCst)), (MAX, 1));
        assert_eq!(gate.load().in_hand, MAX);
        (0..MAX).for_each(|_| assert!(gate.leave(&0).is_none()));
        assert_eq!(gate.load().in_hand, 0);
    });
}

fn waiting(max: usize) -> Admission {
    Admission::new(max).overload(Overload::Wait)
}

/// A request at one gate: it runs if it is let in, and its handler then runs the requests that get
/// its place.
fn come(gate: &Gate<Addr>, seen: &Seen, max: usize, peer: Addr, may_wait: impl Fn() -> bool) {
    match gate.enter(&peer, || None, peer, may_wait) {
        Entrance::In(peer) => handle(gate, seen, max, peer),
        Entrance::Busy(_) => {
            seen.refused.fetch_add(1, Ordering::SeqCst);
        }
        Entrance::Waits => {}
    }
}

fn handle(gate: &Gate<Addr>, seen: &Seen, max: usize, first: Addr) {
    let mut next = Some(first);
    while let Some(peer) = next {
        seen.enter(max);
        // Another thread may come while we are inside.
        thread::yield_now();
        seen.leave();
        next = gate.leave(&peer);
    }
}

#[test]
fn nobody_who_waits_is_forgotten() {
    check(|| {
        let gate = Arc::new(Gate::of_pool(waiting(1), true));
        let seen = Arc::new(Seen::default());
        let others = [2, 1].map(|peer| {
            let (gate, seen) = (gate.clone(), seen.clone());
            thread::spawn(move || come(&gate, &seen, 1, peer, || true))
        });
        come(&gate, &seen, 1, 1, || true);
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!(seen.counts(), (3, 0));
        assert_eq!((gate.load().in_hand, gate.load().waiting), (0, 0));
    });
}

/// Room for two, but only for one of each peer.
#[test]
fn a_bound_per_peer_holds_and_forgets_nobody() {
    check(|| {
        let gate = Arc::new(Gate::of_pool(waiting(2).per_peer(1), true));
        let seen: Arc<[Seen; 2]> = Arc::new(Default::default());
        let run = |gate: &Gate<Addr>, seen: &[Seen; 2], peer: Addr| {
            let Entrance::In(first) = gate.enter(&peer, || None, peer, || true) else { return };
            let mut next = Some(first);
            while let Some(peer) = next {
                let own = &seen[usize::from(peer)];
                own.enter(1);
                own.leave();
                next = gate.leave(&peer);
            }
        };
        let others = [0, 1].map(|peer| {
            let (gate, seen) = (gate.clone(), seen.clone());
            thread::spawn(move || run(&gate, &seen, peer))
        });
        run(&gate, &seen, 0);
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!((seen[0].counts(), seen[1].counts()), ((2, 0), (1, 0)));
        assert_eq!((gate.load().in_hand, gate.load().waiting), (0, 0));
    });
}

/// Room for two, but only for one of each of two hosts, of which one has two peers.
#[test]
fn a_bound_per_host_holds_and_forgets_nobody() {
    check(|| {
        let gate = Arc::new(Gate::of_pool(waiting(2).per_host(1), true));
        let seen: Arc<[Seen; 2]> = Arc::new(Default::default());
        let host = |peer: Addr| peer / 2;
        let run = move |gate: &Gate<Addr>, seen: &[Seen; 2], peer: Addr| {
            let entrance = gate.enter(&peer, || Some(host(peer)), peer, || true);
            let Entrance::In(first) = entrance else { return };
            let mut next = Some(first);
            while let Some(peer) = next {
                let own = &seen[usize::from(host(peer))];
                own.enter(1);
                own.leave();
                next = gate.leave(&peer);
            }
        };
        let others = [1, 2].map(|peer| {
            let (gate, seen) = (gate.clone(), seen.clone());
            thread::spawn(move || run(&gate, &seen, peer))
        });
        run(&gate, &seen, 0);
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!((seen[0].counts(), seen[1].counts()), ((2, 0), (1, 0)));
        assert_eq!((gate.load().in_hand, gate.load().waiting), (0, 0));
    });
}

/// A request that arrives while the instance begins to shut down is let in, refused or given back;
/// none waits for ever.
#[test]
fn a_shutdown_leaves_nobody_in_the_gate() {
    check(|| {
        let gate = Arc::new(Gate::of_pool(waiting(1), true));
        let seen = Arc::new(Seen::default());
        let has_begun = Arc::new(AtomicBool::new(false));
        let others = [1, 2].map(|peer| {
            let (gate, seen, has_begun) = (gate.clone(), seen.clone(), has_begun.clone());
            // The gate's lock orders this look with the flag.
            let may_wait = move || !has_begun.load(Ordering::Relaxed);
            thread::spawn(move || come(&gate, &seen, 1, peer, may_wait))
        });
        has_begun.store(true, Ordering::Relaxed);
        let given_back = gate.give_back().len();
        others.into_iter().for_each(|other| other.join().unwrap());
        let (ran, refused) = seen.counts();
        assert_eq!(ran + refused + given_back, 2);
        assert_eq!((gate.load().in_hand, gate.load().waiting), (0, 0));
    });
}

/// The gates of an RPC and of its pool, with room for one in the RPC.
struct Gates {
    rpc: Gate<Addr>,
    pool: Gate<Addr>,
    seen: Seen,
}

impl Gates {
    fn new(pool: Gate<Addr>) -> Arc<Self> {
        Arc::new(Self { rpc: Gate::of_rpc(waiting(1)), pool, seen: Seen::default() })
    }

    fn assert_empty(&self) {
        for gate in [&self.pool, &self.rpc] {
            assert_eq!((gate.load().in_hand, gate.load().waiting), (0, 0));
        }
    }
}

/// The way of `admit.rs` through the gates of an RPC and of its pool, where one waits, too.
#[test]
fn two_gates_in_a_row_forget_nobody() {
    enum Next {
        AtRpc(Addr),
        AtPool(Addr),
        Inside(Addr),
    }
    fn go_on(gates: &Gates, first: Next) {
        let mut todo = vec![first];
        while let Some(next) = todo.pop() {
            let enter = |gate: &Gate<Addr>, peer: Addr| gate.enter(&peer, || None, peer, || true);
            match next {
                Next::AtRpc(peer) => match enter(&gates.rpc, peer) {
                    Entrance::In(peer) => todo.push(Next::AtPool(peer)),
                    Entrance::Busy(_) => unreachable!("it waits"),
                    Entrance::Waits => {}
                },
                Next::AtPool(peer) => match enter(&gates.pool, peer) {
                    Entrance::In(peer) => todo.push(Next::Inside(peer)),
                    Entrance::Busy(_) => unreachable!("it waits"),
                    Entrance::Waits => {}
                },
                Next::Inside(peer) => {
                    gates.seen.enter(1);
                    gates.seen.leave();
                    let next = gates.rpc.leave(&peer);
                    let waited = gates.pool.leave(&peer);
                    todo.extend(next.map(Next::AtPool));
                    todo.extend(waited.map(Next::Inside));
                }
            }
        }
    }
    for pool in [1, 2] {
        check(move || {
            let gates = Gates::new(Gate::of_pool(waiting(pool), true));
            let others = [2, 1].map(|peer| {
                let gates = gates.clone();
                thread::spawn(move || go_on(&gates, Next::AtRpc(peer)))
            });
            go_on(&gates, Next::AtRpc(1));
            others.into_iter().for_each(|other| other.join().unwrap());
            assert_eq!(gates.seen.counts(), (3, 0));
            gates.assert_empty();
        });
    }
}

/// In a pool where nobody waits the place there goes on with that of the RPC: one thread alone lets
/// in, and another one serves all.
#[test]
fn a_place_of_the_rpc_takes_that_of_the_pool_along() {
    check(|| {
        let gates = Gates::new(Gate::of_pool(Admission::new(1), false));
        let serve = |gates: Arc<Gates>, first: Addr| {
            let mut next = Some(first);
            while let Some(peer) = next {
                gates.seen.enter(1);
                gates.seen.leave();
                next = gates.rpc.leave(&peer);
                match next {
                    Some(to) => gates.pool.hand_over(&peer, &to, || None),
                    None => drop(gates.pool.leave(&peer)),
                }
            }
        };
        let mut handlers = Vec::new();
        for peer in [1, 2] {
            let Entrance::In(peer) = gates.rpc.enter(&peer, || None, peer, || true) else {
                continue;
            };
            match gates.pool.enter(&peer, || None, peer, || true) {
                Entrance::In(peer) => {
                    let gates = gates.clone();
                    handlers.push(thread::spawn(move || serve(gates, peer)));
                }
                Entrance::Busy(peer) => {
                    assert!(gates.rpc.leave(&peer).is_none(), "there is nobody else");
                    gates.seen.refused.fetch_add(1, Ordering::SeqCst);
                }
                Entrance::Waits => unreachable!("it does not wait"),
            }
        }
        handlers.into_iter().for_each(|handler| handler.join().unwrap());
        let (ran, refused) = gates.seen.counts();
        assert_eq!((ran + refused, gates.pool.ended()), (2, ran as u64));
        gates.assert_empty();
    });
}
