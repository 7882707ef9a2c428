//! Messages that two endpoints send each other: the hello in an active message of number 0, the
//! rest in those of number 1. All integers are little endian; the first byte is the kind of the
//! message. See the module `ucx` for the layout.

use na_core::group::SHARDS_MAX;
use na_core::{Access, DeniedReason};

/// Version of what is said here.
pub(super) const VERSION: u8 = 7;

/// Active message of an unexpected message, as in Mercury (`NA_UCX_AM_MSG_ID`, na_ucx.c), and of a
/// hello, which may meet Mercury: UCX 1.13 jumps through the entry of a number that its process has
/// not registered, and Mercury registers this one alone.
pub(super) const AM_UNEXPECTED: u32 = 0;
/// Header of a hello: a tag that no message has. Mercury must find a header of that length, or it
/// hands UCX an error, at which a UCX with assertions aborts; then it finds no request in it.
pub(super) static HELLO_TAG: [u8; 8] = [0xFF; 8];
/// Active message of what the two endpoints tell each other after the hello.
pub(super) const AM_CONTROL: u32 = 1;
/// Active message of a chunk of a transfer.
pub(super) const AM_DATA: u32 = 2;
/// Active message of a piece of a transfer, by rendezvous.
pub(super) const AM_PIECE: u32 = 4;
/// Active message of an expected message.
pub(super) const AM_EXPECTED: u32 = 3;

/// Says in a hello that its sender knows of groups. Earlier versions have any number there.
pub(super) const GROUPS: u64 = u64::from_le_bytes(*b"MRGOSHRD");

/// Longest control message that is taken, bytes: more than a hello ever has.
pub(super) const CONTROL_BYTES_MAX: usize = 1024;

/// Longest address in a hello, bytes.
pub(super) const URI_BYTES_MAX: usize = 256;

/// Longest remote key of a piece of memory, as UCX packs it, bytes.
pub(super) const PACKED_BYTES_MAX: usize = 512;

/// Bytes before the pieces of a remote key, and before what UCX has packed for each.
const KEY_HEADER_BYTES: usize = 10;
const PLACE_HEADER_BYTES: usize = 18;

/// Bytes of data in a chunk, at most.
pub(super) const CHUNK_BYTES: usize = 64 << 10;

/// Bytes before the data of a chunk.
pub(super) const CHUNK_HEADER_BYTES: usize = 17;

/// The header before the data of a chunk, in active messages of number 2. It is the header of a
/// piece in those of number 4.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Chunk {
    /// True for a put by the sender, false for a get by the receiver.
    pub(super) put: bool,
    /// The transfer, by the number that its requester has given it.
    pub(super) id: u64,
    /// Where the data belongs in the transfer.
    pub(super) offset: u64,
}

impl Chunk {
    pub(super) fn to_bytes(self) -> [u8; CHUNK_HEADER_BYTES] {
        let mut bytes = [0; CHUNK_HEADER_BYTES];
        bytes[0] = u8::from(self.put);
        bytes[1..9].copy_from_slice(&self.id.to_le_bytes());
        bytes[9..].copy_from_slice(&self.offset.to_le_bytes());
        bytes
    }

    /// The header, with room for `len` bytes behind it.
    pub(super) fn with_room(self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(CHUNK_HEADER_BYTES + len);
        bytes.extend(self.to_bytes());
        bytes
    }

    /// Reads a chunk of a peer: its header and its data.
    ///
    /// # Errors
    ///
    /// The rule that it breaks.
    pub(super) fn split(bytes: &[u8]) -> Result<(Self, &[u8]), &'static str> {
        let mut reader = Reader(bytes);
        let put = reader.flag("a chunk of neither a put nor a get")?;
        let (id, offset) = (reader.long()?, reader.long()?);
        Ok((Self { put, id, offset }, reader.0))
    }
}

