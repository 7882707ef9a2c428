//! The answer to a request, which is given once: by the first that answers, or by the runtime when
//! the handler gives none.
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
//! | the instance is shutting down | `HG_PERMISSION` |
//! | a bound on requests in hand is reached | `HG_BUSY` |
//! | its deadline had passed before a handler was free | `HG_TIMEOUT` |
//! | it was canceled before that, or its origin is gone | `HG_CANCELED` |
//! | no ULT could be made | `HG_AGAIN` |
//! | the handler ended without an answer, or with a text | `HG_OTHER_ERROR` |
//! | the handler failed with a code ([`Handle::fail_with`](crate::Handle::fail_with)) | that one; of those above that say that no handler ran only `HG_BUSY`, `HG_AGAIN`, and `HG_CANCELED`, which origins take for a failure |
//! | the instance ended before whoever had its `Handle` answered | `HG_OTHER_ERROR` |

use std::any::Any;
use std::borrow::{Borrow, BorrowMut};
use std::fmt;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use hg::{
    Core, HgError, LentRequest, OpRef, ProcError, ProviderId, RawRequest, Registration,
    RequestHandle, ReturnCode, RpcId, Sent, Writer, margo, proc,
};
use na::claim::Claim;
use na::lock::Lock;
use na::shared::{Shared, UninitShared};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::admission::counters::Counters;
use crate::instance::inner::Inner;
use crate::instance::reply::{Ends, Reply};
use crate::observe::monitor::RequestWatch;
use crate::observe::trace::{SpanOfTrace, TraceContext};
use crate::operation::cancel::{CancelToken, Wanted};
use crate::operation::token::Token;
use crate::progress::shards::Shard;
use crate::support::contain::message_of;
use crate::support::log::log;
use crate::{
    Addr, Instance, RespondError, admission::moved_requests, dispatch::run_handler, observe::parent,
};

/// Longest explanation that is sent with an error, bytes.
const DETAIL_BYTES_MAX: usize = 1024;

/// The text that goes with [`ReturnCode::Again`] when no other reason is known. The code that
/// failed to make the ULT has logged why.
pub(crate) const NO_ULT: &str = "no ULT could be made for its handler, for want of memory for its \
     stack or because its runtime ends; the log there says which";

/// The text for an unwinding whose reason is not known.
const LOST: &str = "a ULT that was to answer panicked, or was ended by exit or a cancel";

/// No unit has this address, and no OS thread says it.
const NO_UNIT: usize = 1;

impl Reply {
    // Inlined, so that what came with the message is written where it stays, once.
    #[inline(always)]
    pub(crate) fn new(
        instance: Instance,
        (rpc, provider): (&'static str, ProviderId),
        (shard, origin, request): (u8, Addr, RawRequest),
        watch: RequestWatch,
    ) -> Shared<Self> {
        let place = UninitShared::new();
        let trace = watch
            .trace()
            .or_else(|| Some(SpanOfTrace::of_request(request.trace()?, false)?.context));
        place.fill(Self {
            instance,
            rpc,
            provider,
            origin,
            shard,
            // Nobody waits for an answer to a one-way request: it has all that it wants.
            wants_response: !request.is_one_way(),
            deadline: request.deadline(),
            cancel: OnceLock::new(),
            watch,
            trace,
            parent: margo::NO_PARENT,
            call: request.call_key(),
            request: Claim::new(request),
            is_over: AtomicBool::new(false),
            unit: AtomicUsize::new(NO_UNIT),
            ends: Lock::new(Ends { lost_to_panic: false, left: None }),
        })
    }

    pub(crate) fn instance(&self) -> &Instance {
        &self.instance
    }

    fn inner(&self) -> &Inner {
        self.instance.inner()
    }

    pub(crate) fn rpc(&self) -> &'static str {
        self.rpc
    }

    pub(crate) fn provider(&self) -> ProviderId {
        self.provider
    }

    pub(crate) fn origin(&self) -> &Addr {
        &self.origin
    }

    pub(crate) fn shard(&self) -> u8 {
        self.shard
    }

