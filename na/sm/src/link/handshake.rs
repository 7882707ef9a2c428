//! The handshake of two endpoints.
//!
//! The connecting side (A) connects to the abstract socket of the listening side (B), a
//! `SOCK_SEQPACKET`; each side checks the other's user id as the kernel reports it. Then
//!
//! 1. B, once it knows that A may send descriptors, lets it, and says *ready*;
//! 2. A sends *hello*, with the descriptors of the segment and of its board. Before *ready* the
//!    kernel refuses them (`EPERM`); one older than Linux 6.16 does not, and *ready* does not come;
//! 3. B maps them and answers *welcome*, with its board, or *refused*, with the reason;
//! 4. from then on the socket carries doorbells, announced blocks and descriptors of device memory,
//!    and its end of file says that the peer is gone.
//!
//! # Packet layout (little endian)
//!
//! | offset | type | hello, welcome | refused, ready |
//! |---|---|---|---|
//! | 0 | 4 bytes | magic `MRGO` | the same |
//! | 4 | u16 | version, 4 | the same |
//! | 6 | u16 | 1 hello, 2 welcome | 3 refused, 4 ready |
//! | 8 | u32 | largest message, bytes; both sides use the minimum | 0 |
//! | 12 | u32 | flags: 1 listens, 2 may be attached to, 4 never sleeps, 8 has shards (below), 16 has the RPC layer of C Mercury | 0 |
//! | 16 | u32 | bytes of each ring (hello), 0 (welcome) | 0 |
//! | 20 | u32 | length of the text | the same |
//! | 24 | u64 | address of the nonce in the sender | 0 |
//! | 32 | u64 | the nonce | 0 |
//! | 40 | u32 | 1 + the receiver's slot on the sender's board, 0 for none | 0 |
//! | 44 | u32 | 0 | 0 |
//! | 48 | text | the sender's URI | the reason; none |
//!
//! Hello carries the descriptor of the segment; a packet with a slot that of the board, last.
//!
//! # Shards
//!
//! A packet with flag 8 comes from one endpoint of a group: its number there is in bits 8 to 15 of
//! the flags, the number of the last one in bits 16 to 23. A hello may name the endpoint that it
//! would like to reach, 1 + its number, in bits 24 to 31. A connection with such a hello stands for
//! itself: it is answered on the way by which it came, also where its text names somebody who is
//! connected already. Earlier versions know no flag 8 and do so with whom does not listen; so
//! these hellos do not have flag 1.
//!
//! # The nonce
//!
//! A side that is to copy with cross-memory attach first reads eight bytes at the given address in
//! the process that the kernel names, and compares. That finds out whether attaching is permitted
//! and whether the process id means the same process (it does not across pid namespaces).

use crate::wake::board::SLOTS;

/// The byte that a socket carries after the handshake to wake the other side.
pub(crate) const DOORBELL: u8 = b'!';

/// First byte of a packet that announces a block.
pub(crate) const ANNOUNCE: u8 = b'B';

/// Bytes of that packet.
pub(crate) const ANNOUNCE_BYTES: usize = 32;

/// First byte of a packet that hands a descriptor of device memory over.
pub(crate) const HAND_OVER: u8 = b'D';

/// Bytes of that packet.
pub(crate) const HAND_OVER_BYTES: usize = 16;

/// That packet, for whoever expects the descriptor under `number`.
pub(crate) fn hand_over(number: u64) -> [u8; HAND_OVER_BYTES] {
    let mut packet = [0; HAND_OVER_BYTES];
    packet[0] = HAND_OVER;
    packet[8..].copy_from_slice(&number.to_le_bytes());
    packet
}

/// Longest packet, bytes.
pub(crate) const PACKET_BYTES_MAX: usize = FIXED + TEXT_BYTES_MAX;

/// First bytes of every packet.
const MAGIC: [u8; 4] = *b"MRGO";
const VERSION: u16 = 4;
const FIXED: usize = 48;
pub(crate) const TEXT_BYTES_MAX: usize = 256;
const FLAG_LISTENS: u32 = 1;
const FLAG_ATTACH: u32 = 2;
const FLAG_AWAKE: u32 = 4;
const FLAG_SHARDS: u32 = 8;
const FLAG_MERCURY: u32 = 16;

