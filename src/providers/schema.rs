//! The JSON Schema of documents with the settings of their providers.

use serde_json::{Value, json};

use crate::providers::component::Component;

/// The JSON Schema of documents whose providers are of these types: that of
/// [`json_schema`](crate::config::json_schema), and for the `config` of a provider the schema of
/// its type ([`Component::schema`]). Types of other programs stay valid.
///
/// ```
/// let schema = margo::component::document_schema(&[]);
/// assert!(schema["properties"]["argobots"].is_object());
/// ```
#[expect(clippy::missing_panics_doc, reason = "the schema of this crate is JSON")]
pub fn document_schema(components: &[&dyn Component]) -> Value {
    let mut schema: Value =
        serde_json::from_str(crate::config::json_schema()).expect("a JSON Schema");
    let provider = &mut schema["$defs"]["Provider"];
    // Not all that there are: editors propose them, and others stay valid.
    provider["properties"]["type"]["examples"] =
        components.iter().map(|component| component.type_name()).collect();
    provider["allOf"] = components.iter().filter_map(|component| rule_of(*component)).collect();
    schema
}

/// The rule for providers of one type.
fn rule_of(component: &dyn Component) -> Option<Value> {
    let mut config = component.schema()?;
    let type_name = component.type_name();
    // Which keys those are may depend on others.
    let needs_some = config["required"].as_array().is_some_and(|keys| !keys.is_empty())
        || config["minProperties"].as_u64().is_some_and(|count| count > 0);
    if let Some(keywords) = config.as_object_mut() {
        // Its references are to itself then.
        let id = format!("https://margo.invalid/providers/{type_name}.json");
        keywords.entry("$id").or_insert(id.into());
    }
    let then = match needs_some {
        true => json!({ "properties": { "config": config }, "required": ["config"] }),
        // As elsewhere in the document, `null` is not given.
        false => json!({ "properties": { "config": { "anyOf": [config, { "type": "null" }] } } }),
    };
    let is_of_type = json!({ "properties": { "type": { "const": type_name } },
                             "required": ["type"] });
    Some(json!({ "if": is_of_type, "then": then }))
}
