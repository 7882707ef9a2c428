//! The extension that our own peers put beside Mercury's headers: a block of fields between the
//! headers of a request and its payload, announced by flag
//! [`EXTENSION`](crate::wire::header::flags::EXTENSION).
//!
//! It is sent only where the transport says that the peer understands it
//! ([`na::Endpoint::carries_extensions`]), and only when there is something to say, so C peers
//! never see it and the usual request does not have it.
//!
//! ```text
//! u8 length of the fields | fields | CRC16, where headers have one
//! field: u8 kind | u8 length | bytes
//! ```
//!
//! Fields of other kinds than these are skipped: a later version may send more.
//!
//! | kind | length | |
//! |---|---|---|
//! | 1 | 8 | time that is left until the caller gives up, nanoseconds |
//! | 6 | 12 | when that was: name of the sender's clock, and its nanoseconds |
//! | 2 | 16 | trace id, W3C's `trace-id` |
//! | 4 | 8 | id of the call within that trace, W3C's `parent-id` |
//! | 3 | 0 | this is no request: the call of this tag was canceled |
//! | 5 | 0 | this is no request: the response to the call of this tag could not be read |
//! | 7 | 16 | a secret of the sender, by which it knows its own requests; only to its own address |
//! | 8 | 44 | proof that the sender is a member of our cluster, see `core/members.rs`: the last field |
//! | 9 | 1 to 129 | on whose behalf the call is made, as the sender says: see `on_behalf.rs` |

use std::fmt;
use std::time::Duration;

use na::secret;

use crate::base::clock::Stamp;
use crate::base::error::WireError;
use crate::base::membership::{Code, Nonce};
use crate::wire::checksum::crc16_of;
use crate::wire::format::Format;
use crate::wire::header::RequestHeader;
use crate::wire::on_behalf::OnBehalfOf;

const REMAINING: u8 = 1;
const TRACE: u8 = 2;
const CANCEL: u8 = 3;
const SPAN: u8 = 4;
const UNREAD: u8 = 5;
const SENT: u8 = 6;
const OWN: u8 = 7;
const PROOF: u8 = 8;
const ON_BEHALF_OF: u8 = 9;

const OWN_BYTES: usize = 16;
const PROOF_BYTES: usize = 44;
const CODE_BYTES: usize = 16;

/// Longest block that is written: every field, and the CRC16.
pub(crate) const BYTES_MAX: usize = 1 + 10 + 14 + 18 + 10 + 2 + 2 + 18 + 131 + 46 + 2;

/// Longest block of a request for which the shortest messages have room: one that is made on behalf
/// of somebody with a name may be too long for them.
pub(crate) const USUAL_BYTES_MAX: usize = 1 + 10 + 14 + 18 + 10 + 18 + 46 + 2;

/// Why a block cannot be read.
const MALFORMED: &str = "a field does not have the length of its kind, or ends behind the block";

/// Names a call within what it is part of, across processes, as W3C's Trace Context does: the bytes
/// are in the order in which they are printed there. Only calls that are sampled have one.
///
/// ```
/// use hg::{Extension, Format, TraceParent};
///
/// let trace = TraceParent { trace_id: [7; 16], span_id: [8; 8] };
/// let extension = Extension { trace: Some(trace), ..Extension::default() };
/// let mut block = vec![0; extension.bytes(Format::default())];
/// extension.write(Format::default(), &mut block);
/// assert_eq!(Extension::read(Format::default(), &block)?.trace, Some(trace));
/// # Ok::<(), hg::WireError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceParent {
    /// The id that all calls which belong together share. Not zero: an extension with zero names no
    /// trace.
    pub trace_id: [u8; 16],
    /// The id of this call. Zero: not known.
    pub span_id: [u8; 8],
}

/// A secret by which a process knows its own requests where these take the network. Never printed.
///
/// ```
/// use hg::{Extension, Format, OwnSecret};
///
/// let extension = Extension { own: Some(OwnSecret([7; 16])), ..Extension::default() };
/// let mut block = vec![0; extension.bytes(Format::default())];
/// extension.write(Format::default(), &mut block);
/// assert_eq!(Extension::read(Format::default(), &block)?, extension);
/// assert_eq!(format!("{:?}", OwnSecret([7; 16])), "OwnSecret(…)");
/// # Ok::<(), hg::WireError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct OwnSecret(pub [u8; OWN_BYTES]);

