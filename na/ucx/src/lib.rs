//! UCX: `ucx+all://host:port`, `ucx+tcp://…`, `ucx+sm://…`, `ucx+rc://…` and so on.
//!
//! The library, libucp 1.13 or later, is opened when the first endpoint is: the installed one, or
//! the one that the environment variable `MARGO_LIBUCP` names. Without it every other transport
//! works, and opening one of these says what is missing. The protocol before `://` goes to
//! `UCX_TLS`, a device before a `/` in front of the host to `UCX_NET_DEVICES`. All other settings
//! of UCX are taken from the environment, as for every program that uses it.
//!
//! # Folders
//!
//! Lowest first, each imports from those before it: `wire.rs` (messages of the two endpoints) ·
//! `addressing/` · `operations/` (all that is under way, and what callbacks leave) · `ucp/` (UCX's
//! objects and calls) · `state/` (peers, and the driver, which has all of it) · `traffic/`
//! (messages and transfers) · `connections/` (their beginning, bounds, silence and end) · `poll.rs`
//! (the work of a poll) · `endpoint.rs` (the calls). What is above the state are methods of the
//! driver; those files import nothing of each other but constants.
//!
//! # Connections
//!
//! An endpoint that listens does so at an IP address, whatever carries the data later: UCX's
//! connection manager (TCP, or RDMA CM) brings two workers together, which then choose transports.
//! A peer that was looked up is connected at the first operation towards it (each address of a name
//! with several is tried, within the time limit for all). Each side says hello; until it has the
//! other's hello, it sends nothing else.
//!
//! A connection that was accepted has a peer of its own, whatever address its hello announces:
//! nothing shows that the caller listens there. The answers to a caller take the connection that it
//! made. If the caller announces where it listens, and calls from that host (or from loopback to
//! loopback), it goes by that address, and is called there when something is sent to it after its
//! connection has ended. Otherwise it is an origin that is known by this connection only. Two
//! endpoints that look each other up have two connections, and two peers each.
//!
//! With the connection of a peer ends everything in flight on it. A *session* number changes with
//! every such end, so a side that has not noticed learns it from the next hello. The answer to a
//! message of an ended session is not sent in the next one. UCX tells the end of a connection when
//! the peer closes or dies. Its transports over shared memory cannot tell (`no peer failure
//! handler`), and UCX refuses to use them for connections that ask for it, so `ucx+all` does not
//! use them, as in Mercury. `ucx+sm` does not ask, and learns of the end from the connection
//! manager, whose connection stays. Messages that were sent before the end are received before the
//! end is reported.
//!
//! With a [`liveness_limit`](OpenOptions::liveness_limit) (200 ms at least) a peer that owes
//! something must be heard within it; each side sends signs of life to peers that want them. So a
//! stopped process is noticed, which UCX does not do.
//!
//! Nobody is authenticated, and what UCX moves it does not check: use it among processes that trust
//! each other, as with C Mercury.
//!
//! Several endpoints may share an address ([`Plugin::open_group`]): each has a worker, a context
//! and a listener. That of the first is at the address; it sends a caller on to the port of another
//! one, in place of its hello (`state/group.rs`). Each endpoint calls over connections of its own.
//!
//! # Messages
//!
//! Unexpected messages are active messages with number 0, expected ones with number 3; the header
//! is the tag in 8 bytes. They are sent by eager protocols, and copied once on arrival, from UCX's
//! buffer into the receive that is posted, or into memory where they wait for one. A message that
//! is longer than a fragment of UCX's (8 KiB over TCP, 32 KiB over shared memory) is put together
//! by UCX in a copy before.
//!
//! Mercury sends expected messages as tagged ones (`na_ucp_msg_send`, na_ucx.c). A receive of a
//! tagged message is in UCX's hands once its message has begun to arrive. If the sender then dies,
//! the receive neither ends nor can be canceled: `ucp_request_cancel` finds only receives that
//! still wait (`ucp_tag_exp_remove`, tag_match.c). And any message with the tag is taken for the
//! one that is awaited, whichever peer sent it.
//!
//! UCX takes every message that is sent. So a peer may have 64 messages of each kind (fewer, if
//! they may be longer than 4 KiB, but at least 4) on the way or waiting; the others wait at the
//! sender, whose sends complete later. Messages that receives have taken, or that were thrown away
//! because their receive was canceled, are reported back in batches of half that number. A peer
//! that sends more loses its connection. Answers may wait up to
//! [`unread_answers_max`](na_core::OpenOptions::unread_answers_max), in UCX's hands or ours: a peer
//! that keeps asking and takes none is given up.
//!
//! # Transfers
//!
//! Over connections of InfiniBand and RoCE (`rc`) transfers go by UCX's remote memory access, with
//! keys that the requester asks for and the owner takes back, see `keys.rs` and `remote.rs`; over
//! others only where the program wants it ([`RemoteKeys`](na_core::RemoteKeys)). Otherwise the
//! owner is asked before each transfer: it checks key, bounds and access, and holds the memory. The
//! side that sends the bytes does so in one of two ways, 4 pieces or chunks of a transfer at a
//! time:
//!
//! - Chunks of up to 64 KiB, as active messages with number 2, by eager protocols. They are copied
//!   on both sides, and no program's memory is in UCX's hands: a transfer can be canceled at any
//!   time, and one with a peer that is gone ends at once. Over shared memory they are of 32 KiB,
//!   copied once on each side: see `packing.rs`.
//! - Pieces of up to 4 MiB, as active messages with number 4, by UCX's rendezvous, which moves them
//!   from memory to memory. From 64 KiB in one piece on, to peers that UCX reaches by InfiniBand or
//!   RoCE; over TCP, where copies are faster, only where the program wants it
//!   ([`UcxOptions`](na_core::UcxOptions)); never over shared memory. UCX has the memory until a
//!   piece was moved or the connection is ended by force. What is canceled, or whose peer is gone,
//!   is reported when UCX has let go of the pieces that were under way; if the peer is silent, by
//!   the limit of liveness, or by `close`.
//!
//! A revoked key is refused from then on, and memory is given back when the transfers that had
//! begun are over, or their peer is gone and UCX has let go. 64 transfers may be asked of one peer
//! at a time. Each is answered by one denial or one `done`, also if it is given up. UCX has 256
//! chunks of one peer's gets, at most; the others wait until it has sent some.
//!
//! A chunk is: 1 for a put of the sender, 0 for a get of the receiver, 1 byte; transfer, place in
//! the transfer: 8 bytes each; the data. A piece has these 17 bytes as its header.
//!
//! # The end
//!
//! UCX aborts the process when a worker is destroyed that has something to send. `close` gives that
//! 50 ms, then ends the connections by force, at which UCX lets go. Over `ucx+sm` that is not
//! allowed: if a peer does not take what was sent, the worker is left behind, with a warning.
//!
//! # Active messages with number 1, version 7
//!
//! The hello goes in an active message with number 0 and a header that is no tag of a message. C
//! Mercury has registered no other number, and drops a message with this number that is no request.
//! For a number that is not registered, UCX 1.13 calls through an empty entry.
//!
//! All integers are little endian. The first byte is the kind.
//!
//! | 0: hello | offset | bytes |
//! |---|---|---|
//! | version, 7 | 1 | 1 |
//! | fingerprint of the sender's queues of shared memory; 0: it has none | 2 | 2 |
//! | `MRGOSHRD`: the sender knows of groups | 4 | 8 |
//! | longest message that the sender takes | 12 | 4 |
//! | messages of a kind that may be on the way to the sender | 16 | 4 |
//! | the sender wants to hear something every so many ms; 0: does not mind | 20 | 4 |
//! | number of the sender's endpoint or group, random | 24 | 8 |
//! | the sender's number in its group, and how many there are | 32 | 1 each |
//! | the wanted endpoint of the receiver's group, plus 1; 0: any | 34 | 2 |
//! | token; 0: none | 36 | 4 |
//! | 1: the sender gives remote keys; 0: it does not | 40 | 1 |
//! | length of the address, at most 256 | 41 | 4 |
//! | where the sender listens, UTF-8; empty: nowhere | 45 | length |
//!
//! | first byte | then |
//! |---|---|
//! | 1: taken | unexpected and expected messages that were taken, 4 bytes each |
//! | 2: ask | transfer, key, offset, length: 8 bytes each; 1 for a put, 0 for a get: 1 byte |
//! | 3: grant | transfer, a put: 8 |
//! | 4: deny | transfer: 8; 1 no such key, 2 access not granted, 3 out of range, 4 not registered: 1 |
//! | 5: release (it is given up) | transfer: 8 |
//! | 6: alive | nothing |
//! | 7: done (all was received, or sent, or it was given up) | transfer: 8 |
//! | 8: want (a remote key) | key: 8 |
//! | 9: key | key: 8; access: 1; of each piece address, length: 8 each; what is packed: 2, and so many |
//! | 10: no key | key: 8 |
//! | 11: revoke | key: 8 |
//! | 12: returned | key: 8 |
//! | 13: elsewhere (in place of a hello) | port: 2; token: 4 |
//!
//! A peer that breaks a rule loses its connection (`Error::Protocol`, and a warning in the log for
//! some of many). So does C Mercury, which says no hello, and a peer that reads nothing of its
//! control messages: see `bounds.rs`.

