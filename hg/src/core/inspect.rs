//! The view of a core from outside: peers, calls in flight to them, and since when.
//!
//! No call notes the time when it starts. But calls are numbered: a caller that notes the next
//! number together with the time ([`CallMark`]) can tell later that a call with a lower number is
//! older.

use std::collections::HashMap;

use na::{PeerStats, Principal};

use crate::core::state::Op;
use crate::ops::Role;
use crate::{Core, InHand, OpRef};

/// Operations that are looked at under one lock.
const CHUNK: usize = 256;

/// The calls that have been made up to a moment: see [`Core::call_mark`].
///
/// ```
/// # use hg::*;
/// # let endpoint = na::open("na+sim://doc-call-mark/a", &na::OpenOptions::listening(true))?;
/// # let core = Core::<u32>::new(endpoint, HgOptions::default())?;
/// # let own = core.self_addr();
/// # let other = na::open("na+sim://doc-call-mark/b", &na::OpenOptions::listening(true))?;
/// # let to = core.lookup(other.self_addr().uri())?;
/// # let (sum, options) = (RpcId::mercury("sum"), ForwardOptions::default().undeclared());
/// let before = core.call_mark();
/// core.forward(&to, sum, options, |_| Ok(()), 7).map_err(|refused| refused.0)?;
/// let after = core.call_mark();
///
/// let peers = core.peer_calls(core.endpoint().stats().peers);
/// let call = peers.iter().flat_map(|peer| &peer.calls).next().ok_or("no call")?;
/// assert!(after.covers(*call) && !before.covers(*call), "it began in between");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallMark(Vec<(u8, [u64; 2])>);

/// Names a call among those of its core, in the order of their starts.
///
/// ```
/// # use hg::*;
/// # let endpoint = na::open("na+sim://doc-call-number/a", &na::OpenOptions::listening(true))?;
/// # let core = Core::<u32>::new(endpoint, HgOptions::default())?;
/// # let own = core.self_addr();
/// # let other = na::open("na+sim://doc-call-number/b", &na::OpenOptions::listening(true))?;
/// # let to = core.lookup(other.self_addr().uri())?;
/// # let (sum, options) = (RpcId::mercury("sum"), ForwardOptions::default().undeclared());
/// for token in [1, 2] {
///     core.forward(&to, sum, options, |_| Ok(()), token).map_err(|refused| refused.0)?;
/// }
/// let peers = core.peer_calls(core.endpoint().stats().peers);
/// let calls: Vec<&CallNumber> = peers.iter().flat_map(|peer| &peer.calls).collect();
/// assert!(calls.len() == 2 && calls[0] != calls[1]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallNumber {
    shard: u8,
    targeted: bool,
    number: u64,
}

impl CallMark {
    /// Returns whether that call was made before the mark.
    pub fn covers(&self, call: CallNumber) -> bool {
        let own = self.0.iter().find(|(shard, _)| *shard == call.shard);
        own.is_some_and(|(_, next)| call.number < next[usize::from(call.targeted)])
    }
}

/// A peer, and the calls to it.
///
/// ```
/// # use hg::*;
/// # let endpoint = na::open("na+sim://doc-peer-calls/a", &na::OpenOptions::listening(true))?;
/// # let core = Core::<u32>::new(endpoint, HgOptions::default())?;
/// # let own = core.self_addr();
/// # let other = na::open("na+sim://doc-peer-calls/b", &na::OpenOptions::listening(true))?;
/// # let to = core.lookup(other.self_addr().uri())?;
/// # let (sum, options) = (RpcId::mercury("sum"), ForwardOptions::default().undeclared());
/// core.forward(&to, sum, options, |_| Ok(()), 7).map_err(|refused| refused.0)?;
/// for PeerCalls { peer, calls, .. } in core.peer_calls(core.endpoint().stats().peers) {
///     assert_eq!((peer.uri.as_str(), calls.len()), (to.uri(), 1));
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PeerCalls {
    /// The statistics that the transport keeps of the peer.
    pub peer: PeerStats,
    /// Calls whose response has not come.
    pub calls: Vec<CallNumber>,
}

impl<T> Core<T> {
    /// Calls made from now on are not covered by it, earlier ones are.
    pub fn call_mark(&self) -> CallMark {
        CallMark(self.class.all().map(|one| (one.id, one.state().next_numbers())).collect())
    }

    /// The peers that the transport knows, with the calls in flight to each.
    pub fn peer_calls(&self, peers: Vec<PeerStats>) -> Vec<PeerCalls> {
        let calls = |peer: PeerStats| PeerCalls { calls: self.calls_of(&peer), peer };
        peers.into_iter().map(calls).collect()
    }

    fn calls_of(&self, peer: &PeerStats) -> Vec<CallNumber> {
        let mut awaited = peer.awaited.iter().filter_map(|id| match OpRef::parse(*id) {
            (op, Some(Role::Response)) => Some(op),
            _ => None,
        });
        let mut found = Vec::new();
        loop {
            let chunk: Vec<_> = awaited.by_ref().take(CHUNK).collect();
            if chunk.is_empty() {
                return found;
            }
            for shard in self.class.all() {
                let mut state = shard.state();
                for op in chunk.iter().filter(|op| op.shard() == shard.id) {
                    if let Some(Op::Call(call)) = state.ops.get_mut(*op)
                        && !call.canceled
                    {
                        let (targeted, number) = (call.target.is_some(), call.number);
                        found.push(CallNumber { shard: shard.id, targeted, number });
                    }
                }
            }
        }
    }

    /// Returns the members that have proven by messages who they are, by their addresses: those
    /// that have called, and those that were called.
    pub fn proven_members(&self) -> HashMap<Box<str>, Principal> {
        let mut all = HashMap::new();
        if self.options.membership.is_some() {
            let now = self.class.members.now();
            let mut tell = |address: &str, who| {
                all.insert(address.into(), who);
            };
            self.class.members.each(&mut tell);
            self.class.all().for_each(|shard| shard.own_sessions.each(now, &mut tell));
        }
        all
    }

    /// Returns the operations and memory that this shard alone has in hand.
    pub fn in_hand_here(&self) -> InHand {
        let mut sum = InHand::default();
        self.collected_state().add_to(&mut sum);
        sum
    }
}
