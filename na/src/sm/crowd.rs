//! How many connections have come to an endpoint, and whether there is room for another.
//!
//! Those that we made ourselves do not count. The poll alone touches this.

use std::collections::HashMap;
use std::fmt;

use crate::SmOptions;

/// The connections that were accepted.
#[derive(Debug, Default)]
pub(super) struct Crowd {
    all: usize,
    /// Users with at least one.
    by_user: HashMap<u32, usize>,
    /// Connections refused, for whatever reason, since the endpoint was opened.
    refused: u64,
}

impl Crowd {
    /// Counts a connection of user `uid` in.
    ///
    /// # Errors
    ///
    /// There are as many as the options allow: what to tell the dialer.
    pub(super) fn admit(&mut self, uid: u32, options: &SmOptions) -> Result<(), String> {
        let of_user = self.by_user.get(&uid).copied().unwrap_or(0);
        let (all_max, user_max) = (options.connections_max, options.connections_per_user_max);
        let full = if self.all >= all_max {
            Some(format!("({all_max}); raise `sm.connections_max`"))
        } else if of_user >= user_max {
            Some(format!("of user {uid} ({user_max}); raise `sm.connections_per_user_max`"))
        } else {
            None
        };
        if let Some(full) = full {
            return Err(format!("too many connections {full} of the endpoint"));
        }
        self.all += 1;
        self.by_user.insert(uid, of_user + 1);
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.all
    }

    /// A connection of user `uid` that was counted in has ended.
    pub(super) fn leave(&mut self, uid: u32) {
        self.all = self.all.saturating_sub(1);
        if let Some(count) = self.by_user.get_mut(&uid) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.by_user.remove(&uid);
            }
        }
    }

    /// Counts a connection that is refused, and logs why if that is worth a line: the first, and
    /// whenever there were twice as many. Any user can dial, and one that tries for ever must not
    /// fill the log.
    pub(super) fn refuse(&mut self, reason: impl fmt::Display) {
        if let Some(count) = self.refused_to_log() {
            tracing::warn!("connections refused so far: {count}; {reason}");
        }
    }

    fn refused_to_log(&mut self) -> Option<u64> {
        self.refused += 1;
        self.refused.is_power_of_two().then_some(self.refused)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::Endpoint;
    use crate::sm::socket;
    use crate::sync::Arc;
    use crate::sync::atomic::{AtomicUsize, Ordering};

    fn options(all: usize, per_user: usize) -> SmOptions {
        let mut options = SmOptions::default();
        (options.connections_max, options.connections_per_user_max) = (all, per_user);
        options
    }

    #[test]
    fn a_user_cannot_take_the_room_of_others() {
        let options = options(3, 2);
        let mut crowd = Crowd::default();
        assert_eq!(crowd.admit(1, &options), Ok(()));
        assert_eq!(crowd.admit(1, &options), Ok(()));
        let told = crowd.admit(1, &options).unwrap_err();
        assert!(told.contains("of user 1 (2)") && told.contains("per_user_max"), "{told}");
        assert_eq!(crowd.admit(2, &options), Ok(()));
        let told = crowd.admit(2, &options).unwrap_err();
        assert!(
            told.contains("connections (3)") && told.contains("`sm.connections_max`"),
            "{told}"
        );
        crowd.leave(1);
        assert_eq!(crowd.admit(2, &options), Ok(()));
        crowd.leave(1);
        crowd.leave(2);
        crowd.leave(2);
        assert!(crowd.by_user.is_empty(), "users that have left are forgotten");
        assert_eq!(crowd.all, 0);
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
        let options = crate::OpenOptions::listening(true);
        let uri = crate::Uri::parse("na+sm://").unwrap();
        let endpoint = crate::sm::open::open(&uri, &options).unwrap();
        let warnings = Arc::new(AtomicUsize::new(0));
        tracing::subscriber::with_default(Warnings(warnings.clone()), || {
            for _ in 0..100 {
                let socket = socket::new().unwrap();
                rustix::net::connect(&socket, &endpoint.name.socket().unwrap()).unwrap();
                socket::send_packet(&socket, b"garbage", &[]).unwrap();
                let deadline = Instant::now() + crate::conformance::PATIENCE;
                while socket::recv_packet(&socket).is_err() {
                    assert!(Instant::now() < deadline, "it is not told");
                    endpoint.poll(1, &mut |_| ()).unwrap();
                }
            }
        });
        assert_eq!(warnings.load(Ordering::Relaxed), 7);
    }

    #[test]
    fn refusals_are_logged_ever_more_rarely() {
        let mut crowd = Crowd::default();
        let logged = (0..100).filter_map(|_| crowd.refused_to_log());
        assert_eq!(logged.collect::<Vec<_>>(), [1, 2, 4, 8, 16, 32, 64]);
    }
}
