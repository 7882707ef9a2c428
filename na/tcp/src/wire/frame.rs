//! Frames that travel on a connection. The layouts are in the [transport's documentation](super).
//!
//! Decoding checks everything that does not depend on the connection's state; each error text names
//! the rule that was broken.

use na_core::DeniedReason;

/// Bytes of a frame's header.
pub(crate) const HEADER_BYTES: usize = 16;

/// Bytes of the fixed part of a hello.
pub(crate) const HELLO_BYTES: usize = 32;

/// Longest URI in a hello, bytes.
pub(crate) const URI_BYTES_MAX: usize = 256;

/// Longest extension of a hello, bytes.
pub(crate) const EXTENSION_BYTES_MAX: usize = 256;

/// Bytes of the part of the extension that is understood here: the number of the sender's endpoint,
/// and that of the receiver there.
const NAMED_BYTES: usize = 16;

/// Bytes of what a group adds to it; see [`Shards`].
const SHARDS_BYTES: usize = 8;

/// The sender understands [`Kind::Alive`], and sends it when asked to.
pub(crate) const CAN_BEAT: u16 = 1;

/// The extension says which endpoint of a group the sender is, or would like to reach.
pub(crate) const HAS_SHARDS: u16 = 2;

/// The RPC layer of the sender is C Mercury's.
pub(crate) const FOR_MERCURY: u16 = 4;

/// Everything that we can.
const CAPABILITIES: u16 = CAN_BEAT;

/// Longest run of data in one frame that is accepted, bytes.
pub(crate) const CHUNK_BYTES_MAX: usize = 1 << 20;

/// Transfers that one side may have asked the other for at a time.
pub(crate) const TRANSFERS_MAX: usize = 64;

/// The payload of [`Kind::Get`] and [`Kind::Put`], bytes.
pub(crate) const REQUEST_BYTES: usize = 24;

/// The payload of [`Kind::Done`], bytes.
pub(crate) const STATUS_BYTES: usize = 4;

const MAGIC: [u8; 4] = *b"MRGO";
const VERSION: u16 = 1;

/// The kind of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// An unexpected message.
    Unexpected = 1,
    /// An expected message.
    Expected = 2,
    /// Asks for data.
    Get = 3,
    /// Announces data.
    Put = 4,
    /// Data that was asked for.
    GetData = 5,
    /// Data that was announced.
    PutData = 6,
    /// The owner's verdict on a transfer.
    Done = 7,
    /// The requester has lost interest in a transfer.
    Cancel = 8,
    /// Nothing: a sign of life.
    Alive = 9,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Unexpected,
            2 => Self::Expected,
            3 => Self::Get,
            4 => Self::Put,
            5 => Self::GetData,
            6 => Self::PutData,
            7 => Self::Done,
            8 => Self::Cancel,
            9 => Self::Alive,
            _ => return None,
        })
    }
}

/// A frame without its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    /// Bytes of payload.
    pub(crate) len: u32,
    /// Tag of a message, number of a transfer.
    pub(crate) number: u64,
}

impl Header {
    pub(crate) fn encode(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = self.kind as u8;
        bytes[4..8].copy_from_slice(&self.len.to_le_bytes());
        bytes[8..].copy_from_slice(&self.number.to_le_bytes());
        bytes
    }

    /// `message_bytes_max` is our own limit, which we told the peer.
    pub(crate) fn decode(
        bytes: &[u8; HEADER_BYTES],
        message_bytes_max: usize,
    ) -> Result<Self, String> {
        let [kind, r1, r2, r3, l0, l1, l2, l3, number @ ..] = *bytes;
        let kind = Kind::from_byte(kind).ok_or_else(|| format!("unknown frame kind {kind}"))?;
        if [r1, r2, r3] != [0; 3] {
            return Err("reserved bytes of a frame are not zero".into());
        }
        let len = u32::from_le_bytes([l0, l1, l2, l3]);
        let number = u64::from_le_bytes(number);
        let (least, most) = match kind {
            Kind::Unexpected | Kind::Expected => (0, message_bytes_max),
            Kind::Get | Kind::Put => (REQUEST_BYTES, REQUEST_BYTES),
            Kind::GetData | Kind::PutData => (1, CHUNK_BYTES_MAX),
            Kind::Done => (STATUS_BYTES, STATUS_BYTES),
            Kind::Cancel | Kind::Alive => (0, 0),
        };
        if !(least..=most).contains(&(len as usize)) {
            return Err(format!("{kind:?} frame of {len} bytes; {least} to {most} are allowed"));
        }
        if matches!(kind, Kind::Unexpected | Kind::Expected) && number > u64::from(u32::MAX) {
            return Err(format!("message tag {number} exceeds 32 bits"));
        }
        Ok(Self { kind, len, number })
    }
}

