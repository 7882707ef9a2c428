//! Error responses: the answers to requests that get no result. Each request is answered once: by
//! the first that answers, or by the runtime when the handler gives none.
//!
//! On the wire an answer is Mercury's response header, then Margo's 4-byte return code, then the
//! encoded result if the code is 0. Behind another code are a text that explains it and a mark of
//! our own peers. Only with that mark do they give a code the meaning below; C peers ignore both.
//!
//! | what happened | code |
//! |---|---|
//! | the handler answered | 0 `HG_SUCCESS` |
//! | no such RPC | `HG_NOENTRY` |
//! | arguments cannot be decoded | `HG_PROTOCOL_ERROR` |
//! | the handler panicked, or encoding its result | `HG_FAULT` |
//! | the instance is shutting down | `HG_PERMISSION`, without a text |
//! | the rules do not let the origin call that | `HG_PERMISSION`, with a text |
//! | a bound on requests in hand is reached | `HG_BUSY` |
//! | its deadline had passed before a handler was free | `HG_TIMEOUT` |
//! | it was canceled before that, or its origin is gone | `HG_CANCELED` |
//! | no ULT could be made | `HG_AGAIN` |
//! | the handler ended without an answer, or with a text | `HG_OTHER_ERROR` |
//! | the handler failed with a code ([`Handle::fail_with`](crate::Handle::fail_with)) | that one; of those above that say that no handler ran only `HG_BUSY`, `HG_AGAIN`, and `HG_CANCELED`, which origins take for a failure |
//! | the instance ended before whoever had its `Handle` answered | `HG_OTHER_ERROR` |

use std::any::Any;
use std::borrow::{Borrow, BorrowMut};
use std::ops::Deref;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use hg::{
    Core, HgError, LentRequest, ProcError, RawRequest, Registration, RequestHandle, ReturnCode,
    Writer, margo,
};
use na::shared::Shared;

use crate::admission::counters::Counters;
use crate::admission::moved_requests;
use crate::dispatch::run_handler::{self, Answered};
use crate::instance::inner::Inner;
use crate::instance::reply::{NO_UNIT, Reply};
use crate::operation::token::Token;
use crate::support::contain::message_of;
use crate::support::log::log;
use crate::{Addr, RespondError};

/// Longest explanation that is sent with an error, bytes.
const DETAIL_BYTES_MAX: usize = 1024;

/// The text that goes with [`ReturnCode::Again`] when no other reason is known. The code that
/// failed to make the ULT has logged why.
pub(super) const NO_ULT: &str = "no ULT could be made for its handler, for want of memory for its \
     stack or because its runtime ends; the log there says which";

/// The text that goes with [`ReturnCode::Permission`] to whom the rules do not let in.
pub(super) const NOT_ALLOWED: &str = "not allowed";

/// The text for an unwinding whose reason is not known.
const LOST: &str = "a ULT that was to answer panicked, or was ended by exit or a cancel";

impl Reply {
    #[cold]
    pub(super) fn abandon(&self, code: ReturnCode, detail: &str) -> bool {
        Counters::add(&self.inner().counters.requests_abandoned);
        self.fail(code, detail);
        true
    }

    /// Why there is no request to be answered.
    #[cold]
    pub(crate) fn not_taken(&self) -> RespondError {
        let rpc = self.rpc;
        match self.inner().may_start() {
            Ok(()) => RespondError::Answered { rpc },
            Err(source) => RespondError::Network { rpc, source },
        }
    }

    #[cold]
    #[inline(never)]
    pub(super) fn undecodable(&self, error: ProcError) {
        let count = Counters::add(&self.inner().counters.arguments_undecodable);
        self.inner().counters.handler_not_run();
        // A peer that sends nothing else must not fill the log.
        if count.is_power_of_two() {
            let (log, origin, caller) = (&self.inner().log, &self.origin, self.principal());
            log!(log, WARN, rpc = self.rpc, %origin, %caller, %error, count, "bad arguments");
        }
        self.fail(ReturnCode::ProtocolError, &error.to_string());
    }