/// The endpoint of a group that a packet comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shards {
    /// The number of that endpoint.
    pub(crate) own: u8,
    /// The number of the last one.
    pub(crate) last: u8,
    /// The number of the one that a hello would like to reach, at most 254.
    pub(crate) wanted: Option<u8>,
}

impl Shards {
    /// How many endpoints there are.
    pub(crate) fn count(self) -> usize {
        usize::from(self.last) + 1
    }

    fn to_flags(self) -> u32 {
        let wanted = self.wanted.map_or(0, |wanted| wanted.saturating_add(1));
        FLAG_SHARDS | u32::from_le_bytes([0, self.own, self.last, wanted])
    }

    /// Reads flags that have them; `None`: the group has no such endpoint.
    fn of_flags(flags: u32) -> Option<Self> {
        let [_, own, last, wanted] = flags.to_le_bytes();
        (own <= last).then_some(Self { own, last, wanted: wanted.checked_sub(1) })
    }
}

/// The kind of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Kind {
    #[default]
    Hello = 1,
    Welcome = 2,
    Refused = 3,
    Ready = 4,
}

/// One packet of the handshake.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Packet {
    pub(crate) kind: Kind,
    /// Largest message that the sender takes, bytes.
    pub(crate) message_bytes_max: u32,
    /// The URI can be connected to.
    pub(crate) listens: bool,
    /// The nonce is there to be read.
    pub(crate) attach: bool,
    /// The sender never sleeps, and wants no fence for its sake (`doorbell.rs`). Not said before
    /// there was this flag, and others need not know it.
    pub(crate) never_sleeps: bool,
    /// The RPC layer of the sender is C Mercury's.
    pub(crate) for_mercury: bool,
    /// The sender is one of a group, or its connection stands for itself.
    pub(crate) shards: Option<Shards>,
    pub(crate) ring_bytes: u32,
    pub(crate) nonce_addr: u64,
    pub(crate) nonce: u64,
    /// The receiver's place on the sender's board, which comes along.
    pub(crate) slot: Option<u32>,
    /// The sender's URI, or the reason of a refusal.
    pub(crate) text: String,
}

impl Packet {
    /// A refusal.
    pub(crate) fn refused(reason: &str) -> Self {
        let text = reason.chars().filter(char::is_ascii).take(TEXT_BYTES_MAX).collect();
        Self { kind: Kind::Refused, text, ..Self::default() }
    }

    /// The hello may come.
    pub(crate) fn ready() -> Self {
        Self { kind: Kind::Ready, ..Self::default() }
    }

