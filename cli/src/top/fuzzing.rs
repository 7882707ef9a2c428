//! Checks of any answer of a service about itself, for fuzzers and for the test that replays their
//! corpus.
//!
//! It takes any bytes. It panics if a rule does not hold, and must not hang nor allocate without
//! bound.

use margo::Metrics;

use super::{view, window};

/// One snapshot, or an earlier and a later one with a line between them: read, written again, and
/// shown in each of the ways that there are.
pub(crate) fn snapshots(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (before, now) = match text.split_once("\n--\n") {
        Some((before, now)) => (serde_json::from_str(before), serde_json::from_str(now)),
        None => (Ok(Metrics::default()), serde_json::from_str(text)),
    };
    let (Ok(before), Ok(now)) = (before, now) else { return };
    let written = serde_json::to_string(&now).expect("plain structs serialise");
    let again: Metrics = serde_json::from_str(&written).expect("what was written is read");
    assert_eq!(again, now, "{written}");
    for line in now.prometheus().lines() {
        let is_ours = ["margo_", "process_", "#"].iter().any(|own| line.starts_with(own))
            || now.tables.iter().any(|table| line.starts_with(&format!("{}_", table.name)));
        assert!(is_ours, "a service wrote a line of its own: {line:?}");
    }
    let _ = view::is_same_run(&before, &now);
    for line in view::lines(&now, &before) {
        assert!(!line.contains(margo::config::text::steers), "{line:?}");
    }
    let lines = view::lines(&now, &before);
    let mut window = window::Window::default();
    for size in [(0, 0), (1, 1), (40, 12), (250, 80)] {
        window.scroll(window::Scroll::PageDown, size.1);
        let page = window.page(&lines, size);
        assert!(page.len() <= size.1.max(1), "{page:?}");
        assert!(page.iter().all(|line| line.chars().count() <= size.0), "{page:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fuzzers_found_does_no_harm() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/corpus/metrics_json");
        let files: Vec<_> = std::fs::read_dir(folder).expect("a corpus").collect();
        assert!(!files.is_empty());
        for file in files {
            snapshots(&std::fs::read(file.expect("an entry").path()).expect("a file"));
        }
    }
}
