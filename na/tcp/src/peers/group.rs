//! The endpoints behind one address, as each of them sees the others; an endpoint alone is a group
//! of one.
//!
//! One endpoint has the listener. When it has decoded the hello of a dialer, the connection gets a
//! place ([`Placement`]). If that is with another endpoint, the connection goes to that one's
//! inbox as it is, with the hello in its buffer: the dialer says nothing more until it is answered,
//! so no byte is read by one endpoint and missed by the other. The receiver takes it into its own
//! epoll set, reads the hello again, and answers.
//!
//! A bell in the epoll set of each endpoint of several tells that there is something in the inbox
//! ([`Bells`]). A group may grow, also from an endpoint alone: each connection has a peer of its
//! own at the side that has accepted it, so answers come home on it, whatever came before.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use crate::peers::conn::Conn;
use crate::wire::frame::Hello;
use na_core::group;
use na_core::group::bells::Bells;
use na_core::group::directory::Directory;
use na_core::group::placement::{Caller, NotAdmitted, Permit, Placement};
use na_core::hosts::host_port::PeerKey;
use na_core::{Addr, Error, OpenOptions, Principal};
use na_tls::{Doorkeeper, Settings};
use prim::sync::{Arc, Mutex};

/// How a bell is called, should it be lost.
const BELL_NAME: &str = "the eventfd by which a tcp endpoint gets connections from another one";

/// A caller that may have several connections: what it has proven, or else its host, and the number
/// of its endpoint.
pub(crate) type CallerKey = (Principal, u64);

/// The names by which the endpoints of a group know a peer to be the same one.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) enum PeerName {
    /// One that was looked up.
    LookedUp(PeerKey),
    /// The endpoints of a group that calls.
    Caller(CallerKey),
    /// The group itself, where it does not listen.
    Own,
}

/// Something that one endpoint of a group hands over to another one.
pub(crate) enum Handed {
    /// A connection that was accepted, with the dialer's hello in its buffer, and a permit.
    Conn(Box<Conn>),
    /// The listener of an endpoint that was closed.
    Listener(OwnedFd),
}

/// The state that all endpoints of a group share.
pub(crate) struct Group {
    placement: Arc<Placement<CallerKey, Handed>>,
    pub(crate) directory: Directory<PeerName>,
    /// A random number that no other group has.
    pub(crate) number: u64,
    pub(crate) bells: Bells,
    /// Options of each of the endpoints.
    pub(crate) options: OpenOptions,
    /// Where others reach the group, if it listens.
    pub(crate) listening: Option<SocketAddr>,
    /// Makes connections private, if they are to be.
    pub(crate) doorkeeper: Option<Doorkeeper>,
    /// Held while the group grows.
    pub(crate) growing: Mutex<()>,
}

impl Group {
    pub(crate) fn new(
        count: usize,
        options: OpenOptions,
        listening: Option<SocketAddr>,
    ) -> Result<Arc<Self>, Error> {
        let mut number = [0; 8];
        rustix::rand::getrandom(&mut number, rustix::rand::GetRandomFlags::empty())
            .map_err(|errno| Error::io("cannot get random bytes for an endpoint", errno))?;
        Ok(Arc::new(Self {
            placement: Placement::new(count),
            directory: Directory::new(Addr::unique_endpoint_id()),
            number: u64::from_ne_bytes(number),
            bells: Bells::new(BELL_NAME, count)?,
            doorkeeper: Settings::load(&options.tcp.security)?
                .map(|settings| Doorkeeper::start(Arc::new(settings)))
                .transpose()?,
            options,
            listening,
            growing: Mutex::new(()),
        }))
    }

    /// How many endpoints there are and have been.
    pub(crate) fn count(&self) -> usize {
        self.placement.count()
    }

    /// Opens the group's next endpoint to connections.
    pub(crate) fn grow(&self) -> Result<usize, Error> {
        self.placement.grow().map_err(group::not_grown)
    }

    /// Gives the connection that a caller has made a place at one of the endpoints.
    pub(crate) fn admit(
        &self,
        caller: Principal,
        hello: &Hello,
        connections_max: usize,
    ) -> Result<Permit<CallerKey, Handed>, NotAdmitted> {
        let wanted = hello.shards.and_then(|shards| shards.wanted).map(usize::from);
        let caller = caller_key(caller, hello).zip(hello.shards).map(|(key, shards)| Caller {
            key,
            connections_max: group::connections_max(shards.count.into(), self.count()),
        });
        Placement::admit(&self.placement, caller, wanted, connections_max)
    }

    /// Gives something to an endpoint that is open; it ends if there is none.
    pub(crate) fn hand(&self, handed: Handed) {
        let shard = self.placement.hand(handed, |handed| match handed {
            Handed::Conn(conn) => conn.permit.as_mut(),
            Handed::Listener(_) => None,
        });
        shard.into_iter().for_each(|shard| self.bells.ring(shard));
    }

    /// Takes what others have handed over to `shard`.
    pub(crate) fn take(&self, shard: usize) -> Vec<Handed> {
        self.placement.take(shard)
    }

    /// The endpoint `shard` is closed, or takes no more connections: what it has not taken goes to
    /// the others, the listener too.
    pub(crate) fn close(&self, shard: usize, listener: Option<OwnedFd>) {
        let left = self.placement.close(shard);
        left.into_iter().chain(listener.map(Handed::Listener)).for_each(|handed| self.hand(handed));
    }
}

/// The name of a caller that is a group; `None`: it is an endpoint alone, and is known by its
/// connection only.
pub(crate) fn caller_key(caller: Principal, hello: &Hello) -> Option<CallerKey> {
    hello.shards.and(hello.endpoint()).map(|endpoint| (caller, endpoint))
}