impl OwnSecret {
    /// Draws one; `None`: the system has no random numbers.
    pub(crate) fn draw() -> Option<Self> {
        secret::draw().map(Self)
    }

    /// Compares in a time that does not tell how much is right.
    pub(crate) fn is(&self, other: &Self) -> bool {
        secret::is_same(&self.0, &other.0)
    }
}

impl fmt::Debug for OwnSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OwnSecret(…)")
    }
}

/// The proof of a request that its sender is a member of the target's cluster. It is made when the
/// message is, by a [`Core`](crate::Core) with a [`Membership`](crate::Membership).
///
/// ```
/// use hg::{Extension, Format, Proof};
///
/// // As it is before the message is sealed.
/// let extension = Extension { proof: Some(Proof::default()), ..Extension::default() };
/// let mut block = vec![0; extension.bytes(Format::default())];
/// extension.write(Format::default(), &mut block);
/// assert_eq!(Extension::read(Format::default(), &block)?, extension);
/// # Ok::<(), hg::WireError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Proof {
    /// The epoch of the target in which the session was made.
    pub(crate) epoch: u32,
    /// Names the session.
    pub(crate) nonce: Nonce,
    /// The number of the request in its session: none has it twice.
    pub(crate) number: u64,
    /// The code of all of the message but this.
    pub(crate) code: Code,
}

impl Proof {
    fn to_bytes(self) -> [u8; PROOF_BYTES] {
        let mut bytes = [0; PROOF_BYTES];
        bytes[..4].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[4..20].copy_from_slice(&self.nonce);
        bytes[20..28].copy_from_slice(&self.number.to_le_bytes());
        bytes[28..].copy_from_slice(&self.code);
        bytes
    }

    fn read(field: &[u8]) -> Option<Self> {
        let (epoch, rest) = field.split_first_chunk()?;
        let (nonce, rest) = rest.split_first_chunk()?;
        let (number, code) = rest.split_first_chunk()?;
        let (epoch, number) = (u32::from_le_bytes(*epoch), u64::from_le_bytes(*number));
        Some(Self { epoch, nonce: *nonce, number, code: code.try_into().ok()? })
    }

    /// Returns the proof in a message of which that is the header, and what its code is for: what
    /// stands before the code, and the payload. `None`: its extension does not end with a proof.
    pub(crate) fn in_message<'a>(
        header: &RequestHeader,
        message: &'a [u8],
    ) -> Option<(Self, &'a [u8], &'a [u8])> {
        let (code_at, payload) = Self::place(header, message)?;
        let end = code_at + CODE_BYTES;
        let proof = Self::read(&message[end - PROOF_BYTES..end])?;
        Some((proof, &message[..code_at], &message[payload..]))
    }

    /// Returns where the code stands, and where the payload begins.
    fn place(header: &RequestHeader, message: &[u8]) -> Option<(usize, usize)> {
        let payload = header.payload_at();
        let end = payload.checked_sub(sum_bytes(header.format))?;
        let field = end.checked_sub(2 + PROOF_BYTES)?;
        // Behind the headers and the length of the block.
        let is_here = field > header.format.header_bytes() && header.extension_bytes > 0;
        let starts = message.get(field..field + 2)? == [PROOF, PROOF_BYTES as u8];
        (is_here && starts).then_some((end - CODE_BYTES, payload))
    }

    /// Puts this proof in place of the one in a message, and a code of the rest, which `code_of`
    /// makes of what is before the code and what is behind the extension. `None`: there is none.
    pub(crate) fn seal(
        self,
        header: &RequestHeader,
        message: &mut [u8],
        code_of: impl FnOnce(&[u8], &[u8]) -> Code,
    ) -> Option<()> {
        let (code_at, payload) = Self::place(header, message)?;
        let end = code_at + CODE_BYTES;
        message[end - PROOF_BYTES..end].copy_from_slice(&self.to_bytes());
        let code = code_of(&message[..code_at], &message[payload..]);
        message[code_at..end].copy_from_slice(&code);
        if end < payload {
            let block = header.format.header_bytes();
            let sum = crc16_of(&message[block..end]).to_be_bytes();
            message[end..payload].copy_from_slice(&sum);
        }
        Some(())
    }
}

