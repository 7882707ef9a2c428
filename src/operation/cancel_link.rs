//! Calls that end when a [`CancelToken`] fires.
//!
//! A call knows its token from the beginning, and the token knows the call once that is under way:
//! it has a [`Canceler`] of each, under a number, which the end of the call takes away. So the
//! token of a handler that runs for long does not gather calls that are over.
//!
//! | state | written by |
//! |---|---|
//! | `LinkedCalls`, of a token | who ties a call, and who ends one; whoever fires the token takes all |
//! | `CancelLink::state`, of a call | who starts the call, once; its end, which may come first |
//!
//! Each has a lock. The thread that ties a call takes the lock of `LinkedCalls` while it has the
//! other one; no thread takes them in the other order, and no call is ended under either.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::{CancelToken, Canceler};

/// The calls that a token ends.
#[derive(Default)]
pub(crate) struct LinkedCalls(Mutex<Links>);

#[derive(Default)]
struct Links {
    calls: BTreeMap<u64, Canceler>,
    next: u64,
}

impl LinkedCalls {
    fn tied(&self) -> MutexGuard<'_, Links> {
        // No code of others runs under this lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The token has fired, as `has_fired` of [`add`](Self::add) says from now on.
    pub(crate) fn end(&self) {
        let calls = std::mem::take(&mut self.tied().calls);
        calls.into_values().for_each(|call| call.give_up());
    }

    /// `None`: the token would not end it any more.
    fn add(&self, call: &Canceler, has_fired: impl FnOnce() -> bool) -> Option<u64> {
        let mut tied = self.tied();
        // Either this sees it, or `end`, which follows, sees the call.
        if has_fired() {
            return None;
        }
        let number = tied.next;
        tied.next += 1;
        tied.calls.insert(number, call.clone());
        Some(number)
    }

    fn remove(&self, number: u64) {
        let call = self.tied().calls.remove(&number);
        drop(call);
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.tied().calls.len()
    }
}

/// A call's part.
pub(crate) struct CancelLink {
    token: CancelToken,
    state: Mutex<State>,
}

enum State {
    /// The call is not under way yet.
    Loose,
    Tied(u64),
    /// The call has ended.
    Over,
}

impl CancelLink {
    pub(crate) fn new(token: CancelToken) -> Self {
        Self { token, state: Mutex::new(State::Loose) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The same.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn token(&self) -> &CancelToken {
        &self.token
    }

    /// The call is under way. If the token has fired meanwhile, it is given up here.
    pub(crate) fn set(&self, call: &Canceler) {
        let mut state = self.state();
        if !matches!(*state, State::Loose) {
            return;
        }
        match self.token.ties().add(call, || self.token.event().is_ready()) {
            Some(number) => *state = State::Tied(number),
            None => {
                drop(state);
                call.give_up();
            }
        }
    }

    /// The call has ended.
    pub(crate) fn end(&self) {
        let before = std::mem::replace(&mut *self.state(), State::Over);
        if let State::Tied(number) = before {
            self.token.ties().remove(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::cancel::CancelReason;
    use crate::{ForwardError, Handle, Instance, ProviderHandle, Rpc};

    const HOLD: Rpc<u32, u32> = Rpc::new("hold");
    const NEXT: Rpc<u32, u32> = Rpc::new("next");
    const PATIENCE: Duration = Duration::from_secs(60);

    type Held = mpsc::Receiver<Handle<u32, u32>>;

    /// A service that hands out requests of `HOLD`, and what calls it.
    fn service() -> (Instance, ProviderHandle, Held) {
        let own = Instance::builder("na+sm://").start().unwrap();
        let (sender, held) = mpsc::channel();
        own.register(HOLD, move |handle| sender.send(handle).unwrap()).unwrap();
        own.serve(NEXT).function(|n| n + 1).unwrap();
        let to = ProviderHandle::from(own.self_addr());
        (own, to, held)
    }

    fn until_none(token: &CancelToken) {
        let begun = Instant::now();
        while token.ties().len() > 0 {
            assert!(begun.elapsed() < PATIENCE, "a call that is over is still tied");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_token_keeps_nothing_of_calls_that_are_over() {
        let (own, to, held) = service();
        let outer = own.rpc(HOLD, &to, &1).start().unwrap();
        let handle = held.recv_timeout(PATIENCE).unwrap();
        let token = handle.cancel_token();
        let unknown = Rpc::<u32, u32>::new("unknown");
        token.cancels_calls_in(|| {
            for n in 0..100 {
                assert_eq!(own.forward(NEXT, &to, &n).unwrap(), n + 1);
                own.rpc(NEXT, &to, &n).start().unwrap().detach();
                drop(own.rpc(NEXT, &to, &n).start().unwrap());
                own.forward_timed(unknown, &to, &n, PATIENCE).unwrap_err();
                own.rpc(NEXT, &to, &n).call_back(drop).unwrap();
            }
        });
        until_none(&token);
        let nested = token.cancels_calls_in(|| own.rpc(HOLD, &to, &2).start()).unwrap();
        let second = held.recv_timeout(PATIENCE).unwrap();
        assert_eq!(token.ties().len(), 1);
        outer.cancel();
        let ended = nested.wait_timeout(PATIENCE).unwrap();
        assert!(matches!(ended, Err(ForwardError::Canceled { never_ran: false, .. })));
        assert_eq!(token.reason(), Some(CancelReason::Canceled));
        assert_eq!(token.ties().len(), 0);
        drop((handle, second));
        own.finalize_and_wait().unwrap();
    }

    /// Both may come before the call is tied, which is when it is under way.
    #[test]
    fn a_call_that_has_ended_is_not_tied_and_one_whose_token_has_fired_is_ended() {
        let (own, to, held) = service();
        let outer = own.rpc(HOLD, &to, &1).start().unwrap();
        let handle = held.recv_timeout(PATIENCE).unwrap();
        let token = handle.cancel_token();
        let [first, second] = [2, 3].map(|n| own.rpc(HOLD, &to, &n).start().unwrap());
        let over = CancelLink::new(token.clone());
        over.end();
        over.set(&first.canceler());
        assert_eq!(token.ties().len(), 0);
        outer.cancel();
        token.wait_timeout(PATIENCE).expect("it fires");
        let late = CancelLink::new(token.clone());
        late.set(&second.canceler());
        assert_eq!(token.ties().len(), 0);
        let ended = second.wait_timeout(PATIENCE).unwrap();
        assert!(matches!(ended, Err(ForwardError::Canceled { .. })));
        assert!(!first.test(), "nobody has ended it");
        drop((first, handle));
        own.finalize_and_wait().unwrap();
    }
}