/// The first message of an endpoint, which says who it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hello {
    /// The fingerprint of the sender's queues of shared memory, see `packing.rs`; 0: it has none.
    pub(super) queues: u16,
    /// Longest message that the sender takes, bytes.
    pub(super) message_bytes_max: u32,
    /// Messages of a kind that may be under way to the sender, or waiting there.
    pub(super) window: u32,
    /// How often the sender wants to hear something, ms; 0: it does not mind.
    pub(super) alive_every_ms: u32,
    /// A random number of the sender's endpoint, or group.
    pub(super) endpoint: u64,
    /// `None`: the sender knows nothing of groups.
    pub(super) shards: Option<Shards>,
    /// True if the sender gives remote keys to peers that want some.
    pub(super) remote_keys: bool,
    /// Where the sender listens; empty: nowhere.
    pub(super) uri: String,
}

/// The place of the sender of a hello among the endpoints of its group, and where it wants to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shards {
    /// The sender's number in its group.
    pub(super) own: u8,
    /// How many there are; 1: it is alone.
    pub(super) count: u8,
    /// The endpoint of the receiver's group that the sender would like to reach.
    pub(super) wanted: Option<u16>,
    /// The token that it was sent on with; 0: none.
    pub(super) token: u32,
}

impl Shards {
    fn to_bytes(self) -> [u8; 8] {
        let mut bytes = [self.own, self.count, 0, 0, 0, 0, 0, 0];
        let wanted = self.wanted.map_or(0, |wanted| wanted.saturating_add(1));
        bytes[2..4].copy_from_slice(&wanted.to_le_bytes());
        bytes[4..].copy_from_slice(&self.token.to_le_bytes());
        bytes
    }
}

/// The remote key of registered memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct GivenKey {
    pub(super) key: u64,
    pub(super) access: Access,
    /// The pieces of the memory, in order; at least one, and none without bytes.
    pub(super) places: Vec<Place>,
}

/// A piece of memory, for UCX.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    /// The address in the owner's process.
    pub(super) address: u64,
    pub(super) len: u64,
    /// The packed key that UCX needs to reach it (`ucp_rkey_pack`).
    pub(super) packed: Vec<u8>,
}

impl GivenKey {
    /// Bytes of the message.
    pub(super) fn bytes(places: &[Place]) -> usize {
        let of_places = places.iter().map(|place| PLACE_HEADER_BYTES + place.packed.len());
        KEY_HEADER_BYTES + of_places.sum::<usize>()
    }
}

/// A control message, or a hello.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Control {
    Hello(Hello),
    /// So many messages of each kind were taken.
    Taken([u32; 2]),
    /// May memory be read, or written?
    Ask {
        id: u64,
        key: u64,
        offset: u64,
        len: u64,
        write: bool,
    },
    /// It may be written.
    Grant {
        id: u64,
    },
    /// It may not.
    Deny {
        id: u64,
        reason: DeniedReason,
    },
    /// The requester gives the transfer up.
    Release {
        id: u64,
    },
    /// Nothing else: a sign of life.
    Alive,
    /// The owner has received everything, or has sent everything.
    Done {
        id: u64,
    },
    /// The requester would like to have the remote key of that memory.
    Want {
        key: u64,
    },
    /// Here it is.
    Key(GivenKey),
    /// There is none.
    NoKey {
        key: u64,
    },
    /// The owner takes a remote key back: nothing may begin to use it.
    Revoke {
        key: u64,
    },
    /// No transfer of the requester uses it any more, and none will.
    Returned {
        key: u64,
    },
    /// In place of a hello: the endpoint at that port of the same host has a place for the caller,
    /// under this token.
    Elsewhere {
        port: u16,
        token: u32,
    },
}

/// A control message of that kind, which begins with these words.
fn begun(kind: u8, words: &[u64]) -> Vec<u8> {
    let mut out = Vec::with_capacity(40);
    out.push(kind);
    words.iter().for_each(|word| out.extend(word.to_le_bytes()));
    out
}

impl Hello {
    fn to_bytes(&self) -> Vec<u8> {
        let mut out = begun(0, &[]);
        out.push(VERSION);
        out.extend(self.queues.to_le_bytes());
        out.extend(self.shards.map_or(0, |_| GROUPS).to_le_bytes());
        out.extend(self.message_bytes_max.to_le_bytes());
        out.extend(self.window.to_le_bytes());
        out.extend(self.alive_every_ms.to_le_bytes());
        out.extend(self.endpoint.to_le_bytes());
        out.extend(self.shards.map_or([0; 8], Shards::to_bytes));
        out.push(u8::from(self.remote_keys));
        out.extend((self.uri.len() as u32).to_le_bytes());
        out.extend(self.uri.as_bytes());
        out
    }
}

