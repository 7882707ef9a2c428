//! The JSON Schema of the document, for editors and for checks in other languages.
//!
//! `config/schema.json` is generated from the types by the tests here, which fail when it is out of
//! date; programs that use this crate carry the file, not the generator.

/// The JSON Schema (draft 2020-12) of a configuration document.
///
/// An editor that knows it completes keys and shows what they mean; a document says
/// `"$schema": "<path of the schema>"` for that. Whatever the schema refuses is refused here too.
/// It does not see how parts of a document go together
/// ([`Config::resolve`](crate::Config::resolve) does), nor comments and trailing commas, which JSON
/// does not have.
///
/// ```
/// assert!(margo_config::json_schema().contains("\"progress_pool\""));
/// ```
pub fn json_schema() -> &'static str {
    include_str!("../schema.json")
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value, json};

    use super::*;
    use crate::document::config::Config;
    use crate::read::clean::clean;

    /// Set to write the file in place of comparing it.
    const BLESS: &str = "MARGO_BLESS";

    fn validator() -> jsonschema::Validator {
        let schema = serde_json::from_str(json_schema()).expect("JSON");
        jsonschema::validator_for(&schema).expect("a schema")
    }

    #[test]
    fn the_file_is_what_the_types_say() {
        let mut schema = schemars::schema_for!(Config).to_value();
        let definitions = schema["$defs"].clone();
        allow_null(&mut schema, &definitions);
        leave_examples_out(&mut schema);
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

    /// Lets each key be `null`, which stands for one that is not given, and so each entry of a list
    /// that is an object.
    fn allow_null(schema: &mut Value, definitions: &Value) {
        let is_object = |items: &Value| {
            let target = items["$ref"].as_str().and_then(|to| to.rsplit('/').next());
            target.is_some_and(|name| definitions[name]["type"] == "object")
        };
        match schema {
            Value::Object(keywords) => {
                if let Some(Value::Object(keys)) = keywords.get_mut("properties") {
                    keys.values_mut().for_each(or_null);
                }
                keywords.get_mut("items").filter(|items| is_object(items)).map(or_null);
                keywords.values_mut().for_each(|inner| allow_null(inner, definitions));
            }
            Value::Array(all) => all.iter_mut().for_each(|inner| allow_null(inner, definitions)),
            _ => {}
        }
    }

    /// Leaves the examples out of the descriptions: they are in Rust.
    fn leave_examples_out(schema: &mut Value) {
        if let Some(Value::String(text)) = schema.get_mut("description") {
            let prose: Vec<_> = text.split("```").step_by(2).map(str::trim).collect();
            *text = prose.join("\n\n").trim().to_owned();
        }
        match schema {
            Value::Object(keywords) => keywords.values_mut().for_each(leave_examples_out),
            Value::Array(all) => all.iter_mut().for_each(leave_examples_out),
            _ => {}
        }
    }

    fn or_null(schema: &mut Value) {
        let nothing = json!({ "type": "null" });
        let has_null = |of: &str| match &schema[of] {
            Value::Array(choices) => {
                choices.iter().any(|one| *one == nothing || one.is_null() || one == "null")
            }
            _ => false,
        };
        if ["type", "enum", "anyOf"].into_iter().any(has_null) {
            return;
        }
        let Value::Object(keywords) = schema else { return };
        if let Some(Value::String(one)) = keywords.get("type")
            && !keywords.contains_key("enum")
        {
            let types = json!([one, "null"]);
            keywords.insert("type".to_owned(), types);
            return;
        }
        let is_about = |key: &String| key == "description" || key == "default";
        let (about, rules): (Map<_, _>, Map<_, _>) =
            std::mem::take(keywords).into_iter().partition(|(key, _)| is_about(key));
        *keywords = about;
        keywords.insert("anyOf".to_owned(), json!([rules, nothing]));
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

    const TABLES: [&str; 8] = [
        include_str!("../tests/cases/accepted.json"),
        include_str!("../tests/cases/exact.json"),
        include_str!("../tests/cases/margo-object.json"),
        include_str!("../tests/cases/rpc-layer.json"),
        include_str!("../tests/cases/layout.json"),
        include_str!("../tests/cases/shards.json"),
        include_str!("../tests/cases/wrong-types.json"),
        include_str!("../tests/cases/keys-and-syntax.json"),
    ];

    fn cases() -> impl Iterator<Item = Value> {
        TABLES.iter().flat_map(|table| serde_json::from_str::<Vec<_>>(table).expect("a table"))
    }

    /// The document of a case, if that is JSON but for comments and commas.
    fn document(case: &Value) -> Option<Value> {
        match &case["in"] {
            Value::String(text) => serde_json::from_str(&clean(text).ok()?).ok(),
            document => Some(document.clone()),
        }
    }

    #[test]
    fn accepted_documents_are_valid_and_wrong_types_are_not() {
        let validator = validator();
        let (mut valid, mut refused) = (0, 0);
        for case in cases() {
            let Some(document) = document(&case) else { continue };
            let (name, rejected) = (&case["name"], case.get("error").is_some());
            match validator.validate(&document) {
                Ok(()) => valid += usize::from(!rejected),
                Err(error) if !rejected => panic!("{name} is accepted, but: {error}"),
                Err(_) => refused += 1,
            }
            // Types, keys and words are what a schema is for; texts are about how they are written.
            let printed = case["error"].to_string();
            let shape = ["unknown key", "expected ", "unknown value", "no valid name"];
            let is_shape =
                !case["in"].is_string() && shape.iter().any(|part| printed.contains(part));
            assert!(!is_shape || !validator.is_valid(&document), "{name}: {document}");
        }
        assert!(valid > 80 && refused > 50, "{valid} valid, {refused} refused");
    }

    #[test]
    fn what_is_in_effect_is_valid() {
        let validator = validator();
        let mut texts = vec!["{}".to_owned()];
        texts.extend(cases().filter(|case| case.get("error").is_none()).map(|case| {
            let document = &case["in"];
            document.as_str().map_or_else(|| document.to_string(), str::to_owned)
        }));
        assert!(texts.len() > 80, "{} documents", texts.len());
        for text in texts {
            let (effective, _) = Config::check(&text, &|_| None).expect(&text);
            let effective = serde_json::to_value(effective).expect("serialises");
            let error = validator.validate(&effective).err().map(|error| error.to_string());
            assert_eq!(error, None, "{text}: {effective}");
        }
    }

    #[test]
    fn a_key_may_be_null_and_the_entries_of_lists_that_are_objects() {
        let validator = validator();
        for (text, good) in [
            (r#"{ "margo": null, "mercury": { "stats": null, "checksum_level": null } }"#, true),
            (r#"{ "argobots": { "pools": [null, { "kind": null }] } }"#, true),
            (r#"{ "margo": { "network": { "peer_users": null } } }"#, true),
            (r#"{ "monitoring": { "name": null, "config": null } }"#, true),
            (r#"{ "monitoring": { "config": { "statistics": { "precision": null } } } }"#, true),
            (r#"{ "monitoring": { "name": "mine", "config": { "x": [null, 1] } } }"#, true),
            ("null", false),
            (r#"{ "nonsense": null }"#, false),
            (r#"{ "margo": { "shards": [null] } }"#, false),
            (r#"{ "monitoring": { "name": "mine", "config": 1 } }"#, false),
            (r#"{ "monitoring": { "name": null, "config": { "x": [null, 1] } } }"#, false),
            (r#"{ "monitoring": { "name": "default", "config": { "x": 1 } } }"#, false),
            (r#"{ "monitoring": { "config": { "x": 1 } } }"#, false),
        ] {
            let document = serde_json::from_str(text).expect(text);
            assert_eq!(validator.is_valid(&document), good, "{text}");
            assert_eq!(Config::from_json(text).is_ok(), good, "{text}");
        }
    }
}