#![cfg(not(loom))]

mod addressing;
mod connections;
mod endpoint;
mod operations;
mod poll;
mod state;
mod traffic;
mod ucp;
mod wire;
#[cfg(test)]
mod wire_doc;

/// Entry points for fuzzers, see `na::fuzzing`.
#[doc(hidden)]
pub mod fuzzing {
    /// Decodes a hello or a control message of a peer.
    ///
    /// # Panics
    ///
    /// If what is accepted does not say the same when it is written again.
    pub fn control(data: &[u8]) {
        super::wire::fuzz(data);
    }
}

use std::sync::Arc;

use self::addressing::address;
use self::endpoint::UcxEndpoint;
use self::ucp::devices;
use na_core::group::check_shards;
use na_core::hosts::host_port;
use na_core::hosts::own_address::Wanted;
use na_core::{Device, Endpoint, Error, OpenOptions, Plugin, Uri};

/// The largest value of [`OpenOptions::message_bytes_max`] that this transport takes, bytes.
const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// The plugin.
///
/// ```
/// use na_core::{Error, OpenOptions, Plugin, Uri};
/// use na_ucx::Ucx;
///
/// let options = OpenOptions::listening(true);
/// let uri = Uri::parse("ucx+tcp://127.0.0.1:0")?;
/// assert!(Ucx.serves(&uri));
/// Ucx.check(&uri, &options)?; // asks no library
/// let error = Ucx.check(&Uri::parse("ucx+tcp://127.0.0.1:port")?, &options).unwrap_err();
/// assert!(matches!(error, Error::BadUri { .. }));
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Ucx;

