//! The contract between a transport and everything above it.

use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::{
    Access, Addr, Completion, DevicePieces, EndpointStats, Error, LargeBuffers, LocalMem, MemPart,
    Memory, MsgBuf, OpId, Principal, Refused, RemoteMem, Tag, Transfer,
};

/// The largest messages that an endpoint can carry.
///
/// ```
/// # mod na { pub use na_core::*; pub use na_sim as sim; }
/// # let network = na::sim::Network::builder("doc-limits").build()?;
/// # let a = network.open("a", &na::OpenOptions::listening(true))?;
/// # let b = network.open("b", &na::OpenOptions::listening(true))?;
/// let limits = a.limits();
/// assert_eq!((limits.unexpected_bytes_max, limits.expected_bytes_max), (4096, 4096));
/// assert_eq!(a.alloc_msg().capacity(), 4096);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Largest unexpected message, bytes.
    pub unexpected_bytes_max: usize,
    /// Largest expected message, bytes.
    pub expected_bytes_max: usize,
}

/// One open endpoint. No method blocks.
///
/// `send_*`, `recv_*`, `put`, `get`, `cancel` and the queries may be called from any thread.
/// [`poll`](Self::poll) and [`prepare_wait`](Self::prepare_wait) have one caller at a time (the
/// progress ULT); a second caller waits for the first.
///
/// Messages between two endpoints are matched in the order in which they were sent, per kind. A
/// sender that outruns its receiver is slowed: its sends complete later, and nothing is dropped.
/// Only operations that the sender itself has begun wait meanwhile. A program that answers its
/// peers cannot slow them in this way: over tcp, ofi and ucx, a peer that goes on asking and reads
/// no answers is given up ([`OpenOptions::unread_answers_max`]).
///
/// An endpoint belongs to the process that opened it. A child that is forked off may drop its copy,
/// which does nothing to the parent's, and must not use it otherwise. As long as it keeps the copy
/// (`exec` ends it), peers do not see the parent die; those over sm do, where they can watch its
/// process.
///
/// [`OpenOptions::unread_answers_max`]: crate::OpenOptions::unread_answers_max
///
/// ```
/// # mod na { pub use na_core::*; pub use na_sim as sim; }
/// # let network = na::sim::Network::builder("doc-endpoint").build()?;
/// # let a = network.open("a", &na::OpenOptions::listening(true))?;
/// # let b = network.open("b", &na::OpenOptions::listening(true))?;
/// use na::{Completion, OpId, Tag};
///
/// // A request of a, which b waits for from anybody.
/// b.recv_unexpected(OpId(1), b.alloc_msg())?;
/// let mut request = a.alloc_msg();
/// assert!(request.try_extend(b"hello"));
/// a.send_unexpected(OpId(1), &a.lookup(b.self_addr().uri())?, Tag(7), request)?;
///
/// let mut received = None;
/// while received.is_none() {
///     a.poll(16, &mut drop)?;
///     b.poll(16, &mut |completion| {
///         if let Completion::Recv { buf, result: Ok(arrival), .. } = completion {
///             received = Some((buf, arrival));
///         }
///     })?;
/// }
/// let (buf, arrival) = received.ok_or("nothing came")?;
/// assert_eq!((buf.as_slice(), arrival.tag), (&b"hello"[..], Tag(7)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Endpoint: Send + Sync + fmt::Debug {
    /// The plugin's name: `sm`, `tcp` …
    fn transport(&self) -> &'static str;

    /// Returns the largest messages that it can carry.
    fn limits(&self) -> Limits;

    /// Expected receives that may stay posted although nothing may ever come for them: those of
    /// calls that were given up, and those that watch a peer. A transport whose device takes few at
    /// a time keeps the other receives, of all peers, waiting behind these. So if there are more,
    /// the oldest are to be canceled. Default: any number.
    fn idle_receives_max(&self) -> usize {
        usize::MAX
    }

    /// Returns whether `to` is certainly a program of ours, which understands what the RPC layer of
    /// ours says in messages beside what that of C says. Does not contact it. Default: no, for a
    /// transport that C programs have, too.
    fn carries_extensions(&self, to: &Addr) -> bool {
        let _ = to;
        false
    }

    /// Returns whether peers may be C Mercury's: programs of it have this transport, or one that
    /// has our plugin was named or has connected. Asked for each call; once so it stays so.
    /// Default: no.
    fn may_meet_mercury(&self) -> bool {
        false
    }

    /// Returns whether `peer` is known to be gone for good: nothing that is sent there arrives; or,
    /// if it came with a message ([`Arrival::from`]), whether the connection has ended since, so
    /// that nobody waits for the answer. Cheap, no look at the peer itself. `false` says nothing:
    /// the end of a peer may not have been seen yet, and one that listens may come back under its
    /// address. Default: `false`, for a transport that cannot tell at once.
    ///
    /// [`Arrival::from`]: crate::Arrival::from
    fn is_gone(&self, peer: &Addr) -> bool {
        let _ = peer;
        false
    }

    /// Returns the user or host behind `peer`, as far as the kernel tells (see [`Principal`]): the
    /// host of its connection over tcp and ucx, its user over sm, and over sim what the test says.
    /// [`Principal::Unknown`] where nothing is known that the peer could not have chosen itself
    /// (ofi), for this endpoint itself, and, but over sim, for a peer that is not connected.
    fn principal(&self, peer: &Addr) -> Principal {
        let _ = peer;
        Principal::Unknown
    }

    /// Returns whether [`principal`](Self::principal) tells of `peer` what it has proven, as far as
    /// it is to prove anything. Where it does not, the layer above may ask for proof by messages of
    /// its own. Default: no, for a transport that knows a host at most.
    fn knows_principals(&self, peer: &Addr) -> bool {
        let _ = peer;
        false
    }

    /// Returns whether an endpoint that says it is at `address` may be the one that is called as
    /// `peer`. Asked where the layer above has its peers prove who they are
    /// ([`knows_principals`](Self::knows_principals)): another member of the cluster, to whom
    /// somebody leads calls on, proves as much. Default: the texts are the same, for a transport
    /// whose endpoints have one address each.
    fn is_at(&self, peer: &Addr, address: &str) -> bool {
        peer.uri() == address
    }

    /// Reads the files of secrets and certificates again if they have changed, as the next
    /// connection would. Default: there are none.
    fn look_at_secrets(&self) {}

    /// Returns whether the owner of memory is asked before each transfer. Then memory can be taken
    /// back at any time, and only the transfer that is refused ends. Default: yes. Where it is not,
    /// the network may close the connection on account of a transfer that finds no memory, with all
    /// that is under way over it.
    fn asks_owners(&self) -> bool {
        true
    }

    /// Returns whether the owner of memory knows whose transfer it is asked for, so that
    /// [`Terms`](crate::Terms) may name a peer. Default: no.
    fn knows_who_transfers(&self) -> bool {
        false
    }

    /// Our own address. A peer can look it up if this endpoint listens.
    fn self_addr(&self) -> Addr;

    /// The peer of that name. Does not contact it.
    ///
    /// # Errors
    ///
    /// [`Error::BadUri`] when the text is not an address of this transport.
    fn lookup(&self, uri: &str) -> Result<Addr, Error>;

    /// The peer of that name, through the endpoint number `shard` of the group that listens there
    /// ([`Plugin::open_group`](crate::Plugin::open_group)). The number is a wish: a peer that has
    /// no such endpoint any more, or never had groups, chooses another one. Equal to the address of
    /// [`lookup`](Self::lookup), with a connection of its own. Default: [`lookup`](Self::lookup).
    ///
    /// # Errors
    ///
    /// As [`lookup`](Self::lookup).
    fn lookup_shard(&self, uri: &str, shard: usize) -> Result<Addr, Error> {
        let _ = shard;
        self.lookup(uri)
    }

    /// Opens one more endpoint of the group that this one is of
    /// ([`Plugin::open_group`](crate::Plugin::open_group)), with the same options; an endpoint
    /// alone becomes the first one of a group of two. The new one has the next number, which no
    /// other one has had, and no connections: those that are there stay where they are, and later
    /// ones are shared out among all of them. It is opened by the calling thread.
    ///
    /// A peer that was called by an endpoint alone takes what is added later for another peer, if
    /// it cannot call this group by its address.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`], where a transport has no groups or cannot add to them, as by
    /// default; [`Error::InvalidArgument`] when the group has had 128; [`Error::Closed`];
    /// [`Error::Io`]. The group is as before then.
    fn open_another(&self) -> Result<Arc<dyn Endpoint>, Error> {
        let reason = "it cannot add endpoints to those that it has opened".to_owned();
        Err(Error::Unavailable { transport: self.transport(), reason })
    }

    /// Takes this endpoint out of its group for peers that connect from now on: no connection is
    /// placed here any more, by name neither, and what was on its way here goes to the others. If
    /// it has accepted connections for all, another one does. Connections and operations that are
    /// there go on, and it can begin others. After the last endpoint of the group nobody gets in.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`], where a transport has no groups or cannot take one out, as by
    /// default; [`Error::Closed`].
    fn retire(&self) -> Result<(), Error> {
        let reason = "it cannot take endpoints out of those that it has opened".to_owned();
        Err(Error::Unavailable { transport: self.transport(), reason })
    }

    /// Returns whether `addr` is one of this endpoint's: operations with it can be started here.
    /// Default: whether it has the number of [`self_addr`](Self::self_addr); otherwise where an
    /// endpoint consists of several.
    fn has_made(&self, addr: &Addr) -> bool {
        addr.endpoint_id() == self.self_addr().endpoint_id()
    }

    /// Reads bytes that [`Addr::to_bytes`] of any endpoint of this transport wrote. Does not
    /// contact the peer. The address of an endpoint that does not listen only works where its
    /// connection is, so it cannot be read back.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] when the bytes are not a serialised address, and as
    /// [`lookup`](Self::lookup).
    ///
    /// Counterpart: `NA_Addr_deserialize`.
    fn addr_from_bytes(&self, bytes: &[u8]) -> Result<Addr, Error> {
        self.lookup(Addr::text_in(bytes)?)
    }

    /// An address of this endpoint as bytes, to travel in a message; read by
    /// [`addr_from_bytes`](Self::addr_from_bytes). Default: [`Addr::to_bytes`].
    ///
    /// # Errors
    ///
    /// As [`Addr::to_bytes`]; [`Error::InvalidArgument`] for an address of another endpoint, where
    /// that is looked at.
    ///
    /// Counterpart: `NA_Addr_serialize`.
    fn addr_to_bytes(&self, addr: &Addr) -> Result<Vec<u8>, Error> {
        addr.to_bytes()
    }

    /// A buffer for a message, as large as the limits allow.
    fn alloc_msg(&self) -> MsgBuf {
        let limits = self.limits();
        MsgBuf::with_capacity(limits.unexpected_bytes_max.max(limits.expected_bytes_max))
    }

    /// Sends a message that the peer receives with `recv_unexpected`.
    ///
    /// # Errors
    ///
    /// [`Refused`] when nothing was started: too long, foreign address, endpoint closed.
    fn send_unexpected(&self, op: OpId, to: &Addr, tag: Tag, buf: MsgBuf) -> Result<(), Refused>;

    /// Sends an unexpected message if the transport can take it at once, without a completion:
    /// `true`, and `message` may be used again. `false`: nothing was sent, for whatever reason; use
    /// [`send_unexpected`](Self::send_unexpected), which also tells the reason. Keeps the order of
    /// messages. Nothing may tell that the message is lost.
    ///
    /// Counterpart: `fi_inject`.
    fn send_unexpected_now(&self, to: &Addr, tag: Tag, message: &[u8]) -> bool {
        let _ = (to, tag, message);
        false
    }

    /// Posts a buffer for the next unexpected message of any peer.
    ///
    /// # Errors
    ///
    /// [`Refused`] when nothing was started: buffer below the limit, endpoint closed.
    fn recv_unexpected(&self, op: OpId, buf: MsgBuf) -> Result<(), Refused>;

    /// Returns whether [`multi_recv_unexpected`](Self::multi_recv_unexpected) works. Default: no.
    ///
    /// Counterpart: `NA_Has_opt_feature` of `NA_OPT_MULTI_RECV`.
    fn has_multi_recv(&self) -> bool {
        false
    }

    /// Posts a receive for the next `count` unexpected messages of any peer. Each message is a
    /// completion with a buffer of `buffers`, just as long as the message; while these are all in
    /// use, the message gets a buffer of its own. So `count` alone says when senders are held back,
    /// and a message that is held for ever does not keep others from being received. Such a buffer
    /// is to be dropped, not used again.
    ///
    /// Messages are taken in their order. Those that had arrived before the receive was posted may
    /// be reported after later ones.
    ///
    /// The operation is over with its last message, or with the only completion that is an error,
    /// as by [`cancel`](Self::cancel) or [`close`](Self::close). Pass the same `buffers` each time:
    /// memory of others is given back.
    ///
    /// Post receives of this kind or of the other one: if there are both, the transport decides
    /// which of them takes a message.
    ///
    /// # Errors
    ///
    /// When nothing was started: no message to be received, endpoint closed, or not
    /// [to be had](Self::has_multi_recv), as by default.
    ///
    /// Counterpart: `NA_Msg_multi_recv_unexpected`.
    fn multi_recv_unexpected(
        &self,
        op: OpId,
        count: usize,
        buffers: &LargeBuffers,
    ) -> Result<(), Error> {
        let _ = (op, count, buffers);
        let text = format!("{} receives one message at a time", self.transport());
        Err(Error::InvalidArgument(text))
    }

    /// Sends a message that the peer receives with `recv_expected` from us with this tag.
    ///
    /// Over our own transports and ucx, a message to an address that came with a message is an
    /// answer. It ends with [`Error::PeerGone`] if the connection with the peer has ended since,
    /// whether or not there is another one: the peer's receives have ended with that connection,
    /// and a receive that it posts now under the same tag waits for something else.
    ///
    /// # Errors
    ///
    /// As `send_unexpected`.
    fn send_expected(&self, op: OpId, to: &Addr, tag: Tag, buf: MsgBuf) -> Result<(), Refused>;

    /// Sends an expected message if that can be done at once, as
    /// [`send_unexpected_now`](Self::send_unexpected_now) does. A caller that waits for the peer
    /// then uses [`send_expected`](Self::send_expected): where nothing else shows the end of a
    /// peer, a message that does not reach it ends all operations that wait for it.
    fn send_expected_now(&self, to: &Addr, tag: Tag, message: &[u8]) -> bool {
        let _ = (to, tag, message);
        false
    }

    /// Posts a buffer for one expected message. If the peer dies first, the operation ends with
    /// [`Error::PeerGone`]; if it was never connected, it waits for the connection.
    ///
    /// It also waits if the peer was connected and that connection had ended before: nothing tells
    /// whether the peer will come back, and a receive alone contacts nobody. A caller that must not
    /// wait for ever sends the peer something after posting the receive (a peer that cannot be
    /// reached then ends both operations), or [cancels](Self::cancel) the receive after a time of
    /// its own. Only a peer that cannot come back, since its address was that connection, ends the
    /// receive at once.
    ///
    /// # Errors
    ///
    /// As `recv_unexpected`.
    fn recv_expected(&self, op: OpId, from: &Addr, tag: Tag, buf: MsgBuf) -> Result<(), Refused>;

    /// Sends the request in `buf` at once, as [`send_unexpected_now`](Self::send_unexpected_now)
    /// does, and posts the same buffer for its answer, as [`recv_expected`](Self::recv_expected)
    /// does for that peer and tag. From then on `op` is that receive, which also ends if the peer
    /// does, however soon after the send.
    ///
    /// # Errors
    ///
    /// The buffer, unchanged, when nothing was sent and nothing posted, for whatever reason: post a
    /// receive, then send; these calls also tell the reason. Default: that always.
    fn call_now(&self, op: OpId, to: &Addr, tag: Tag, buf: MsgBuf) -> Result<(), MsgBuf> {
        let _ = (op, to, tag);
        Err(buf)
    }

    /// Makes memory reachable for peers (and usable as the local side of a transfer).
    ///
    /// The memory's owner is given back by [`LocalMem::revoke`] or by dropping the last clone.
    ///
    /// The contents of a transfer's target mean nothing before the transfer has ended. Over tcp
    /// they may even be a message of the peer that sends the data, for the time of one read. So
    /// memory that one peer writes should not be open at the same time to others that must not see,
    /// or alter, what that peer says.
    ///
    /// # Errors
    ///
    /// [`Error::Closed`], or [`Error::Io`] when the transport cannot register it.
    fn register(&self, memory: Memory, access: Access) -> Result<LocalMem, Error>;

    /// Makes memory usable as the local side of transfers, and of nothing else. It costs less than
    /// [`register`](Self::register) where memory needs no more than a key. No peer is to be told of
    /// the memory; a transfer that names it may be denied, as over sm, tcp and sim. `access` is
    /// what the transfers do: a get writes.
    ///
    /// # Errors
    ///
    /// As `register`. Default: that.
    fn register_local(&self, memory: Memory, access: Access) -> Result<LocalMem, Error> {
        self.register(memory, access)
    }

    /// The bytes that let a peer name `memory`; travels inside a bulk descriptor.
    fn mem_to_bytes(&self, memory: &LocalMem) -> Vec<u8> {
        memory.region().describe().to_bytes().to_vec()
    }

    /// The parts of `memory`, each with bytes of its own that name it, for a transport whose peers
    /// are told so: C peers know no other form. Read by [`mem_from_bytes`](Self::mem_from_bytes),
    /// one by one. Default: none, [`mem_to_bytes`](Self::mem_to_bytes) names all of it.
    fn mem_parts(&self, memory: &LocalMem) -> Option<Vec<MemPart>> {
        let _ = memory;
        None
    }

    /// Returns whether the library below moves memory of devices by itself, once that is
    /// [registered](Self::register_device). Default: no.
    fn moves_device_memory(&self) -> bool {
        false
    }

    /// Registers with the library below the memory of a device that `memory` stands for, which is
    /// in a table of somebody else ([`Memory::elsewhere`]) under a key of its own: from then on it
    /// may be the local side of transfers with others, and [`mem_parts`](Self::mem_parts) describes
    /// it for them. It ends as a registration does, with the region. `pieces`: all of the memory,
    /// in order.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] where the transport does not do that, as by default; [`Error::Io`]
    /// when the library refuses the memory, [`Error::Closed`]. The memory stays as it was.
    ///
    /// # Safety
    ///
    /// Until the region gives its memory back, the pieces are memory of that device, which nobody
    /// minds to be read and written as the access to the region says, and by transfers of our own.
    unsafe fn register_device(
        &self,
        memory: &LocalMem,
        pieces: &DevicePieces,
    ) -> Result<(), Error> {
        let _ = (memory, pieces);
        let reason = "it moves no memory of devices by itself".to_owned();
        Err(Error::Unavailable { transport: self.transport(), reason })
    }

    /// Returns the key of the region of ours that bytes of [`mem_parts`](Self::mem_parts) describe,
    /// and where in it they begin. Default: nobody describes memory so.
    fn region_told_by(&self, bytes: &[u8]) -> Option<(u64, u64)> {
        let _ = bytes;
        None
    }

    /// Reads the bytes that `mem_to_bytes` of a peer wrote.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] when the bytes are not such a description.
    fn mem_from_bytes(&self, bytes: &[u8]) -> Result<RemoteMem, Error> {
        RemoteMem::from_bytes(bytes).ok_or_else(|| {
            Error::InvalidArgument(format!("{} bytes do not describe memory", bytes.len()))
        })
    }

    /// Writes our memory into the peer's.
    ///
    /// # Errors
    ///
    /// When nothing was started: bounds or access of the local side, foreign address, closed.
    fn put(&self, op: OpId, to: &Addr, transfer: Transfer) -> Result<(), Error>;

    /// Reads the peer's memory into ours.
    ///
    /// After an error, [`LocalMem::may_be_written`] tells whether the peer may still write there.
    /// That happens over sm, when a get is canceled while the peer is stopped in the midst of a
    /// copy.
    ///
    /// # Errors
    ///
    /// As `put`.
    fn get(&self, op: OpId, from: &Addr, transfer: Transfer) -> Result<(), Error>;

    /// Asks for an early end. The completion still follows, once, and says which it was:
    /// [`Error::Canceled`] or the real outcome. An unknown or finished `op` is ignored. Over sm and
    /// tcp a transfer ends soon whatever the peer does; over ofi and ucx it ends when the library
    /// lets go of the parts that it has in hand.
    ///
    /// A message whose send ends with [`Error::Canceled`] does not arrive, not even later. One that
    /// has begun to leave is not taken back: its send ends as one that was not canceled does, with
    /// `Ok` at once where the transport has the message in hand.
    fn cancel(&self, op: OpId);

    /// Moves the network forward and reports at most `budget` completions to `sink`; returns how
    /// many it reported. `sink` may start operations on this endpoint, but must not poll it.
    ///
    /// Trouble with one peer ends that peer's operations and is not an error here.
    ///
    /// # Errors
    ///
    /// Only when the endpoint itself can no longer work; all its operations have then completed or
    /// will complete in further polls.
    fn poll(&self, budget: usize, sink: &mut dyn FnMut(Completion)) -> Result<usize, Error>;

    /// Returns whether a poll might find something now. For a caller that would otherwise poll
    /// without a break, between two polls that found nothing. Cheaper than a poll: it touches only
    /// memory, asks no kernel and no library, and moves nothing. So it sees what peers of the same
    /// host and threads of this process have done, and polls still have to follow now and then.
    /// `true` where there is no such cheap look, or when in doubt.
    fn may_find(&self) -> bool {
        true
    }

    /// Announces that the caller is about to sleep on [`wait_fd`](Self::wait_fd). `false`: there is
    /// work, poll again. After `true`, whatever gives `poll` something to do makes the descriptor
    /// readable; the next `poll` ends the announcement.
    fn prepare_wait(&self) -> bool;

    /// Becomes readable when `poll` has work, see [`prepare_wait`](Self::prepare_wait). `None`:
    /// this transport can only be polled.
    fn wait_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Ends every operation with [`Error::Closed`] and every connection; the completions are
    /// reported by further polls. Peers see that we are gone. Idempotent.
    fn close(&self);

    /// Returns whether a peer is still copying in memory of this side after [`close`](Self::close).
    /// Further polls give the memory back when the peer has stopped copying or is dead. Default:
    /// memory is given back before `close` returns, or by the next polls.
    fn keeps_memory(&self) -> bool {
        false
    }

    /// Longest transfer that `peer` does by itself, bytes, in the call that starts it, once it has
    /// used the same region of [`Memory::alloc`] before; 0: none. It pays then to keep such memory
    /// registered, for this peer alone.
    fn direct_bytes_max(&self, peer: &Addr) -> u64 {
        let _ = peer;
        0
    }

    /// Hands a descriptor of device memory over to `to`, a process of this host and user, which has
    /// said under which number it expects that
    /// ([`ExpectedDescriptor`](crate::memory::handed::ExpectedDescriptor)). Such a message may
    /// overtake others and be overtaken, and nothing tells whether it has arrived.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] for a peer that is not connected, or not of this host and user, and
    /// where a transport cannot do so, as by default. Nothing was sent.
    fn hand_over(&self, to: &Addr, number: u64, fd: OwnedFd) -> Result<(), Error> {
        let _ = (to, number, fd);
        let reason = "it hands no descriptors over".to_owned();
        Err(Error::Unavailable { transport: self.transport(), reason })
    }

    /// A number that grows with the work that this side does for transfers of peers. Such work ends
    /// no operation here, so polls do not report it. A caller that is about to sleep because
    /// nothing happens can learn from this number that something does. Default: always the same.
    fn served(&self) -> u64 {
        0
    }

    /// Peers and registered memory at the moment. Takes time for each of them, and does not wait
    /// for a thread that polls. Default: nothing is told.
    fn stats(&self) -> EndpointStats {
        EndpointStats::default()
    }

    /// How this endpoint moves bulk data, for `margo info` and logs; for example
    /// `"cross-memory attach"`.
    fn bulk_path(&self) -> String;
}