/// The fields that a request carries beside its header.
///
/// ```
/// use hg::{Extension, Format};
///
/// let extension = Extension { cancel: true, ..Extension::default() };
/// let mut block = vec![0; extension.bytes(Format::default())];
/// extension.write(Format::default(), &mut block);
/// assert_eq!(Extension::read(Format::default(), &block)?, extension);
/// assert_eq!(Extension::default().bytes(Format::default()), 0, "nothing to say");
/// # Ok::<(), hg::WireError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Extension {
    /// How long the caller still waits, from when the request was sent. No wall clock: those of two
    /// hosts differ.
    pub remaining: Option<Duration>,
    /// When that was, so that the target can tell how long the request has waited on its way.
    pub sent: Option<Stamp>,
    /// The trace that the call is part of, across processes.
    pub trace: Option<TraceParent>,
    /// The call of this tag, made before, was canceled. There is nothing to answer.
    pub cancel: bool,
    /// The response to the call of this tag, made before, could not be read: it was damaged on the
    /// way. There is nothing to answer.
    pub unread: bool,
    /// A secret of the sender that only it knows, in requests to its own address. Others never get
    /// it.
    pub own: Option<OwnSecret>,
    /// The caller on whose behalf the call is made, as the sender says.
    pub on_behalf_of: Option<Box<OnBehalfOf>>,
    /// The proof that the sender is a member of the target's cluster.
    pub proof: Option<Proof>,
}

impl Extension {
    /// Returns whether there is nothing to say.
    #[inline]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Bytes of the block, length and checksum included; 0 if there is nothing to say.
    #[inline]
    pub fn bytes(&self, format: Format) -> usize {
        if self.is_empty() { 0 } else { 1 + self.fields_bytes() + sum_bytes(format) }
    }

    fn fields_bytes(&self) -> usize {
        let remaining = if self.remaining.is_some() { 10 } else { 0 };
        let sent = if self.sent.is_some() { 14 } else { 0 };
        let trace = match self.trace {
            Some(trace) if trace.span_id != [0; 8] => 18 + 10,
            Some(_) => 18,
            None => 0,
        };
        let own = if self.own.is_some() { 2 + OWN_BYTES } else { 0 };
        let proof = if self.proof.is_some() { 2 + PROOF_BYTES } else { 0 };
        let behalf = self.on_behalf_of.as_ref().map_or(0, |who| 2 + who.bytes());
        remaining
            + sent
            + trace
            + own
            + behalf
            + proof
            + 2 * (usize::from(self.cancel) + usize::from(self.unread))
    }

    /// Writes the block to the front of `out`.
    ///
    /// # Panics
    ///
    /// If `out` is shorter than [`bytes`](Self::bytes).
    pub fn write(&self, format: Format, out: &mut [u8]) {
        let mut block = Vec::with_capacity(BYTES_MAX);
        block.push(self.fields_bytes() as u8);
        if let Some(remaining) = self.remaining {
            let nanos = u64::try_from(remaining.as_nanos()).unwrap_or(u64::MAX);
            block.extend([REMAINING, 8]);
            block.extend(nanos.to_le_bytes());
        }
        if let Some(Stamp { clock, nanos }) = self.sent {
            block.extend([SENT, 12]);
            block.extend(clock.to_le_bytes());
            block.extend(nanos.to_le_bytes());
        }
        if let Some(trace) = self.trace {
            block.extend([TRACE, 16]);
            block.extend(trace.trace_id);
            if trace.span_id != [0; 8] {
                block.extend([SPAN, 8]);
                block.extend(trace.span_id);
            }
        }
        if self.cancel {
            block.extend([CANCEL, 0]);
        }
        if self.unread {
            block.extend([UNREAD, 0]);
        }
        if let Some(own) = self.own {
            block.extend([OWN, OWN_BYTES as u8]);
            block.extend(own.0);
        }
        if let Some(who) = &self.on_behalf_of {
            block.extend([ON_BEHALF_OF, who.bytes() as u8]);
            who.write(&mut block);
        }
        if let Some(proof) = self.proof {
            block.extend([PROOF, PROOF_BYTES as u8]);
            block.extend(proof.to_bytes());
        }
        if sum_bytes(format) > 0 {
            block.extend(crc16_of(&block).to_be_bytes());
        }
        out[..block.len()].copy_from_slice(&block);
    }

