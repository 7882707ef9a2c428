//! The JSON Schema of the document, for editors and for checks in other languages.
//!
//! `config/schema.json` is generated from the types by the tests here, which fail when it is out of
//! date; programs that use this crate carry the file, not the generator.

/// The JSON Schema (draft 2020-12) of a configuration document.
///
/// An editor that knows it completes keys and shows what they mean; a document says
/// `"$schema": "<path of the schema>"` for that. Whatever the schema refuses is refused here too,
/// with one exception: `null` counts as "not given" here, and is no value there. It does not see
/// how parts of a document go together ([`Config::resolve`](crate::Config::resolve) does), nor
/// comments and trailing commas, which JSON does not have.
///
/// ```
/// assert!(margo_config::json_schema().contains("\"progress_pool\""));
/// ```
pub fn json_schema() -> &'static str {
    include_str!("../schema.json")
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::clean::clean;
    use crate::config::Config;

    /// Set to write the file in place of comparing it.
    const BLESS: &str = "MARGO_BLESS";

    fn validator() -> jsonschema::Validator {
        let schema = serde_json::from_str(json_schema()).expect("JSON");
        jsonschema::validator_for(&schema).expect("a schema")
    }

    #[test]
    fn the_file_is_what_the_types_say() {
        let mut schema = schemars::schema_for!(Config).to_value();
        schema["$id"] = "https://margo.invalid/schema.json".into();
        schema["title"] = "margo configuration".into();
        let text = serde_json::to_string_pretty(&schema).expect("serialises") + "\n";
        if std::env::var_os(BLESS).is_some() {
            let path = concat!(env!("CARGO_MANIFEST_DIR"), "/schema.json");
            std::fs::write(path, &text).expect("written");
        } else {
            assert!(text == json_schema(), "config/schema.json is old: test with {BLESS}=1");
        }
    }

    #[test]
    fn every_sample_is_valid_and_so_is_its_outcome() {
        let validator = validator();
        for (name, text) in crate::samples() {
            let plain: Value = serde_json::from_str(&clean(text).expect(name)).expect(name);
            let outcome = Config::from_json(text).expect(name).resolve(&|_| None).expect(name);
            for document in [
                plain,
                serde_json::to_value(outcome.effective()).expect(name),
                serde_json::to_value(outcome.effective_with_names()).expect(name),
            ] {
                let errors: Vec<_> =
                    validator.iter_errors(&document).map(|e| e.to_string()).collect();
                assert!(errors.is_empty(), "{name}: {errors:?}");
            }
        }
    }

    /// Whether a document gives `null` somewhere, which the schema does not take.
    fn has_null(value: &Value) -> bool {
        match value {
            Value::Null => true,
            Value::Array(items) => items.iter().any(has_null),
            Value::Object(entries) => entries.values().any(has_null),
            _ => false,
        }
    }

    #[test]
    fn accepted_documents_are_valid_and_wrong_types_are_not() {
        let validator = validator();
        let tables = [
            include_str!("../tests/cases/accepted.json"),
            include_str!("../tests/cases/exact.json"),
            include_str!("../tests/cases/margo-object.json"),
            include_str!("../tests/cases/rpc-layer.json"),
            include_str!("../tests/cases/layout.json"),
            include_str!("../tests/cases/contexts.json"),
            include_str!("../tests/cases/wrong-types.json"),
            include_str!("../tests/cases/keys-and-syntax.json"),
        ];
        let (mut valid, mut refused) = (0, 0);
        for table in tables {
            for case in serde_json::from_str::<Vec<Value>>(table).expect("a table") {
                let (name, document) = (&case["name"], &case["in"]);
                // Texts are about syntax. Environment variables are not part of a document.
                if document.is_string() || has_null(document) || case.get("env").is_some() {
                    continue;
                }
                let rejected = case.get("error").is_some();
                match validator.validate(document) {
                    Ok(()) => valid += usize::from(!rejected),
                    Err(error) if !rejected => panic!("{name} is accepted, but: {error}"),
                    Err(_) => refused += 1,
                }
                // Types, keys and words are what a schema is for.
                let printed = case["error"].to_string();
                let shape = ["unknown key", "expected ", "unknown value", "no valid name"];
                let is_shape = shape.iter().any(|part| printed.contains(part));
                assert!(!is_shape || validator.validate(document).is_err(), "{name}: {document}");
            }
        }
        assert!(valid > 80 && refused > 50, "{valid} valid, {refused} refused");
    }
}
