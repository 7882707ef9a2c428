//! Rows `hg.*.rtt`: a call at the layer that has headers and overflow, but no ULTs: without
//! arguments, with 1 KiB of them beside that, and with one byte more than fits into a message
//! beside the most that does. Rows
//! `hg.*.rate16`: 16 started, then all of their answers awaited. See [`echo`](super::echo) for how
//! it is measured.

use std::collections::VecDeque;
use std::sync::Arc;

use margo::hg::{Core, ForwardOptions, HgError, HgOptions, RequestHandle, Response, RpcId, Sink};
use margo::hg::{ProviderId, Registration, Writer};
use na::{Addr, Endpoint, OpenOptions};

use crate::base::failure::{Doing, Failure, Result};
use crate::base::wait::Deadline;
use crate::floors::channel::Transport;
use crate::rows::net::echo::{Node, Work};

const CALL: RpcId = RpcId::margo("bench_hg_call", ProviderId::DEFAULT);
const LAST: RpcId = RpcId::margo("bench_hg_last", ProviderId::DEFAULT);

/// Completions taken in one poll, as margo takes them.
const BUDGET: usize = 64;

/// Reports of the layer that nobody has looked at yet.
#[derive(Default)]
struct Seen {
    requests: VecDeque<RequestHandle<()>>,
    answers: usize,
    failed: Option<HgError>,
}

impl Sink<()> for Seen {
    fn request(&mut self, request: RequestHandle<()>) {
        self.requests.push_back(request);
    }

    fn response(&mut self, _token: (), result: std::result::Result<Response, HgError>) {
        self.answers += 1;
        self.failed = result.err().or_else(|| self.failed.take());
    }

    fn responded(&mut self, _token: (), result: std::result::Result<(), HgError>) {
        self.failed = result.err().or_else(|| self.failed.take());
    }

    fn bulk(&mut self, _token: (), _result: std::result::Result<u64, HgError>) {}
}

/// The RPC layer on an endpoint.
pub(crate) struct HgNode {
    core: Arc<Core<()>>,
    seen: Seen,
    arguments: Vec<u8>,
    in_flight: usize,
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
        let uri = transport.uri();
        let mut options = OpenOptions::listening(listen);
        options.no_block = true;
        let endpoint = na::open(uri, &options).doing(uri)?;
        let mut options = HgOptions::default();
        options.listen = listen;
        let core = Core::new(endpoint, options).doing("starting the RPC layer")?;
        for (id, name) in [(CALL, "call"), (LAST, "last")] {
            core.register(Registration::with_id(id, name)).doing("registering")?;
        }
        let (seen, arguments) = (Seen::default(), Vec::new());
        Ok(Self { core, seen, arguments, in_flight: 1, deadline })
    }

    fn endpoint(&self) -> &dyn Endpoint {
        &**self.core.endpoint()
    }

    fn set_work(&mut self, work: Work) {
        let bytes = match work {
            Work::Null | Work::Many(_) => 0,
            Work::Bytes(bytes) => bytes,
            Work::Eager => self.core.input_eager_bytes(),
            Work::Overflow => self.core.input_eager_bytes() + 1,
        };
        self.arguments = vec![1; bytes];
        self.in_flight = work.in_flight();
    }

    fn call(&mut self, target: &Addr, last: bool) -> Result<()> {
        let (id, count) = if last { (LAST, 1) } else { (CALL, self.in_flight) };
        self.seen.answers = 0;
        for _ in 0..count {
            let encode = |writer: &mut Writer| writer.put(&self.arguments);
            let started = self.core.forward(target, id, ForwardOptions::default(), encode, ());
            started.map_err(|failed| failed.0).doing("calling")?;
        }
        self.wait_for("an answer", |seen| (seen.answers == count).then_some(()))?;
        self.seen.failed.take().map_or(Ok(()), Err).doing("an answer")
    }

    fn answer(&mut self) -> Result<()> {
        loop {
            let mut next = Some(self.wait_for("a request", |seen| seen.requests.pop_front())?);
            // What a poll has reported is answered before the next poll, as by any server: that
            // is when a transport sends answers together.
            while let Some(request) = next {
                let last = request.id() == LAST;
                let sent = request.respond(|_| Ok(()), ());
                // Whether it is over at once or later: nothing waits for it.
                let _ = sent.map_err(|failed| failed.0).doing("answering")?;
                if last {
                    return Ok(());
                }
                next = self.seen.requests.pop_front();
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
