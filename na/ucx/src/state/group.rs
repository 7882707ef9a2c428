//! The endpoints behind one address, as each of them sees the others; an endpoint alone is a group
//! of one.
//!
//! Each endpoint of a group that listens has a listener and a port of its own. One of them has the
//! *door*: it listens at the group's address. When it has read the hello of a caller, the caller
//! gets a place ([`Placement`]). If that is with another endpoint, the caller is *sent on*: it is
//! told the port of that one, and calls there. Its place is kept until then, under a token that its
//! next hello brings along.
//!
//! UCX could accept a connection with the worker of another endpoint than the listener's. But a
//! connection has its worker before its hello is read, and the hello says which endpoint the caller
//! wants; so callers would be sent on all the same.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use crate::addressing::reserved_port::ReservedPort;
use crate::operations::keys::BELL_NAME;
use crate::wire::Hello;
use na_core::group;
use na_core::group::directory::Directory;
use na_core::group::placement::{Caller, NotAdmitted, Permit, Placement};
use na_core::hosts::host_port::PeerKey;
use na_core::{Addr, Principal};
use prim::lost;
use prim::sync::{Arc, Mutex, lock};

/// How long the place of a caller is kept that was sent on. One that comes later gets another one.
const KEPT_FOR: Duration = Duration::from_secs(10);

/// A caller that may have several connections: its host, and the number of its group.
pub(crate) type CallerKey = (Principal, u64);

/// The place of a connection at one endpoint of a group.
pub(crate) type CallerPermit = Permit<CallerKey, Door>;

/// The names by which the endpoints of a group know a peer to be the same one.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) enum PeerName {
    /// One that was looked up.
    LookedUp(PeerKey),
    /// The endpoints of a group that calls.
    Caller(CallerKey),
    /// The group itself.
    Own,
}

/// The duty to listen at the address of the group.
#[derive(Debug)]
pub(crate) struct Door;

/// An endpoint of a group, as the others see it.
pub(crate) struct Member {
    /// The port at which it listens; 0: the group does not listen.
    pub(crate) port: u16,
    /// The bell that wakes its sleeper; `None`: nobody sleeps.
    pub(crate) bell: Option<Arc<OwnedFd>>,
}

/// Places of callers that were sent on, by their tokens.
struct Kept {
    next: u32,
    permits: HashMap<u32, (CallerPermit, Instant)>,
}

/// The state that all endpoints of a group share.
pub(crate) struct Group {
    placement: Arc<Placement<CallerKey, Door>>,
    pub(crate) directory: Directory<PeerName>,
    /// A random number that no other group has.
    pub(crate) number: u64,
    members: Vec<Member>,
    kept: Mutex<Kept>,
    /// The address at which one of them listens, if the group listens.
    pub(crate) door: Option<SocketAddr>,
    /// Keeps the port of that address until the last one is closed.
    reserved: Mutex<Option<ReservedPort>>,
}

impl Group {
    pub(crate) fn new(
        number: u64,
        door: Option<SocketAddr>,
        reserved: Option<ReservedPort>,
        members: Vec<Member>,
    ) -> Arc<Self> {
        Arc::new(Self {
            placement: Placement::new(members.len()),
            directory: Directory::new(Addr::unique_endpoint_id()),
            number,
            members,
            kept: Mutex::new(Kept { next: 0, permits: HashMap::new() }),
            door,
            reserved: Mutex::new(reserved),
        })
    }

    /// How many endpoints there are.
    pub(crate) fn count(&self) -> usize {
        self.members.len()
    }

    /// Gives the connection of a caller at `client` a place at one of the endpoints: that which was
    /// kept for it, or a new one. Who knows nothing of groups stays with `shard`, which it has
    /// reached. The group takes `connections_max`.
    ///
    /// # Errors
    ///
    /// The bound that is reached.
    pub(crate) fn admit(
        &self,
        shard: usize,
        client: Option<SocketAddr>,
        hello: &Hello,
        connections_max: usize,
        now: Instant,
    ) -> Result<CallerPermit, NotAdmitted> {
        let mut kept = lock(&self.kept);
        kept.permits.retain(|_, (_, until)| now < *until);
        let token = hello.shards.map_or(0, |shards| shards.token);
        if let Some((permit, _)) = kept.permits.remove(&token) {
            return Ok(permit);
        }
        drop(kept);
        let Some(shards) = hello.shards else {
            return Placement::admit(&self.placement, None, Some(shard), connections_max);
        };
        let caller = caller_key(client, hello).map(|key| Caller {
            key,
            connections_max: group::connections_max(shards.count.into(), self.count()),
        });
        let wanted = shards.wanted.map(usize::from);
        Placement::admit(&self.placement, caller, wanted, connections_max)
    }

