//! Sets of small numbers (processors, or the numbers in a place), in the kernel's list format.

use std::fmt;

/// Largest number that a set can hold. Linux knows at most 8192 processors; the bound keeps a
/// mistyped range from using up memory.
pub(crate) const ID_MAX: usize = 65_535;

const WORD_BITS: usize = u64::BITS as usize;

/// A set of processors (hardware threads), by the number that the kernel gives them.
///
/// Prints and parses the kernel's list format, for example `0-3,8`.
///
/// Counterpart: the `int *cpuids` of `ABT_xstream_set_affinity`.
///
/// ```
/// use ult::CpuSet;
///
/// let cpus: CpuSet = "0-3,8".parse()?;
/// assert_eq!(cpus.len(), 5);
/// assert_eq!(cpus.to_string(), "0-3,8");
/// # Ok::<(), ult::TopologyError>(())
/// ```
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct CpuSet {
    /// Bit `n % 64` of word `n / 64`. The last word is never zero, so equal sets are equal bits.
    words: Vec<u64>,
}

impl CpuSet {
    /// Largest cpu number that a set can hold, 65,535.
    pub const CPU_MAX: usize = ID_MAX;

    /// The empty set.
    #[must_use]
    pub const fn new() -> Self {
        Self { words: Vec::new() }
    }

    /// Adds a cpu. Returns whether it was new.
    ///
    /// # Panics
    ///
    /// If `cpu` is above [`CPU_MAX`](Self::CPU_MAX).
    pub fn insert(&mut self, cpu: usize) -> bool {
        assert!(cpu <= ID_MAX, "cpu {cpu} is above CpuSet::CPU_MAX ({ID_MAX})");
        let (word, bit) = (cpu / WORD_BITS, 1 << (cpu % WORD_BITS));
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        let new = self.words[word] & bit == 0;
        self.words[word] |= bit;
        new
    }

    /// Removes a cpu. Returns whether it was there.
    pub fn remove(&mut self, cpu: usize) -> bool {
        let was = self.contains(cpu);
        if was {
            self.words[cpu / WORD_BITS] &= !(1 << (cpu % WORD_BITS));
            self.trim();
        }
        was
    }

    /// Returns whether it holds `cpu`.
    #[must_use]
    pub fn contains(&self, cpu: usize) -> bool {
        self.words.get(cpu / WORD_BITS).is_some_and(|word| word >> (cpu % WORD_BITS) & 1 == 1)
    }

    /// Number of cpus.
    #[must_use]
    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Returns whether it holds no cpu.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// The cpus, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.words.iter().enumerate().flat_map(|(at, word)| {
            let mut rest = *word;
            std::iter::from_fn(move || {
                let bit = rest.trailing_zeros() as usize;
                // Clears the lowest bit; of nothing, nothing.
                rest &= rest.wrapping_sub(1);
                (bit < WORD_BITS).then_some(at * WORD_BITS + bit)
            })
        })
    }

    /// The lowest cpu.
    #[must_use]
    pub fn first(&self) -> Option<usize> {
        self.iter().next()
    }

    /// The cpus that are in both sets.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        self.zip(other, |ours, theirs| ours & theirs)
    }

    /// The cpus that are in one of the sets or in both.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        self.zip(other, |ours, theirs| ours | theirs)
    }

    /// The cpus that are in this set and not in `other`.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        self.zip(other, |ours, theirs| ours & !theirs)
    }

    /// Returns whether all its cpus are also in `other`.
    #[must_use]
    pub fn is_subset(&self, other: &Self) -> bool {
        self.difference(other).is_empty()
    }

    /// The bits, 64 per word, for system calls.
    pub(crate) fn words(&self) -> &[u64] {
        &self.words
    }

    /// The set with these bits; those above [`ID_MAX`] are dropped.
    pub(crate) fn from_words(mut words: Vec<u64>) -> Self {
        words.truncate((ID_MAX + 1) / WORD_BITS);
        let mut set = Self { words };
        set.trim();
        set
    }

    fn zip(&self, other: &Self, op: impl Fn(u64, u64) -> u64) -> Self {
        let word = |set: &Self, at: usize| set.words.get(at).copied().unwrap_or(0);
        let len = self.words.len().max(other.words.len());
        Self::from_words((0..len).map(|at| op(word(self, at), word(other, at))).collect())
    }

    fn trim(&mut self) {
        let used = self.words.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1);
        self.words.truncate(used);
    }
}

impl FromIterator<usize> for CpuSet {
    /// # Panics
    ///
    /// If a number is above [`CPU_MAX`](Self::CPU_MAX).
    fn from_iter<I: IntoIterator<Item = usize>>(cpus: I) -> Self {
        let mut set = Self::new();
        set.extend(cpus);
        set
    }
}

impl Extend<usize> for CpuSet {
    /// # Panics
    ///
    /// If a number is above [`CPU_MAX`](Self::CPU_MAX).
    fn extend<I: IntoIterator<Item = usize>>(&mut self, cpus: I) {
        for cpu in cpus {
            self.insert(cpu);
        }
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        let mut cpus = self.iter().peekable();
        while let Some(first) = cpus.next() {
            let mut last = first;
            while let Some(next) = cpus.next_if_eq(&(last + 1)) {
                last = next;
            }
            if !text.is_empty() {
                text.push(',');
            }
            text.push_str(&first.to_string());
            if last > first {
                text.push_str(&format!("-{last}"));
            }
        }
        f.pad(if text.is_empty() { "(none)" } else { &text })
    }
}

