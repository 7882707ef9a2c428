//! On whose behalf a request is made, as its origin says.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use na::Principal;

/// Most bytes of a name that is told. With the other fields it has to fit into an extension.
const NAME_BYTES_MAX: usize = 128;

const UNKNOWN: u8 = 0;
const USER: u8 = 1;
const HOST: u8 = 2;
const MEMBER: u8 = 3;
const NAME: u8 = 4;

/// The caller on whose behalf a call is made, as who makes it says. Nobody has signed that: it is
/// worth as much as the word of the [principal](crate::RawRequest::principal) behind the call.
///
/// ```
/// # use hg as margo;
/// use margo::OnBehalfOf;
/// # use na::Principal;
///
/// let caller = OnBehalfOf::from(Principal::User(1000));
/// assert_eq!((caller.clone(), caller.to_string()), (OnBehalfOf::User(1000), "user 1000".into()));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnBehalfOf {
    /// A user of the host of who says so.
    User(u32),
    /// A host.
    Host(IpAddr),
    /// A member of the cluster, by its host.
    Member(IpAddr),
    /// A caller that has proven this name.
    Name(Box<str>),
    /// Somebody of whom nothing is known, or whose name has more than 128 bytes.
    Unknown,
}

impl From<Principal> for OnBehalfOf {
    fn from(principal: Principal) -> Self {
        match principal {
            Principal::User(id) => Self::User(id),
            Principal::Host(host) => Self::Host(host),
            Principal::Member(host) => Self::Member(host),
            Principal::Name(name) if name.as_str().len() <= NAME_BYTES_MAX => {
                Self::Name(name.as_str().into())
            }
            _ => Self::Unknown,
        }
    }
}

impl From<&OnBehalfOf> for OnBehalfOf {
    fn from(caller: &OnBehalfOf) -> Self {
        caller.clone()
    }
}

impl OnBehalfOf {
    /// Bytes of the field.
    pub(crate) fn bytes(&self) -> usize {
        1 + match self {
            Self::User(_) => 4,
            Self::Host(IpAddr::V4(_)) | Self::Member(IpAddr::V4(_)) => 4,
            Self::Host(IpAddr::V6(_)) | Self::Member(IpAddr::V6(_)) => 16,
            Self::Name(name) => cut(name).len(),
            Self::Unknown => 0,
        }
    }

    pub(crate) fn write(&self, block: &mut Vec<u8>) {
        let mut host = |kind, host: &IpAddr| {
            block.push(kind);
            match host {
                IpAddr::V4(host) => block.extend(host.octets()),
                IpAddr::V6(host) => block.extend(host.octets()),
            }
        };
        match self {
            Self::Host(address) => host(HOST, address),
            Self::Member(address) => host(MEMBER, address),
            Self::User(id) => {
                block.push(USER);
                block.extend(id.to_le_bytes());
            }
            Self::Name(name) => {
                block.push(NAME);
                block.extend(cut(name).as_bytes());
            }
            Self::Unknown => block.push(UNKNOWN),
        }
    }

    /// Reads the field. One of a kind of a later version is somebody unknown. `None`: it is none.
    pub(crate) fn read(field: &[u8]) -> Option<Self> {
        let (kind, rest) = field.split_first()?;
        Some(match *kind {
            USER => Self::User(u32::from_le_bytes(rest.try_into().ok()?)),
            HOST => Self::Host(host(rest)?),
            MEMBER => Self::Member(host(rest)?),
            NAME if rest.len() <= NAME_BYTES_MAX && !rest.is_empty() => {
                Self::Name(std::str::from_utf8(rest).ok()?.into())
            }
            NAME => return None,
            _ => Self::Unknown,
        })
    }
}

/// A name that somebody has made by hand, as far as there is room for it.
fn cut(name: &str) -> &str {
    let mut end = name.len().min(NAME_BYTES_MAX);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    &name[..end]
}

fn host(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = bytes.try_into().ok().map(|octets: [u8; 4]| Ipv4Addr::from(octets).into());
    v4.or_else(|| bytes.try_into().ok().map(|octets: [u8; 16]| Ipv6Addr::from(octets).into()))
}

impl fmt::Display for OnBehalfOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(id) => Principal::User(*id).fmt(f),
            Self::Host(host) => Principal::Host(*host).fmt(f),
            Self::Member(host) => Principal::Member(*host).fmt(f),
            // A peer may have chosen it.
            Self::Name(name) => write!(f, "name {}", na::plain::text(name)),
            Self::Unknown => Principal::Unknown.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nothing_else() {
        let (v4, v6): (IpAddr, IpAddr) = ([10, 0, 0, 7].into(), [7; 16].into());
        for caller in [
            OnBehalfOf::User(1000),
            OnBehalfOf::Host(v4),
            OnBehalfOf::Host(v6),
            OnBehalfOf::Member(v4),
            OnBehalfOf::Member(v6),
            OnBehalfOf::Name("a.example".into()),
            OnBehalfOf::Name("n".repeat(NAME_BYTES_MAX).into()),
            OnBehalfOf::Unknown,
        ] {
            let mut field = Vec::new();
            caller.write(&mut field);
            assert_eq!(field.len(), caller.bytes());
            assert_eq!(OnBehalfOf::read(&field), Some(caller));
        }
        let long = [&[NAME][..], &[b'n'; NAME_BYTES_MAX + 1]].concat();
        for field in [&[][..], &[USER, 1], &[HOST, 1, 2, 3], &[NAME], &[NAME, 0xFF], &long] {
            assert_eq!(OnBehalfOf::read(field), None, "{field:?}");
        }
        assert_eq!(OnBehalfOf::read(&[99, 1]), Some(OnBehalfOf::Unknown), "of a later version");
    }

    #[test]
    fn a_name_that_is_too_long_is_not_told() {
        let long = na::PeerName::new(&"n".repeat(NAME_BYTES_MAX + 1));
        assert_eq!(OnBehalfOf::from(Principal::Name(long)), OnBehalfOf::Unknown);
        let by_hand = OnBehalfOf::Name("ä".repeat(NAME_BYTES_MAX).into());
        let mut field = Vec::new();
        by_hand.write(&mut field);
        assert_eq!(field.len(), 1 + NAME_BYTES_MAX);
    }
}
