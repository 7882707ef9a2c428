//! Rows `na.sm.rtt.256`, `na.sm.rtt.256.each` and `na.tcp.rtt.idle1000`: the round trip of
//! `na.*.rtt` to an endpoint that has many peers, by one of them or by each in turn; both sides
//! poll. Floor, alternating: the same to an endpoint that has one peer.

use na::Addr;

use super::echo::Node;
use super::na_node::{NaNode, open};
use crate::base::{Doing, Effort, Figure, Result};
use crate::floors::transport::Transport;
use crate::process::{Context, child};

/// One row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Crowd {
    /// The transport.
    pub(crate) over: Transport,
    /// Peers that the endpoint has.
    pub(crate) peers: usize,
    /// All of them call in turn, not only the last.
    pub(crate) each: bool,
}

impl Crowd {
    fn node(&self, context: &Context, listen: bool) -> Result<NaNode> {
        let endpoint = open(self.over, listen, self.over != Transport::Sm)?;
        Ok(NaNode::new(endpoint, context.deadline))
    }

    /// The peer's part: answers at the endpoint of one, then at the endpoint of many.
    ///
    /// # Errors
    ///
    /// When the origin falls silent.
    pub(crate) fn peer(self, context: &Context) -> Result<()> {
        let mut nodes = [self.node(context, true)?, self.node(context, true)?];
        let uris = nodes.each_ref().map(|node| node.endpoint().self_addr().uri().to_owned());
        child::send(&uris)?;
        (0..self.peers).try_for_each(|_| nodes[1].answer())?;
        for _ in 0..Effort::latency(context.quick).rounds {
            nodes.iter_mut().try_for_each(Node::answer)?;
        }
        child::poll_until_finish(context.deadline, || nodes.iter_mut().try_for_each(Node::poll))?;
        nodes.into_iter().for_each(Node::close);
        Ok(())
    }

    /// The row.
    pub(crate) fn run(self, context: &Context) -> Result<Figure> {
        let mut peer = context.start_peer(())?;
        let [alone, crowded]: [String; 2] = peer.receive("the peer's addresses")?;
        let connect = |address: &str| -> Result<(NaNode, Addr)> {
            let node = self.node(context, false)?;
            let target = node.endpoint().lookup(address).doing("looking the peer up")?;
            Ok((node, target))
        };
        let mut alone = connect(&alone)?;
        let mut crowd = Vec::with_capacity(self.peers);
        for _ in 0..self.peers {
            let (mut node, target) = connect(&crowded)?;
            node.call(&target, true)?;
            crowd.push((node, target));
        }
        let mut turn = self.peers - 1;
        let rounds = Effort::latency(context.quick).in_turns(
            [1, 1],
            |floors| {
                let (node, target) = &mut alone;
                floors.each(|| node.call(target, false))?;
                node.call(target, true)
            },
            |samples| {
                samples.each(|| {
                    turn = if self.each { (turn + 1) % self.peers } else { turn };
                    let (node, target) = &mut crowd[turn];
                    node.call(target, false)
                })?;
                let (node, target) = &mut crowd[turn];
                node.call(target, true)
            },
        )?;
        crowd.into_iter().chain([alone]).for_each(|(node, _)| node.close());
        peer.finish()?;
        Ok(Figure::latency(rounds))
    }
}
