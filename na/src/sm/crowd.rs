//! How many connections have come to an endpoint, and whether there is room for another.
//!
//! Those that we made ourselves do not count. The poll alone touches this.

use std::collections::HashMap;

use crate::SmOptions;

/// The connections that were accepted.
#[derive(Debug, Default)]
pub(super) struct Crowd {
    all: usize,
    /// Users with at least one.
    by_user: HashMap<u32, usize>,
    /// Connections refused for want of room, since the endpoint was opened.
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
            self.refused += 1;
            return Err(format!("too many connections {full} of the endpoint"));
        }
        self.all += 1;
        self.by_user.insert(uid, of_user + 1);
        Ok(())
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

    /// How many were refused, if that is worth a line in the log: the first, and whenever there
    /// were twice as many. A dialer that tries for ever must not fill the log.
    pub(super) fn refused_to_log(&self) -> Option<u64> {
        self.refused.is_power_of_two().then_some(self.refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn refusals_are_logged_ever_more_rarely() {
        let options = options(1, 1);
        let mut crowd = Crowd::default();
        crowd.admit(1, &options).unwrap();
        assert_eq!(crowd.refused_to_log(), None);
        let logged = (0..100).filter_map(|_| {
            crowd.admit(1, &options).unwrap_err();
            crowd.refused_to_log()
        });
        assert_eq!(logged.collect::<Vec<_>>(), [1, 2, 4, 8, 16, 32, 64]);
    }
}
