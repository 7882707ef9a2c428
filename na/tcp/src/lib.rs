//! TCP: `na+tcp://host:port`, also `tcp://host:port`.
//!
//! # Folders
//!
//! Lowest first: `wire/` (what is said) · `system/` (sockets) · `stream/` (bytes become frames, and
//! frames bytes) · `peers/` (what is in flight with each) · `state/` (an endpoint and its poller) ·
//! `progress/` (the poll) · `api/` (operations become frames).
//!
//! # Addresses
//!
//! A listening endpoint without a host listens on 127.0.0.1, or on `[::1]` where there is nothing
//! else; all interfaces must be asked for with `0.0.0.0`, or `[::]` for both families, one
//! interface by its name: `na+tcp://eth0:7000`, or by its subnet ([`OpenOptions::ip_subnet`]). Port
//! 0, or none, is a free port. The self address is always written in numbers and can be called: for
//! all interfaces it names the address in the subnet that is asked for, else one that leads
//! outside, else one of any interface, and of `[::]` an IPv4 one where IPv6 leads nowhere. Where
//! there is nothing but loopback, a warning says that nobody else can call. An endpoint that does
//! not listen ignores host and port (but they must be well-formed), and its self address is a name
//! for people. `open` and `lookup` resolve host names, which may block; nothing else does.
//!
//! # Connections
//!
//! A peer that was looked up is connected at the first operation towards it, by dialing its
//! address: messages to it reach the endpoint that listens there. An endpoint that accepts a
//! connection has a peer of its own for it, the *caller*. The caller is another peer than the one
//! that was looked up under the same address: everything that is sent to the caller takes the
//! connection that it made, so replies reach an origin behind a firewall or address translation.
//! Two endpoints that look each other up have two connections.
//!
//! The dialer announces where it listens, if it does. If the connection comes from that host (or
//! the address is loopback and both ends are on one host), the caller goes by that name, and is
//! dialed there when something is sent to it after its connection has ended. Otherwise it is an
//! origin that is known by this connection only. The announced address is a name and nothing else:
//! it gives the caller nothing that is meant for the listener there, and ends no connection of that
//! listener. A request from a caller of that name may not come from the listener.
//!
//! Operations on the endpoint's self address need no connection, whether it listens or not. Other
//! addresses of its own (a second interface, a name with several addresses) are connected, and
//! answered as an origin.
//!
//! An endpoint that knows a peer by two names has two peers, with a connection each; so has the
//! other side.
//!
//! # Private connections
//!
//! Where [`TcpOptions::security`](na_core::TcpOptions::security) asks for it, a handshake of TLS
//! 1.3 comes before anything else, on a thread of the group's (`margo-na-tls`). Frames and data are
//! then sealed into records by whoever sends them, and opened in the buffer into which they were
//! read; everything above does not know. The principal of a peer is what it has proven, and its
//! host only where it has proven no name. Records that the kernel does not take wait as bytes, at
//! most 128 KiB of each peer. A connection that is cut ends without a word of TLS: the end of a
//! connection is the end of its peer in any case.
//!
//! # Groups
//!
//! Several endpoints may share an address ([`Plugin::open_group`]). One of them listens. It hands a
//! connection over to the endpoint that is to have it when it has read the dialer's hello, before
//! anything is answered (`peers/group.rs`). Each endpoint dials connections of its own.
//!
//! With the connection of a peer ends everything in flight on it: `PeerGone`, `Protocol` if the
//! peer broke a rule, or `Unreachable` if it was never connected (which also ends the expected
//! receives that wait for it). The next operation dials again, in a new *session*. What answers a
//! message of an ended session is not sent in the next one.
//!
//! A peer that is restarted is noticed by the end of its connection. If its host could not say that
//! it has ended, as after a loss of power, the first caller from that address with another endpoint
//! number makes us send a sign of life on the old connection, which the host then resets.
//!
//! A connection must be made, and greeted, within [`OpenOptions::connect_timeout`], of which each
//! address of a name with several gets its part; a refusal, or an end before the greeting, is
//! reported at once, or tried again for [`connect_retry`]. At most 256 accepted connections may be
//! without a hello; beyond, the oldest is dropped if it has had a second, else the next wait in the
//! kernel's queue. Beyond [`connections_max`], or the descriptors that the process may have, a
//! connection is refused with that reason. One descriptor is kept for telling that to callers
//! when others have taken all of them; such a refusal may be repeated for [`connect_retry`].
//!
//! With a [`liveness_limit`](OpenOptions::liveness_limit) (200 ms at least) a peer that owes
//! something must be heard within it; each side sends signs of life to who wants them, also while
//! it does not read. So a stopped process is noticed, and one that is slow is not mistaken for it.
//! (A peer without capability 1, which can send none, is never given up for its silence.) Without
//! a limit, a peer whose host vanishes is noticed by the kernel: after [`keep_alive`] if nothing
//! was under way, else by its retransmission limit, which is some quarter of an hour.
//! [`slow_reader_limit`] ends a peer that takes nothing.
//!
//! [`connect_retry`]: na_core::TcpOptions::connect_retry
//! [`connections_max`]: na_core::TcpOptions::connections_max
//! [`keep_alive`]: na_core::TcpOptions::keep_alive
//! [`slow_reader_limit`]: na_core::TcpOptions::slow_reader_limit
//! [`early_bytes_max`]: na_core::OpenOptions::early_bytes_max
//! [`unread_answers_max`]: na_core::OpenOptions::unread_answers_max
//!
//! # How it moves bytes, and why so
//!
//! Measured with bare sockets on loopback, two pinned processes, kernel 6.18, medians:
//!
//! | | one stream, system calls | io_uring | io_uring, zero-copy send | 2 streams | 4 streams |
//! |---|---|---|---|---|---|
//! | 72 bytes there and back | 7.98 us | 9.49 us | – | – | – |
//! | 4 KiB asked for | 13.7 us | 15.9 us | 16.6 us | 21.8 us | 29.4 us |
//! | 64 KiB | 53.0 us | 55.0 us | 66.6 us | 42.7 us | 50.0 us |
//! | 1 MiB | 513 us | 526 us | 709 us | 586 us | 544 us |
//! | 16 MiB | 8.0 ms | 10.0 ms | 16.5 ms | 9.3 ms | 8.6 ms |
//! | 64 MiB | 37.0 ms | 43.1 ms | 73.7 ms | 36.8 ms | 34.7 ms |
//!
//! io_uring was slower in every row: a poll that spins finds what has arrived with one call either
//! way, and the ring adds its own work to that call. So there is one way only, epoll. (Set up as
//! single issuer with deferred task work, one submission and look for completions per turn.)
//! Several streams are not faster: one core moves the bytes on each side, and one stream keeps it
//! busy. (64 KiB gain from a second one when the two cores are far from each other, because one
//! half is read while the other is written.) These figures are from cores that are far; near, bare
//! sockets move 64 KiB in 22 us and 1 MiB in 144 us.
//!
//! A transfer costs as few system calls as bare sockets need: two on each side; three for the owner
//! of a put beyond 4 KiB, which learns from the first read where the rest belongs. While the cores
//! are near, the header alone costs bare sockets 4 to 6 % at 4 KiB, copied in front or sent as a
//! piece of its own, and nothing at 64 KiB. A look that finds nothing takes 0.38 us, 0.54 us while
//! data of more than 4 KiB is awaited, of which 0.32 us and 0.46 us are the system call (`readv`
//! costs 0.13 us more than `recv`, with one piece as with three). The rest is our own work: both
//! sides of a round trip together run 4,300 instructions, of a get of 4 KiB 4,700, of a put 5,200,
//! the latter two a tenth of them copies, and few of them are locked: one thread mostly polls and
//! sends, which takes the locks of `prim::lock` without. What is short finds the way to the kernel
//! past the queue of its peer.
//!
//! The second read is what such a put costs more than a get: with the same frames and calls, bare
//! sockets move 64 KiB in 22.0 us as a get and in 23.0 us as a put (22.2 us if the owner knew
//! beforehand where the data belongs), without any header in 21.5 us.
//!
//! A system call costs as much as ten short messages. So the first message after something has come
//! from the peer is written at once, and the others within 20 us are left to the next poll. After a
//! poll that reported several completions, the first one is left to the next poll, too. A thread
//! that takes many completions in one poll, and answers them before the next, gets the answers sent
//! in one call; so does a thread that sends without a break while another one polls. A thread that
//! computes for long in between delays what it has sent in the first 20 us, but only once: after a
//! delay of more than a millisecond, the next 256 messages that should wait do not (`gather.rs`).
//!
//! On loopback the system lets a socket hold megabytes that nobody has read, and they have left the
//! caches when they are read. With a send buffer of 1 MiB, bare sockets move 1 MiB as fast (8.4
//! GB/s), 4 MiB at 8.1 instead of 6.2 GB/s, 16 MiB at 5.0 to 6.1 instead of 4.3 to 5.0. Half as
//! much costs at 1 MiB, more brings nothing, and a smaller receive buffer only costs. To other
//! hosts the system decides.
//!
//! Nor is there anything that could be congested. Where the system's congestion control is BBR,
//! bare sockets with Reno instead move 16 times 256 KiB, one behind the other, at 5.1 instead of
//! 3.3 GB/s (near; 1.6 instead of 1.3 far), and take 2 to 3 % less time for 64 bytes and 4 KiB
//! there and back; one transfer of 64 KiB or more at a time is as fast. Reno's only property that
//! counts here is that it does not spread packets over time, which Cubic does not do either.
//!
//! # Wire format, version 1
//!
//! All integers are little endian. Each direction begins with a hello; the dialer's comes first,
//! the other side's answers it. Then follow frames.
//!
//! | hello | offset | bytes |
//! |---|---|---|
//! | magic `MRGO` | 0 | 4 |
//! | version, 1 | 4 | 2 |
//! | capabilities; unknown bits mean nothing | 6 | 2 |
//! | longest message that the sender takes | 8 | 4 |
//! | length of the address, at most 256 | 12 | 2 |
//! | refusal: 0 none, 1 too many connections, 2 no descriptors, others unknown | 14 | 2 |
//! | session: for earlier versions; with refusal 2 the limit of descriptors | 16 | 8 |
//! | the sender wants to hear something every so many ms; 0: does not mind | 24 | 4 |
//! | length of the extension, at most 256 | 28 | 2 |
//! | not looked at | 30 | 2 |
//! | address where the sender listens, UTF-8; empty: nowhere | 32 | length |
//! | extension: numbers of the endpoint and the peer; shards; more is skipped | | length |
//!
//! Capability 1: understands *alive*, and sends it when asked to; 2: the extension has shards (own,
//! count, wanted, map, 2 bytes each, behind its first 16); 4: the sender has the RPC layer of C
//! Mercury. What both offer is used. A
//! message may be as long as the smaller of both limits. A hello of another version is answered
//! with one's own, so that both sides can say why, and the connection is closed. Anything else that
//! is not a hello is not answered.
//!
//! | frame | offset | bytes |
//! |---|---|---|
//! | kind | 0 | 1 |
//! | reserved, 0 | 1 | 3 |
//! | bytes of payload | 4 | 4 |
//! | number: tag of a message (32 bits), or of the transfer | 8 | 8 |
//! | payload | 16 | |
//!
//! | kind | name | payload |
//! |---|---|---|
//! | 1 | unexpected message | the message |
//! | 2 | expected message | the message |
//! | 3 | get | key, offset, length: 8 bytes each |
//! | 4 | put | key, offset, length: 8 bytes each |
//! | 5 | data of a get | the next bytes, 1 to 2^20 |
//! | 6 | data of a put | the next bytes, 1 to 2^20 |
//! | 7 | done | status, 4 bytes |
//! | 8 | cancel | none |
//! | 9 | alive | none |
//!
//! Statuses: 0 done, 1 no such key, 2 access not granted, 3 out of range, 4 copy failed,
//! 5 canceled.
//!
//! The requester numbers its transfers, using each number once, and may have 64 of each kind at the
//! owner. A get is answered by its data, or by *done* when it is denied, empty, or canceled before
//! all of its data was on the way. A put is followed by its data (the sender need not wait for
//! anything) and answered by exactly one *done*: when it is denied, complete, or canceled. The data
//! of a denied put is skipped until it is complete or canceled. Data of several transfers, and
//! messages, may alternate frame by frame; the data of one transfer is in order.
//!
//! A peer that breaks a rule loses its connection (`Error::Protocol`, one warning in the log);
//! others are not affected. That includes asking for more transfers while not reading the answers.
//!
//! # Back-pressure
//!
//! A send completes when the kernel has its last byte; a short answer also completes when it was
//! copied behind a full socket (`outgoing.rs`). A receiver holds 256 KiB of early messages per
//! peer. Beyond that it stops reading the peer's connection until a receive takes one, or is posted
//! for the very message that comes next. The socket buffers fill, and the peer's sends stop
//! completing. Data of transfers on that connection waits as well. When the peer hangs up, the data
//! that it left in the socket is read regardless of the bound, so that its end is noticed.
//!
//! All peers together may have [`early_bytes_max`] of early messages, those of one host half of it.
//!
//! A requester is held back by the answers that it waits for; a peer that answers waits for
//! nothing. So a peer for which a mebibyte of answers waits is read no further, unless something is
//! awaited of it: two peers that each read nothing as long as the other does not would both stop
//! for good. At [`unread_answers_max`], or at the bounds of its host and of all peers, the peer is
//! given up (`unread.rs`).
//!
//! # Copies
//!
//! Headers, and payloads up to 4 KiB, are copied behind each other and leave in one piece: many
//! messages in one call, and a call with one piece is 0.25 us faster than one with two. Longer
//! messages and data of transfers are sent from where they lie. Data
//! arrives in registered memory, and what is missing of a message when its header is read, if it is
//! 4 KiB or more, in the posted receive; but some 4 KiB of them may come with the header, and are
//! copied.
//!
//! While the data of one transfer is awaited, the bytes after the next header are read into its
//! memory before that header is known (`frame_reader.rs`). If the header is that of another frame
//! after all, the frame's bytes lie in that memory until they are moved out, at once, and the
//! memory is zeroed. Meanwhile other threads, and peers that may use that memory too, can see these
//! bytes, or change them if they may write there (over sm, say). Peers that must not know of each
//! other need memory of their own. Not to guess would cost a read for each frame, 5 % of a get of
//! 64 KiB (above).

