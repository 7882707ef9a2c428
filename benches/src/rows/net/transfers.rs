//! Rows of transfers below the RPC layer: one put or get after the other between registered memory
//! of the row process and of its peer, both polling; the floor alternates.
//!
//! - `na.sm.{get,put}.{alloc,any}.SIZE`: both from `alloc` or both plain. Floor: a copy of that
//!   size within the row process.
//! - `na.tcp.{get,put}.SIZE`: Floor: chunks of that size over a bare TCP connection, each asked for
//!   with 64 bytes.
//! - `fabric.*.{get,put}.1m`: Floor: the library's own read and write of the same size; a write
//!   until it is there.
//!
//! After each round the bytes that have arrived are compared with what they must be; what was put
//! is fetched back for that.

use std::net::TcpListener;

use na::{Access, Transfer};

use super::echo::Node;
use super::na_node::{self, NaNode, holds, register};
use crate::base::{Deadline, Doing, Effort, Figure, Result, Samples, ensure};
use crate::floors::channel::Channel;
use crate::floors::fabric::{self, Bare, Verb};
use crate::floors::memcpy::{copies, touched};
use crate::floors::stream::{self, Style};
use crate::floors::tcp;
use crate::floors::transport::Transport;
use crate::process::{Context, child};

/// The peer's answer: where its floor is, where its endpoint is, the description of its memory.
type Answer = (Vec<u8>, String, Vec<u8>);

/// One row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Transfers {
    /// The transport.
    pub(crate) over: Transport,
    /// The direction.
    pub(crate) verb: Verb,
    /// Memory is of `alloc`.
    pub(crate) shared: bool,
    /// Bytes of a transfer.
    pub(crate) bytes: usize,
}

impl Transfers {
    fn open(&self, listen: bool, deadline: Deadline) -> Result<NaNode> {
        let endpoint = na_node::open(self.over, listen, self.over != Transport::Sm)?;
        Ok(NaNode::new(endpoint, deadline))
    }

    /// The peer's part: offers memory, bare and ours in turns. `place` is where the bare endpoint
    /// of the other side is, if there is one.
    ///
    /// # Errors
    ///
    /// When the origin falls silent.
    pub(crate) fn peer(self, context: &Context, place: &[u8]) -> Result<()> {
        let deadline = context.deadline;
        // So that a put that does nothing is found out.
        let data = if self.verb == Verb::Get { touched(self.bytes) } else { vec![0; self.bytes] };
        let (mut listener, mut side, mut name) = (None, None, Vec::new());
        match self.over {
            Transport::Sm => {}
            Transport::Tcp | Transport::Private => {
                let listening = listener.insert(TcpListener::bind("127.0.0.1:0")?);
                name = listening.local_addr()?.to_string().into();
            }
            Transport::Fabric(fabric) => {
                name = side.insert(fabric::join(fabric, place, deadline)?).expose(data.clone())?;
            }
        }
        let mut node = self.open(true, deadline)?;
        let memory = register(node.endpoint(), self.shared, Access::ReadWrite, &data)?;
        let described = node.endpoint().mem_to_bytes(&memory);
        child::send(&(name, node.endpoint().self_addr().uri(), described))?;
        for _ in 0..Effort::transfers(context.quick, self.bytes).rounds {
            if let Some(listener) = &listener {
                let stream = tcp::accept(listener, deadline, std::hint::spin_loop)?;
                stream::write_until_closed(stream, Style::Get, self.bytes, deadline)?;
            }
            if let Some(side) = &mut side {
                side.answer(deadline)?;
            }
            node.answer()?;
        }
        child::poll_until_finish(deadline, || node.poll())?;
        node.close();
        Ok(())
    }

    /// The row.
    pub(crate) fn run(self, context: &Context) -> Result<Figure> {
        let Self { over, verb, shared, bytes } = self;
        let (effort, deadline) = (Effort::transfers(context.quick, bytes), context.deadline);
        let (data, zero) = (touched(bytes), vec![0; bytes]);
        let mut side = match over {
            Transport::Fabric(fabric) => Some(fabric.open()?),
            Transport::Sm | Transport::Tcp | Transport::Private => None,
        };
        let place = side.as_ref().map(|side| side.address()).transpose()?;
        let mut peer = context.start_peer(place.unwrap_or_default())?;
        if let Some(side) = &mut side {
            fabric::wait_for_join(side, deadline)?;
        }
        let (name, address, described): Answer = peer.receive("the peer's addresses")?;
        if let Some(side) = &mut side {
            side.expose(data.clone())?;
            side.aim(&name)?;
        }
        let mut copy = copies(if over == Transport::Sm { bytes } else { 0 });
        let floor = |floors: &mut Samples| match (over, &mut side) {
            (Transport::Tcp, _) => {
                let address = str::from_utf8(&name)?;
                let mut reader = stream::Reader::connect(address, Style::Get, bytes, deadline)?;
                floors.each(|| reader.read())
            }
            (_, Some(side)) => self.bare_round(side, floors, &data, deadline),
            (_, None) => copy(floors),
        };
        let mut node = self.open(false, deadline)?;
        let target = node.endpoint().lookup(&address).doing("looking the peer up")?;
        let remote = node.endpoint().mem_from_bytes(&described).doing("reading a description")?;
        let local = register(node.endpoint(), shared, Access::ReadWrite, &data)?;
        let (local_offset, remote_offset, len) = (0, 0, bytes as u64);
        let transfer = Transfer { local: local.clone(), local_offset, remote, remote_offset, len };
        let mut round = 0u8;
        let rounds = effort.in_turns([1, 1], floor, |samples| {
            let mut wanted = data.clone();
            if verb == Verb::Put {
                // What is put differs from round to round, in each page.
                wanted.iter_mut().step_by(4096).for_each(|byte| *byte = byte.wrapping_add(round));
            }
            round += 1;
            let mut is_right = local.write_at(0, if verb == Verb::Put { &wanted } else { &zero });
            samples.each(|| node.transfer(verb, &target, transfer.clone()))?;
            if verb == Verb::Put {
                is_right &= local.write_at(0, &zero);
                node.transfer(Verb::Get, &target, transfer.clone())?;
            }
            ensure!(is_right && holds(&local, &wanted), "the bytes did not arrive");
            node.call(&target, true)
        })?;
        node.close();
        peer.finish()?;
        Ok(Figure::bandwidth(rounds, bytes))
    }

    /// A round of the library's own transfers.
    fn bare_round(
        &self,
        side: &mut Box<dyn Bare>,
        floors: &mut Samples,
        data: &[u8],
        deadline: Deadline,
    ) -> Result<()> {
        side.wait_for_hello(deadline, std::hint::spin_loop)?;
        if self.verb == Verb::Get {
            side.exposed().fill(0);
        }
        floors.each(|| side.transfer(self.verb, deadline))?;
        if self.verb == Verb::Put {
            side.exposed().fill(0);
            side.transfer(Verb::Get, deadline)?;
        }
        ensure!(side.exposed() == data, "the floor's bytes did not arrive");
        side.stop(deadline)
    }
}
