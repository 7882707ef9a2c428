//! Calls of all callers, what they were told, and faults in it: what no store could have told.
//!
//! All calls on a key have to be explained by one order of its changes: that of their versions. So
//! a call that began after another one had ended has seen no older version, a change has a newer
//! one, and nobody has changed a key between the version that a change asked for and its own. A
//! change without an answer may have been made, or not; one that was refused was not.
//!
//! Every value is written once.

use std::collections::BTreeMap;

/// A moment: a number that grows.
pub(crate) type Moment = u64;

/// An answer about a key.
#[derive(Debug, Clone, Copy)]
struct Told {
    begun: Moment,
    ended: Moment,
    /// 0: the key was not there.
    version: u64,
    /// If it was told.
    value: Option<u64>,
    /// The caller wrote the value itself; it asked for this version before, if for any.
    wrote: bool,
    after: Option<u64>,
}

#[derive(Debug, Default)]
pub(crate) struct History {
    now: Moment,
    told: BTreeMap<String, Vec<Told>>,
    /// When the writing of a value began, and whether it was certainly not written.
    written: BTreeMap<u64, (Moment, bool)>,
    pub(crate) acknowledged: usize,
    pub(crate) unanswered: usize,
}

impl History {
    /// Begins a call.
    pub(crate) fn now(&mut self) -> Moment {
        self.now += 1;
        self.now
    }

    /// A value that nobody else writes, for a call that begins now.
    pub(crate) fn value(&mut self) -> (Moment, u64) {
        let begun = self.now();
        self.written.insert(begun, (begun, false));
        (begun, begun)
    }

    fn told(&mut self, key: &str, begun: Moment, version: u64, value: Option<u64>) -> &mut Told {
        let told = Told { begun, ended: self.now(), version, value, wrote: false, after: None };
        let all = self.told.entry(key.to_owned()).or_default();
        all.push(told);
        all.last_mut().unwrap()
    }

    /// A value was read.
    pub(crate) fn read(&mut self, key: &str, begun: Moment, version: u64, value: u64) {
        self.told(key, begun, version, Some(value));
    }

    /// A key was not there.
    pub(crate) fn absent(&mut self, key: &str, begun: Moment) {
        self.told(key, begun, 0, None);
    }

    /// A change was acknowledged; it had asked for the version `after`.
    pub(crate) fn wrote(&mut self, key: &str, value: u64, version: u64, after: Option<u64>) {
        let (begun, _) = self.written[&value];
        let told = self.told(key, begun, version, Some(value));
        (told.wrote, told.after) = (true, after);
        self.acknowledged += 1;
    }

    /// A change was not made, since the key has another version.
    pub(crate) fn conflict(&mut self, key: &str, value: u64, version: u64) {
        let (begun, _) = self.written[&value];
        self.told(key, begun, version, None);
        self.refused(value);
    }

    /// A change was not made.
    pub(crate) fn refused(&mut self, value: u64) {
        self.written.get_mut(&value).unwrap().1 = true;
    }

    /// A change may have been made.
    pub(crate) fn unanswered(&mut self) {
        self.unanswered += 1;
    }

    /// All that no store could have told.
    pub(crate) fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let mut versions_of = BTreeMap::new();
        for (key, all) in &self.told {
            let mut add =
                |fault: &str, told: &Told| faults.push(format!("{key}: {fault}: {told:?}"));
            let mut values = BTreeMap::new();
            for told in all {
                let Some(value) = told.value else { continue };
                match self.written.get(&value) {
                    Some((begun, false)) if *begun < told.ended => {}
                    _ => add("a value that nobody had written", told),
                }
                if *values.entry(told.version).or_insert(value) != value {
                    add("two values of one version", told);
                }
                if *versions_of.entry(value).or_insert((key, told.version)) != (key, told.version) {
                    add("one value at two places", told);
                }
            }
            for told in all {
                let before = all.iter().filter(|before| before.ended < told.begun);
                let least = before.map(|before| before.version).max().unwrap_or(0);
                if told.version < least + u64::from(told.wrote) {
                    add(&format!("after version {least}"), told);
                }
                if let Some(after) = told.after
                    && values.range(after + 1..told.version).next().is_some()
                {
                    add("another change came between", told);
                }
            }
        }
        faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(tell: fn(&mut History)) -> Vec<String> {
        let mut history = History::default();
        tell(&mut history);
        history.faults()
    }

    fn write(history: &mut History, version: u64, after: Option<u64>) -> u64 {
        let (_, value) = history.value();
        history.wrote("k", value, version, after);
        value
    }

    #[test]
    fn what_a_store_could_have_told_is_none() {
        // A change without an answer is seen or not; calls at the same time see either state.
        let none = faults(|history| {
            let (early, late) = (history.now(), history.now());
            let (_, lost) = history.value();
            history.unanswered();
            history.absent("k", early);
            history.read("k", late, 3, lost);
            let begun = history.now();
            history.read("k", begun, 3, lost);
            write(history, 7, Some(3));
            let (_, other) = history.value();
            history.conflict("k", other, 7);
        });
        assert_eq!(none, [""; 0]);
    }

    #[test]
    fn a_fault_of_a_store_is_one() {
        let found = |tell: fn(&mut History), fault: &str| {
            let faults = faults(tell);
            assert!(faults.len() == 1 && faults[0].contains(fault), "{fault}: {faults:#?}");
        };
        found(
            |history| {
                write(history, 1, None);
                let begun = history.now();
                history.absent("k", begun);
            },
            "after version 1",
        );
        found(
            |history| {
                let old = write(history, 1, None);
                write(history, 2, None);
                let begun = history.now();
                history.read("k", begun, 1, old);
            },
            "after version 2",
        );
        found(
            |history| {
                let ((_, one), (_, other)) = (history.value(), history.value());
                history.wrote("k", one, 2, None);
                history.wrote("k", other, 2, None);
            },
            "two values of one version",
        );
        found(
            |history| {
                write(history, 1, None);
                write(history, 2, None);
                write(history, 3, Some(1));
            },
            "another change came between",
        );
        found(
            |history| {
                let (begun, value) = history.value();
                history.refused(value);
                history.read("k", begun, 1, value);
            },
            "nobody had written",
        );
        found(
            |history| {
                let value = write(history, 1, None);
                let begun = history.now();
                history.read("k", begun, 2, value);
            },
            "one value at two places",
        );
    }
}