    /// Keeps the place of a caller that is sent on. Returns the port of its endpoint, and the token
    /// under which the place is kept.
    pub(crate) fn keep(&self, permit: CallerPermit, now: Instant) -> (u16, u32) {
        let port = self.members[permit.shard()].port;
        let mut kept = lock(&self.kept);
        // 0 is no token.
        kept.next = kept.next.wrapping_add(1).max(1);
        let token = kept.next;
        kept.permits.insert(token, (permit, now + KEPT_FOR));
        (port, token)
    }

    /// Returns whether `shard` is to listen at the group's address from now on.
    pub(crate) fn takes_door(&self, shard: usize) -> bool {
        !self.placement.take_news(shard).is_empty()
    }

    /// The endpoint `shard` is closed: others get its door, if it has that.
    pub(crate) fn close(&self, shard: usize, door: Option<Door>) {
        let left = self.placement.close(shard);
        for door in left.into_iter().chain(door) {
            let Some(next) = self.placement.hand(door, |_| None) else {
                *lock(&self.reserved) = None;
                return;
            };
            self.members[next].bell.iter().for_each(|bell| lost::ring(bell, BELL_NAME));
        }
    }

    /// How many connections there are, and how many without a wish each endpoint has.
    #[cfg(test)]
    pub(crate) fn counts(&self) -> (usize, Vec<usize>) {
        self.placement.counts()
    }
}

/// The name of a caller that may have several connections; `None`: it is an endpoint alone, and is
/// known by its connection only.
pub(crate) fn caller_key(client: Option<SocketAddr>, hello: &Hello) -> Option<CallerKey> {
    let shards = hello.shards.filter(|shards| shards.count > 1 || shards.wanted.is_some())?;
    let host = client.map_or(Principal::Unknown, |client| Principal::of_host(client.ip()));
    debug_assert!(shards.count > 0, "checked when it was read");
    Some((host, hello.endpoint))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Shards;

    fn group(count: usize) -> Arc<Group> {
        let member = |port| Member { port, bell: None };
        Group::new(1, None, None, (7000..).take(count).map(member).collect())
    }

    fn hello(token: u32) -> Hello {
        Hello {
            queues: 0,
            message_bytes_max: 4096,
            window: 64,
            alive_every_ms: 0,
            endpoint: 5,
            shards: Some(Shards { own: 0, count: 1, wanted: None, token }),
            remote_keys: false,
            uri: String::new(),
        }
    }

    #[test]
    fn the_place_of_a_caller_on_its_way_is_kept_for_a_while() {
        let (group, now) = (group(2), Instant::now());
        let admit = |token, at| group.admit(0, None, &hello(token), 9, at).unwrap();
        let first = admit(0, now);
        let (port, token) = group.keep(admit(0, now), now);
        assert_eq!((port, group.counts()), (7001, (2, vec![1, 1])));
        let arrived = admit(token, now + KEPT_FOR / 2);
        assert_eq!((arrived.shard(), group.counts()), (1, (2, vec![1, 1])));
        // A token is good for one call.
        let again = admit(token, now + KEPT_FOR / 2);
        assert_eq!(group.counts().0, 3);
        let (_, token) = group.keep(again, now);
        let late = admit(token, now + KEPT_FOR);
        assert_eq!(group.counts().0, 3, "another place, in the stead of that one");
        drop((first, arrived, late));
        assert_eq!(group.counts(), (0, vec![0; 2]));
    }

    #[test]
    fn the_door_goes_to_the_next_one_that_is_open() {
        let group = group(4);
        assert!((0..4).all(|shard| !group.takes_door(shard)));
        group.close(2, None);
        group.close(0, Some(Door));
        assert!(!group.takes_door(3));
        assert!(group.takes_door(1) && !group.takes_door(1), "once");
        group.close(1, Some(Door));
        assert!(!group.takes_door(2), "it is closed");
        assert!(group.takes_door(3));
        // One that has not taken it hands it on as well, and the last one ends it.
        let group = super::tests::group(3);
        group.close(0, Some(Door));
        group.close(1, None);
        assert!(!group.takes_door(1) && group.takes_door(2));
        group.close(2, Some(Door));
    }
}
