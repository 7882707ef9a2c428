//! Properties over generated documents and over arbitrary text.

use crate::generated::document;
use margo_config::Config;
use proptest::prelude::*;

fn no_env(_: &str) -> Option<String> {
    None
}

/// A document with something replaced by something else.
fn broken_document() -> impl Strategy<Value = String> {
    (document(), any::<prop::sample::Index>(), ".{0,6}").prop_map(|(document, at, noise)| {
        let mut text = document.to_string();
        let at = at.index(text.len());
        let end = text.len().min(at + noise.len());
        // The document itself is ASCII, so every offset is a character boundary.
        text.replace_range(at..end, &noise);
        text
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn the_effective_document_is_its_own_effective_document(document in document()) {
        let Ok((effective, _)) = Config::check(&document.to_string(), &no_env) else {
            return Ok(());
        };
        let printed = effective.to_json_pretty();
        let read = Config::from_json(&printed).map_err(|e| TestCaseError::fail(e.to_string()))?;
        prop_assert_eq!(&read, &effective);
        let (again, _) = Config::check(&printed, &no_env)
            .map_err(|e| TestCaseError::fail(e.to_string()))?;
        prop_assert_eq!(again, effective);
    }

    #[test]
    fn what_is_resolved_is_consistent(document in document()) {
        let Ok(config) = Config::from_json(&document.to_string()) else { return Ok(()) };
        let resolved = config.resolve(&no_env).expect("from_json has checked it");
        let pools = resolved.pools.len();
        let mut names: Vec<_> = resolved.pools.iter().map(|pool| &pool.name).collect();
        names.sort();
        names.dedup();
        prop_assert_eq!(names.len(), pools);
        let runs = |pool| resolved.xstreams.iter().any(|xstream| xstream.pools.contains(&pool));
        prop_assert!(runs(resolved.progress_pool) && runs(resolved.rpc_pool));
        prop_assert!(resolved.providers.iter().all(|provider| runs(provider.pool)));
        for xstream in &resolved.xstreams {
            prop_assert!(!xstream.pools.is_empty());
            prop_assert!(xstream.pools.iter().all(|&pool| pool < pools));
        }
        let primary = resolved.xstreams.iter().filter(|xstream| xstream.name == "__primary__");
        prop_assert_eq!(primary.count(), 1);
    }

    #[test]
    fn every_error_of_a_document_has_a_position_inside_it(text in broken_document()) {
        if let Err(errors) = Config::from_json(&text) {
            prop_assert!(errors.iter().len() > 0);
            for error in &errors {
                let (line, column) = (error.line.expect("line"), error.column.expect("column"));
                let found = text.split('\n').nth(line - 1).expect("such a line");
                prop_assert!((1..=found.chars().count() + 1).contains(&column), "{}", error);
            }
        }
    }

    #[test]
    fn arbitrary_text_never_panics(text in any::<String>()) {
        let _ = Config::check(&text, &no_env).is_ok();
    }

    #[test]
    fn arbitrary_punctuation_never_panics(text in r#"[\[\]{}",:/*\\ a0é\n.e-]{0,60}"#) {
        let _ = Config::check(&text, &no_env).is_ok();
    }

    #[test]
    fn arbitrary_environment_never_panics(value in any::<String>()) {
        let _ = Config::default().resolve(&|_| Some(value.clone())).is_ok();
    }
}

/// The two properties above must not pass because nothing was accepted.
#[test]
fn a_fair_part_of_the_generated_documents_is_accepted() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let accepted = (0..1000)
        .filter(|_| {
            let tree = document().new_tree(&mut runner).expect("generates");
            Config::from_json(&tree.current().to_string()).is_ok()
        })
        .count();
    assert!(accepted > 100, "only {accepted} of 1000");
}
