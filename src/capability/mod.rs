//! Capabilities: tokens that a provider signs, which let whoever has one do some operations with
//! one object.
//!
//! A capability is a list of [`Caveat`]s, each of which leaves less of what it allows, and a tag:
//! the keyed BLAKE3 of the first caveat, then that of each further one with the tag before it as
//! the key. So its holder can [narrow](Capability::narrow) it further without the provider, but
//! take nothing back: for that it would need the tag of a shorter list. (The field calls such
//! tokens macaroons.) Who has it can use it, so send it only where nobody listens, or bind it to a
//! [caller](Caveat::Caller). It is over at its [time](Caveat::Until), or when its key is given up.
//!
//! Imports nothing from the other folders. `encode.rs` has the bytes of caveats, `fuzzing.rs` what
//! fuzzers and the replay of their corpus run.

mod encode;
#[doc(hidden)]
pub mod fuzzing;
#[cfg(test)]
mod tests;

use std::fmt;
use std::time::SystemTime;

use na::secret::SecretKey;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use zeroize::{Zeroize, Zeroizing};

pub use self::encode::Caveat;
use crate::Principal;

/// Most caveats of one capability.
pub const CAVEATS_MAX: usize = 64;

/// Longest capability, in bytes.
pub const BYTES_MAX: usize = 4096;

/// The first byte: the layout of the others.
const VERSION: u8 = 1;

const TAG_BYTES: usize = 32;

/// The key of the first tag is not that of anything else that the program may sign.
const CONTEXT: &str = "margo 2026-11 capability";

/// A secret by which a provider makes capabilities and knows its own. It is overwritten when it is
/// dropped, left out of core files, and never printed.
///
/// ```
/// use std::time::{Duration, SystemTime};
///
/// use margo::Principal;
/// use margo::capability::{Attempt, CapabilityError, CapabilityKey, Caveat};
///
/// let key = CapabilityKey::new();
/// let until = SystemTime::now() + Duration::from_secs(60);
/// let both = key.issue("blob/7", &["get", "put"], until)?;
/// // Its holder passes on less, without asking anybody.
/// let reads = both.narrow(&Caveat::operations(["get"]))?;
///
/// let attempt = |operation| Attempt {
///     object: "blob/7",
///     operation,
///     caller: Principal::Unknown,
///     now: SystemTime::now(),
/// };
/// key.verify(&both, &attempt("put"))?;
/// key.verify(&reads, &attempt("get"))?;
/// assert_eq!(key.verify(&reads, &attempt("put")), Err(CapabilityError::OtherOperation));
/// assert_eq!(CapabilityKey::new().verify(&reads, &attempt("get")), Err(CapabilityError::Forged));
/// # Ok::<(), CapabilityError>(())
/// ```
pub struct CapabilityKey(SecretKey);

impl CapabilityKey {
    /// Draws a key at random. What is issued with it ends with this process, unless it is
    /// [kept](Self::to_bytes).
    ///
    /// # Panics
    ///
    /// If the system has no random numbers.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "two of them differ")]
    pub fn new() -> Self {
        Self(SecretKey::draw().expect("the system has random numbers"))
    }

