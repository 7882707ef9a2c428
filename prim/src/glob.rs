//! Patterns in which `*` stands for any text.

/// Returns true if `text` is of the form `pattern`, where `*` stands for any text.
///
/// ```
/// # use prim::glob;
/// assert!(glob::matches("get*", "get_many") && !glob::matches("get*", "put"));
/// ```
pub fn matches(pattern: &str, text: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(mut left) = text.strip_prefix(first) else { return false };
    let mut parts = rest.split('*');
    let last = parts.next_back().unwrap_or_default();
    for part in parts {
        // The first place leaves the most for what follows.
        let Some(at) = left.find(part) else { return false };
        left = &left[at + part.len()..];
    }
    left.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The meaning of a pattern, by trying everything.
    fn means(pattern: &[u8], text: &[u8]) -> bool {
        match pattern.split_first() {
            None => text.is_empty(),
            Some((b'*', rest)) => (0..=text.len()).any(|skipped| means(rest, &text[skipped..])),
            Some((one, rest)) => text.first() == Some(one) && means(rest, &text[1..]),
        }
    }

    /// All texts of at most so many of these letters.
    fn texts(letters: &[u8], len: usize) -> Vec<String> {
        let mut all = vec![String::new()];
        let mut longest = all.clone();
        for _ in 0..len {
            let longer = |text: &String| {
                letters
                    .iter()
                    .map(|letter| format!("{text}{}", *letter as char))
                    .collect::<Vec<_>>()
            };
            longest = longest.iter().flat_map(longer).collect();
            all.extend_from_slice(&longest);
        }
        all
    }

    #[test]
    fn a_pattern_means_what_it_says() {
        for pattern in texts(b"ab*", 5) {
            for text in texts(b"ab", 6) {
                let is_meant = means(pattern.as_bytes(), text.as_bytes());
                assert_eq!(matches(&pattern, &text), is_meant, "{pattern} {text}");
            }
        }
    }
}