    /// Tells the origin of a panic of the result's own code, which goes on in the handler.
    #[cold]
    pub(super) fn encoding_panicked(
        &self,
        unsent: Option<Box<(HgError, Option<LentRequest<'_, Token>>)>>,
        panic: Box<dyn Any + Send>,
    ) -> ! {
        self.watch.responded(false);
        self.watch.fails(&self.inner().monitoring, ReturnCode::Fault);
        if let Some(request) = unsent.and_then(|unsent| unsent.1) {
            self.send_failure(request, ReturnCode::Fault, &message_of(&*panic));
        }
        resume_unwind(panic)
    }

    /// Answers with an error, unless there was an answer.
    pub(crate) fn fail(&self, code: ReturnCode, detail: &str) -> bool {
        self.fail_counted(code, code, detail)
    }

    /// Answers with an error in the handler's own words: whatever they are, it has run and failed.
    pub(crate) fn fail_as_handler(&self, code: ReturnCode, detail: &str) -> bool {
        self.fail_counted(code, ReturnCode::OtherError, detail)
    }

    /// `counted`: what monitors are told.
    fn fail_counted(&self, code: ReturnCode, counted: ReturnCode, detail: &str) -> bool {
        let request = self.take();
        let first = request.is_some();
        if let Some(request) = request {
            let _answered = Answered(self);
            self.watch.responding();
            self.watch.fails(&self.inner().monitoring, counted);
            self.send_failure(request, code, detail);
            self.watch.responded(true);
        }
        first
    }

    pub(crate) fn panicked(&self, message: &str) {
        self.fail(ReturnCode::Fault, message);
    }

    /// The handler's unit is over, and its request seems to live on in another one. If it does, the
    /// unit that answers gives the places back; otherwise the caller is to, which gets them again.
    #[inline(never)]
    pub(super) fn ended_unanswered(
        this: &Shared<Self>,
        places: Arc<Registration>,
    ) -> Option<Arc<Registration>> {
        // There the locks may be held for ever, and the places are those of the parent's.
        if this.inner().is_forked() {
            std::mem::forget(places);
            return None;
        }
        let mut ends = this.ends.lock();
        if ends.lost_to_panic {
            drop(ends);
            this.panicked(LOST);
            return Some(places);
        }
        if this.is_over.load(Ordering::Relaxed) {
            return Some(places);
        }
        // Before others can have its address.
        this.unit.store(NO_UNIT, Ordering::Relaxed);
        // Before the places can be given back, after which nobody would remove it.
        if this.inner().moved_requests.insert(this) {
            ends.left = Some(places);
            return None;
        }
        drop(ends);
        let (code, detail) = moved_requests::CLOSING;
        this.fail(code, detail);
        Some(places)
    }

    #[inline(never)]
    pub(super) fn answered_elsewhere(&self) {
        let inner = self.inner();
        // There the locks may be held for ever.
        if inner.is_forked() {
            return;
        }
        let left = {
            let mut ends = self.ends.lock();
            self.is_over.store(true, Ordering::Relaxed);
            ends.left.take()
        };
        if let Some(places) = left {
            inner.moved_requests.remove(self);
            run_handler::give_back(inner, &places, &self.origin);
        }
    }

    /// The user's [`Handle`](crate::Handle) is dropped: the last chance for an answer.
    pub(crate) fn request_dropped(&self) {
        if self.is_answered() || self.inner().is_forked() {
            return;
        }
        if !std::thread::panicking() {
            self.ended_without_answer();
        } else if self.unit.load(Ordering::Relaxed) == ult::integration::current_address() {
            // If it is the handler that panics, its end knows the message and answers with it.
            self.ends.lock().lost_to_panic = true;
        } else {
            self.panicked(LOST);
        }
    }

    /// The request ended without an answer.
    pub(crate) fn ended_without_answer(&self) {
        self.fail(ReturnCode::OtherError, "the handler ended without an answer");
    }

    pub(super) fn send_failure(
        &self,
        request: LentRequest<'_, Token>,
        code: ReturnCode,
        detail: &str,
    ) {
        send_failure(self.inner(), request, code, detail);
        self.of_shard().kick_if_queued();
    }
}

/// The handler has ended by a panic, or by `ult::exit`.
#[cold]
pub(super) fn unwound(reply: &mut Shared<Reply>, panic: &(dyn Any + Send)) {
    if ult::is_exit(panic) {
        // As if it had returned: if it has left its request to others, they answer, and one that
        // wants no answer is done with.
        if reply.wants_response() && Shared::get_mut(reply).is_some() {
            reply.ended_without_answer();
        }
        return;
    }
    let inner = reply.instance().inner();
    let count = Counters::add(&inner.counters.handlers_panicked);
    let message = message_of(panic);
    let (rpc, provider) = (reply.rpc(), reply.provider());
    // A peer that has found out how must not fill the log.
    if count.is_power_of_two() {
        log!(inner.log, ERROR, rpc, %provider, message, count, "handler panicked");
    }
    reply.panicked(&message);
}

/// Answers a request that no handler will see, in Margo's way.
pub(crate) fn refuse<C, O, R>(
    inner: &Inner,
    request: RequestHandle<Token, C, O, R>,
    code: ReturnCode,
    detail: &str,
) where
    C: Deref<Target = Core<Token>>,
    O: Borrow<Addr>,
    R: BorrowMut<RawRequest>,
{
    let shard = inner.shards.get(request.shard());
    send_failure(inner, request, code, detail);
    shard.kick_if_queued();
}

fn send_failure<C, O, R>(
    inner: &Inner,
    request: RequestHandle<Token, C, O, R>,
    code: ReturnCode,
    detail: &str,
) where
    C: Deref<Target = Core<Token>>,
    O: Borrow<Addr>,
    R: BorrowMut<RawRequest>,
{
    let mut end = detail.len().min(DETAIL_BYTES_MAX);
    while !detail.is_char_boundary(end) {
        end -= 1;
    }
    let detail = Some(&detail[..end]);
    let with = |writer: &mut Writer| margo::write_failure(writer, code, detail);
    let sent = request.respond(with, Token::Respond(None));
    let sent = sent.or_else(|error| match *error {
        // The text is longer than what may be sent here; the code says more than nothing.
        (HgError::Proc(_) | HgError::Unfetched { .. }, Some(request)) => {
            let without = |writer: &mut Writer| margo::write_failure(writer, code, None);
            request.respond(without, Token::Respond(None))
        }
        other => Err(Box::new(other)),
    });
    // A request that wants no response, or an origin that is gone: there is nobody to tell.
    if let Err(error) = sent {
        log!(inner.log, DEBUG, error = %error.0, ?code, "an error response was not sent");
    }
}

#[cfg(test)]
mod tests {
    use serde::{Serialize, Serializer};

