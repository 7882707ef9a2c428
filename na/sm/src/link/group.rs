//! The endpoints behind one name, as each of them sees the others; an endpoint alone is a group of
//! one.
//!
//! One endpoint has the listener. When it has read the hello of a dialer, the connection gets a
//! place ([`Placement`]). If that is with another endpoint, what has come goes to that one's inbox:
//! the socket, and what the hello brought along. The dialer says nothing more until it is welcomed,
//! and the shared segment is not looked at before that, so nothing is missed between the two. The
//! receiver takes the socket into its own epoll set and says welcome, with its own board.
//!
//! A bell in the epoll set of each endpoint of several tells that there is something in the inbox
//! ([`Bells`]).
//!
//! A group may grow, also from an endpoint alone. Before that, two endpoints that are alone have
//! shared the connections between them: each answers on any. Such a peer must not get a second
//! connection with another endpoint here, or it would send it answers for the first one. So its
//! next connection stays with the endpoint that shares one with it (`SmEndpoint::shares_with`), and
//! a connection that is made after the growth is shared no more ([`Conn::is_apart`]).
//!
//! All here is touched when a connection begins and when it ends.

use std::fmt::Display;
use std::os::fd::OwnedFd;

use super::accepted::{AcceptedPeer, AcceptedPeers};
use super::closer::Closer;
#[cfg(doc)]
use super::conn::Conn;
use super::handshake::Packet;
use super::listener::Listener;
use super::segment::Segment;
use super::socket::{Credentials, Socket};
use crate::address::Name;
use crate::wake::board::Board;
use na_core::base::ran::RunClock;
use na_core::group;
use na_core::group::bells::Bells;
use na_core::group::directory::{Directory, Identity};
use na_core::group::placement::{Caller, NotAdmitted, Permit, Placement};
use na_core::{Addr, Error};
use prim::fork::Process;
use prim::sync::{Arc, Mutex, lock};

/// How a bell is called, should it be lost.
const BELL_NAME: &str = "the eventfd by which an sm endpoint gets connections from another one";

/// The endpoints of a group that calls: the name that they say, and their process. So a name that
/// somebody else claims is another one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct CallerKey {
    pub(crate) name: Name,
    pub(crate) process: Credentials,
}

/// The names by which the endpoints of a group know a peer to be the same one.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) enum PeerName {
    /// The one that listens as this, or is to. The group itself has such a name also where it does
    /// not listen.
    Listening(Name),
    /// A group that calls and does not listen.
    Caller(CallerKey),
}

/// An accepted socket before its hello.
#[derive(Debug)]
pub(crate) struct Stranger {
    pub(crate) token: u64,
    pub(crate) waited: RunClock,
    pub(crate) socket: Socket,
    pub(crate) credentials: Credentials,
}

/// The contents of a stranger's hello that is as it should be.
#[derive(Debug)]
pub(crate) struct Met {
    pub(crate) process: Option<OwnedFd>,
    pub(crate) segment: Segment,
    pub(crate) board: Option<(Board, u32)>,
    pub(crate) admission: Admission,
    pub(crate) packet: Packet,
}

/// Something that one endpoint of a group hands over to another one.
#[derive(Debug)]
pub(crate) enum Handed {
    /// Somebody who has said hello and is to be welcomed.
    Met(Box<(Stranger, Met)>),
    /// Somebody who had connected with an endpoint that was closed.
    Stranger(Stranger),
    /// The listener of an endpoint that was closed.
    Listener(Listener),
}

/// The place of an accepted connection: at one endpoint, and in the bounds of all. It counts until
/// this is dropped.
#[derive(Debug)]
pub(crate) struct Admission {
    group: Arc<Group>,
    guest: AcceptedPeer,
    permit: Permit<CallerKey, Handed>,
}

impl Admission {
    /// The endpoint that is to have the connection.
    pub(crate) fn shard(&self) -> usize {
        self.permit.shard()
    }

    /// Has the connection stay at `shard`.
    pub(crate) fn stay_at(&mut self, shard: usize) {
        self.permit.stay_at(shard);
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        // In a child process that was forked off nobody may ever give the lock back.
        if !self.group.process.is_other() {
            lock(&self.group.crowd).leave(&self.guest);
        }
    }
}

