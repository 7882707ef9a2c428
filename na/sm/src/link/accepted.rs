//! Connections that the endpoints of a group have accepted, and whether there is room for another.
//!
//! Connections that we made ourselves do not count.
//!
//! # Memory
//!
//! A peer chooses the size of its rings, and the part of them that is used is memory of both sides.
//! So connections are also bounded by the bytes of their segments. All of them together, and those
//! of one user, may have as many bytes as the connections that the options allow would have with
//! rings of our own size.

use std::collections::HashMap;

use na_core::SmOptions;

/// Segments of one user may have so many bytes in any case, and those of all twice as many: a few
/// peers with large rings, where the options allow few connections.
const USER_BYTES_MIN: u64 = 256 << 20;

/// The connections that were accepted.
#[derive(Debug, Default)]
pub(crate) struct AcceptedPeers {
    options: SmOptions,
    /// Bytes of the segments of one user, of all.
    bytes_max: (u64, u64),
    all: Share,
    /// Users with at least one.
    by_user: HashMap<u32, Share>,
    /// Connections refused, for whatever reason, since the endpoint was opened.
    refused: u64,
}

/// The connections and bytes that one user has, or all together.
#[derive(Debug, Clone, Copy, Default)]
struct Share {
    connections: usize,
    bytes: u64,
}

/// A connection that was counted in, to be counted out.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub(crate) struct AcceptedPeer {
    uid: u32,
    bytes: u64,
}

impl AcceptedPeers {
    /// For an endpoint that itself makes segments of `own_bytes`.
    pub(crate) fn new(options: &SmOptions, own_bytes: usize) -> Self {
        let of = |connections: usize, min| (connections as u64 * own_bytes as u64).max(min);
        let of_user = of(options.connections_per_user_max, USER_BYTES_MIN);
        let of_all = of(options.connections_max, 2 * USER_BYTES_MIN);
        Self {
            options: options.clone(),
            bytes_max: (of_user, of_all),
            all: Share::default(),
            by_user: HashMap::new(),
            refused: 0,
        }
    }

    /// Counts a connection of user `uid` in, with a segment of `bytes`.
    ///
    /// # Errors
    ///
    /// There are as many as the options allow, or too much memory: a text for the dialer.
    pub(crate) fn admit(&mut self, uid: u32, bytes: usize) -> Result<AcceptedPeer, String> {
        let (bytes, (user_bytes, all_bytes)) = (bytes as u64, self.bytes_max);
        let of_user = self.by_user.get(&uid).copied().unwrap_or_default();
        let (all_max, user_max) =
            (self.options.connections_max, self.options.connections_per_user_max);
        let full = if self.all.connections >= all_max {
            format!("connections ({all_max}); raise `sm.connections_max`")
        } else if of_user.connections >= user_max {
            format!("connections of user {uid} ({user_max}); raise `sm.connections_per_user_max`")
        } else if self.all.bytes + bytes > all_bytes {
            format!(
                "bytes in the rings of all peers ({all_bytes}); raise `sm.connections_max` or the \
                 endpoint's message size"
            )
        } else if of_user.bytes + bytes > user_bytes {
            format!(
                "bytes in the rings of user {uid} ({user_bytes}); raise \
                 `sm.connections_per_user_max` or the endpoint's message size"
            )
        } else {
            self.all.add(bytes);
            self.by_user.entry(uid).or_default().add(bytes);
            return Ok(AcceptedPeer { uid, bytes });
        };
        Err(format!("too many {full} of the endpoint"))
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.all.connections
    }

    /// A connection that was counted in has ended.
    pub(crate) fn leave(&mut self, guest: &AcceptedPeer) {
        self.all.remove(guest.bytes);
        if let Some(share) = self.by_user.get_mut(&guest.uid) {
            share.remove(guest.bytes);
            if share.connections == 0 {
                self.by_user.remove(&guest.uid);
            }
        }
    }

    /// Counts a connection that is refused. Returns how many there were, if that is worth a line
    /// in the log: at the first, and whenever there were twice as many. Any user can dial, and one
    /// that tries for ever must not fill the log.
    pub(crate) fn refused_to_log(&mut self) -> Option<u64> {
        self.refused += 1;
        self.refused.is_power_of_two().then_some(self.refused)
    }
}

impl Share {
    fn add(&mut self, bytes: u64) {
        self.connections += 1;
        self.bytes += bytes;
    }

