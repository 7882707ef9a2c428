//! Calls: from typed arguments to a typed result, or to the reason why there is none.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;
use ult::Eventual;

use crate::hg::{ForwardOptions, HgError, OpRef, Response, ReturnCode, margo, proc};
use crate::progress::Token;
use crate::{ForwardError, Instance, ProviderHandle, Rpc, deadline};

/// A call in flight. The caller waits on it; the progress ULT completes it.
#[derive(Debug)]
pub(crate) struct Call {
    done: Eventual<Result<Response, HgError>>,
}

impl Call {
    pub(crate) fn new() -> Self {
        Self { done: Eventual::new() }
    }

    /// Its end.
    pub(crate) fn done(&self) -> &Eventual<Result<Response, HgError>> {
        &self.done
    }

    pub(crate) fn complete(&self, result: Result<Response, HgError>) {
        // The RPC layer gives a token back once, so nobody can have been first.
        let _ = self.done.set(result);
    }
}

impl Instance {
    /// Calls `rpc` at `to` with `args` and waits for the result. A ULT suspends, so others of its
    /// execution stream run meanwhile; an OS thread parks.
    ///
    /// Waits as long as the peer lives: use [`forward_timed`](Self::forward_timed) where the
    /// handler may never answer. Arguments and results larger than the transport's message travel
    /// by a bulk transfer, which costs another round trip.
    ///
    /// # Errors
    ///
    /// [`ForwardError`]; its [`never_ran`](ForwardError::never_ran) tells when a retry is harmless.
    ///
    /// Counterpart: `margo_provider_forward`, `margo_get_output`.
    pub fn forward<A, R>(
        &self,
        rpc: Rpc<A, R>,
        to: &ProviderHandle,
        args: &A,
    ) -> Result<R, ForwardError>
    where
        A: Serialize,
        R: DeserializeOwned,
    {
        if let Some(deadline) = deadline::of_caller(rpc.name())? {
            let limit = deadline.saturating_duration_since(Instant::now());
            return self.forward_until(rpc, to, args, deadline, limit);
        }
        let (call, _op) = self.start(rpc, to, args, None)?;
        finish(self, rpc, to, call.done.wait())
    }

    /// Like [`forward`](Self::forward), for at most `limit` from now (resolution about 0.1 ms when
    /// idle). Then the call is cancelled here. A target of ours knows the time that is left: it
    /// does not start a handler for which nobody waits any more, and tells one that runs
    /// ([`Handle::cancel_token`](crate::Handle::cancel_token)), which may go on all the same.
    ///
    /// # Errors
    ///
    /// As `forward`, and [`ForwardError::TimedOut`].
    ///
    /// Counterpart: `margo_provider_forward_timed`.
    pub fn forward_timed<A, R>(
        &self,
        rpc: Rpc<A, R>,
        to: &ProviderHandle,
        args: &A,
        limit: Duration,
    ) -> Result<R, ForwardError>
    where
        A: Serialize,
        R: DeserializeOwned,
    {
        let limit = deadline::within(limit, deadline::of_caller(rpc.name())?);
        // A limit beyond what the clock can count is no limit.
        match Instant::now().checked_add(limit) {
            Some(deadline) => self.forward_until(rpc, to, args, deadline, limit),
            None => self.forward(rpc, to, args),
        }
    }

    fn forward_until<A, R>(
        &self,
        rpc: Rpc<A, R>,
        to: &ProviderHandle,
        args: &A,
        deadline: Instant,
        limit: Duration,
    ) -> Result<R, ForwardError>
    where
        A: Serialize,
        R: DeserializeOwned,
    {
        let (call, op) = self.start(rpc, to, args, Some(deadline))?;
        if let Some(result) = call.done.wait_deadline(deadline) {
            return finish(self, rpc, to, result);
        }
        self.inner().core.cancel(op);
        self.inner().kick();
        // The reply may have won the race against the cancel; then it is a reply.
        match call.done.wait() {
            Err(HgError::Canceled) => {
                Err(ForwardError::TimedOut { rpc: rpc.name(), peer: to.addr().to_string(), limit })
            }
            result => finish(self, rpc, to, result),
        }
    }

    fn start<A: Serialize, R>(
        &self,
        rpc: Rpc<A, R>,
        to: &ProviderHandle,
        args: &A,
        deadline: Option<Instant>,
    ) -> Result<(Arc<Call>, OpRef), ForwardError> {
        self.inner().may_start().map_err(|error| failure(rpc, to, error))?;
        let call = Arc::new(Call::new());
        let started = self.inner().core_here().forward(
            to.addr(),
            rpc.id(to.id()),
            // The RPC's type says what a registration would.
            ForwardOptions { target_context: to.context(), deadline, ..Default::default() }
                .undeclared(),
            |writer| {
                margo::write_request_prefix(writer, margo::NO_PARENT)?;
                proc::to_writer(writer, args)
            },
            Token::Forward(call.clone()),
        );
        self.inner().kick_if_queued();
        match started {
            Ok(op) => Ok((call, op)),
            Err((error, _token)) => Err(failure(rpc, to, error)),
        }
    }
}

/// Reads a reply.
fn finish<A, R: DeserializeOwned>(
    instance: &Instance,
    rpc: Rpc<A, R>,
    to: &ProviderHandle,
    result: &Result<Response, HgError>,
) -> Result<R, ForwardError> {
    let response = match result {
        Ok(response) => response,
        Err(error) => return Err(failure(rpc, to, error.clone())),
    };
    let decode_error =
        |source| ForwardError::Decode { rpc: rpc.name(), peer: to.addr().to_string(), source };
    let (code, body) = margo::split_response(response.payload()).map_err(decode_error)?;
    if code == ReturnCode::Success {
        let limits = instance.inner().core.proc_limits();
        return proc::from_slice_within(body, limits).map_err(decode_error);
    }
    // C peers send nothing that could be read here, and need not.
    let detail = proc::from_slice::<String>(body).unwrap_or_default();
    Err(refusal(rpc, to, code, detail))
}

/// What the peer's return code means.
fn refusal<A, R>(
    rpc: Rpc<A, R>,
    to: &ProviderHandle,
    code: ReturnCode,
    detail: String,
) -> ForwardError {
    let (rpc, peer, provider) = (rpc.name(), to.addr().to_string(), to.id());
    match code {
        ReturnCode::NoEntry => ForwardError::NotRegistered { rpc, peer, provider },
        ReturnCode::Fault => ForwardError::Panicked { rpc, peer, detail },
        ReturnCode::ProtocolError => ForwardError::BadArguments { rpc, peer, detail },
        ReturnCode::Again | ReturnCode::Busy => ForwardError::Busy { rpc, peer },
        ReturnCode::Timeout => ForwardError::Expired { rpc, peer },
        ReturnCode::Permission => ForwardError::PeerClosing { rpc, peer },
        code => ForwardError::Failed { rpc, peer, code, detail },
    }
}

pub(crate) fn failure<A, R>(rpc: Rpc<A, R>, to: &ProviderHandle, error: HgError) -> ForwardError {
    match error {
        HgError::Remote(code) => refusal(rpc, to, code, String::new()),
        HgError::Proc(source) => ForwardError::Encode { rpc: rpc.name(), source },
        HgError::Closed => ForwardError::Closing { rpc: rpc.name() },
        HgError::Na(na::Error::Closed) => ForwardError::Closing { rpc: rpc.name() },
        source => {
            let peer = to.addr().to_string();
            ForwardError::Network { rpc: rpc.name(), peer, source }
        }
    }
}
