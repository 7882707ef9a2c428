//! Argobots' pattern for spreading xstreams over cpus (`ABT_SET_AFFINITY`).

use std::fmt;
use std::str::FromStr;

use super::cpuset::{CpuSet, Fault};
use super::{TopologyError, current_binding};

/// Most numbers that a pattern may stand for: `0:1000000000` is a mistake, not a machine.
const NUMBERS_MAX: usize = 65_536;

/// Which cpus each xstream gets: xstream `k` gets entry `k`, starting again after the last.
///
/// | text | entries |
/// |---|---|
/// | `{0,1},{2,3}` | cpus 0 and 1; cpus 2 and 3 |
/// | `0,4,8` | one cpu each; short for `{0},{4},{8}` |
/// | `{0}:4:2` | 4 entries, each 2 further: `{0},{2},{4},{6}` |
/// | `{0}:4` | the step is 1 if omitted: `{0},{1},{2},{3}` |
/// | `{0:4:2}` | one entry of 4 cpus: `{0,2,4,6}` |
/// | `{0:2}:3:2` | `{0,1},{2,3},{4,5}` |
///
/// As in Argobots, the numbers count the cpus that the process may use, and wrap around: with cpus
/// 4-7 allowed, 0 is cpu 4, 5 is cpu 5, and -1 is cpu 7. So every pattern works on every machine.
/// [`wraps`](Self::wraps) tells whether it does so by wrapping, which may be worth a warning.
/// To name cpus by the kernel's numbers, use a [`Place`](super::Place).
///
/// Counterpart: `ABT_SET_AFFINITY`, with the same grammar. Its words for "off" and "default" are
/// not patterns.
///
/// ```
/// use ult::{AffinityPattern, CpuSet};
///
/// let pattern: AffinityPattern = "{0,1}:2:2".parse()?;
/// let allowed: CpuSet = "0-3".parse()?;
/// assert_eq!(pattern.cpus_among(1, &allowed), "2-3".parse()?);
/// assert_eq!(pattern.cpus_among(2, &allowed), "0-1".parse()?);
/// # Ok::<(), ult::TopologyError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AffinityPattern {
    /// Never empty, and neither is an entry.
    entries: Vec<Vec<i32>>,
}

impl AffinityPattern {
    /// Number of entries, at least 1.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// The cpus of xstream `k`, among those that the topology allows. Never empty.
    ///
    /// # Errors
    ///
    /// [`TopologyError::Allowed`] if the allowed cpus cannot be found out.
    pub fn cpus_for(&self, k: usize) -> Result<CpuSet, TopologyError> {
        match super::Topology::get() {
            Ok(topology) if !topology.allowed().is_empty() => {
                Ok(self.cpus_among(k, topology.allowed()))
            }
            // The pattern needs nothing else of the topology.
            _ => match current_binding() {
                Ok(allowed) => Ok(self.cpus_among(k, &allowed)),
                Err(source) => Err(TopologyError::Allowed { source }),
            },
        }
    }

    /// The cpus of xstream `k` for a process that may use `allowed`. Empty only if that is.
    #[must_use]
    pub fn cpus_among(&self, k: usize, allowed: &CpuSet) -> CpuSet {
        let allowed: Vec<usize> = allowed.iter().collect();
        // A set holds at most 65,536 cpus.
        let count = i32::try_from(allowed.len()).unwrap_or(i32::MAX);
        if count == 0 {
            return CpuSet::new();
        }
        let entry = &self.entries[k % self.entries.len()];
        let index = |id: &i32| usize::try_from(id.rem_euclid(count)).unwrap_or(0);
        entry.iter().map(|id| allowed[index(id)]).collect()
    }

    /// The first number that lies outside of `0..cpus` and so wraps around, where `cpus` is how
    /// many cpus the process may use.
    #[must_use]
    pub fn wraps(&self, cpus: usize) -> Option<i32> {
        let inside = |id: &i32| usize::try_from(*id).is_ok_and(|id| id < cpus);
        self.entries.iter().flatten().copied().find(|id| !inside(id))
    }
}

impl fmt::Display for AffinityPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, entry) in self.entries.iter().enumerate() {
            let ids: Vec<String> = entry.iter().map(i32::to_string).collect();
            write!(f, "{}{{{}}}", if at == 0 { "" } else { "," }, ids.join(","))?;
        }
        Ok(())
    }
}

impl FromStr for AffinityPattern {
    type Err = TopologyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Parser { text, at: 0 }
            .pattern()
            .map(|entries| Self { entries })
            .map_err(|fault| fault.in_text("affinity pattern", text))
    }
}

/// Reads the grammar of Argobots. White space between tokens is ignored.
///
/// ```text
/// list        = interval { "," interval }
/// interval    = entry [ ":" num [ ":" stride ] ]
/// entry       = id | "{" id-interval { "," id-interval } "}"
/// id-interval = id [ ":" num [ ":" stride ] ]
/// ```
struct Parser<'a> {
    text: &'a str,
    /// Offset of the next byte; always at the start of a character.
    at: usize,
}