/// The payload of a get or put: which memory of the receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) key: u64,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

impl Request {
    pub(crate) fn encode(self) -> [u8; REQUEST_BYTES] {
        let mut bytes = [0; REQUEST_BYTES];
        bytes[..8].copy_from_slice(&self.key.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.offset.to_le_bytes());
        bytes[16..].copy_from_slice(&self.len.to_le_bytes());
        bytes
    }

    /// `None` when `bytes` are not [`REQUEST_BYTES`].
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        Some(Self { key: u64_at(bytes, 0)?, offset: u64_at(bytes, 8)?, len: u64_at(bytes, 16)? })
    }
}

/// The payload of [`Kind::Done`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    Ok,
    Denied(DeniedReason),
    Canceled,
}

impl Status {
    pub(crate) fn encode(self) -> [u8; STATUS_BYTES] {
        let code: u32 = match self {
            Self::Ok => 0,
            Self::Denied(reason) => reason.code().into(),
            Self::Canceled => 5,
        };
        code.to_le_bytes()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, String> {
        let code = u32_at(bytes, 0).ok_or("verdict without a status")?;
        Ok(match code {
            0 => Self::Ok,
            5 => Self::Canceled,
            _ => DeniedReason::from_code(code.into())
                .map(Self::Denied)
                .ok_or_else(|| format!("unknown transfer status {code}"))?,
        })
    }
}

/// The first bytes in each direction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hello {
    /// Longest message that the sender takes.
    pub(crate) message_bytes_max: u32,
    /// Changes whenever the sender is restarted or has ended everything with the receiver. It is
    /// for receivers of earlier versions, which may have several connections with a peer.
    pub(crate) session: u64,
    /// Capabilities of the sender beyond this version of the protocol. Unknown bits mean nothing.
    pub(crate) capabilities: u16,
    /// The sender wants to hear something at least this often, ms; zero: it does not mind.
    pub(crate) alive_every_ms: u32,
    /// Why there will be no connection.
    pub(crate) refusal: Option<Refusal>,
    /// Where the sender listens; empty if it does not.
    pub(crate) uri: String,
    /// Which endpoint it is, and what it calls the receiver.
    pub(crate) named: Option<Named>,
    /// Which one of a group it is, and which one it would like to reach. Only beside `named`, and
    /// with the capability [`HAS_SHARDS`].
    pub(crate) shards: Option<Shards>,
}

/// Endpoints of groups: the sender, and the receiver that it would like to reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shards {
    /// The number of the sender in its group.
    pub(crate) own: u16,
    /// How many endpoints its group has; more than `own`.
    pub(crate) count: u16,
    /// The number of the receiver that is to have the connection. A wish: there may be none.
    pub(crate) wanted: Option<u16>,
    /// The version of the sender's map from parts of providers to shards; 0: it has none.
    pub(crate) map_version: u16,
}

impl Shards {
    fn encode(self) -> [u8; SHARDS_BYTES] {
        let wanted = self.wanted.map_or(0, |wanted| wanted.saturating_add(1));
        let mut bytes = [0; SHARDS_BYTES];
        let fields = [self.own, self.count, wanted, self.map_version];
        for (place, field) in bytes.chunks_exact_mut(2).zip(fields) {
            place.copy_from_slice(&field.to_le_bytes());
        }
        bytes
    }

    /// `None`: the extension is too short for it.
    fn decode(extension: &[u8]) -> Option<Result<Self, BadHello>> {
        let [own, count, wanted, map_version] = [16, 18, 20, 22].map(|at| u16_at(extension, at));
        let (own, count) = own.zip(count)?;
        let (wanted, map_version) = (wanted?.checked_sub(1), map_version?);
        let rule = "the number of a shard in the hello is not below that of all shards";
        Some(match own < count {
            true => Ok(Self { own, count, wanted, map_version }),
            false => Err(BadHello::Malformed(rule)),
        })
    }
}

