//! The state of a response on its way to the origin.

use na::{Addr, Tag};

use crate::memory::{ExposedPayload, Share};
use crate::ops::{Ended, Event, Role};
use crate::{Format, HgError};

/// Where an answer goes.
#[derive(Debug, Clone)]
pub(crate) struct Destination {
    pub(crate) origin: Addr,
    pub(crate) tag: Tag,
    pub(crate) format: Format,
}

/// The fate of an overflowed response, as its acknowledgement tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Ack {
    /// It was fetched, or is none that was to be read: the arguments of a one-way request.
    Done = 0,
    /// The call was over before.
    GivenUp = 1,
    /// It could not be fetched, or not be read.
    Unread = 2,
}

impl Ack {
    pub(crate) fn of<R>(fetched: &Result<R, HgError>) -> Self {
        match fetched {
            Ok(_) => Self::Done,
            Err(HgError::Canceled) => Self::GivenUp,
            Err(_) => Self::Unread,
        }
    }

    /// Returns the error that this byte, from one of our own peers, means for the side that has
    /// answered. Other bytes are no error.
    pub(crate) fn error(byte: u8) -> Option<HgError> {
        match byte {
            byte if byte == Self::GivenUp as u8 => Some(HgError::GivenUp),
            byte if byte == Self::Unread as u8 => Some(HgError::Unread),
            _ => None,
        }
    }
}

/// An answer in flight.
#[derive(Debug)]
pub(crate) struct OutgoingResponse<T> {
    token: Option<T>,
    to: Destination,
    sending: bool,
    /// Waiting for the acknowledgement of a result that overflowed.
    receiving: bool,
    /// That says something: the origin is one of our own.
    is_told: bool,
    error: Option<HgError>,
    /// The result, while the origin may fetch it.
    exposed: Option<Box<ExposedPayload>>,
}

impl<T> OutgoingResponse<T> {
    /// A response that is being sent. `is_told`: the acknowledgement of its result, which is
    /// `exposed`, says something.
    pub(crate) fn new(
        token: T,
        to: Destination,
        is_told: bool,
        exposed: Option<Box<ExposedPayload>>,
    ) -> Self {
        let receiving = exposed.is_some();
        Self { token: Some(token), to, sending: true, receiving, is_told, error: None, exposed }
    }

    /// Takes the token of a response of which nothing was sent, and the error that it has met.
    pub(crate) fn withdraw(&mut self, not_receiving: bool) -> (Option<T>, Option<HgError>) {
        self.sending = false;
        self.receiving &= !not_receiving;
        let error = if self.is_beyond_limit() { self.error.take() } else { None };
        (self.token.take(), error)
    }

    /// Returns whether it ends with an error, when it ends.
    pub(crate) fn has_failed(&self) -> bool {
        self.error.is_some()
    }

    pub(crate) fn destination(&self) -> Destination {
        self.to.clone()
    }

    /// Returns whether its message is under way and may be sent in another way.
    pub(crate) fn in_sending(&self) -> bool {
        self.sending && !self.has_failed() && self.exposed.is_none()
    }

    /// The message cannot be sent in another way either.
    pub(crate) fn fail(&mut self, error: HgError) {
        self.error.get_or_insert(error);
    }

    /// Returns whether the result would have to be kept, and too much is.
    pub(crate) fn is_beyond_limit(&self) -> bool {
        matches!(self.error, Some(HgError::Unfetched { .. }))
    }

    /// The result is exposed, instead of being in the message.
    pub(crate) fn has_overflowed(&mut self, exposed: ExposedPayload) {
        self.exposed = Some(Box::new(exposed));
        self.receiving = true;
    }

    /// The part of the results that are kept.
    pub(crate) fn share(&self) -> Option<&Share> {
        self.exposed.as_ref()?.share()
    }

    /// Gives up, because of `why`. Returns the parts to cancel, and what to drop after the lock.
    pub(crate) fn cancel(&mut self, why: HgError) -> Ended {
        self.error.get_or_insert(why);
        let parts = [(self.sending, Role::Send), (self.receiving, Role::Ack)];
        Ended::of(parts, self.exposed.take())
    }

    /// The send ended. Returns what is to be canceled because of that.
    pub(crate) fn sent(&mut self, result: Result<(), na::Error>) -> Option<Role> {
        self.sending = false;
        let error = result.err()?;
        self.error.get_or_insert(error.into());
        self.receiving.then_some(Role::Ack)
    }

    /// The acknowledgement came with this byte, or will not.
    pub(crate) fn acknowledged(&mut self, result: Result<Option<u8>, na::Error>) {
        self.receiving = false;
        let error = match result {
            Ok(said) => {
                if let Some(exposed) = &mut self.exposed {
                    exposed.done();
                }
                said.filter(|_| self.is_told).and_then(Ack::error)
            }
            Err(error) => Some(error.into()),
        };
        if let Some(error) = error {
            self.error.get_or_insert(error);
        }
    }

    /// Returns the event that is to be told, if any, and whether the answer is over.
    pub(crate) fn settle(&mut self) -> (Option<Event<T>>, bool) {
        if self.sending || self.receiving {
            return (None, false);
        }
        let result = self.error.take().map_or(Ok(()), Err);
        (self.token.take().map(|token| Event::Responded { token, result }), true)
    }
}