    use crate::{ForwardError, Instance, ProviderHandle, Rpc};

    /// Encodes a part, and panics.
    struct Bad;

    impl Serialize for Bad {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            use serde::ser::SerializeTuple;
            let mut pair = serializer.serialize_tuple(2)?;
            pair.serialize_element(&1u64)?;
            panic!("the result's own words");
        }
    }

    #[test]
    fn a_result_whose_encoding_panics_is_a_panic_of_its_handler() {
        const BAD: Rpc<bool, Bad> = Rpc::new("bad");
        const ASK: Rpc<bool, (u64, u64)> = Rpc::new("bad");
        for transport in ["na+sm://", "na+tcp://127.0.0.1:0"] {
            let service = Instance::builder(transport).start().unwrap();
            let bad = |handle: crate::Handle<bool, Bad>| drop(handle.respond(&Bad));
            service.register(BAD, bad).unwrap();
            let client = Instance::builder(transport).listen(false).start().unwrap();
            let target = ProviderHandle::from(client.lookup(service.self_addr().uri()).unwrap());
            let own = ProviderHandle::from(service.self_addr());
            // The second one finds the service in order; calls to oneself are no different.
            for (from, to) in [(&client, &target), (&client, &target), (&service, &own)] {
                match from.forward(ASK, to, &true) {
                    Err(ForwardError::Panicked { detail, .. }) => {
                        assert_eq!(detail, "the result's own words");
                    }
                    other => panic!("over {transport}: {other:?}"),
                }
            }
            client.finalize_and_wait().unwrap();
            service.finalize_and_wait().unwrap();
            assert_eq!(service.monitoring().stats().handlers_panicked, 3);
        }
    }
}