    pub(crate) fn wants_response(&self) -> bool {
        self.wants_response
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    pub(crate) fn trace(&self) -> Option<TraceContext> {
        self.trace
    }

    /// The RPC in whose handler the call was made.
    pub(crate) fn parent(&self) -> Option<RpcId> {
        parent::from_wire(self.parent.0)
    }

    /// Returns the token that fires when the answer is not waited for any more.
    pub(crate) fn cancel_token(&self) -> &CancelToken {
        let (token, _) = self.cancel.get_or_init(|| {
            let inner = self.inner();
            // There the locks may be held for ever.
            if inner.is_forked() {
                return (CancelToken::of_parent(inner.process), None);
            }
            let call = self.call.filter(|_| !self.is_answered());
            let (origin, deadline) = (&self.origin, self.deadline);
            let wanted = Wanted { origin, call, deadline, by: inner };
            let (token, is_new) = inner.cancels.token(&wanted);
            if is_new && *origin != inner.core.self_addr() {
                match self.core().watch_peer(origin) {
                    Ok(watch) => inner.cancels.watched(origin, watch),
                    Err(error) => {
                        log!(inner.log, DEBUG, %origin, %error, "an origin cannot be watched");
                        inner.cancels.not_watched(origin);
                    }
                }
            }
            (token, call)
        });
        token
    }

    /// Returns whether the answer is not waited for any more, before the handler has begun; the
    /// origin was told then, if it is still there. A one-way request is handled, also of an origin
    /// that is gone.
    #[inline]
    pub(crate) fn is_abandoned(&self) -> bool {
        let expired = self.deadline.is_some_and(|deadline| deadline <= Instant::now());
        if expired {
            return self.abandon(ReturnCode::Timeout, "its deadline passed before it began");
        }
        if self.inner().cancels.was_canceled(&self.origin, || self.call) {
            return self.abandon(ReturnCode::Canceled, "it was canceled before it began");
        }
        // A look at what the answer looks at anyway.
        self.wants_response
            && self.core().endpoint().is_gone(&self.origin)
            && self.abandon(ReturnCode::Canceled, "its origin is gone")
    }

    #[cold]
    fn abandon(&self, code: ReturnCode, detail: &str) -> bool {
        Counters::add(&self.inner().counters.requests_abandoned);
        self.fail(code, detail);
        true
    }

    /// Takes the request, to be answered; `None`: it was answered, or is about to be, or only the
    /// parent process can.
    #[inline]
    fn take(&self) -> Option<LentRequest<'_, Token>> {
        if self.inner().is_forked() {
            return None;
        }
        let request = self.request.claim()?;
        Some(LentRequest::of(self.core(), &self.origin, request))
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

    /// Returns the shard that the request came by.
    pub(crate) fn of_shard(&self) -> &Shard<Instance> {
        self.inner().shards.get(self.shard)
    }

    /// Returns the core that the request came by.
    fn core(&self) -> &Core<Token> {
        &self.of_shard().core
    }

    fn is_answered(&self) -> bool {
        !self.wants_response || self.request.is_claimed()
    }

    /// Decodes the arguments; the receive buffer goes back before the user's code runs if requests
    /// hold many. `None`: they cannot be decoded, and the origin was told.
    pub(crate) fn decode<A: DeserializeOwned>(this: &mut Shared<Self>) -> Option<A> {
        // The user's code gets its `Handle` when the arguments are there: nobody has it yet.
        let Self { instance, shard, request, parent, .. } = Shared::get_mut(this)?;
        let request = request.get_mut();
        let core = &*instance.inner().shards.get(*shard).core;
        let limits = core.proc_limits();
        let decoded = match margo::split_request(request.payload()) {
            Ok((id, args)) => {
                *parent = id;
                proc::from_slice_within::<A>(args, limits)
            }
            Err(error) => Err(error),
        };
        request.payload_was_read(core);
        this.watch.decoded();
        match decoded {
            Ok(args) => Some(args),
            Err(error) => {
                this.undecodable(error);
                None
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn undecodable(&self, error: ProcError) {
        let count = Counters::add(&self.inner().counters.arguments_undecodable);
        self.inner().counters.handler_not_run();
        // A peer that sends nothing else must not fill the log.
        if count.is_power_of_two() {
            let (log, origin) = (&self.inner().log, &self.origin);
            log!(log, WARN, rpc = self.rpc, %origin, %error, count, "bad arguments");
        }
        self.fail(ReturnCode::ProtocolError, &error.to_string());
    }

    /// Answers with a result, and does not look after it.
    pub(crate) fn respond<R: Serialize + ?Sized>(&self, value: &R) -> Result<(), RespondError> {
        self.answer(value, || Token::Respond(self.watch.span())).map(drop)
    }

    /// Answers with a result. `Some`: that is on its way, and its end is told to the sink with the
    /// token; `None`: it is over.
    #[inline(always)]
    pub(crate) fn answer<R: Serialize + ?Sized>(
        &self,
        value: &R,
        token: impl FnOnce() -> Token,
    ) -> Result<Option<OpRef>, RespondError> {
        let Some(request) = self.take() else { return Err(self.not_taken()) };
        let _answered = Answered(self);
        self.watch.responding();
        let mut panic = None;
        let sent = request.respond(
            |writer| {
                let encode = || {
                    margo::write_response_prefix(writer, ReturnCode::Success)?;
                    proc::to_writer(writer, value)?;
                    self.watch.encoded(writer.len());
                    Ok(())
                };
                // The value's own code; the request has to be answered all the same.
                catch_unwind(AssertUnwindSafe(encode)).unwrap_or_else(|what| {
                    panic = Some(what);
                    Err(ProcError::Unsupported("it panics"))
                })
            },
            token(),
        );
        if let Some(panic) = panic {
            self.encoding_panicked(sent.err(), panic);
        }
        self.watch.responded(matches!(sent, Ok(Sent::Done(_))));
        let error = sent.as_ref().err().map(|error| &error.0);
        self.watch.answered(&self.inner().monitoring, error);
        self.of_shard().kick_if_queued();
        let error = match sent {
            Ok(Sent::Done(_)) => return Ok(None),
            Ok(Sent::InFlight(op)) => return Ok(Some(op)),
            Err(error) => error,
        };
        match *error {
            (HgError::Proc(source), request) => {
                if let Some(request) = request {
                    let text = format!("the result cannot be encoded: {source}");
                    self.send_failure(request, ReturnCode::OtherError, &text);
                }
                Err(RespondError::Encode { rpc: self.rpc, source })
            }
            (source @ HgError::Unfetched { .. }, request) => {
                if let Some(request) = request {
                    self.send_failure(request, ReturnCode::NoMem, &source.to_string());
                }
                Err(RespondError::Network { rpc: self.rpc, source })
            }
            // What a handler does must not depend on what its callers want.
            (HgError::NoResponse, _) => Ok(None),
            (source, _) => Err(RespondError::Network { rpc: self.rpc, source }),
        }
    }

    /// Tells the origin of a panic of the result's own code, which goes on in the handler.
    #[cold]
    fn encoding_panicked(
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

    /// The handler's unit begins.
    #[inline]
    pub(crate) fn handler_begins(&self) {
        self.unit.store(ult::integration::current_address(), Ordering::Relaxed);
    }

    /// Returns whether nothing is left to do when the handler's unit is over. `false`: ask
    /// [`ended_unanswered`](Self::ended_unanswered). A one-way request has no answer.
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        !self.wants_response || self.is_over.load(Ordering::Relaxed)
    }

    /// The handler's unit is over, and its request seems to live on in another one. If it does, the
    /// unit that answers gives the places back; otherwise the caller is to, which gets them again.
    #[inline(never)]
    pub(crate) fn ended_unanswered(
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

    /// The request is answered, as far as it can be.
    #[inline]
    fn answered(&self) {
        if self.unit.load(Ordering::Relaxed) == ult::integration::current_address() {
            // The handler's end, which looks, comes later in the same unit.
            self.is_over.store(true, Ordering::Relaxed);
        } else {
            self.answered_elsewhere();
        }
    }

    #[inline(never)]
    fn answered_elsewhere(&self) {
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

    fn send_failure(&self, request: LentRequest<'_, Token>, code: ReturnCode, detail: &str) {
        send_failure(self.inner(), request, code, detail);
        self.of_shard().kick_if_queued();
    }
}

/// Tells that an answer has been given, also when its encoding panics.
struct Answered<'a>(&'a Reply);

impl Drop for Answered<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.answered();
    }
}

impl Drop for Reply {
    #[inline]
    fn drop(&mut self) {
        if self.inner().is_forked() {
            return self.request.get_mut().leave_to_parent();
        }
        let cancels = &self.inner().cancels;
        match self.cancel.get() {
            Some((token, call)) => {
                if let Some(watch) = cancels.forget(token, &self.origin, *call) {
                    self.core().unwatch_peer(watch);
                }
            }
            // It was not asked for.
            None => _ = cancels.was_canceled(&self.origin, || self.call),
        }
        if self.request.is_claimed() {
            return;
        }
        // Only when no ULT could be made for the handler, and nobody else saw this request; or
        // nobody asked for an answer.
        let Some(request) = self.take() else { return };
        if request.is_one_way() {
            self.watch.answered(&self.inner().monitoring, None);
        } else {
            self.watch.fails(&self.inner().monitoring, ReturnCode::Again);
            self.send_failure(request, ReturnCode::Again, NO_ULT);
        }
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reply({} to {})", self.rpc, self.origin)
    }
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
    use serde::Serializer;

    use super::*;
    use crate::{ForwardError, ProviderHandle, Rpc};

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