/// Numbers by which the receiver of a hello tells its senders apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Named {
    /// A random number of the sender's endpoint.
    pub(crate) endpoint: u64,
    /// The receiver's number at that endpoint, another one for each connection. It is for
    /// receivers of earlier versions, which take a connection with the same one for another of the
    /// same peer.
    pub(crate) peer: u64,
}

/// Why a side wants no connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It has as many as it takes.
    TooManyConnections,
    /// The process has no descriptor left; `limit`: of so many, or 0 if all of its host are taken.
    /// The number stands in the place of the session.
    NoDescriptors { limit: u64 },
    /// A reason that later versions know.
    Other(u16),
}

impl Refusal {
    fn code(refusal: Option<Self>) -> u16 {
        match refusal {
            None => 0,
            Some(Self::TooManyConnections) => 1,
            Some(Self::NoDescriptors { .. }) => 2,
            Some(Self::Other(code)) => code,
        }
    }

    fn from_code(code: u16, session: u64) -> Option<Self> {
        match code {
            0 => None,
            1 => Some(Self::TooManyConnections),
            2 => Some(Self::NoDescriptors { limit: session }),
            code => Some(Self::Other(code)),
        }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::TooManyConnections => {
                f.write_str("it has as many connections as it takes (tcp.connections_max)")
            }
            Self::NoDescriptors { limit: 0 } => f.write_str("its host has no descriptors left"),
            Self::NoDescriptors { limit } => write!(
                f,
                "its process has no descriptors left (limit {limit}; raise its `ulimit -n`)"
            ),
            Self::Other(code) => write!(f, "it refuses the connection (code {code})"),
        }
    }
}

impl Hello {
    /// The number of the sender's endpoint.
    pub(crate) fn endpoint(&self) -> Option<u64> {
        self.named.map(|named| named.endpoint)
    }

    /// Builds our hello without signs of life (`alive_every_ms` is 0), without names, and without a
    /// refusal. The caller sets those that it needs.
    pub(crate) fn ours(message_bytes_max: u32, session: u64, uri: String) -> Self {
        let (capabilities, alive_every_ms, refusal) = (CAPABILITIES, 0, None);
        let (named, shards) = (None, None);
        Self {
            message_bytes_max,
            session,
            capabilities,
            alive_every_ms,
            refusal,
            uri,
            named,
            shards,
        }
    }

    /// Returns whether the RPC layer of the sender is C Mercury's.
    pub(crate) fn is_for_mercury(&self) -> bool {
        self.capabilities & FOR_MERCURY != 0
    }

