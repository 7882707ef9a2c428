//! The layer that has headers and overflow, but no ULTs, as a [`Node`].

use std::collections::VecDeque;
use std::sync::Arc;

use margo::hg::{Core, ForwardOptions, HgError, HgOptions, RequestHandle, Response, RpcId, Sink};
use margo::hg::{ProcError, ProviderId, Registration, Writer};
use na::{Addr, Endpoint};

use super::echo::{Node, Work};
use super::na_node;
use crate::base::{Deadline, Doing, Result};
use crate::floors::transport::Transport;

const CALL: RpcId = RpcId::margo("bench_hg_call", ProviderId::DEFAULT);
const LAST: RpcId = RpcId::margo("bench_hg_last", ProviderId::DEFAULT);

/// Completions taken in one poll, as margo takes them.
pub(crate) const BUDGET: usize = 64;

/// Reports of the layer that nobody has looked at yet.
#[derive(Default)]
struct Seen {
    requests: VecDeque<RequestHandle<usize>>,
    answers: usize,
    /// The first byte of the last answer, if it had one.
    verdict: Option<u8>,
    failed: Option<HgError>,
}

impl Sink<usize> for Seen {
    fn request(&mut self, request: RequestHandle<usize>) {
        self.requests.push_back(request);
    }

    fn response(&mut self, _token: usize, result: Result<Response, HgError>) {
        self.answers += 1;
        match result {
            Ok(response) => self.verdict = response.payload().first().copied(),
            Err(error) => self.failed = Some(error),
        }
    }

    fn responded(&mut self, _token: usize, result: Result<(), HgError>) {
        self.failed = result.err().or_else(|| self.failed.take());
    }

    fn bulk(&mut self, _token: usize, _result: Result<u64, HgError>) {}
}

/// The RPC layer over `transport`, on an endpoint that is polled, with these RPCs.
pub(crate) fn open(
    transport: Transport,
    listen: bool,
    rpcs: &[(RpcId, &str)],
) -> Result<Arc<Core<usize>>> {
    let mut options = HgOptions::default();
    options.listen = listen;
    let core = Core::new(na_node::open(transport, listen, true)?, options)?;
    for (id, name) in rpcs {
        core.register(Registration::with_id(*id, *name)).doing("registering")?;
    }
    Ok(core)
}

/// Calls over the RPC layer.
pub(crate) struct Calls {
    pub(crate) core: Arc<Core<usize>>,
    seen: Seen,
    deadline: Deadline,
}

impl Calls {
    /// None yet.
    pub(crate) fn new(core: Arc<Core<usize>>, deadline: Deadline) -> Self {
        Self { core, seen: Seen::default(), deadline }
    }

    /// Starts a call.
    #[inline]
    pub(crate) fn start(
        &self,
        target: &Addr,
        id: RpcId,
        encode: impl FnOnce(&mut Writer) -> Result<(), ProcError>,
        token: usize,
    ) -> Result<()> {
        let started = self.core.forward(target, id, ForwardOptions::default(), encode, token);
        started.map(drop).map_err(|failed| failed.0).doing("calling")
    }

    /// Polls until `count` calls have been answered; the last verdict, if it had one.
    #[inline]
    pub(crate) fn answers(&mut self, count: usize) -> Result<Option<u8>> {
        self.wait_for("the answers", |seen| (seen.answers >= count).then_some(()))?;
        self.seen.answers -= count;
        self.seen.failed.take().map_or(Ok(()), Err).doing("an answer")?;
        Ok(self.seen.verdict)
    }

    fn poll(&mut self) -> Result<()> {
        self.core.poll(BUDGET, &mut self.seen).doing("polling")?;
        Ok(())
    }

    /// Polls until `take` finds what it looks for.
    fn wait_for<V>(
        &mut self,
        what: &str,
        mut take: impl FnMut(&mut Seen) -> Option<V>,
    ) -> Result<V> {
        let deadline = self.deadline;
        deadline.spin_for(what, || {
            self.poll()?;
            Ok(take(&mut self.seen))
        })
    }
}

/// One side of the rows `hg.*`.
pub(crate) struct HgNode {
    calls: Calls,
    arguments: Vec<u8>,
    in_flight: usize,
}

impl Node for HgNode {
    fn open(transport: Transport, listen: bool, deadline: Deadline) -> Result<Self> {
        let core = open(transport, listen, &[(CALL, "call"), (LAST, "last")])?;
        Ok(Self { calls: Calls::new(core, deadline), arguments: Vec::new(), in_flight: 1 })
    }

    fn endpoint(&self) -> &dyn Endpoint {
        &**self.calls.core.endpoint()
    }

    fn set_work(&mut self, work: Work) {
        let bytes = match work {
            Work::Null | Work::Many(_) => 0,
            Work::Bytes(bytes) => bytes,
            Work::Eager => self.calls.core.input_eager_bytes(),
            Work::Overflow => self.calls.core.input_eager_bytes() + 1,
        };
        self.arguments = vec![1; bytes];
        self.in_flight = work.in_flight();
    }

    fn call(&mut self, target: &Addr, last: bool) -> Result<()> {
        let (id, count) = if last { (LAST, 1) } else { (CALL, self.in_flight) };
        for _ in 0..count {
            self.calls.start(target, id, |writer| writer.put(&self.arguments), 0)?;
        }
        self.calls.answers(count).map(drop)
    }

    fn answer(&mut self) -> Result<()> {
        loop {
            let first = self.calls.wait_for("a request", |seen| seen.requests.pop_front())?;
            let mut next = Some(first);
            // What a poll has reported is answered before the next poll, as by any server: that
            // is when a transport sends answers together.
            while let Some(request) = next {
                let last = request.id() == LAST;
                // Whether it is over at once or later: nothing waits for it.
                let _ = request.respond(|_| Ok(()), 0).map_err(|failed| failed.0)?;
                if last {
                    return Ok(());
                }
                next = self.calls.seen.requests.pop_front();
            }
        }
    }

    fn poll(&mut self) -> Result<()> {
        self.calls.poll()
    }

    fn close(self) {
        self.calls.core.close();
    }
}