    /// Bytes of the block at the front of `rest`.
    ///
    /// # Errors
    ///
    /// [`WireError::Short`] when it is not whole.
    pub(crate) fn measure(format: Format, rest: &[u8]) -> Result<usize, WireError> {
        let fields = rest.first().map_or(0, |len| usize::from(*len));
        let need = 1 + fields + sum_bytes(format);
        match rest.len() {
            len if len < need => Err(WireError::Short { what: "extension", len, need }),
            _ => Ok(need),
        }
    }

    /// Reads a whole block. If a field occurs twice, the last one counts.
    ///
    /// # Errors
    ///
    /// [`WireError`] naming what is wrong.
    pub fn read(format: Format, block: &[u8]) -> Result<Self, WireError> {
        let len = Self::measure(format, block)?;
        let (checked, sum) = block[..len].split_at(len - sum_bytes(format));
        if let [high, low] = *sum {
            let (said, found) = (u16::from_be_bytes([high, low]), crc16_of(checked));
            if said != found {
                return Err(WireError::HeaderChecksum { what: "extension", said, found });
            }
        }
        let mut extension = Self::default();
        let mut span_id = [0; 8];
        let mut fields = &checked[1..];
        while let [kind, len, rest @ ..] = fields {
            let malformed = WireError::Extension(MALFORMED);
            let (field, rest) =
                rest.split_at_checked(usize::from(*len)).ok_or_else(|| malformed.clone())?;
            match *kind {
                SPAN => span_id = field.try_into().map_err(|_| malformed)?,
                kind => extension.take(kind, field)?,
            }
            fields = rest;
        }
        if !fields.is_empty() {
            return Err(WireError::Extension(MALFORMED));
        }
        if let Some(trace) = &mut extension.trace {
            trace.span_id = span_id;
        }
        Ok(extension)
    }

    fn take(&mut self, kind: u8, field: &[u8]) -> Result<(), WireError> {
        let malformed = || WireError::Extension(MALFORMED);
        match kind {
            REMAINING => {
                let nanos = field.try_into().map_err(|_| malformed())?;
                self.remaining = Some(Duration::from_nanos(u64::from_le_bytes(nanos)));
            }
            SENT => {
                let (clock, nanos) = field.split_first_chunk().ok_or_else(malformed)?;
                let nanos = nanos.try_into().map_err(|_| malformed())?;
                let (clock, nanos) = (u32::from_le_bytes(*clock), u64::from_le_bytes(nanos));
                self.sent = Some(Stamp { clock, nanos });
            }
            TRACE => {
                let trace_id: [u8; 16] = field.try_into().map_err(|_| malformed())?;
                let is_one = trace_id != [0; 16];
                self.trace = is_one.then_some(TraceParent { trace_id, span_id: [0; 8] });
            }
            OWN => self.own = Some(OwnSecret(field.try_into().map_err(|_| malformed())?)),
            ON_BEHALF_OF => {
                let who = OnBehalfOf::read(field).ok_or_else(malformed)?;
                self.on_behalf_of = Some(Box::new(who));
            }
            PROOF => self.proof = Some(Proof::read(field).ok_or_else(malformed)?),
            CANCEL if field.is_empty() => self.cancel = true,
            UNREAD if field.is_empty() => self.unread = true,
            CANCEL | UNREAD => return Err(malformed()),
            _later => {}
        }
        Ok(())
    }
}

