//! The users whose processes an endpoint talks with.

/// The users whose processes an endpoint talks with, where the operating system tells who a peer
/// is.
///
/// ```
/// # use na_core as na;
/// use na::{OpenOptions, PeerUsers};
///
/// let mut options = OpenOptions::listening(true);
/// options.peer_users = PeerUsers::And(vec![1000]);
/// assert!(options.peer_users.allows(1000, 7) && !options.peer_users.allows(1001, 7));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum PeerUsers {
    /// The own (effective) user.
    #[default]
    Own,
    /// The own user and those with these user ids.
    And(Vec<u32>),
    /// All users of the host.
    All,
}

impl PeerUsers {
    /// Returns whether processes of user `uid` are let in; `own` is ours.
    pub fn allows(&self, uid: u32, own: u32) -> bool {
        uid == own
            || match self {
                Self::Own => false,
                Self::And(others) => others.contains(&uid),
                Self::All => true,
            }
    }
}
