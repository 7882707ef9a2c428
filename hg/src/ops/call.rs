//! The state of a call, which waits for its parts in whatever order they end:
//!
//! | what happens | what the call does |
//! |---|---|
//! | a response arrives | ends with it, at once |
//! | a response arrives that overflowed | fetches the result, then ends and acknowledges |
//! | the send fails | cancels the receive; ends with the send's error |
//! | the receive fails | waits for the send to end, whose error may know that nothing was sent |
//! | it is canceled | ends at once; unless nothing was sent, its receive waits for the late response, to acknowledge it |
//!
//! A one-way call ends when it is sent and, if it overflowed, acknowledged. Arguments that
//! overflowed are exposed until then, or until the response.

use na::{Addr, LocalMem, MsgBuf, Tag};

use crate::base::membership::Nonce;
use crate::memory::{ExposedPayload, Kept};
use crate::ops::{Ended, Event, Role};
use crate::{Build, HgError, PayloadSum, Response};

/// A call in flight.
#[derive(Debug)]
pub(crate) struct Call<T> {
    /// `None` once it went back.
    token: Option<T>,
    /// Gives the tag.
    pub(crate) number: u64,
    pub(crate) target: Option<u8>,
    one_way: bool,
    /// The target of a call whose message the network did not take at once.
    to: Option<Addr>,
    /// Parts in flight.
    sending: bool,
    pub(crate) receiving: bool,
    pub(crate) fetching: Option<Box<ResultFetch>>,
    outcome: Option<Result<Response, HgError>>,
    pub(crate) canceled: bool,
    /// The arguments, while the target may fetch them.
    exposed: Option<Box<ExposedPayload>>,
    /// How its request is written, where peers are asked for that.
    pub(crate) build: Build,
    pub(crate) asking: Option<Box<Asking>>,
}

/// A result that is being fetched, and whom to tell when it is here.
#[derive(Debug)]
pub(crate) struct ResultFetch {
    pub(crate) memory: LocalMem,
    pub(crate) sum: Option<PayloadSum>,
    pub(crate) peer: Addr,
    pub(crate) tag: Tag,
}

/// A call that asks first.
#[derive(Debug)]
pub(crate) struct Asking {
    pub(crate) to: Addr,
    pub(crate) tag: Tag,
    /// The request, without checksum support. Its headers may grow by
    /// [`LONGER_BY`](crate::core::builds::LONGER_BY).
    pub(crate) message: MsgBuf,
    /// The receive that is to be posted then, by its role.
    pub(crate) receive: Option<Role>,
    /// The question introduces us, with this nonce.
    pub(crate) introduces: Option<Nonce>,
    /// The answer, while the end of the question's send is waited for.
    pub(crate) told: Option<Told>,
}

/// The answer of a peer that was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) build: Build,
    /// It has proven that it is a member of our cluster.
    pub(crate) is_member: bool,
}

impl<T> Call<T> {
    #[inline]
    pub(crate) fn new(token: T, number: u64, target: Option<u8>, one_way: bool) -> Self {
        Self {
            token: Some(token),
            number,
            target,
            one_way,
            to: None,
            sending: false,
            receiving: !one_way,
            fetching: None,
            outcome: None,
            canceled: false,
            exposed: None,
            build: Build::Plain,
            asking: None,
        }
    }

    fn fail(&mut self, error: HgError) {
        self.outcome.get_or_insert(Err(error));
    }

    /// The question comes first; its answer is received in any case.
    pub(crate) fn ask(&mut self, asking: Asking) {
        self.receiving = true;
        self.asking = Some(Box::new(asking));
    }

    /// The question was answered. A call that has ended meanwhile asks no more.
    pub(crate) fn told(&mut self, told: Told) {
        self.receiving = false;
        match &mut self.asking {
            Some(asking) if self.token.is_some() && self.outcome.is_none() => {
                asking.told = Some(told);
            }
            _ => self.asking = None,
        }
    }

    /// The send is about to start.
    pub(crate) fn begin_send(&mut self, to: &Addr) {
        (self.sending, self.to) = (true, Some(to.clone()));
    }

    /// The response came, and its result is being fetched.
    pub(crate) fn begin_fetch(&mut self, fetch: ResultFetch) {
        self.receiving = false;
        self.release();
        self.fetching = Some(Box::new(fetch));
    }

    /// Takes the token of a call of which nothing was sent. An outcome cannot be told any more.
    pub(crate) fn withdraw(&mut self, not_receiving: bool) -> Option<T> {
        self.sending = false;
        self.receiving &= !not_receiving;
        (self.outcome, self.asking) = (None, None);
        self.token.take()
    }

    /// Returns whether its question was answered and has left: its message is next.
    pub(crate) fn may_go_on(&self) -> bool {
        let told = self.asking.as_ref().and_then(|asking| asking.told);
        told.is_some() && !self.sending && self.outcome.is_none() && self.token.is_some()
    }

