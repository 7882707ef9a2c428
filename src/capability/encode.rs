//! The bytes of caveats: a kind, the length of what follows in two bytes, and that. Numbers have
//! their lowest byte first; a list of texts has the length before each.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{Attempt, CapabilityError};
use crate::Principal;

/// A part of what a capability allows: of several, all have to allow what is done.
///
/// ```
/// use margo::capability::Caveat;
///
/// let reads = Caveat::operations(["get", "list"]);
/// assert_eq!(reads, Caveat::Operations(vec!["get".to_owned(), "list".to_owned()]));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Caveat {
    /// Only this object.
    Object(String),
    /// Only these operations.
    Operations(Vec<String>),
    /// Only before this time, in whole milliseconds.
    Until(SystemTime),
    /// Only by this caller, as [`Principal`] prints it.
    Caller(String),
}

const OBJECT: u8 = 1;
const OPERATIONS: u8 = 2;
const UNTIL: u8 = 3;
const CALLER: u8 = 4;

/// Kind and length.
const HEAD_BYTES: usize = 3;

impl Caveat {
    /// Only some operations.
    #[must_use]
    pub fn operations<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        Self::Operations(names.into_iter().map(str::to_owned).collect())
    }

    /// Only one caller. Who is not known is nobody: that allows nothing.
    #[must_use]
    pub fn caller(caller: Principal) -> Self {
        Self::Caller(caller.to_string())
    }

    pub(super) fn allows(&self, attempt: &Attempt<'_>) -> Result<(), CapabilityError> {
        let (allows, otherwise) = match self {
            Self::Object(object) => (object == attempt.object, CapabilityError::OtherObject),
            Self::Operations(names) => {
                let has = names.iter().any(|name| name == attempt.operation);
                (has, CapabilityError::OtherOperation)
            }
            Self::Until(until) => (attempt.now < *until, CapabilityError::Expired),
            Self::Caller(text) => {
                let is_known = attempt.caller != Principal::Unknown;
                (is_known && attempt.caller.to_string() == *text, CapabilityError::OtherCaller)
            }
        };
        if allows { Ok(()) } else { Err(otherwise) }
    }

    /// Adds its bytes.
    pub(super) fn encode(&self, out: &mut Vec<u8>) -> Result<(), CapabilityError> {
        let begin = out.len();
        out.extend([0; HEAD_BYTES]);
        let kind = match self {
            Self::Object(text) => {
                out.extend_from_slice(text.as_bytes());
                OBJECT
            }
            Self::Caller(text) => {
                out.extend_from_slice(text.as_bytes());
                CALLER
            }
            Self::Operations(names) => {
                for name in names {
                    out.extend_from_slice(&length(name.len())?);
                    out.extend_from_slice(name.as_bytes());
                }
                OPERATIONS
            }
            Self::Until(time) => {
                // Before the epoch everything is over.
                let millis = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
                let millis = u64::try_from(millis).unwrap_or(u64::MAX);
                out.extend_from_slice(&millis.to_le_bytes());
                UNTIL
            }
        };
        let len = length(out.len() - begin - HEAD_BYTES)?;
        out[begin..begin + HEAD_BYTES].copy_from_slice(&[kind, len[0], len[1]]);
        Ok(())
    }

    /// Reads the bytes of one.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, CapabilityError> {
        let malformed = || CapabilityError::Malformed;
        let (head, body) = bytes.split_at_checked(HEAD_BYTES).ok_or_else(malformed)?;
        Ok(match head[0] {
            OBJECT => Self::Object(text(body)?),
            CALLER => Self::Caller(text(body)?),
            OPERATIONS => {
                let (mut names, mut rest) = (Vec::new(), body);
                while !rest.is_empty() {
                    let (len, behind) = rest.split_first_chunk().ok_or_else(malformed)?;
                    let len = usize::from(u16::from_le_bytes(*len));
                    let (name, behind) = behind.split_at_checked(len).ok_or_else(malformed)?;
                    names.push(text(name)?);
                    rest = behind;
                }
                Self::Operations(names)
            }
            UNTIL => {
                let millis = u64::from_le_bytes(body.try_into().map_err(|_| malformed())?);
                let until = UNIX_EPOCH.checked_add(Duration::from_millis(millis));
                Self::Until(until.ok_or_else(malformed)?)
            }
            _ => return Err(malformed()),
        })
    }
}

fn length(len: usize) -> Result<[u8; 2], CapabilityError> {
    u16::try_from(len).map(u16::to_le_bytes).map_err(|_| CapabilityError::TooLong)
}

fn text(bytes: &[u8]) -> Result<String, CapabilityError> {
    String::from_utf8(bytes.to_owned()).map_err(|_| CapabilityError::Malformed)
}

/// Checks that these are the bytes of caveats, and returns of how many.
pub(super) fn check(mut bytes: &[u8]) -> Result<usize, CapabilityError> {
    let mut count = 0;
    while !bytes.is_empty() {
        let (caveat, rest) = first(bytes).ok_or(CapabilityError::Malformed)?;
        Caveat::decode(caveat)?;
        (bytes, count) = (rest, count + 1);
    }
    Ok(count)
}

/// Returns the bytes of each caveat.
pub(super) fn each(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (caveat, rest) = first(bytes)?;
        bytes = rest;
        Some(caveat)
    })
}

/// Returns the bytes of the first caveat, and those behind it.
fn first(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let [_, low, high, ..] = bytes else { return None };
    let len = usize::from(u16::from_le_bytes([*low, *high]));
    bytes.split_at_checked(HEAD_BYTES + len)
}
