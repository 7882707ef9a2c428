//! Rows `hg.sm.rtt` and `hg.tcp.rtt`: an RPC without arguments at the layer that has headers,
//! handles and overflow, but no ULTs. See [`echo`](super::echo) for how it is measured.

use std::sync::Arc;

use margo::hg::{Core, ForwardOptions, HgError, HgOptions, RequestHandle, Response, RpcId, Sink};
use margo::hg::{ProviderId, Registration, ReturnCode, Sent};
use na::{Addr, Endpoint, OpenOptions};

use super::echo::{Node, uri};
use crate::failure::{Doing, Failure, Result};
use crate::floors::channel::Transport;
use crate::wait::Deadline;

const CALL: RpcId = RpcId::margo("bench_hg_call", ProviderId::DEFAULT);
const LAST: RpcId = RpcId::margo("bench_hg_last", ProviderId::DEFAULT);

/// Completions taken in one poll.
const BUDGET: usize = 8;

/// What the layer has reported and nobody has looked at yet.
#[derive(Default)]
struct Seen {
    request: Option<RequestHandle<()>>,
    answer: Option<std::result::Result<Response, HgError>>,
    sent: Option<std::result::Result<(), HgError>>,
}

impl Sink<()> for Seen {
    fn request(&mut self, request: RequestHandle<()>) {
        if self.request.is_some() {
            // One caller, one call at a time: this is nobody we know.
            request.reject(ReturnCode::Again);
        } else {
            self.request = Some(request);
        }
    }

    fn response(&mut self, _token: (), result: std::result::Result<Response, HgError>) {
        self.answer = Some(result);
    }

    fn responded(&mut self, _token: (), result: std::result::Result<(), HgError>) {
        self.sent = Some(result);
    }

    fn bulk(&mut self, _token: (), _result: std::result::Result<u64, HgError>) {}
}

/// The RPC layer on an endpoint.
pub(super) struct HgNode {
    core: Arc<Core<()>>,
    seen: Seen,
    deadline: Deadline,
}

impl HgNode {
    /// Polls until `take` finds what it looks for.
    fn wait_for<V>(
        &mut self,
        what: &str,
        mut take: impl FnMut(&mut Seen) -> Option<V>,
    ) -> Result<V> {
        let (deadline, mut outcome) = (self.deadline, Ok(None));
        deadline.spin_until(what, || {
            outcome = self.poll().map(|()| take(&mut self.seen));
            !matches!(outcome, Ok(None))
        })?;
        outcome?.ok_or_else(|| Failure::new(what))
    }
}

impl Node for HgNode {
    fn open(transport: Transport, listen: bool, deadline: Deadline) -> Result<Self> {
        let uri = uri(transport);
        let endpoint = na::open(uri, &OpenOptions::listening(listen)).doing(uri)?;
        let mut options = HgOptions::default();
        options.listen = listen;
        let core = Core::new(endpoint, options).doing("starting the RPC layer")?;
        for (id, name) in [(CALL, "call"), (LAST, "last")] {
            core.register(Registration::with_id(id, name)).doing("registering")?;
        }
        Ok(Self { core, seen: Seen::default(), deadline })
    }

    fn endpoint(&self) -> &dyn Endpoint {
        &**self.core.endpoint()
    }

    fn call(&mut self, target: &Addr, last: bool) -> Result<()> {
        let id = if last { LAST } else { CALL };
        let started = self.core.forward(target, id, ForwardOptions::default(), |_| Ok(()), ());
        started.map_err(|failed| failed.0).doing("calling")?;
        self.wait_for("an answer", |seen| seen.answer.take())?.doing("an answer")?;
        Ok(())
    }

    fn answer(&mut self) -> Result<()> {
        loop {
            let request = self.wait_for("a request", |seen| seen.request.take())?;
            let last = request.id() == LAST;
            let sent = request.respond(|_| Ok(()), ());
            if let Sent::InFlight(_) = sent.map_err(|failed| failed.0).doing("answering")? {
                let ended = self.wait_for("the end of an answer", |seen| seen.sent.take())?;
                ended.doing("answering")?;
            }
            if last {
                return Ok(());
            }
        }
    }

    fn poll(&mut self) -> Result<()> {
        self.core.poll(BUDGET, &mut self.seen).doing("polling")?;
        Ok(())
    }

    fn close(self) {
        self.core.close();
    }
}