    /// Returns the hello with shards named in it.
    pub(crate) fn with_shards(self, shards: Option<Shards>) -> Self {
        let has = if shards.is_some() { HAS_SHARDS } else { 0 };
        Self { capabilities: self.capabilities | has, shards, ..self }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let uri_len = self.uri.len() as u16;
        let mut bytes = Vec::with_capacity(HELLO_BYTES + self.uri.len());
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&self.capabilities.to_le_bytes());
        bytes.extend_from_slice(&self.message_bytes_max.to_le_bytes());
        bytes.extend_from_slice(&uri_len.to_le_bytes());
        bytes.extend_from_slice(&Refusal::code(self.refusal).to_le_bytes());
        bytes.extend_from_slice(&self.session.to_le_bytes());
        bytes.extend_from_slice(&self.alive_every_ms.to_le_bytes());
        let extension_len = match (self.named, self.shards) {
            (None, _) => 0,
            (Some(_), None) => NAMED_BYTES,
            (Some(_), Some(_)) => NAMED_BYTES + SHARDS_BYTES,
        };
        bytes.extend_from_slice(&(extension_len as u16).to_le_bytes());
        bytes.extend_from_slice(&[0; 2]);
        bytes.extend_from_slice(self.uri.as_bytes());
        if let Some(Named { endpoint, peer }) = self.named {
            bytes.extend_from_slice(&endpoint.to_le_bytes());
            bytes.extend_from_slice(&peer.to_le_bytes());
            bytes.extend(self.shards.into_iter().flat_map(Shards::encode));
        }
        bytes
    }

    /// `Ok(None)`: more bytes are needed. On success also how many bytes it had.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Option<(Self, usize)>, BadHello> {
        let known = bytes.len().min(MAGIC.len());
        if bytes[..known] != MAGIC[..known] {
            return Err(BadHello::Magic);
        }
        let Some(version) = u16_at(bytes, 4) else { return Ok(None) };
        if version != VERSION {
            return Err(BadHello::Version(version));
        }
        let Some(fixed) = bytes.get(..HELLO_BYTES) else { return Ok(None) };
        let field = |at| u16_at(fixed, at).unwrap_or(u16::MAX);
        let uri_len = usize::from(field(12));
        if uri_len > URI_BYTES_MAX {
            return Err(BadHello::Malformed("address in the hello is too long"));
        }
        let extension_len = usize::from(field(28));
        if extension_len > EXTENSION_BYTES_MAX {
            return Err(BadHello::Malformed("extension of the hello is too long"));
        }
        let len = HELLO_BYTES + uri_len + extension_len;
        let Some(rest) = bytes.get(HELLO_BYTES..len) else { return Ok(None) };
        let (uri, extension) = rest.split_at(uri_len);
        let uri = std::str::from_utf8(uri)
            .map_err(|_| BadHello::Malformed("address in the hello is not UTF-8"))?;
        let session = u64_at(fixed, 16).unwrap_or(0);
        let has_shards = field(6) & HAS_SHARDS != 0;
        let shards = has_shards.then(|| Shards::decode(extension)).flatten().transpose()?;
        let hello = Self {
            message_bytes_max: u32_at(fixed, 8).unwrap_or(0),
            session,
            capabilities: field(6),
            alive_every_ms: u32_at(fixed, 24).unwrap_or(0),
            refusal: Refusal::from_code(field(14), session),
            uri: uri.to_owned(),
            named: u64_at(extension, 0)
                .zip(u64_at(extension, 8))
                .map(|(endpoint, peer)| Named { endpoint, peer }),
            shards,
        };
        Ok(Some((hello, len)))
    }
}

/// Why the first bytes of a connection are not a hello.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BadHello {
    /// Not this protocol.
    Magic,
    /// Another version of it.
    Version(u16),
    /// A rule of this version was broken.
    Malformed(&'static str),
}

