//! From an arrived request to a handler ULT.
//!
//! [`dispatch`] runs on the progress ULT, so it does only what cannot be done elsewhere: find the
//! handler, admit the request, make a ULT in the handler's pool. Decoding, the user's code and the
//! answer happen on that ULT.
//!
//! Whatever happens to the request from here on, the origin is told: the [`Reply`] answers when it
//! is dropped unanswered, and [`Running`] counts the handler out even when it panics.

use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::contain::message_of;
use crate::hg::{RequestHandle, ReturnCode};
use crate::instance::{Counters, Inner};
use crate::progress::Token;
use crate::register::Entry;
use crate::respond::{self, Reply};

/// Starts the handler of `request`, or answers with an error.
pub(crate) fn dispatch(inner: &Inner, mut request: RequestHandle<Token>) {
    let registration = request.take_registration();
    let Some(entry) = registration.as_ref().and_then(|there| there.data_as::<Entry>()) else {
        // The RPC core has refused what is not registered; this is not one of ours.
        request.reject(ReturnCode::NoEntry);
        return;
    };
    let Some(instance) = entry.instance.upgrade() else {
        respond::refuse(inner, request, ReturnCode::Permission);
        return;
    };
    if !inner.shutdown.admit() {
        Counters::add(&inner.counters.requests_refused);
        respond::refuse(inner, request, ReturnCode::Permission);
        return;
    }
    // Nearly always one of ours, which costs no count; the entry goes to the handler.
    let pool = match entry.pool_index.and_then(|index| inner.pools.get(index)) {
        Some(pool) => Cow::Borrowed(pool),
        None => Cow::Owned(entry.pool.clone()),
    };
    let (rpc, provider) = (entry.rpc, entry.provider);
    let running = Running(Reply::new(instance, registration, rpc, provider, request));
    if let Err(error) = pool.ult().name(rpc).spawn_detached(move || running.run()) {
        // The closure was dropped, and the reply in it has answered.
        Counters::add(&inner.counters.requests_refused);
        tracing::error!(rpc, %error, "no ULT for a request");
    }
}

/// A handler that was admitted; counts it out when it ends, however it ends.
struct Running(Arc<Reply>);

impl Running {
    fn run(self) {
        let reply = &self.0;
        let counters = &reply.instance().inner().counters;
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| reply.run_handler())) {
            Counters::add(&counters.handlers_panicked);
            let message = message_of(&*panic);
            let (rpc, provider) = (reply.rpc(), reply.provider());
            tracing::error!(rpc, %provider, message, "handler panicked");
            reply.panicked(&message);
        }
        Counters::add(&counters.handlers_run);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.handler_ended();
        self.0.instance().inner().shutdown.leave();
    }
}
