//! The records of a ring: kinds and payloads (little endian).
//!
//! | kind | name | direction | payload |
//! |---|---|---|---|
//! | 1 | unexpected message | both | the message; tag in the commit word |
//! | 2 | expected message | both | the same |
//! | 3 | get | requester to owner | [`Request`] |
//! | 4 | put | requester to owner | [`Request`] |
//! | 5 | done | owner to requester | part u64, status u64 |
//! | 6 | pull | owner to requester | part u64, measure u64 (0, 1): send the data of this put |
//! | 7 | data | owner to requester | bytes of a get: part u64, offset u64, measure u64, 32 zero bytes, bytes |
//! | 8 | supply | requester to owner | bytes of a put: the same, with time u64 for measure |
//! | 9 | cancel | requester to owner | part u64 |
//! | 10 | ping | both | nothing |
//! | 11 | pong | both | nothing |
//! | 12 | grant | owner to requester | part u64, block u64, offset u64: copy there yourself |
//! | 13 | finished | requester to owner | part u64, status u64 (0 copied, 1 cannot), time u64 |
//! | 14 | forget | both | block u64: it exists no more |
//! | 15 | lane data | owner to requester | the next slots: part, offset, block, length, measure, u64 each |
//! | 16 | lane supply | requester to owner | the same, with time for measure |
//! | 17 | offer | owner to requester | key u64, block u64, place u64 (`offer.rs`) |
//! | 18 | offer of plain memory | owner to requester | key, place, address, length, u64 each |
//! | 19 | taken | requester to owner | part, time of all its data, time of the last, u64 each |
//! | 20 | unexpected message in a page | both | page, length, u64 each (`turns.rs`); tag in the commit word |
//! | 21 | expected message in a page | both | the same |
//! | 22 | share | owner to requester | part, address, length, u64 each: copy so much of the start yourself |
//!
//! A time is what copying these bytes took, nanoseconds; zero if it was not measured, as a pull can
//! ask for. Measure is 0, or 1: the requester says with *taken* how long taking the data took, when
//! all of it is there (`costs.rs`). It may leave that out, as one that gave up does.
//!
//! Any other kind, and any payload of another length, is a breach of the protocol.

use na_core::DeniedReason;

/// Kinds of record.
pub(crate) const UNEXPECTED: u8 = 1;
pub(crate) const EXPECTED: u8 = 2;
pub(crate) const GET: u8 = 3;
pub(crate) const PUT: u8 = 4;
pub(crate) const DONE: u8 = 5;
pub(crate) const PULL: u8 = 6;
pub(crate) const DATA: u8 = 7;
pub(crate) const SUPPLY: u8 = 8;
pub(crate) const CANCEL: u8 = 9;
pub(crate) const PING: u8 = 10;
pub(crate) const PONG: u8 = 11;
pub(crate) const GRANT: u8 = 12;
pub(crate) const FINISHED: u8 = 13;
pub(crate) const FORGET: u8 = 14;
pub(crate) const LANE_DATA: u8 = 15;
pub(crate) const LANE_SUPPLY: u8 = 16;
pub(crate) const OFFER: u8 = 17;
pub(crate) const OFFER_PLAIN: u8 = 18;
pub(crate) const TAKEN: u8 = 19;
pub(crate) const UNEXPECTED_PAGE: u8 = 20;
pub(crate) const EXPECTED_PAGE: u8 = 21;
pub(crate) const SHARE: u8 = 22;

/// Bytes of a record of a page.
pub(crate) const PAGE_RECORD: usize = 16;

/// Words of a record of the lane.
pub(crate) const LANE_WORDS: usize = 5;

/// Words of the longest record of words.
pub(crate) const CONTROL_WORDS: usize = 4;

/// Pieces of the requester's memory that one request can name.
pub(crate) const PIECES_MAX: usize = 64;

/// Requests that one side may have open on a connection; more is a breach of the protocol.
pub(crate) const PARTS_MAX: usize = 64;

/// Bytes before the data in a data record; with the commit word, one line.
pub(crate) const DATA_PREFIX: usize = 56;

const REQUEST_FIXED: usize = 32;
const PIECE_BYTES: usize = 24;

/// Longest encoded request, bytes.
pub(crate) const REQUEST_BYTES_MAX: usize = REQUEST_FIXED + PIECES_MAX * PIECE_BYTES;

/// A piece of the requester's memory, in the requester's address space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) addr: u64,
    pub(crate) len: u64,
    /// The block that holds it, if the owner of the remote memory can map that; zero otherwise.
    pub(crate) block: u64,
}

/// A get or put of consecutive bytes of one region: part u64, key u64, offset u64, length u64, and
/// for each piece address u64, length u64, block u64. The pieces add up to the length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) part: u64,
    pub(crate) key: u64,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) pieces: Vec<Piece>,
}

