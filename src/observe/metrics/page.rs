//! The live page: one file, which loads nothing from elsewhere, reads the snapshot as JSON every
//! second, and draws it. All text of the service goes into it as text nodes.

/// The page.
pub(crate) const PAGE: &str = include_str!("page.html");

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::observe::metrics::Metrics;

    #[test]
    fn the_page_contains_all_that_it_needs() {
        // An icon that is empty, or browsers would ask for one.
        let page = PAGE.replace("<link rel=\"icon\" href=\"data:,\">", "");
        for outside in ["://", "src=", "href=", "url(", "@import", "<link", "<img", "<iframe"] {
            assert!(!page.contains(outside), "{outside}");
        }
        // Nothing of the service is taken for markup or code.
        for way in ["innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval("] {
            assert!(!PAGE.contains(way), "{way}");
        }
        assert_eq!((PAGE.matches("<script>").count(), PAGE.matches("fetch(").count()), (1, 1));
        assert!(PAGE.contains("fetch(\"metrics.json\""));
    }

    /// A snapshot that has something of each kind.
    fn full() -> Value {
        let metrics: Metrics = serde_json::from_value(json!({
            "pools": [{}], "xstreams": [{ "current": {} }], "shards": [{}], "gates": [{}],
            "rpcs": [{ "phases": { "total": {} } }], "peers": { "counts": [{}], "list": [{}] },
            "tables": [{ "columns": [{}], "rows": [{}] }],
        }))
        .unwrap();
        serde_json::to_value(metrics).unwrap()
    }

    /// The names of fields behind `prefix` in the script, such as `pool.waiting` behind `pool`.
    fn fields<'a>(prefix: &str) -> Vec<&'a str> {
        let dotted = format!("{prefix}.");
        let is_word = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        let mut found = Vec::new();
        for (at, _) in PAGE.match_indices(&dotted) {
            if PAGE[..at].ends_with(|before: char| is_word(before) || before == '.') {
                continue;
            }
            let rest = &PAGE[at + dotted.len()..];
            let end = rest.find(|letter| !is_word(letter)).unwrap_or(rest.len());
            // A method of the language.
            if !rest[end..].starts_with('(') {
                found.push(&rest[..end]);
            }
        }
        found
    }

    #[test]
    fn the_snapshot_has_what_the_page_reads() {
        let full = full();
        for (variable, path) in [
            ("now", ""),
            ("net", "/network"),
            ("old", "/network"),
            ("now.stats", "/stats"),
            ("now.process", "/process"),
            ("now.peers", "/peers"),
            ("rpc", "/rpcs/0"),
            ("pool", "/pools/0"),
            ("gate", "/gates/0"),
            ("peer", "/peers/list/0"),
            ("shard", "/shards/0"),
            ("board", "/tables/0"),
            ("col", "/tables/0/columns/0"),
            ("line", "/tables/0/rows/0"),
            ("one.current", "/xstreams/0/current"),
        ] {
            let place = full.pointer(path).unwrap_or_else(|| panic!("{path}"));
            let fields = fields(variable);
            assert!(!fields.is_empty(), "{variable}");
            for field in fields {
                assert!(place.get(field).is_some(), "{variable}.{field} in {place}");
            }
        }
        for field in ["name", "cpus", "pools", "state", "executed", "sleeps", "slept_sec", "ults"] {
            assert!(full["xstreams"][0].get(field).is_some(), "{field}");
            assert!(PAGE.contains(&format!("one.{field}")), "{field}");
        }
        let read = [
            ("p50_sec", "took(\"p50_sec\")"),
            ("p99_sec", "took(\"p99_sec\")"),
            ("max_sec", "took(\"max_sec\")"),
            ("buckets", "phases.total.buckets"),
        ];
        for (field, use_of_it) in read {
            assert!(full["rpcs"][0]["phases"]["total"].get(field).is_some(), "{field}");
            assert!(PAGE.contains(use_of_it), "{use_of_it}");
        }
    }
}
