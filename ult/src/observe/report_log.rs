//! Limits the monitor's reports in the log: a unit that holds its xstream again and again must not
//! fill the log.

use std::collections::HashMap;

use crate::observe::report::{Report, Stall};

/// The number of first reports of one thing that are all logged. After them the 16th, the 32nd and
/// so on are.
const ALL_OF_THE_FIRST: u64 = 10;
/// The number of things that are told apart. Beyond it, counting begins anew.
const THINGS_MAX: usize = 1024;

/// The key under which reports are counted: the place, and the name of the unit at fault.
type Thing = (String, Option<&'static str>);

/// Counts of the reports that were logged.
#[derive(Debug, Default)]
pub(crate) struct ReportLog {
    counts: HashMap<Thing, u64>,
    /// The stalls that go on, by xstream: those of which it is no news that they end, either.
    is_silent: HashMap<String, bool>,
}

impl ReportLog {
    /// The text of `report` for the log. `None`: there have been many of its kind.
    pub(crate) fn text(&mut self, report: &Report) -> Option<String> {
        match report {
            Report::Stall(stall) => {
                let (xstream, name) = thing(stall);
                let text = self.count((xstream.clone(), name), report);
                self.is_silent.insert(xstream, text.is_none());
                text
            }
            Report::StallEnd(stall) => {
                let is_silent = self.is_silent.remove(&stall.xstream).unwrap_or_default();
                (!is_silent).then(|| report.to_string())
            }
            Report::Starvation(starved) => self.count((starved.pool.clone(), None), report),
            Report::Deadlock(_) => Some(report.to_string()),
        }
    }

    fn count(&mut self, thing: Thing, report: &Report) -> Option<String> {
        if self.counts.len() >= THINGS_MAX && !self.counts.contains_key(&thing) {
            self.counts.clear();
        }
        let count = self.counts.entry(thing).or_default();
        *count += 1;
        match *count {
            0..ALL_OF_THE_FIRST => Some(report.to_string()),
            ALL_OF_THE_FIRST => Some(format!(
                "{report} (so far {count} like this; of those to come only some are logged)"
            )),
            count if count.is_power_of_two() => {
                Some(format!("{report} (so far {count} like this)"))
            }
            _ => None,
        }
    }
}

fn thing(stall: &Stall) -> Thing {
    let name = stall.name.or(stall.perhaps.as_ref().map(|(name, _)| *name));
    (stall.xstream.clone(), name)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::observe::report::Starvation;

    fn stall(name: &'static str) -> Stall {
        Stall {
            ult: Some(7),
            name: Some(name),
            pool: Some("p".to_owned()),
            perhaps: None,
            xstream: "x".to_owned(),
            lasted: Duration::from_secs(1),
            system_call: None,
        }
    }

    #[test]
    fn of_many_stalls_of_one_name_few_are_logged_each_with_its_end() {
        let mut log = ReportLog::default();
        let mut logged = Vec::new();
        for number in 1..=100 {
            let begin = log.text(&Report::Stall(stall("long")));
            let end = log.text(&Report::StallEnd(stall("long")));
            assert_eq!(begin.is_some(), end.is_some());
            if let Some(text) = begin {
                let so_far = text.contains(&format!("so far {number} "));
                assert_eq!(so_far, number >= 10, "{text}");
                logged.push(number);
            }
        }
        assert_eq!(logged, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 16, 32, 64]);
        assert!(log.text(&Report::Stall(stall("other"))).is_some(), "it counts by itself");
    }

    #[test]
    fn a_pool_that_starves_again_and_again_is_logged_more_and_more_rarely() {
        let mut log = ReportLog::default();
        let starved = Report::Starvation(Starvation {
            pool: "p".to_owned(),
            waiting: 1,
            xstreams: Vec::new(),
            lasted: Duration::from_secs(1),
        });
        let logged = (0..1000).filter(|_| log.text(&starved).is_some()).count();
        assert_eq!(logged, 10 + 6);
        assert!(log.text(&Report::Stall(stall("long"))).is_some());
    }

    #[test]
    fn it_does_not_grow_with_the_names_that_come_and_go() {
        let mut log = ReportLog::default();
        for number in 0..2 * THINGS_MAX {
            let stall = Stall { xstream: format!("x{number}"), ..stall("long") };
            log.text(&Report::Stall(stall.clone()));
            log.text(&Report::StallEnd(stall));
        }
        assert!(log.counts.len() <= THINGS_MAX);
        assert!(log.is_silent.is_empty());
    }
}