impl fmt::Debug for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CpuSet({self})")
    }
}

/// A syntax error and its position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fault {
    /// Offset in bytes from the start of what was parsed.
    pub(crate) at: usize,
    pub(crate) what: String,
}

impl Fault {
    pub(crate) fn new(at: usize, what: impl Into<String>) -> Self {
        Self { at, what: what.into() }
    }
}

/// Parses `0-3,8`. White space around numbers is ignored; an empty list is a fault.
pub(crate) fn parse_list(text: &str) -> Result<CpuSet, Fault> {
    let mut set = CpuSet::new();
    let mut at = 0;
    for part in text.split(',') {
        let (low_text, high_text) = match part.split_once('-') {
            Some((low, high)) => (low, Some(high)),
            None => (part, None),
        };
        let low = number(low_text, at)?;
        let high = match high_text {
            Some(high) => number(high, at + low_text.len() + 1)?,
            None => low,
        };
        if high < low {
            let what = format!("the range {low}-{high} runs backwards: write {high}-{low}");
            return Err(Fault::new(at, what));
        }
        set.extend(low..=high);
        at += part.len() + 1;
    }
    Ok(set)
}

/// Parses one number; `at` is where `text` stands.
pub(crate) fn number(text: &str, at: usize) -> Result<usize, Fault> {
    let digits = text.trim();
    let at = at + (text.len() - text.trim_start().len());
    if digits.is_empty() {
        return Err(Fault::new(at, "a number is missing"));
    }
    if let Some((offset, wrong)) = digits.char_indices().find(|(_, c)| !c.is_ascii_digit()) {
        return Err(Fault::new(at + offset, format!("expected a digit, found `{wrong}`")));
    }
    match digits.parse() {
        Ok(number) if number <= ID_MAX => Ok(number),
        _ => Err(Fault::new(at, format!("{digits} is too large: numbers end at {ID_MAX}"))),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn fault(text: &str) -> (usize, String) {
        let fault = parse_list(text).unwrap_err();
        (fault.at, fault.what)
    }

    #[test]
    fn lists_print_as_the_kernel_prints_them() {
        for text in ["0", "0-3", "0-3,8", "1,3,5", "63-64", "1023-1025,4096"] {
            assert_eq!(parse_list(text).unwrap().to_string(), text);
        }
        assert_eq!(CpuSet::new().to_string(), "(none)");
        assert_eq!(parse_list(" 2, 0 -1 ").unwrap().to_string(), "0-2");
    }

    #[test]
    fn faults_say_where() {
        assert_eq!(fault(""), (0, "a number is missing".into()));
        assert_eq!(fault("0,"), (2, "a number is missing".into()));
        assert_eq!(fault("0,4x"), (3, "expected a digit, found `x`".into()));
        assert_eq!(fault("0-"), (2, "a number is missing".into()));
        assert_eq!(fault("1,7-3"), (2, "the range 7-3 runs backwards: write 3-7".into()));
        assert_eq!(fault("-1").1, "a number is missing");
        assert!(fault("0-4294967295").1.contains("too large"));
        assert!(fault("99999999999999999999999").1.contains("too large"));
    }

    #[test]
    fn the_position_counts_characters() {
        let error = "0,é".parse::<CpuSet>().unwrap_err().to_string();
        assert!(error.contains("character 3"), "{error}");
    }

    #[test]
    fn a_set_that_shrank_equals_one_that_never_grew() {
        let mut set: CpuSet = [1, 4096].into_iter().collect();
        assert!(set.remove(4096));
        assert!(!set.remove(4096));
        assert_eq!(set, [1].into_iter().collect());
    }

    #[test]
    #[should_panic(expected = "above CpuSet::CPU_MAX")]
    fn a_number_without_bounds_is_refused() {
        CpuSet::new().insert(CpuSet::CPU_MAX + 1);
    }

    fn numbers() -> impl Strategy<Value = BTreeSet<usize>> {
        proptest::collection::btree_set(0usize..300, 0..40)
    }

    proptest! {
        #[test]
        fn behaves_like_a_set_of_numbers(a in numbers(), b in numbers()) {
            let set = |numbers: &BTreeSet<usize>| numbers.iter().copied().collect::<CpuSet>();
            let (x, y) = (set(&a), set(&b));
            prop_assert_eq!(x.len(), a.len());
            prop_assert_eq!(x.is_empty(), a.is_empty());
            prop_assert!(x.iter().eq(a.iter().copied()));
            prop_assert_eq!(x.union(&y), set(&(&a | &b)));
            prop_assert_eq!(x.intersection(&y), set(&(&a & &b)));
            prop_assert_eq!(x.difference(&y), set(&(&a - &b)));
            prop_assert_eq!(x.is_subset(&y), a.is_subset(&b));
            if !a.is_empty() {
                prop_assert_eq!(x.to_string().parse::<CpuSet>().unwrap(), x);
            }
        }

        #[test]
        fn no_text_panics(text in "\\PC{0,20}|[0-9,\\- ]{0,20}") {
            if let Err(fault) = parse_list(&text) {
                prop_assert!(fault.at <= text.len());
            }
        }
    }
}