impl GivenKey {
    fn to_bytes(&self) -> Vec<u8> {
        let mut out = begun(9, &[self.key]);
        out.push(self.access.bits());
        for Place { address, len, packed } in &self.places {
            out.extend(address.to_le_bytes());
            out.extend(len.to_le_bytes());
            out.extend((packed.len() as u16).to_le_bytes());
            out.extend(packed);
        }
        out
    }
}

impl Control {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Hello(hello) => hello.to_bytes(),
            Self::Taken(counts) => {
                let mut out = begun(1, &[]);
                counts.iter().for_each(|count| out.extend(count.to_le_bytes()));
                out
            }
            Self::Ask { id, key, offset, len, write } => {
                let mut out = begun(2, &[*id, *key, *offset, *len]);
                out.push(u8::from(*write));
                out
            }
            Self::Grant { id } => begun(3, &[*id]),
            Self::Deny { id, reason } => {
                let mut out = begun(4, &[*id]);
                out.push(reason.code());
                out
            }
            Self::Release { id } => begun(5, &[*id]),
            Self::Alive => begun(6, &[]),
            Self::Done { id } => begun(7, &[*id]),
            Self::Want { key } => begun(8, &[*key]),
            Self::Key(given) => given.to_bytes(),
            Self::NoKey { key } => begun(10, &[*key]),
            Self::Revoke { key } => begun(11, &[*key]),
            Self::Returned { key } => begun(12, &[*key]),
            Self::Elsewhere { port, token } => {
                let mut out = begun(13, &[]);
                out.extend(port.to_le_bytes());
                out.extend(token.to_le_bytes());
                out
            }
        }
    }

    /// Reads [`to_bytes`](Self::to_bytes) of a peer.
    ///
    /// # Errors
    ///
    /// The rule that they break.
    pub(super) fn from_bytes(bytes: &[u8]) -> Result<Self, &'static str> {
        let mut reader = Reader(bytes);
        let control = match reader.byte()? {
            0 => Self::Hello(reader.hello()?),
            1 => Self::Taken([reader.int()?, reader.int()?]),
            2 => Self::Ask {
                id: reader.long()?,
                key: reader.long()?,
                offset: reader.long()?,
                len: reader.long()?,
                write: reader.flag("neither a read nor a write is asked for")?,
            },
            3 => Self::Grant { id: reader.long()? },
            4 => Self::Deny {
                id: reader.long()?,
                reason: DeniedReason::from_code(reader.byte()?.into())
                    .ok_or("an unknown reason for a denial")?,
            },
            5 => Self::Release { id: reader.long()? },
            6 => Self::Alive,
            7 => Self::Done { id: reader.long()? },
            8 => Self::Want { key: reader.long()? },
            9 => Self::Key(reader.given_key()?),
            10 => Self::NoKey { key: reader.long()? },
            11 => Self::Revoke { key: reader.long()? },
            12 => Self::Returned { key: reader.long()? },
            13 => Self::Elsewhere { port: reader.short()?, token: reader.int()? },
            _ => return Err("an unknown control message"),
        };
        match reader.0.is_empty() {
            true => Ok(control),
            false => Err("a control message with something behind it"),
        }
    }
}