/// The state that all endpoints of a group share.
#[derive(Debug)]
pub(crate) struct Group {
    placement: Arc<Placement<CallerKey, Handed>>,
    directory: Directory<PeerName>,
    crowd: Mutex<AcceptedPeers>,
    pub(crate) closer: Arc<Closer>,
    pub(crate) bells: Bells,
    /// Held while the group grows.
    pub(crate) growing: Mutex<()>,
    process: Process,
}

impl Group {
    pub(crate) fn new(count: usize, crowd: AcceptedPeers) -> Result<Arc<Self>, Error> {
        Ok(Arc::new(Self {
            placement: Placement::new(count),
            directory: Directory::new(Addr::unique_endpoint_id()),
            crowd: Mutex::new(crowd),
            closer: Arc::default(),
            bells: Bells::new(BELL_NAME, count)?,
            growing: Mutex::new(()),
            process: Process::current(),
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

    /// The number that the peer of that name has with all endpoints, behind that of the group.
    pub(crate) fn identity(&self, name: PeerName) -> (u64, Identity) {
        (self.directory.family(), self.directory.identity(name))
    }

    /// Gives a connection that a process has asked for with `hello` a place at one of the
    /// endpoints; its segment has so many `bytes`.
    ///
    /// # Errors
    ///
    /// There are too many, or it is too much memory: a text for the dialer.
    pub(crate) fn admit(
        self: &Arc<Self>,
        process: Credentials,
        hello: &Packet,
        bytes: usize,
    ) -> Result<Admission, String> {
        let guest = lock(&self.crowd).admit(process.uid, bytes)?;
        let wanted = hello.shards.and_then(|shards| shards.wanted).map(usize::from);
        let connections_max =
            hello.shards.map_or(0, |shards| group::connections_max(shards.count(), self.count()));
        let caller = caller_key(process, hello).map(|key| Caller { key, connections_max });
        // How many there may be of all is counted above.
        match Placement::admit(&self.placement, caller, wanted, usize::MAX) {
            Ok(permit) => Ok(Admission { group: self.clone(), guest, permit }),
            Err(reason) => {
                lock(&self.crowd).leave(&guest);
                Err(match reason {
                    NotAdmitted::Closed => "the endpoint is closed".to_owned(),
                    NotAdmitted::TooMany | NotAdmitted::TooManyOfCaller => format!(
                        "it has too many connections: {connections_max}, from each of its \
                         endpoints one more than there are here"
                    ),
                })
            }
        }
    }

    /// Gives something to an endpoint that is open; it ends if there is none.
    pub(crate) fn hand(&self, handed: Handed) {
        let shard = self.placement.hand(handed, |handed| match handed {
            Handed::Met(met) => Some(&mut met.1.admission.permit),
            Handed::Stranger(_) | Handed::Listener(_) => None,
        });
        shard.into_iter().for_each(|shard| self.bells.ring(shard));
    }

    /// Takes what others have handed over to `shard`.
    pub(crate) fn take(&self, shard: usize) -> Vec<Handed> {
        self.placement.take(shard)
    }

    /// The endpoint `shard` is closed, for good. Returns what it has not taken.
    pub(crate) fn close(&self, shard: usize) -> Vec<Handed> {
        self.placement.close(shard)
    }

    /// Counts a connection that is refused, and logs why if that is worth a line.
    pub(crate) fn refuse(&self, reason: impl Display) {
        let count = lock(&self.crowd).refused_to_log();
        if let Some(count) = count {
            tracing::warn!("connections refused so far: {count}; {reason}");
        }
    }

    /// How many connections were accepted and have not ended.
    #[cfg(test)]
    pub(crate) fn accepted(&self) -> usize {
        lock(&self.crowd).len()
    }
}

/// The name of a caller whose connections stand for themselves; `None`: it says none that it may
/// have, or is known by its name alone.
pub(crate) fn caller_key(process: Credentials, hello: &Packet) -> Option<CallerKey> {
    let name = Name::said_by(process.uid, &hello.text)?;
    hello.shards.map(|_| CallerKey { name, process })
}
