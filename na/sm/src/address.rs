//! Names of endpoints: `na+sm://<name>`, found through an abstract Unix socket.
//!
//! The socket's name is `\0margo-sm/<effective uid>/<name>`. Nothing appears in the file system,
//! and the kernel frees the name when its owner ends, however it ends. A name is given at open or
//! made as `<pid>-<counter>-<12 hex digits>`. The digits are random: processes of several pid
//! namespaces in one network namespace (containers of one pod) have the same numbers, and anybody
//! could take the next names in advance.
//!
//! Names belong to a user. `na+sm://<uid>@<name>` says whose; without a user id it is a name of the
//! user who reads it. An endpoint that lets other users in (`OpenOptions::peer_users`) puts the id
//! into its own address. Any user can take any socket name, so the connecting side compares the
//! user id in the name with the listener's, as the kernel reports it.

use rustix::net::SocketAddrUnix;
use rustix::process::{geteuid, getpid};

use na_core::{Error, Uri};
use prim::sync::atomic::{AtomicU32, Ordering};

/// Longest name, bytes; an abstract socket name has room for 107 with the prefix.
pub(super) const NAME_BYTES_MAX: usize = 64;

/// A fresh name for an endpoint of this process.
pub(super) fn fresh_name() -> Result<String, Error> {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let counter = NEXT.fetch_add(1, Ordering::Relaxed);
    let mut bytes = [0; 6];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|errno| Error::io("cannot get random bytes for a name", errno))?;
    let random = bytes.iter().fold(0, |all, byte| all << 8 | u64::from(*byte));
    Ok(format!("{}-{counter}-{random:012x}", getpid().as_raw_nonzero()))
}

/// A name and the user whose it is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Name {
    pub(super) uid: u32,
    pub(super) name: String,
}

impl Name {
    /// The name in the address of a peer or of an endpoint to open (empty: choose one); `uid` is
    /// the user if it says none.
    pub(super) fn of(uri: &Uri<'_>, uid: u32) -> Result<Self, Error> {
        let bad = |reason: String| Error::BadUri { uri: uri.text.to_owned(), reason };
        if uri.protocol != "sm" || uri.class.is_some_and(|class| class != "na") {
            return Err(bad("it is not an address of transport sm, `na+sm://name`".into()));
        }
        let (uid, name) = match uri.rest.split_once('@') {
            None => (uid, uri.rest),
            Some((user, name)) => {
                let digits = user.bytes().all(|byte| byte.is_ascii_digit());
                let uid = user.parse().ok().filter(|_| digits && !name.is_empty());
                let uid = uid.ok_or_else(|| {
                    bad(format!("`{user}@{name}` is no name of a user: expected `<uid>@<name>`"))
                })?;
                (uid, name)
            }
        };
        if !name.is_empty() && !is_name(name) {
            return Err(bad(format!(
                "`{name}` is not a name: expected up to {NAME_BYTES_MAX} letters, digits, `.`, \
                 `_` or `-`, and no `/`"
            )));
        }
        Ok(Self { uid, name: name.to_owned() })
    }

    /// The name that a process of user `uid` says it has, if it is one that it may have.
    pub(super) fn said_by(uid: u32, text: &str) -> Option<Self> {
        let name = Uri::parse(text).and_then(|uri| Self::of(&uri, uid)).ok()?;
        (!name.name.is_empty() && name.uid == uid).then_some(name)
    }

    /// The address: as short as this user can read it.
    pub(super) fn uri(&self) -> String {
        if self.uid == own_uid() { format!("na+sm://{}", self.name) } else { self.full_uri() }
    }

    /// The address as any user can read it.
    pub(super) fn full_uri(&self) -> String {
        format!("na+sm://{}@{}", self.uid, self.name)
    }

    /// The reason why nobody is reached under this name. It tells where the name was looked up,
    /// since a process in another container may well have it.
    pub(super) fn nobody_listens(&self) -> String {
        let namespace = std::fs::read_link("/proc/self/ns/net").unwrap_or_default();
        let (uid, namespace) = (self.uid, namespace.display());
        format!(
            "nobody listens there: user {uid} has no endpoint of this name in the network \
             namespace of this process ({namespace}). Names of shared memory exist per network \
             namespace, so processes in different containers have to share one"
        )
    }

    /// Where that endpoint listens.
    pub(super) fn socket(&self) -> Result<SocketAddrUnix, Error> {
        let text = format!("margo-sm/{}/{}", self.uid, self.name);
        SocketAddrUnix::new_abstract_name(text.as_bytes())
            .map_err(|errno| Error::io(format!("cannot form the socket name `@{text}`"), errno))
    }
}

/// The effective user.
pub(super) fn own_uid() -> u32 {
    geteuid().as_raw()
}

fn is_name(text: &str) -> bool {
    text.len() <= NAME_BYTES_MAX
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_names_and_refuses_paths() {
        let name = |text| Name::of(&Uri::parse(text).unwrap(), 7).map(|name| name.name);
        assert_eq!(name("na+sm://").unwrap(), "");
        assert_eq!(name("sm").unwrap(), "");
        assert_eq!(name("sm://my.name_1-x").unwrap(), "my.name_1-x");
        let long = format!("sm://{}", "x".repeat(NAME_BYTES_MAX + 1));
        let foreign = Name::of(&Uri::parse("na+sm://4294967295@x").unwrap(), 7).unwrap();
        assert_eq!((foreign.uid, foreign.name.as_str()), (u32::MAX, "x"));
        assert_eq!(foreign.uri(), "na+sm://4294967295@x");
        assert_eq!(Name::of(&Uri::parse("sm://x").unwrap(), 7).unwrap().uid, 7);
        for text in [
            "sm://a/b",
            "sm://a b",
            "sm://ä",
            &long,
            "tcp://x",
            "ofi+sm://x",
            "sm://1@",
            "sm://@x",
            "sm://+1@x",
            "sm://4294967296@x",
            "sm://a@x",
            "sm://1@2@x",
        ] {
            assert!(matches!(name(text), Err(Error::BadUri { .. })), "{text}");
        }
    }

    #[test]
    fn nobody_has_the_name_of_another_user() {
        let said = |text| Name::said_by(7, text).map(|name| name.name);
        assert_eq!(said("na+sm://x").as_deref(), Some("x"));
        assert_eq!(said("na+sm://7@x").as_deref(), Some("x"));
        for text in ["na+sm://8@x", "na+sm://", "na+sm://a/b", "", "x"] {
            assert_eq!(said(text), None, "{text}");
        }
    }

    #[test]
    fn makes_distinct_names() {
        let name = fresh_name().unwrap();
        assert!(name.starts_with(&format!("{}-", std::process::id())), "{name}");
        assert!(is_name(&name), "{name}");
        assert_ne!(name, fresh_name().unwrap());
        // Another process with this number and count has other digits.
        let digits = || fresh_name().unwrap().rsplit('-').next().map(str::to_owned);
        assert_eq!(digits().map(|digits| digits.len()), Some(12));
        assert_ne!(digits(), digits());
    }
}