#![cfg(not(loom))]

mod api;
#[doc(hidden)]
pub mod fuzzing;
#[doc(hidden)]
pub use na_tls::fuzzing as fuzzing_tls;
mod peers;
mod progress;
mod state;
mod stream;
mod system;
mod wire;
#[cfg(test)]
mod wire_doc;

/// For `margo info`.
#[doc(hidden)]
pub use self::system::kernel_tls::kernel_tls;

use std::sync::Arc;

use self::api::endpoint::TcpEndpoint;
use na_core::group::check_shards;
use na_core::hosts::host_port;
use na_core::hosts::own_address::Wanted;
use na_core::{Endpoint, Error, OpenOptions, Plugin, Uri};

/// The largest value of [`OpenOptions::message_bytes_max`] that this transport takes, bytes. Each
/// connection has a read buffer of at least twice the limit.
const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// The plugin.
///
/// ```
/// use na_core::{OpenOptions, Plugin, Uri};
/// use na_tcp::Tcp;
///
/// let uri = Uri::parse("na+tcp://127.0.0.1:0")?;
/// let endpoint = Tcp.open(&uri, &OpenOptions::listening(true))?;
/// assert!(!endpoint.self_addr().uri().ends_with(":0"), "it has got a port");
/// # Ok::<(), na_core::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Tcp;

impl Plugin for Tcp {
    fn name(&self) -> &'static str {
        "tcp"
    }

    fn summary(&self) -> &'static str {
        "TCP between and within hosts"
    }

    fn probe_uri(&self) -> &'static str {
        "na+tcp://127.0.0.1:0"
    }

    fn ignores(&self, _: &Uri<'_>, _: &OpenOptions) -> Vec<&'static str> {
        Vec::new()
    }

    fn check(&self, uri: &Uri<'_>, options: &OpenOptions) -> Result<(), Error> {
        options.check_message_bytes(self.name(), 1, MESSAGE_BYTES_MAX)?;
        options.unread_answers_bounds()?;
        options.tcp.check()?;
        host_port::check_listen(uri.text, uri.rest, &Wanted::of(options)?)
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
        let group = TcpEndpoint::open_group(uri, options, shards)?;
        Ok(group.into_iter().map(|shard| Arc::new(shard) as Arc<dyn Endpoint>).collect())
    }
}