impl Request {
    /// Bytes of the encoding.
    pub(crate) fn encoded_len(&self) -> usize {
        REQUEST_FIXED + self.pieces.len() * PIECE_BYTES
    }

    /// Writes the encoding into the start of `out`, which must be long enough.
    pub(crate) fn encode<'a>(&self, out: &'a mut [u8; REQUEST_BYTES_MAX]) -> &'a [u8] {
        let pieces = self.pieces.iter().flat_map(|piece| [piece.addr, piece.len, piece.block]);
        let words = [self.part, self.key, self.offset, self.len].into_iter().chain(pieces);
        for (place, word) in out.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        &out[..self.encoded_len()]
    }

    /// Reads an encoding; `None` when it is not one.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let rest = bytes.len().checked_sub(REQUEST_FIXED)?;
        if !rest.is_multiple_of(PIECE_BYTES) || bytes.len() > REQUEST_BYTES_MAX {
            return None;
        }
        let word = |index: usize| word_at(bytes, index);
        let mut pieces = Vec::with_capacity(rest / PIECE_BYTES);
        let mut sum = 0u64;
        for index in 0..rest / PIECE_BYTES {
            let at = 4 + 3 * index;
            let piece = Piece { addr: word(at)?, len: word(at + 1)?, block: word(at + 2)? };
            sum = sum.checked_add(piece.len)?;
            piece.addr.checked_add(piece.len)?;
            if piece.len == 0 {
                return None;
            }
            pieces.push(piece);
        }
        let len = word(3)?;
        (sum == len).then_some(Self {
            part: word(0)?,
            key: word(1)?,
            offset: word(2)?,
            len,
            pieces,
        })
    }
}

/// The `index`th 64-bit word of `bytes`.
pub(crate) fn word_at(bytes: &[u8], index: usize) -> Option<u64> {
    let bytes = bytes.get(8 * index..8 * index + 8)?;
    bytes.try_into().map(u64::from_le_bytes).ok()
}

/// How a part ended, in a done record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    Ok,
    Denied(DeniedReason),
    Canceled,
}

impl Status {
    pub(crate) fn code(self) -> u64 {
        match self {
            Self::Ok => 0,
            Self::Denied(reason) => reason.code().into(),
            Self::Canceled => 5,
        }
    }

    pub(crate) fn from_code(code: u64) -> Option<Self> {
        Some(match code {
            0 => Self::Ok,
            5 => Self::Canceled,
            code => Self::Denied(DeniedReason::from_code(code)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn request() -> Request {
        let pieces =
            vec![Piece { addr: 4096, len: 5, block: 0 }, Piece { addr: 9, len: 1, block: 7 }];
        Request { part: 1, key: u64::MAX, offset: 3, len: 6, pieces }
    }

    #[test]
    fn a_request_survives_and_a_wrong_one_does_not() {
        let mut buffer = [0; REQUEST_BYTES_MAX];
        let good = request();
        let bytes = good.encode(&mut buffer).to_vec();
        assert_eq!(Request::decode(&bytes), Some(good));
        for len in 0..bytes.len() {
            assert_eq!(Request::decode(&bytes[..len]), None, "cut to {len}");
        }
        let lie = Request { len: 7, ..request() };
        assert_eq!(Request::decode(lie.encode(&mut buffer)), None, "sum");
        let wrap = vec![Piece { addr: u64::MAX, len: 6, block: 0 }];
        let wrap = Request { pieces: wrap, ..request() };
        assert_eq!(Request::decode(wrap.encode(&mut buffer)), None, "wraps");
        let huge =
            vec![Piece { addr: 0, len: u64::MAX, block: 0 }, Piece { addr: 0, len: 7, block: 0 }];
        let huge = Request { pieces: huge, ..request() };
        assert_eq!(Request::decode(huge.encode(&mut buffer)), None, "overflow");
        let empty =
            Request { pieces: vec![Piece { addr: 1, len: 0, block: 0 }], len: 0, ..request() };
        assert_eq!(Request::decode(empty.encode(&mut buffer)), None, "empty piece");
        let none = Request { pieces: vec![], len: 0, ..request() };
        assert!(Request::decode(none.encode(&mut buffer)).is_some(), "nothing to move");
    }

    #[test]
    fn status_codes_are_distinct() {
        for code in 0..6 {
            assert_eq!(Status::from_code(code).map(Status::code), Some(code));
        }
        assert_eq!(Status::from_code(6), None);
    }

    proptest! {
        #[test]
        fn decoding_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..1200)) {
            let _ = Request::decode(&bytes);
        }
    }
}