    /// Makes the key that was kept as these bytes, or is shared by several processes. All 32 are to
    /// be random.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; 32]) -> Self {
        Self(SecretKey::new(bytes))
    }

    /// Returns the bytes of the key, which are overwritten when they are dropped.
    #[must_use]
    pub fn to_bytes(&self) -> Zeroizing<[u8; 32]> {
        Zeroizing::new(*self.0)
    }

    /// Makes a capability for some operations with one object, until a time.
    ///
    /// # Errors
    ///
    /// [`CapabilityError::TooLong`].
    pub fn issue(
        &self,
        object: &str,
        operations: &[&str],
        until: SystemTime,
    ) -> Result<Capability, CapabilityError> {
        let none = Capability { caveats: Vec::new(), count: 0, tag: self.root() };
        let of_object = none.narrow(&Caveat::Object(object.to_owned()))?;
        let operations = Caveat::operations(operations.iter().copied());
        of_object.narrow(&operations)?.narrow(&Caveat::Until(until))
    }

    /// Checks that this key has issued a capability, and that it allows what is about to be done.
    ///
    /// # Errors
    ///
    /// [`CapabilityError::Forged`], or the first caveat that does not allow it.
    pub fn verify(
        &self,
        capability: &Capability,
        attempt: &Attempt<'_>,
    ) -> Result<(), CapabilityError> {
        let mut tag = Zeroizing::new(self.root());
        for caveat in encode::each(&capability.caveats) {
            *tag = next_tag(&tag, caveat);
        }
        // In a time that does not tell how much of it is right.
        if blake3::Hash::from_bytes(*tag) != blake3::Hash::from_bytes(capability.tag) {
            return Err(CapabilityError::Forged);
        }
        // Without any it would allow everything; none such was ever issued.
        if capability.count == 0 {
            return Err(CapabilityError::Forged);
        }
        capability.caveats().try_for_each(|caveat| caveat.allows(attempt))
    }

    fn root(&self) -> [u8; TAG_BYTES] {
        blake3::derive_key(CONTEXT, &self.0[..])
    }
}

/// The tag behind a caveat; the one before it is the key.
fn next_tag(tag: &[u8; TAG_BYTES], caveat: &[u8]) -> [u8; TAG_BYTES] {
    *blake3::keyed_hash(tag, caveat).as_bytes()
}

impl fmt::Debug for CapabilityKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CapabilityKey(…)")
    }
}

/// An operation that somebody is about to do, for [`CapabilityKey::verify`].
///
/// ```
/// use std::time::{Duration, SystemTime};
///
/// use margo::capability::{Attempt, Capability, CapabilityKey, Caveat};
/// use margo::{Handle, Instance, ProviderHandle, Rpc};
///
/// const READ: Rpc<(String, Capability), u64> = Rpc::new("read");
///
/// let key = CapabilityKey::new();
/// let token = key.issue("blob/7", &["read"], SystemTime::now() + Duration::from_secs(60))?;
///
/// let service = Instance::builder("na+sm://").start()?;
/// service.register(READ, move |request: Handle<(String, Capability), u64>| {
///     let (object, token) = request.args();
///     let (caller, now) = (request.principal(), SystemTime::now());
///     let attempt = Attempt { object, operation: "read", caller, now };
///     let _ = match key.verify(token, &attempt) {
///         Ok(()) => request.respond(&7),
///         Err(error) => request.fail(&error.to_string()),
///     };
/// })?;
/// let client = Instance::builder("na+sm://").listen(false).start()?;
/// let target = ProviderHandle::from(client.lookup(service.self_addr().uri())?);
/// assert_eq!(client.forward(READ, &target, &("blob/7".to_owned(), token.clone()))?, 7);
/// assert!(client.forward(READ, &target, &("blob/8".to_owned(), token)).is_err());
/// # client.finalize_and_wait()?;
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Attempt<'a> {
    /// The object.
    pub object: &'a str,
    /// The operation.
    pub operation: &'a str,
    /// The caller that asks for it: [`Handle::principal`](crate::Handle::principal).
    pub caller: Principal,
    /// The time.
    pub now: SystemTime,
}

/// A token that allows some operations with one object. Goes as an argument or result of RPCs, or
/// as [bytes](Self::to_bytes). `Debug` shows what it allows, and not the tag that makes it valid.
///
/// ```
/// use std::time::{Duration, SystemTime};
///
/// use margo::Principal;
/// use margo::capability::{Capability, CapabilityKey, Caveat};
///
/// let key = CapabilityKey::new();
/// let token = key.issue("blob/7", &["get"], SystemTime::now() + Duration::from_secs(60))?;
/// let bound = token.narrow(&Caveat::caller(Principal::User(1000)))?;
/// assert_eq!(bound.caveats().count(), 4);
/// assert_eq!(Capability::from_bytes(&bound.to_bytes())?, bound);
/// # Ok::<(), margo::capability::CapabilityError>(())
/// ```
#[derive(Clone)]
pub struct Capability {
    /// All caveats, as they are encoded.
    caveats: Vec<u8>,
    count: usize,
    tag: [u8; TAG_BYTES],
}