/// The bytes that are left to read.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], &'static str> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or("a control message that is cut")?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], &'static str> {
        self.take(N)?.try_into().map_err(|_| "a control message that is cut")
    }

    fn byte(&mut self) -> Result<u8, &'static str> {
        Ok(self.array::<1>()?[0])
    }

    fn flag(&mut self, rule: &'static str) -> Result<bool, &'static str> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(rule),
        }
    }

    fn int(&mut self) -> Result<u32, &'static str> {
        self.array().map(u32::from_le_bytes)
    }

    fn long(&mut self) -> Result<u64, &'static str> {
        self.array().map(u64::from_le_bytes)
    }

    fn hello(&mut self) -> Result<Hello, &'static str> {
        if self.byte()? != VERSION {
            return Err("its version of the protocol is another one");
        }
        let queues = self.array().map(u16::from_le_bytes)?;
        let (groups, message_bytes_max) = (self.long()?, self.int()?);
        let (window, alive_every_ms) = (self.int()?, self.int()?);
        let endpoint = self.long()?;
        let shards = self.shards()?;
        let shards = (groups == GROUPS).then_some(shards);
        if shards.is_some_and(|shards| {
            shards.own >= shards.count || usize::from(shards.count) > SHARDS_MAX
        }) {
            return Err("a hello of an endpoint outside of its group");
        }
        let remote_keys = self.flag("a hello that neither gives remote keys nor gives none")?;
        let len = self.int()? as usize;
        if len > URI_BYTES_MAX {
            return Err("a hello with an address that is too long");
        }
        if window == 0 {
            return Err("a hello that allows no messages");
        }
        let uri = str::from_utf8(self.take(len)?).map_err(|_| "a hello that is not UTF-8")?;
        let uri = uri.to_owned();
        Ok(Hello {
            queues,
            message_bytes_max,
            window,
            alive_every_ms,
            endpoint,
            shards,
            remote_keys,
            uri,
        })
    }

    fn shards(&mut self) -> Result<Shards, &'static str> {
        let (own, count) = (self.byte()?, self.byte()?);
        let wanted = self.short()?.checked_sub(1);
        Ok(Shards { own, count, wanted, token: self.int()? })
    }

    fn short(&mut self) -> Result<u16, &'static str> {
        self.array().map(u16::from_le_bytes)
    }

    fn given_key(&mut self) -> Result<GivenKey, &'static str> {
        let key = self.long()?;
        let access = Access::from_bits(self.byte()?).ok_or("a remote key without access")?;
        let (mut places, mut total) = (Vec::new(), 0u64);
        while places.is_empty() || !self.0.is_empty() {
            let place = self.place()?;
            total = total.checked_add(place.len).ok_or("a remote key of too much memory")?;
            places.push(place);
        }
        Ok(GivenKey { key, access, places })
    }

    fn place(&mut self) -> Result<Place, &'static str> {
        let (address, len) = (self.long()?, self.long()?);
        let packed = usize::from(self.short()?);
        if len == 0 || address.checked_add(len).is_none() {
            return Err("a remote key of memory that cannot be");
        }
        if packed == 0 || packed > PACKED_BYTES_MAX {
            return Err("a remote key that is none of UCX's");
        }
        Ok(Place { address, len, packed: self.take(packed)?.to_vec() })
    }
}

