//! Lists of allowed words and "did you mean".

/// The longest list that is printed in full.
const LISTED_MAX: usize = 30;

/// `(allowed: a, b); did you mean "b"?` with the second part only when a word comes close.
pub(crate) fn choices(label: &str, wrong: &str, words: &[&str]) -> String {
    #[cfg(test)]
    tests::LISTS.with(|lists| lists.set(lists.get() + 1));
    let mut text = match words {
        [] => format!(" ({label}: none)"),
        _ if words.len() > LISTED_MAX => {
            let more = words.len() - LISTED_MAX;
            format!(" ({label}: {} and {more} more)", words[..LISTED_MAX].join(", "))
        }
        _ => format!(" ({label}: {})", words.join(", ")),
    };
    if let Some(word) = nearest(wrong, words) {
        text.push_str(&format!("; did you mean \"{word}\"?"));
    }
    text
}

/// The word that `wrong` most likely stands for, if any is near enough.
pub fn nearest<'a>(wrong: &str, words: &[&'a str]) -> Option<&'a str> {
    // A long string is no typo, and the distance below costs the product of both lengths.
    if wrong.len() > 64 {
        return None;
    }
    let limit = (wrong.chars().count() / 3).max(1);
    let wrong = wrong.to_lowercase();
    words
        .iter()
        .map(|word| (distance(&wrong, &word.to_lowercase()), *word))
        .filter(|(edits, word)| *edits <= limit && *edits < word.chars().count())
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, word)| word)
        .or_else(|| begun(&wrong, words))
}

/// The one word that begins like this: `warn` for `warning`.
fn begun<'a>(wrong: &str, words: &[&'a str]) -> Option<&'a str> {
    let mut found = words.iter().filter(|word| wrong.len() >= 3 && word.starts_with(wrong));
    found.next().filter(|_| found.next().is_none()).copied()
}

/// Edit distance in which swapping two neighbours counts once (optimal string alignment).
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before_last = vec![0; b.len() + 1];
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let differs = usize::from(a[i - 1] != b[j - 1]);
            row[j] = (last[j] + 1).min(row[j - 1] + 1).min(last[j - 1] + differs);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before_last[j - 2] + 1);
            }
        }
        before_last = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::{Config, Dependency, PoolRef, Provider};

    thread_local! {
        /// Lists that this thread has made.
        pub(super) static LISTS: Cell<usize> = const { Cell::new(0) };
    }

    /// Each list costs what there are names.
    #[test]
    fn only_errors_that_are_reported_look_for_what_was_meant() {
        let count = 5_000;
        let pools: Vec<_> = (0..count).map(|n| format!(r#"{{ "name": "p{n}" }}"#)).collect();
        let wrong: Vec<_> = (0..count).map(|n| format!(r#""q{n}""#)).collect();
        let text = format!(
            r#"{{ "argobots": {{ "pools": [{}],
                 "xstreams": [{{ "scheduler": {{ "pools": [{}] }} }}] }} }}"#,
            pools.join(","),
            wrong.join(",")
        );
        LISTS.set(0);
        let errors = Config::from_json(&text).unwrap_err();
        assert_eq!((errors.as_slice().len(), LISTS.get()), (100, 100));

        let mut config = Config::default();
        let provider = |n| Provider {
            type_name: "a".to_owned(),
            provider_id: Some(n),
            pool: Some(PoolRef::Name(format!("q{n}"))),
            ..Provider::default()
        };
        config.margo.providers = (0..1000).map(provider).collect();
        LISTS.set(0);
        let errors = config.resolve(&|_| None).unwrap_err();
        assert_eq!((errors.as_slice().len(), LISTS.get()), (100, 100));

        for (n, provider) in config.margo.providers.iter_mut().enumerate() {
            provider.pool = None;
            let missing = Dependency::One(format!("q{n}"));
            provider.dependencies.insert("store".to_owned(), missing);
        }
        LISTS.set(0);
        let errors = config.resolve(&|_| None).unwrap_err();
        assert_eq!((errors.as_slice().len(), LISTS.get()), (100, 100));
    }

    #[test]
    fn counts_edits() {
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("net", "net"), 0);
        assert_eq!(distance("nett", "net"), 1);
        assert_eq!(distance("nte", "net"), 1);
        assert_eq!(distance("kitten", "sitting"), 3);
    }

    #[test]
    fn suggests_only_what_is_near() {
        let words = ["fifo", "fifo_wait", "prio_wait"];
        assert_eq!(nearest("lifo", &words), Some("fifo"));
        assert_eq!(nearest("FIFO", &words), Some("fifo"));
        assert_eq!(nearest("prio-wait", &words), Some("prio_wait"));
        assert_eq!(nearest("external", &words), None);
        assert_eq!(nearest("prio", &words), Some("prio_wait"));
        assert_eq!(nearest("pr", &words), None);
        assert_eq!(nearest("warn", &["error", "warning", "warnings"]), None);
        assert_eq!(nearest("WARN", &["error", "warning"]), Some("warning"));
        assert_eq!(nearest("", &words), None);
        assert_eq!(nearest("x", &["y"]), None);
    }
}