    /// The bytes to send.
    pub(crate) fn encode(&self) -> Vec<u8> {
        debug_assert!(self.text.len() <= TEXT_BYTES_MAX);
        let flag = |set, flag| if set { flag } else { 0 };
        let flags = flag(self.listens, FLAG_LISTENS)
            | flag(self.attach, FLAG_ATTACH)
            | flag(self.never_sleeps, FLAG_AWAKE)
            | flag(self.for_mercury, FLAG_MERCURY)
            | self.shards.map_or(0, Shards::to_flags);
        let mut bytes = Vec::with_capacity(FIXED + self.text.len());
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&(self.kind as u16).to_le_bytes());
        for word in [self.message_bytes_max, flags, self.ring_bytes, self.text.len() as u32] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.extend_from_slice(&self.nonce_addr.to_le_bytes());
        bytes.extend_from_slice(&self.nonce.to_le_bytes());
        let slot = self.slot.map_or(0, |slot| slot + 1);
        bytes.extend_from_slice(&u64::from(slot).to_le_bytes());
        bytes.extend_from_slice(self.text.as_bytes());
        bytes
    }

    /// Reads a packet.
    ///
    /// # Errors
    ///
    /// The fault in it, to log and to tell the sender.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, String> {
        if bytes.get(..4) != Some(&MAGIC) {
            return Err("the handshake does not start with `MRGO`: not an sm endpoint".into());
        }
        let u16_at = |at: usize| Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
        let u32_at = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let u64_at = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        match u16_at(4) {
            Some(VERSION) => {}
            Some(other) => {
                return Err(format!(
                    "handshake version {other}, but this side speaks {VERSION}: both processes \
                     need the same version of the sm transport"
                ));
            }
            None => return Err("the handshake is cut short".into()),
        }
        let kind = match u16_at(6) {
            Some(1) => Kind::Hello,
            Some(2) => Kind::Welcome,
            Some(3) => Kind::Refused,
            Some(4) => Kind::Ready,
            _ => return Err("unknown kind of handshake packet".into()),
        };
        let fields = || {
            let (text_len, flags) = (u32_at(20)? as usize, u32_at(12)?);
            let text = bytes.get(FIXED..)?;
            let slot = u32_at(40)?.checked_sub(1);
            let slots = slot.is_none_or(|slot| slot < SLOTS) && u32_at(44)? == 0;
            if text.len() != text_len || text_len > TEXT_BYTES_MAX || !slots {
                return None;
            }
            let shards = match flags & FLAG_SHARDS {
                0 => None,
                _ => Some(Shards::of_flags(flags)?),
            };
            Some(Self {
                kind,
                message_bytes_max: u32_at(8)?,
                listens: flags & FLAG_LISTENS != 0,
                attach: flags & FLAG_ATTACH != 0,
                never_sleeps: flags & FLAG_AWAKE != 0,
                for_mercury: flags & FLAG_MERCURY != 0,
                shards,
                ring_bytes: u32_at(16)?,
                nonce_addr: u64_at(24)?,
                nonce: u64_at(32)?,
                slot,
                text: str::from_utf8(text).ok().filter(|text| text.is_ascii())?.to_owned(),
            })
        };
        fields().ok_or_else(|| "the handshake's lengths, text or shards are wrong".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hello() -> Packet {
        Packet {
            kind: Kind::Hello,
            message_bytes_max: 4096,
            listens: true,
            attach: true,
            never_sleeps: false,
            for_mercury: false,
            shards: None,
            ring_bytes: 65536,
            nonce_addr: 0x7fff_0000,
            nonce: 42,
            slot: Some(3),
            text: "na+sm://1-2".into(),
        }
    }

    #[test]
    fn packets_survive() {
        for packet in [
            hello(),
            Packet { kind: Kind::Welcome, listens: false, ..hello() },
            Packet { slot: None, ..hello() },
            Packet { never_sleeps: true, attach: false, ..hello() },
            Packet { shards: Some(Shards { own: 0, last: 0, wanted: None }), ..hello() },
            Packet { shards: Some(Shards { own: 3, last: 127, wanted: Some(254) }), ..hello() },
            Packet::refused("because"),
            Packet::ready(),
        ] {
            assert_eq!(Packet::decode(&packet.encode()), Ok(packet));
        }
        assert!(Packet::refused(&"x".repeat(1000)).encode().len() <= PACKET_BYTES_MAX);
    }

    #[test]
    fn wrong_packets_are_told_apart() {
        let bytes = hello().encode();
        for len in 0..bytes.len() {
            assert!(Packet::decode(&bytes[..len]).is_err(), "cut to {len}");
        }
        let mut other = bytes.clone();
        other[4] = 9;
        let error = Packet::decode(&other).unwrap_err();
        assert!(error.contains("version 9"), "{error}");
        let error = Packet::decode(b"GET / HTTP/1.1").unwrap_err();
        assert!(error.contains("MRGO"), "{error}");
        let mut longer = bytes.clone();
        longer.push(0);
        assert!(Packet::decode(&longer).is_err());
        // Bits of shards mean something with their flag alone.
        let mut shards = bytes;
        (shards[13], shards[14]) = (4, 3);
        assert_eq!(Packet::decode(&shards), Ok(hello()));
        shards[12] |= 8;
        let error = Packet::decode(&shards).unwrap_err();
        assert!(error.contains("shards"), "{error}");
    }

    proptest! {
        #[test]
        fn decoding_never_panics(tail in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = Packet::decode(&tail);
            let mut bytes = b"MRGO\x02\0\x01\0".to_vec();
            bytes.extend(tail);
            let _ = Packet::decode(&bytes);
        }
    }
}