/// `num` and `stride` behind something.
struct Repeat {
    /// Where it began.
    at: usize,
    num: usize,
    stride: i32,
}

impl Parser<'_> {
    fn pattern(&mut self) -> Result<Vec<Vec<i32>>, Fault> {
        let mut entries = Vec::new();
        let mut numbers = 0;
        loop {
            let entry = self.entry()?;
            let repeat = self.repeat()?;
            numbers += entry.len().saturating_mul(repeat.num).min(NUMBERS_MAX + 1);
            if numbers > NUMBERS_MAX {
                return Err(too_many(repeat.at));
            }
            for nth in 0..repeat.num {
                let shifted: Option<Vec<i32>> =
                    entry.iter().map(|id| stepped(*id, repeat.stride, nth)).collect();
                entries.push(shifted.ok_or_else(|| too_large(repeat.at))?);
            }
            if self.symbol(',') {
                continue;
            }
            return match self.next() {
                None => Ok(entries),
                Some(_) => Err(self.expected("`,`, `:` or the end")),
            };
        }
    }

    fn entry(&mut self) -> Result<Vec<i32>, Fault> {
        if !self.symbol('{') {
            return match self.next() {
                Some('+' | '-' | '0'..='9') => Ok(vec![self.integer()?]),
                _ => Err(self.expected("a cpu number or `{`")),
            };
        }
        let mut ids = Vec::new();
        loop {
            let id = self.integer()?;
            let repeat = self.repeat()?;
            if repeat.num > NUMBERS_MAX - ids.len() {
                return Err(too_many(repeat.at));
            }
            for nth in 0..repeat.num {
                let id = stepped(id, repeat.stride, nth);
                ids.push(id.ok_or_else(|| too_large(repeat.at))?);
            }
            if self.symbol('}') {
                return Ok(ids);
            }
            if !self.symbol(',') {
                return Err(self.expected("`,`, `:` or `}`"));
            }
        }
    }

    fn repeat(&mut self) -> Result<Repeat, Fault> {
        let mut repeat = Repeat { at: self.at, num: 1, stride: 1 };
        if self.symbol(':') {
            self.next();
            repeat.at = self.at;
            let num = self.integer()?;
            repeat.num = usize::try_from(num).unwrap_or(0);
            if repeat.num == 0 {
                let what = format!("{num} repetitions: the number after `:` has to be positive");
                return Err(Fault::new(repeat.at, what));
            }
            if self.symbol(':') {
                repeat.stride = self.integer()?;
            }
        }
        Ok(repeat)
    }

    /// Digits, with any number of signs before them.
    fn integer(&mut self) -> Result<i32, Fault> {
        self.next();
        let start = self.at;
        let mut negative = false;
        while let Some(sign @ ('+' | '-')) = self.peek() {
            negative ^= sign == '-';
            self.at += 1;
        }
        let digits_at = self.at;
        while self.peek().is_some_and(|c| c.is_ascii_digit()) {
            self.at += 1;
        }
        let digits = &self.text[digits_at..self.at];
        if digits.is_empty() {
            return Err(self.expected("a number"));
        }
        let number: i32 = digits.parse().map_err(|_| too_large(start))?;
        Ok(if negative { -number } else { number })
    }

    /// Goes past `symbol` if it comes next.
    fn symbol(&mut self, symbol: char) -> bool {
        let found = self.next() == Some(symbol);
        if found {
            self.at += symbol.len_utf8();
        }
        found
    }

    /// The next character that is not white space; `at` is moved to it.
    fn next(&mut self) -> Option<char> {
        while self.peek().is_some_and(|c| matches!(c, ' ' | '\t' | '\r' | '\n')) {
            self.at += 1;
        }
        self.peek()
    }

    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn expected(&self, what: &str) -> Fault {
        let found = match self.peek() {
            Some(c) => format!("`{c}`"),
            None => "the end".to_owned(),
        };
        Fault::new(self.at, format!("expected {what}, found {found}"))
    }
}

fn stepped(id: i32, stride: i32, nth: usize) -> Option<i32> {
    i32::try_from(nth).ok()?.checked_mul(stride)?.checked_add(id)
}

fn too_many(at: usize) -> Fault {
    Fault::new(at, format!("the pattern stands for more than {NUMBERS_MAX} numbers"))
}