    /// Takes the request of a call that has asked first, if it is the turn of the request to be
    /// sent.
    pub(crate) fn take_told(&mut self) -> Option<Box<Asking>> {
        let asking = if self.may_go_on() { self.asking.take() } else { None }?;
        (self.build, self.receiving) = (asking.told?.build, asking.receive.is_some());
        Some(asking)
    }

    /// The send ended. Returns what is to be canceled because of that.
    pub(crate) fn sent(&mut self, result: Result<(), na::Error>) -> Option<Role> {
        self.sending = false;
        // A call that waits for its response only must own nothing, see `take_plain`.
        self.to = None;
        let error = result.err()?;
        match &self.outcome {
            // What the receive said is less precise.
            Some(Err(_)) if error.never_arrived() => self.outcome = Some(Err(error.into())),
            _ => self.fail(error.into()),
        }
        self.receiving.then_some(self.response_role())
    }

    /// Whom it calls, if its message is under way and may be sent in another way.
    pub(crate) fn in_sending(&self) -> Option<&Addr> {
        self.to.as_ref().filter(|_| self.sending && !self.canceled && self.exposed.is_none())
    }

    /// The arguments are exposed, instead of being in the message.
    pub(crate) fn has_overflowed(&mut self, exposed: ExposedPayload) {
        self.exposed = Some(Box::new(exposed));
        self.receiving = true;
    }

    /// The acknowledgement of a one-way call came, or will not.
    pub(crate) fn acknowledged(&mut self, result: Result<(), na::Error>) {
        self.receiving = false;
        match result {
            Ok(()) => self.release(),
            Err(error) => self.fail(error.into()),
        }
    }

    /// The target has said that it is done with the arguments. They go with the call, which is
    /// dropped outside of the lock.
    pub(crate) fn release(&mut self) {
        if let Some(exposed) = &mut self.exposed {
            exposed.done();
        }
    }

    /// The receive of the response ended.
    pub(crate) fn received(&mut self, result: Result<Response, HgError>) {
        self.receiving = false;
        (self.fetching, self.asking) = (None, None);
        // The response proves that the target is done with the arguments.
        if matches!(result, Ok(_) | Err(HgError::Remote(_) | HgError::Foreign(_))) {
            self.release();
        }
        self.outcome.get_or_insert(result);
    }

    /// The result was fetched, or will not be.
    pub(crate) fn fetched(&mut self, result: Result<Response, HgError>) {
        self.fetching = None;
        self.outcome.get_or_insert(result);
    }

    /// Takes the token of a call that waits for its response and for nothing else, and owns nothing
    /// more: it is not dropped.
    #[inline]
    pub(crate) fn take_plain(&mut self) -> Option<T> {
        let plain = self.receiving
            && !self.one_way
            && !self.sending
            && self.to.is_none()
            && !self.canceled
            && self.fetching.is_none()
            && self.outcome.is_none()
            && self.exposed.is_none()
            && self.asking.is_none();
        if plain { self.token.take() } else { None }
    }

    /// Returns the role of the receive of the response, or of the receive that stands for it.
    pub(crate) fn response_role(&self) -> Role {
        if self.one_way && self.asking.is_none() { Role::Ack } else { Role::Response }
    }

    pub(crate) fn is_canceled(&self) -> bool {
        self.canceled
    }

    /// Gives up. Returns the parts to cancel, and what to drop after the lock; the receive is not
    /// among the parts, see [`State::give_up`](crate::core::state::State).
    /// `asks_owners`: arguments may be revoked while the target fetches them; else they stay, with
    /// the receive, until the late response, or the end of the peer, unless nothing was sent.
    pub(crate) fn cancel(&mut self, asks_owners: bool) -> Ended {
        self.canceled = true;
        self.fail(HgError::Canceled);
        let revoked = if asks_owners { self.exposed.take() } else { None };
        let parts = [(self.sending, Role::Send), (self.fetching.is_some(), Role::Fetch)];
        Ended::of(parts, revoked)
    }

    /// Counts the arguments that stay after a [cancel](Self::cancel), for as long as they do.
    pub(crate) fn count_arguments(&mut self, kept: &Kept) {
        if let Some(exposed) = &mut self.exposed {
            exposed.count(kept);
        }
    }

    /// Those are about to go, and not counted any more; whether there were some.
    pub(crate) fn uncount_arguments(&mut self) -> bool {
        self.exposed.as_mut().is_some_and(|exposed| exposed.uncount())
    }

    /// Returns the event that is to be told, if any, and whether the call is over.
    #[inline]
    pub(crate) fn settle(&mut self) -> (Option<Event<T>>, bool) {
        let flying = self.sending
            || self.receiving
            || self.fetching.is_some()
            || (self.asking.is_some() && self.outcome.is_none());
        if self.one_way && !flying && self.token.is_some() {
            self.outcome.get_or_insert(Ok(Response::empty()));
        }
        let due = match &self.outcome {
            Some(Ok(_)) => true,
            Some(Err(_)) => self.canceled || !flying,
            None => false,
        };
        if !due {
            return (None, !flying);
        }
        let ended = self.token.take().zip(self.outcome.take());
        (ended.map(|(token, result)| Event::Response { token, result }), !flying)
    }
}