/// See [`super::fuzzing::control`].
pub(super) fn fuzz(data: &[u8]) {
    if let Ok(control) = Control::from_bytes(data) {
        assert_eq!(Control::from_bytes(&control.to_bytes()), Ok(control));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn samples() -> Vec<Control> {
        let hello = Hello {
            queues: 0x1234,
            message_bytes_max: 4096,
            window: 64,
            alive_every_ms: 250,
            endpoint: 1 << 60,
            shards: Some(Shards { own: 3, count: 4, wanted: Some(127), token: 9 }),
            remote_keys: true,
            uri: "ucx+tcp://127.0.0.1:7".into(),
        };
        vec![
            Control::Hello(Hello { shards: None, ..hello.clone() }),
            Control::Hello(hello),
            Control::Taken([5, 0]),
            Control::Ask { id: 1, key: 2, offset: 3, len: 4, write: true },
            Control::Grant { id: 1 },
            Control::Deny { id: 1, reason: DeniedReason::Access },
            Control::Release { id: 1 },
            Control::Alive,
            Control::Done { id: 1 },
            Control::Want { key: 2 },
            Control::Key(key(&[1])),
            Control::NoKey { key: 2 },
            Control::Revoke { key: 2 },
            Control::Returned { key: 2 },
            Control::Elsewhere { port: 7000, token: 9 },
        ]
    }

    fn key(lens: &[u64]) -> GivenKey {
        let place = |(at, len): (usize, &u64)| {
            let packed = vec![7; 3 + at];
            Place { address: 1 << 40, len: *len, packed }
        };
        let places = lens.iter().enumerate().map(place).collect();
        GivenKey { key: 2, access: Access::ReadOnly, places }
    }

    #[test]
    fn a_remote_key_has_the_pieces_that_are_named_and_no_impossible_ones() {
        let several = Control::Key(key(&[5, 6, 7]));
        let bytes = several.to_bytes();
        assert_eq!(Control::from_bytes(&bytes).as_ref(), Ok(&several));
        let Control::Key(given) = several else { unreachable!() };
        assert_eq!(GivenKey::bytes(&given.places), bytes.len());
        // What ends between two pieces is a key of fewer of them.
        let first = GivenKey::bytes(&given.places[..1]);
        assert!(Control::from_bytes(&bytes[..first]).is_ok());
        assert!(Control::from_bytes(&bytes[..first + 1]).is_err());
        let refused = |given: GivenKey| {
            assert!(Control::from_bytes(&Control::Key(given).to_bytes()).is_err());
        };
        refused(key(&[]));
        refused(key(&[0]));
        refused(key(&[u64::MAX - (1 << 40) + 1]));
        refused(key(&[1 << 63, 1 << 63]));
        let mut long = key(&[1]);
        long.places[0].packed = vec![0; PACKED_BYTES_MAX + 1];
        refused(long);
        let mut empty = key(&[1]);
        empty.places[0].packed.clear();
        refused(empty);
    }

    #[test]
    fn what_is_said_survives_and_no_part_of_it_is_accepted() {
        for control in samples() {
            let bytes = control.to_bytes();
            assert_eq!(Control::from_bytes(&bytes), Ok(control));
            for len in 0..bytes.len() {
                assert!(Control::from_bytes(&bytes[..len]).is_err(), "{len} of {bytes:?}");
            }
            assert!(Control::from_bytes(&[bytes, vec![0]].concat()).is_err());
        }
    }

    #[test]
    fn only_an_endpoint_within_its_group_is_one_of_a_group() {
        let said = |groups: u64, shards: [u8; 8]| {
            let mut bytes = samples()[0].to_bytes();
            bytes[4..12].copy_from_slice(&groups.to_le_bytes());
            bytes[32..40].copy_from_slice(&shards);
            match Control::from_bytes(&bytes) {
                Ok(Control::Hello(hello)) => Ok(hello.shards),
                Ok(other) => panic!("{other:?}"),
                Err(rule) => Err(rule),
            }
        };
        let alone = Shards { own: 0, count: 1, wanted: None, token: 0 };
        assert_eq!(said(GROUPS, [0, 1, 0, 0, 0, 0, 0, 0]), Ok(Some(alone)));
        let last = Shards { own: 127, count: 128, wanted: Some(0), token: 1 };
        assert_eq!(said(GROUPS, [127, 128, 1, 0, 1, 0, 0, 0]), Ok(Some(last)));
        for [own, count] in [[0, 0], [1, 1], [4, 3], [0, 129], [255, 255]] {
            assert!(said(GROUPS, [own, count, 0, 0, 0, 0, 0, 0]).is_err(), "{own} of {count}");
            // Any number of an earlier version.
            assert_eq!(said(GROUPS + 1, [own, count, 0, 0, 0, 0, 0, 0]), Ok(None));
        }
    }

    #[test]
    fn another_version_is_told() {
        let mut bytes = samples()[0].to_bytes();
        bytes[1] = VERSION + 1;
        assert!(Control::from_bytes(&bytes).unwrap_err().contains("version"));
    }

    #[test]
    fn a_chunk_survives_and_a_part_of_its_header_is_refused() {
        let chunk = Chunk { put: true, id: 7, offset: 1 << 40 };
        let mut bytes = chunk.with_room(3);
        assert_eq!(bytes.len(), CHUNK_HEADER_BYTES);
        bytes.extend(b"abc");
        assert_eq!(Chunk::split(&bytes), Ok((chunk, b"abc".as_slice())));
        for len in 0..CHUNK_HEADER_BYTES {
            assert!(Chunk::split(&bytes[..len]).is_err());
        }
        bytes[0] = 2;
        assert!(Chunk::split(&bytes).is_err());
    }

    proptest! {
        #[test]
        fn garbage_is_read_as_itself_or_refused(
            bytes in prop::collection::vec(any::<u8>(), 0..80)
        ) {
            fuzz(&bytes);
        }
    }
}