fn sum_bytes(format: Format) -> usize {
    if format.level().covers_headers() { 2 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Build, ChecksumLevel};

    const PLAIN: Format = Format::new(Build::Plain, ChecksumLevel::None);
    const SUMMED: Format = Format::new(Build::Checksum, ChecksumLevel::Headers);

    fn mark(trace_id: [u8; 16], span_id: [u8; 8]) -> TraceParent {
        TraceParent { trace_id, span_id }
    }

    fn written(extension: &Extension, format: Format) -> Vec<u8> {
        let mut out = vec![0xAA; extension.bytes(format)];
        extension.write(format, &mut out);
        out
    }

    #[test]
    fn what_is_written_is_read() {
        let remaining = Some(Duration::from_nanos(0x0102));
        let sent = Some(Stamp { clock: 0x0304, nanos: 0x0506 });
        let trace = Some(mark([7; 16], [8; 8]));
        let own = Some(OwnSecret([9; 16]));
        let (nonce, code) = ([5; 16], [6; 16]);
        let behalf = Some(Box::new(OnBehalfOf::User(7)));
        let proof = Some(Proof { epoch: 0x0708, nonce, number: 0x090A, code });
        for extension in [
            Extension { remaining, ..Extension::default() },
            Extension { remaining, sent, ..Extension::default() },
            Extension {
                remaining,
                sent,
                trace,
                cancel: true,
                unread: true,
                own,
                on_behalf_of: Some(Box::new(OnBehalfOf::Name("n".repeat(128).into()))),
                proof,
            },
            Extension { on_behalf_of: behalf, ..Extension::default() },
            Extension { proof, ..Extension::default() },
            Extension { trace: Some(mark([7; 16], [0; 8])), ..Extension::default() },
            Extension { cancel: true, ..Extension::default() },
            Extension { unread: true, ..Extension::default() },
        ] {
            for format in [PLAIN, SUMMED] {
                let block = written(&extension, format);
                assert!(block.len() <= BYTES_MAX);
                assert_eq!(Extension::read(format, &block), Ok(extension.clone()));
                for len in 0..block.len() {
                    assert!(Extension::read(format, &block[..len]).is_err(), "{len}");
                }
            }
        }
        assert_eq!(Extension::default().bytes(SUMMED), 0);
    }

    #[test]
    fn a_time_beyond_what_can_be_said_is_the_longest() {
        let extension = Extension { remaining: Some(Duration::MAX), ..Extension::default() };
        let read = Extension::read(PLAIN, &written(&extension, PLAIN)).unwrap();
        assert_eq!(read.remaining, Some(Duration::from_nanos(u64::MAX)));
    }

    #[test]
    fn later_fields_are_skipped_and_malformed_ones_refused() {
        let read = |fields: &[u8]| {
            let mut block = vec![fields.len() as u8];
            block.extend(fields);
            Extension::read(PLAIN, &block)
        };
        let cancel = Extension { cancel: true, ..Extension::default() };
        assert_eq!(read(&[200, 3, 1, 2, 3, CANCEL, 0, 201, 0]), Ok(cancel));
        assert_eq!(read(&[]), Ok(Extension::default()));
        let bad: [&[u8]; 11] = [
            &[ON_BEHALF_OF, 0],
            &[PROOF, 3, 0, 0, 0],
            &[CANCEL, 1, 0],
            &[REMAINING, 7, 0, 0, 0, 0, 0, 0, 0],
            &[SENT, 3, 0, 0, 0],
            &[SENT, 11, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            &[SENT, 13, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            &[TRACE, 0],
            &[SPAN, 7, 0, 0, 0, 0, 0, 0, 0],
            &[9],
            &[9, 2, 0],
        ];
        for fields in bad {
            let error = read(fields).unwrap_err();
            assert!(matches!(error, WireError::Extension(_)), "{fields:?}: {error}");
        }
    }

    #[test]
    fn a_trace_is_what_names_one() {
        let read = |parts: &[(u8, &[u8])]| {
            let fields: Vec<u8> = parts
                .iter()
                .flat_map(|(kind, bytes)| [&[*kind, bytes.len() as u8], *bytes].concat())
                .collect();
            let block = [&[fields.len() as u8], &fields[..]].concat();
            Extension::read(PLAIN, &block).unwrap().trace
        };
        let (id, span): ([u8; 16], [u8; 8]) = ([7; 16], [8; 8]);
        let both = Some(mark(id, span));
        assert_eq!(read(&[(TRACE, &id), (SPAN, &span)]), both);
        assert_eq!(read(&[(SPAN, &span), (TRACE, &id)]), both, "in any order");
        assert_eq!(read(&[(TRACE, &id), (SPAN, &[1; 8]), (SPAN, &span)]), both, "the last counts");
        assert_eq!(read(&[(TRACE, &id)]), Some(mark(id, [0; 8])), "as earlier versions send it");
        assert_eq!(read(&[(SPAN, &span)]), None, "a call of no trace");
        assert_eq!(read(&[(TRACE, &[0; 16]), (SPAN, &span)]), None);
    }

    #[test]
    fn damage_is_seen_where_headers_have_a_checksum() {
        let extension =
            Extension { remaining: Some(Duration::from_secs(1)), ..Extension::default() };
        let block = written(&extension, SUMMED);
        for at in 1..block.len() {
            let mut damaged = block.clone();
            damaged[at] ^= 1;
            let error = Extension::read(SUMMED, &damaged).unwrap_err();
            assert!(error.is_checksum(), "byte {at}: {error}");
        }
    }
}