fn too_large(at: usize) -> Fault {
    Fault::new(at, format!("a number is too large: they end at {}", i32::MAX))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pattern(text: &str) -> AffinityPattern {
        text.parse().unwrap_or_else(|error| panic!("{error}"))
    }

    fn refused(text: &str) -> String {
        text.parse::<AffinityPattern>().unwrap_err().to_string()
    }

    #[test]
    fn short_forms_mean_what_argobots_says() {
        for (short, long) in [
            ("1,2,3,4", "{1},{2},{3},{4}"),
            ("{1:4:1}", "{1,2,3,4}"),
            ("{1:4}", "{1,2,3,4}"),
            ("1:2,3:2", "{1},{2},{3},{4}"),
            ("{0}:4:2", "{0},{2},{4},{6}"),
            ("{0,1}:2:2", "{0,1},{2,3}"),
            ("{0:2}:3:2", "{0,1},{2,3},{4,5}"),
            ("{3:4:-1}", "{3,2,1,0}"),
            ("3:4:-1,-1", "{3},{2},{1},{0},{-1}"),
            ("{1:2:3}:3:-2,1", "{1,4},{-1,2},{-3,0},{1}"),
            ("{4:1:0}", "{4}"),
            ("+-+-1,--2,+-3", "{1},{2},{-3}"),
            (" 1 :  +2 , { -1 : \r 2\n:2}\n", "{1},{2},{-1,1}"),
        ] {
            assert_eq!(pattern(short).to_string(), long, "{short:?}");
        }
    }

    #[test]
    fn what_argobots_refuses_is_refused() {
        for text in [
            "",
            " ",
            "{}",
            "+ 1",
            "+ +1",
            "1:",
            "1:2:",
            "1:2,",
            "1:-2",
            "1:0",
            "1:0:4",
            "1:1:1:",
            "1:1:1:1",
            "{1:2:3},",
            "{1:2:3}:",
            "{1:2:3}:2:",
            "{:2:3}",
            "{{2:3}}",
            "{2:3}}",
            "2:3}",
            "{1:2:3",
            "{1,2,}",
            "{1:-2}",
            "{1:0}",
            "{1:0:4}",
            "1 2",
            "one",
        ] {
            assert!(text.parse::<AffinityPattern>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn mistakes_are_explained() {
        for (text, part) in [
            ("", "affinity pattern ``, character 1: expected a cpu number or `{`, found the end"),
            ("{0,1", "character 5: expected `,`, `:` or `}`, found the end"),
            ("{0},x", "character 5: expected a cpu number or `{`, found `x`"),
            ("{0} {1}", "character 5: expected `,`, `:` or the end, found `{`"),
            ("{0}: 0", "character 6: 0 repetitions"),
            ("0:1000000000", "more than 65536 numbers"),
            ("{0:60000},{0:60000}", "more than 65536 numbers"),
            ("{0:60000}:60000", "more than 65536 numbers"),
            ("99999999999", "a number is too large"),
            ("2147483647:2", "a number is too large"),
        ] {
            let error = refused(text);
            assert!(error.contains(part), "{text:?}: {error}");
        }
    }

    #[test]
    fn entries_repeat_and_numbers_wrap_over_the_allowed_cpus() {
        let allowed: CpuSet = "4-7".parse().unwrap();
        let cpus = |pattern: &AffinityPattern, k| pattern.cpus_among(k, &allowed).to_string();
        let spread = pattern("{0,1},{2,3}");
        assert_eq!(spread.len(), 2);
        assert_eq!(cpus(&spread, 0), "4-5");
        assert_eq!(cpus(&spread, 1), "6-7");
        assert_eq!(cpus(&spread, 2), "4-5");
        assert_eq!(spread.wraps(4), None);
        assert_eq!(spread.wraps(3), Some(3));
        let wrapping = pattern("5,-1,{0,4}");
        assert_eq!(cpus(&wrapping, 0), "5");
        assert_eq!(cpus(&wrapping, 1), "7");
        assert_eq!(cpus(&wrapping, 2), "4");
        assert_eq!(wrapping.wraps(6), Some(-1));
        assert!(spread.cpus_among(0, &CpuSet::new()).is_empty());
    }

    proptest! {
        #[test]
        fn what_is_printed_is_parsed_back(
            entries in proptest::collection::vec(
                proptest::collection::vec(-100i32..100, 1..5), 1..5),
        ) {
            let pattern = AffinityPattern { entries };
            prop_assert_eq!(pattern.to_string().parse::<AffinityPattern>().unwrap(), pattern);
        }

        #[test]
        fn every_xstream_gets_allowed_cpus(
            text in "[0-9]{1,3}(:[1-9](:-?[0-9])?)?(,\\{-?[0-9](:[1-9])?\\}(:[1-9])?)?",
            k in 0usize..50,
            allowed in proptest::collection::btree_set(0usize..100, 1..10),
        ) {
            let allowed: CpuSet = allowed.into_iter().collect();
            let cpus = pattern(&text).cpus_among(k, &allowed);
            prop_assert!(!cpus.is_empty() && cpus.is_subset(&allowed));
        }

        #[test]
        fn no_text_panics(text in "\\PC{0,20}|[0-9:{},+\\- ]{0,20}") {
            let _ = text.parse::<AffinityPattern>();
        }
    }
}
