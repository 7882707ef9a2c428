//! RPC ids, which stand for RPCs on the wire.
//!
//! Both hashes are fixed by the C implementations: a peer computes the same number from the same
//! name.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Tells providers of one process apart. Counterpart: Margo's `provider_id`.
///
/// ```
/// # use hg as margo;
/// use margo::ProviderId;
///
/// const BLOBS: ProviderId = ProviderId::new(1);
/// assert_eq!((BLOBS.get(), ProviderId::DEFAULT.get()), (1, 65535));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ProviderId(u16);

impl ProviderId {
    /// The id of RPCs that belong to no provider: 65535, `MARGO_DEFAULT_PROVIDER_ID`.
    pub const DEFAULT: Self = Self(0xFFFF);

    /// The provider of that number.
    pub const fn new(id: u16) -> Self {
        Self(id)
    }

    /// The number.
    pub const fn get(self) -> u16 {
        self.0
    }
}

impl fmt::Display for ProviderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An RPC id as it stands in the request header. Counterpart: `hg_id_t`.
///
/// ```
/// # use hg as margo;
/// use margo::{ProviderId, RpcId};
///
/// let at_one = RpcId::margo("sum", ProviderId::new(1));
/// assert_eq!(at_one.at(ProviderId::new(2)), RpcId::margo("sum", ProviderId::new(2)));
/// assert_ne!(at_one, RpcId::mercury("sum"));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RpcId(pub u64);

impl RpcId {
    /// The id that Margo gives to a name at a provider: the Jenkins hash of the name in the upper
    /// half, the provider id in the lowest 16 bits.
    pub const fn margo(name: &str, provider: ProviderId) -> Self {
        Self((jenkins(name.as_bytes()) as u64) << 32 | provider.0 as u64)
    }

    /// The id of the same name at another provider.
    pub const fn at(self, provider: ProviderId) -> Self {
        Self(self.0 & !0xFFFF | provider.0 as u64)
    }

    /// The id that plain Mercury gives to a name (`HG_Register_name`): its djb2 hash.
    pub const fn mercury(name: &str) -> Self {
        Self(djb2(name.as_bytes()) as u64)
    }
}

impl fmt::Display for RpcId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#018x}", self.0)
    }
}

/// Bernstein's `hash * 33 + byte`.
const fn djb2(bytes: &[u8]) -> u32 {
    let mut hash: u32 = 5381;
    let mut at = 0;
    while at < bytes.len() {
        hash = hash.wrapping_mul(33).wrapping_add(bytes[at] as u32);
        at += 1;
    }
    hash
}

/// Bob Jenkins' 1996 hash as uthash defines it (`HASH_JEN`): initial value 0xfeedbeef, 12 bytes a
/// round, the length added before the last, partial round.
const fn jenkins(bytes: &[u8]) -> u32 {
    let mut i: u32 = 0x9e37_79b9;
    let mut j: u32 = 0x9e37_79b9;
    let mut hash: u32 = 0xfeed_beef;
    let mut at = 0;
    while bytes.len() - at >= 12 {
        i = i.wrapping_add(word(bytes, at));
        j = j.wrapping_add(word(bytes, at + 4));
        hash = hash.wrapping_add(word(bytes, at + 8));
        (i, j, hash) = mix(i, j, hash);
        at += 12;
    }
    hash = hash.wrapping_add(bytes.len() as u32);
    let left = bytes.len() - at;
    let mut n = 0;
    while n < left {
        let byte = bytes[at + n] as u32;
        match n {
            0..=3 => i = i.wrapping_add(byte << (8 * n)),
            4..=7 => j = j.wrapping_add(byte << (8 * (n - 4))),
            // The lowest byte of this word holds the length.
            _ => hash = hash.wrapping_add(byte << (8 * (n - 7))),
        }
        n += 1;
    }
    mix(i, j, hash).2
}

const fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

const fn mix(mut a: u32, mut b: u32, mut c: u32) -> (u32, u32, u32) {
    a = a.wrapping_sub(b).wrapping_sub(c) ^ (c >> 13);
    b = b.wrapping_sub(c).wrapping_sub(a) ^ (a << 8);
    c = c.wrapping_sub(a).wrapping_sub(b) ^ (b >> 13);
    a = a.wrapping_sub(b).wrapping_sub(c) ^ (c >> 12);
    b = b.wrapping_sub(c).wrapping_sub(a) ^ (a << 16);
    c = c.wrapping_sub(a).wrapping_sub(b) ^ (b >> 5);
    a = a.wrapping_sub(b).wrapping_sub(c) ^ (c >> 3);
    b = b.wrapping_sub(c).wrapping_sub(a) ^ (a << 10);
    c = c.wrapping_sub(a).wrapping_sub(b) ^ (b >> 15);
    (a, b, c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_c() {
        for (name, expected) in [
            ("open", 0x3b8a_db47_u64),
            ("sum", 0x1c88_57ad),
            ("hello", 0xe0be_16ba),
            ("my_rpc_name_longer_than_12", 0x5aa7_7cd9),
        ] {
            assert_eq!(RpcId::margo(name, ProviderId::new(0)).0 >> 32, expected, "{name}");
        }
        assert_eq!(RpcId::margo("sum", ProviderId::DEFAULT).0, 0x1c88_57ad_0000_ffff);
        let seven = RpcId::margo("sum", ProviderId::DEFAULT).at(ProviderId::new(7));
        assert_eq!(seven, RpcId::margo("sum", ProviderId::new(7)));
        for (name, expected) in
            [("open", 0x7c9b_d777), ("sum", 0x0b88_ab9a), ("hello", 0x0f92_3099)]
        {
            assert_eq!(RpcId::mercury(name).0, expected, "{name}");
        }
    }
}