impl std::fmt::Display for BadHello {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Magic => f.write_str("it does not speak the na+tcp protocol (wrong magic)"),
            Self::Version(theirs) => {
                write!(f, "it speaks version {theirs} of the na+tcp protocol, we speak {VERSION}")
            }
            Self::Malformed(rule) => f.write_str(rule),
        }
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hello() -> Hello {
        let refusal = Some(Refusal::TooManyConnections);
        let hello = Hello::ours(4096, 77, "na+tcp://127.0.0.1:9".into());
        Hello { alive_every_ms: 250, refusal, ..hello }
    }

    fn named(endpoint: u64, peer: u64) -> Hello {
        Hello { named: Some(Named { endpoint, peer }), ..hello() }
    }

    #[test]
    fn a_hello_survives_the_wire_in_any_pieces() {
        let bytes = hello().encode();
        for end in 0..bytes.len() {
            assert_eq!(Hello::decode(&bytes[..end]), Ok(None), "{end}");
        }
        let mut longer = bytes.clone();
        longer.push(9);
        assert_eq!(Hello::decode(&longer), Ok(Some((hello(), bytes.len()))));
        let bytes = named(7, u64::MAX).encode();
        assert_eq!(Hello::decode(&bytes[..bytes.len() - 1]), Ok(None));
        assert_eq!(Hello::decode(&bytes), Ok(Some((named(7, u64::MAX), bytes.len()))));
    }

    #[test]
    fn a_bad_hello_is_told_apart_as_early_as_possible() {
        assert_eq!(Hello::decode(b"G"), Err(BadHello::Magic));
        let with = |at: usize, value: u8| {
            let mut bytes = hello().encode();
            bytes[at] = value;
            Hello::decode(&bytes)
        };
        assert_eq!(with(3, b'X'), Err(BadHello::Magic));
        assert_eq!(with(4, 2), Err(BadHello::Version(2)));
        assert!(matches!(with(13, 2), Err(BadHello::Malformed(_))));
        assert!(matches!(with(29, 2), Err(BadHello::Malformed(_))));
        assert!(matches!(with(32, 0xFF), Err(BadHello::Malformed(_))));
    }

    #[test]
    fn what_a_later_version_adds_to_a_hello_is_skipped() {
        let mut bytes = hello().encode();
        bytes[7] = 0x80;
        bytes[14] = 99;
        bytes[28] = 5;
        bytes[31] = 1;
        assert_eq!(Hello::decode(&bytes), Ok(None), "the extension is missing");
        bytes.extend_from_slice(b"later");
        let (got, len) = Hello::decode(&bytes).unwrap().unwrap();
        assert_eq!(len, bytes.len());
        assert_eq!((got.capabilities, got.refusal), (0x8000 | CAN_BEAT, Some(Refusal::Other(99))));
        assert_eq!(got.uri, hello().uri);
    }

    fn sharded(own: u16, count: u16, wanted: Option<u16>) -> Hello {
        named(7, 8).with_shards(Some(Shards { own, count, wanted, map_version: 0x0102 }))
    }

    #[test]
    fn shards_stand_behind_what_earlier_versions_read() {
        let hello = sharded(1, 4, Some(3));
        let bytes = hello.encode();
        assert_eq!(bytes[28], 24);
        assert_eq!(bytes[bytes.len() - 8..], [1, 0, 4, 0, 4, 0, 2, 1]);
        assert_eq!(Hello::decode(&bytes), Ok(Some((hello.clone(), bytes.len()))));
        // As it is read by who does not know of shards: the same endpoint, and the same length.
        let mut earlier = bytes.clone();
        earlier[6] = CAN_BEAT as u8;
        let (read, len) = Hello::decode(&earlier).unwrap().unwrap();
        assert_eq!((read.named, read.shards, len), (hello.named, None, bytes.len()));
        // The capability without the fields, as a version may have it that uses it otherwise.
        let mut short = named(7, 8).encode();
        short[6] |= HAS_SHARDS as u8;
        assert_eq!(Hello::decode(&short).unwrap().unwrap().0.shards, None);
        for wanted in [None, Some(0), Some(u16::MAX - 1)] {
            let bytes = sharded(0, 1, wanted).encode();
            assert_eq!(Hello::decode(&bytes).unwrap().unwrap().0.shards.unwrap().wanted, wanted);
        }
    }

    #[test]
    fn a_shard_is_one_of_its_group() {
        for (own, count) in [(0, 0), (4, 4), (u16::MAX, u16::MAX)] {
            let bytes = sharded(own, count, None).encode();
            assert!(matches!(Hello::decode(&bytes), Err(BadHello::Malformed(_))), "{own} {count}");
        }
        assert!(Hello::decode(&sharded(3, 4, None).encode()).unwrap().is_some());
    }

    #[test]
    fn statuses_survive_the_wire() {
        for code in 0..6u32 {
            let status = Status::decode(&code.to_le_bytes()).unwrap();
            assert_eq!(status.encode(), code.to_le_bytes());
        }
        assert!(Status::decode(&6u32.to_le_bytes()).is_err());
        assert!(Status::decode(&[]).is_err());
    }

    proptest! {
        #[test]
        fn headers_decode_to_themselves_or_not_at_all(bytes: [u8; HEADER_BYTES]) {
            if let Ok(header) = Header::decode(&bytes, 4096) {
                prop_assert_eq!(header.encode(), bytes);
                prop_assert!(header.len as usize <= CHUNK_BYTES_MAX);
            }
        }

        #[test]
        fn requests_survive_the_wire(key: u64, offset: u64, len: u64) {
            let request = Request { key, offset, len };
            prop_assert_eq!(Request::decode(&request.encode()), Some(request));
        }

        #[test]
        fn random_hellos_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let mut framed = hello().encode()[..6].to_vec();
            framed.extend_from_slice(&bytes);
            if let Ok(Some((_, len))) = Hello::decode(&framed) {
                prop_assert!(len <= framed.len());
            }
        }
    }
}