impl Plugin for Ucx {
    fn name(&self) -> &'static str {
        "ucx"
    }

    fn summary(&self) -> &'static str {
        "InfiniBand, RoCE, TCP and shared memory through UCX, opened at run time"
    }

    fn serves(&self, uri: &Uri<'_>) -> bool {
        uri.class == Some("ucx")
    }

    fn probe_uri(&self) -> &'static str {
        "ucx+tcp://127.0.0.1:0"
    }

    /// Returns the traffic class where it has no effect: among UCX's transports only those of
    /// InfiniBand and RoCE have classes.
    fn ignores(&self, uri: &Uri<'_>, options: &OpenOptions) -> Vec<&'static str> {
        let classed = address::may_have_classes(uri.protocol);
        let told = |name: &&str| !classed && *name == "traffic_class";
        options.about_networks().filter(told).collect()
    }

    fn devices(&self) -> Result<Vec<Device>, Error> {
        devices::devices()
    }

    fn check(&self, uri: &Uri<'_>, options: &OpenOptions) -> Result<(), Error> {
        options.check_message_bytes(self.name(), 1, MESSAGE_BYTES_MAX)?;
        options.unread_answers_bounds()?;
        options.ucx.check()?;
        host_port::check_listen(uri.text, address::host_and_port(uri), &Wanted::of(options)?)
    }

    fn open(&self, uri: &Uri<'_>, options: &OpenOptions) -> Result<Arc<dyn Endpoint>, Error> {
        let mut one = self.open_group(uri, options, 1)?;
        one.pop().ok_or(Error::Closed)
    }

    fn open_group(
        &self,
        uri: &Uri<'_>,
        options: &OpenOptions,
        shards: usize,
    ) -> Result<Vec<Arc<dyn Endpoint>>, Error> {
        self.check(uri, options)?;
        check_shards(shards)?;
        let group = UcxEndpoint::open_group(uri, options, shards)?;
        Ok(group.into_iter().map(|shard| Arc::new(shard) as Arc<dyn Endpoint>).collect())
    }
}