    fn remove(&mut self, bytes: u64) {
        self.connections = self.connections.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

/// A process that has connected and not said hello, as [`place_for`] sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Silent {
    pub(crate) uid: u32,
    /// Grows with each that comes.
    pub(crate) token: u64,
    /// It had time enough to say hello, if others need its place.
    pub(crate) is_old: bool,
}

/// A place among those that have not said hello, `max` at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Free,
    /// The place of the process at this index, which has to go.
    Of(usize),
    /// None: the newcomer has to go, because there are so many.
    None(usize),
}

/// A place for a process of user `uid` that has connected.
///
/// No user has more than half of all places, so that one who renews silent connections for ever
/// keeps nobody else out. A user who has that half gives up the oldest of them, if it had time
/// enough. Before that the newcomer goes: the others were first, and are about to speak if they are
/// honest. When all places are taken, the user with most of them gives one up.
pub(crate) fn place_for(uid: u32, silent: &[Silent], max: usize) -> Place {
    let oldest = |test: &dyn Fn(&Silent) -> bool| {
        let found = silent.iter().enumerate().filter(|(_, one)| test(one));
        found.min_by_key(|(_, one)| one.token).map(|(at, _)| at)
    };
    let count = |uid| silent.iter().filter(|one| one.uid == uid).count();
    let own = count(uid);
    if own >= max / 2 {
        let old = oldest(&|one| one.uid == uid && one.is_old);
        return old.map_or(Place::None(own), Place::Of);
    }
    if silent.len() < max {
        return Place::Free;
    }
    let mut counts = HashMap::<u32, usize>::new();
    silent.iter().for_each(|one| *counts.entry(one.uid).or_default() += 1);
    let most = counts.into_iter().max_by_key(|(uid, count)| (*count, *uid));
    let leaves = match most {
        Some((most, count)) if count > own + 1 => oldest(&|one| one.uid == most),
        _ => oldest(&|one| one.is_old),
    };
    leaves.map_or(Place::None(silent.len()), Place::Of)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::link::handshake::{Kind, Packet};
    use crate::link::socket;
    use na_core::Endpoint;
    use prim::sync::Arc;
    use prim::sync::atomic::{AtomicUsize, Ordering};

    fn crowd(all: usize, per_user: usize, own_bytes: usize) -> AcceptedPeers {
        let mut options = SmOptions::default();
        (options.connections_max, options.connections_per_user_max) = (all, per_user);
        AcceptedPeers::new(&options, own_bytes)
    }

    #[test]
    fn a_user_cannot_take_the_room_of_others() {
        let mut crowd = crowd(3, 2, 1);
        let one = crowd.admit(1, 1).unwrap();
        let other = crowd.admit(1, 1).unwrap();
        let told = crowd.admit(1, 1).unwrap_err();
        assert!(told.contains("of user 1 (2)") && told.contains("per_user_max"), "{told}");
        let last = crowd.admit(2, 1).unwrap();
        let told = crowd.admit(2, 1).unwrap_err();
        assert!(
            told.contains("connections (3)") && told.contains("`sm.connections_max`"),
            "{told}"
        );
        crowd.leave(&one);
        let again = crowd.admit(2, 1).unwrap();
        [other, last, again].into_iter().for_each(|guest| crowd.leave(&guest));
        assert!(crowd.by_user.is_empty(), "users that have left are forgotten");
        assert_eq!((crowd.all.connections, crowd.all.bytes), (0, 0));
    }

    #[test]
    fn the_memory_of_all_and_of_each_user_is_bounded() {
        const OWN: usize = 1 << 20;
        let mut crowd = crowd(3000, 1000, OWN);
        let largest = 16 * OWN;
        let guests: Vec<_> = (0..).map_while(|_| crowd.admit(1, largest).ok()).collect();
        assert_eq!(guests.len(), 1000 / 16, "as much as 1,000 connections of our size");
        let told = crowd.admit(1, largest).unwrap_err();
        assert!(told.contains("rings of user 1 (1048576000)"), "{told}");
        for uid in [2, 3] {
            while let Ok(guest) = crowd.admit(uid, largest) {
                std::mem::drop(guest);
            }
        }
        let told = (4..).find_map(|uid| crowd.admit(uid, largest).err()).unwrap();
        assert!(told.contains("rings of all peers"), "{told}");
        guests.into_iter().for_each(|guest| crowd.leave(&guest));
        assert!(crowd.admit(1, largest).is_ok(), "room that was given back");
    }

    #[test]
    fn few_connections_may_have_large_rings() {
        let mut crowd = crowd(2, 1, 1 << 17);
        assert!(crowd.admit(1, 16 << 20).is_ok() && crowd.admit(2, 16 << 20).is_ok());
    }

    fn silent(uid: u32, tokens: std::ops::Range<u64>, is_old: bool) -> Vec<Silent> {
        tokens.map(|token| Silent { uid, token, is_old }).collect()
    }

    #[test]
    fn a_silent_crowd_of_one_user_leaves_half_of_the_places_to_others() {
        let mut crowd = silent(1, 0..4, false);
        assert_eq!(place_for(1, &crowd[..3], 8), Place::Free);
        assert_eq!(place_for(1, &crowd, 8), Place::None(4), "its own are about to speak");
        assert_eq!(place_for(2, &crowd, 8), Place::Free);
        // In whatever order they lie there.
        (crowd[3].is_old, crowd[2].is_old) = (true, true);
        crowd.swap(2, 3);
        assert_eq!(place_for(1, &crowd, 8), Place::Of(3), "its own oldest");
        crowd.extend(silent(2, 4..7, true));
        assert_eq!(place_for(2, &crowd, 8), Place::Free);
    }

    #[test]
    fn when_all_places_are_taken_who_has_most_gives_one_up() {
        let mut crowd = silent(1, 0..3, false);
        crowd.extend(silent(2, 3..7, false));
        crowd.extend(silent(3, 7..8, true));
        assert_eq!(place_for(4, &crowd, 8), Place::Of(3), "the oldest of user 2");
        assert_eq!(place_for(3, &crowd, 8), Place::Of(3));
        let each: Vec<_> = (0..8).flat_map(|uid| silent(uid, 0..1, false)).collect();
        assert_eq!(place_for(9, &each, 8), Place::None(8));
        let mut old = each.clone();
        old[5].is_old = true;
        assert_eq!(place_for(9, &old, 8), Place::Of(5));
    }

    /// Counts warnings.
    struct Warnings(Arc<AtomicUsize>);

    impl tracing::Subscriber for Warnings {
        fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
            *metadata.level() <= tracing::Level::WARN
        }

        fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::Id {
            tracing::Id::from_u64(1)
        }

        fn record(&self, _: &tracing::Id, _: &tracing::span::Record<'_>) {}

        fn record_follows_from(&self, _: &tracing::Id, _: &tracing::Id) {}

        fn event(&self, _: &tracing::Event<'_>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }

        fn enter(&self, _: &tracing::Id) {}

        fn exit(&self, _: &tracing::Id) {}
    }

    #[test]
    fn who_sends_garbage_does_not_fill_the_log() {
        let options = na_core::OpenOptions::listening(true);
        let uri = na_core::Uri::parse("na+sm://").unwrap();
        let endpoint = crate::api::open::open(&uri, &options).unwrap();
        let warnings = Arc::new(AtomicUsize::new(0));
        tracing::subscriber::with_default(Warnings(warnings.clone()), || {
            for _ in 0..100 {
                let socket = socket::new(&Arc::default()).unwrap();
                rustix::net::connect(&socket, &endpoint.name.socket().unwrap()).unwrap();
                socket::send_packet(&socket, b"garbage", &[]).unwrap();
                let deadline = Instant::now() + na_core::conformance::PATIENCE;
                let is_told = || {
                    let said = socket.recv_packet().ok();
                    let said = said.and_then(|packet| Packet::decode(&packet.bytes).ok());
                    said.is_some_and(|packet| packet.kind == Kind::Refused)
                };
                while !is_told() {
                    assert!(Instant::now() < deadline, "it is not told");
                    endpoint.poll(1, &mut |_| ()).unwrap();
                }
            }
        });
        assert_eq!(warnings.load(Ordering::Relaxed), 7);
    }

    #[test]
    fn refusals_are_logged_ever_more_rarely() {
        let mut crowd = crowd(1, 1, 1);
        let logged = (0..100).filter_map(|_| crowd.refused_to_log());
        assert_eq!(logged.collect::<Vec<_>>(), [1, 2, 4, 8, 16, 32, 64]);
    }
}