impl Capability {
    /// Makes one that allows less. No key is needed.
    ///
    /// # Errors
    ///
    /// [`CapabilityError::TooLong`].
    pub fn narrow(&self, caveat: &Caveat) -> Result<Self, CapabilityError> {
        let mut caveats = self.caveats.clone();
        caveat.encode(&mut caveats)?;
        let tag = next_tag(&self.tag, &caveats[self.caveats.len()..]);
        let narrowed = Self { caveats, count: self.count + 1, tag };
        let is_short = narrowed.count <= CAVEATS_MAX && narrowed.bytes() <= BYTES_MAX;
        if is_short { Ok(narrowed) } else { Err(CapabilityError::TooLong) }
    }

    /// Returns the caveats, in the order in which they were added. Anybody may have written them,
    /// unless the capability was [verified](CapabilityKey::verify).
    pub fn caveats(&self) -> impl Iterator<Item = Caveat> + '_ {
        // They were decoded before.
        encode::each(&self.caveats).filter_map(|caveat| Caveat::decode(caveat).ok())
    }

    /// Returns it as bytes, at most [`BYTES_MAX`].
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.bytes());
        bytes.push(VERSION);
        bytes.extend_from_slice(&self.caveats);
        bytes.extend_from_slice(&self.tag);
        bytes
    }

    /// Reads what [`to_bytes`](Self::to_bytes) has written. Nothing says yet that it is valid.
    ///
    /// # Errors
    ///
    /// [`CapabilityError::Malformed`], [`CapabilityError::TooLong`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, CapabilityError> {
        if bytes.len() > BYTES_MAX {
            return Err(CapabilityError::TooLong);
        }
        let (version, rest) = bytes.split_first().ok_or(CapabilityError::Malformed)?;
        let (caveats, tag) = rest.split_last_chunk().ok_or(CapabilityError::Malformed)?;
        if *version != VERSION {
            return Err(CapabilityError::Malformed);
        }
        let count = encode::check(caveats)?;
        if count > CAVEATS_MAX {
            return Err(CapabilityError::TooLong);
        }
        Ok(Self { caveats: caveats.to_owned(), count, tag: *tag })
    }

    fn bytes(&self) -> usize {
        1 + self.caveats.len() + TAG_BYTES
    }
}

impl PartialEq for Capability {
    fn eq(&self, other: &Self) -> bool {
        let [own, others] = [self, other].map(|one| blake3::Hash::from_bytes(one.tag));
        own == others && self.caveats == other.caveats
    }
}

impl Eq for Capability {}

impl Drop for Capability {
    fn drop(&mut self) {
        self.tag.zeroize();
    }
}

impl fmt::Debug for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.caveats()).finish()
    }
}

impl Serialize for Capability {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.to_bytes().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Capability {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = Zeroizing::new(Vec::<u8>::deserialize(deserializer)?);
        Self::from_bytes(&bytes).map_err(D::Error::custom)
    }
}

/// Why a capability is none, or does not allow something.
///
/// ```
/// use margo::capability::{Capability, CapabilityError};
///
/// assert_eq!(Capability::from_bytes(b"nothing"), Err(CapabilityError::Malformed));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CapabilityError {
    /// The bytes are no capability, or one of a later version.
    #[error("these bytes are no capability")]
    Malformed,
    /// It has more than [`CAVEATS_MAX`] caveats, or [`BYTES_MAX`] bytes.
    #[error("the capability is too long")]
    TooLong,
    /// It was not issued with this key, or was changed afterwards.
    #[error("the capability was not issued here")]
    Forged,
    /// The time until which it was valid is over.
    #[error("the capability has expired")]
    Expired,
    /// It is for another object.
    #[error("the capability is for another object")]
    OtherObject,
    /// It is for other operations.
    #[error("the capability is for other operations")]
    OtherOperation,
    /// It is for another caller.
    #[error("the capability is for another caller")]
    OtherCaller,
}
