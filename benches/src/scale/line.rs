//! The result of a step: a line of JSON, and of the table.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// A result.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Line {
    /// The test: `rpc`, `bulk`, `fib`, `parfor`, `pingpong`, `ult-many`.
    pub(crate) test: String,
    /// The software and its layout.
    #[serde(rename = "impl")]
    pub(crate) by: String,
    /// The server's xstreams, or all.
    pub(crate) cores: usize,
    /// `value`, `unit`, `reps`, and more that depends on the test; or `error`.
    #[serde(flatten)]
    pub(crate) fields: Map<String, Value>,
}

impl Line {
    /// The number in a field.
    pub(crate) fn number(&self, field: &str) -> Option<f64> {
        self.fields.get(field)?.as_f64()
    }

    /// The text in a field, or none.
    pub(crate) fn text(&self, field: &str) -> &str {
        self.fields.get(field).and_then(Value::as_str).unwrap_or_default()
    }

    /// Lines of one topic are in one plot; it has a line for each `impl`.
    pub(crate) fn topic(&self) -> String {
        let beside = if self.is_beside() { "beside" } else { "" };
        let words = [&self.test, self.text("net"), self.text("kind"), beside];
        words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join("-")
    }

    /// Returns true if the clients were on the server's xstreams.
    pub(crate) fn is_beside(&self) -> bool {
        self.fields.get("clients_beside").is_some_and(|field| field == &json!(true))
    }

    /// The line of the table.
    pub(crate) fn row(&self) -> String {
        let head = format!("{:<28} {:<18} {:>3}", self.topic(), self.by, self.cores);
        let Some(value) = self.number("value") else {
            return format!("{head}  failed: {}", self.text("error"));
        };
        let value = match self.text("unit") {
            "RPC/s" => format!("{:.3} M/s", value / 1e6),
            unit => format!("{value:.2} {unit}"),
        };
        let optional = |field, digits: usize| {
            self.number(field).map_or_else(|| "-".into(), |n| format!("{n:.digits$}"))
        };
        let [clients, p50, p99] = ["clients", "p50_us", "p99_us"].map(|field| optional(field, 0));
        let [busy, fair] =
            ["server_cores_used", "slowest_client_of_fastest"].map(|field| optional(field, 2));
        format!("{head} {clients:>7} {value:>18} {busy:>6} {fair:>6} {p50:>7} {p99:>7}")
    }

    /// The head of the table.
    pub(crate) fn head() -> String {
        format!(
            "{:<28} {:<18} {:>3} {:>7} {:>18} {:>6} {:>6} {:>7} {:>7}",
            "test", "impl", "on", "clients", "value", "busy", "fair", "p50 us", "p99 us"
        )
    }
}

/// The median, which for an even number is the mean of the two in the middle; of none, 0.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        count => f64::midpoint(sorted[(count - 1) / 2], sorted[count / 2]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_its_fields_beside_its_names() {
        let fields = json!({ "value": 1_330_000.0, "unit": "RPC/s", "net": "sm", "kind": "null",
            "clients": 15, "server_cores_used": 0.999 });
        let fields = fields.as_object().unwrap().clone();
        let line = Line { test: "rpc".into(), by: "margo-shared".into(), cores: 1, fields };
        let json = serde_json::to_value(&line).unwrap();
        assert_eq!((&json["impl"], &json["clients"]), (&json!("margo-shared"), &json!(15)));
        assert_eq!(line.topic(), "rpc-sm-null");
        let row = line.row();
        assert!(row.contains("1.330 M/s") && row.contains("  1.00      -"), "{row}");
        assert_eq!(row.len(), Line::head().len());
    }

    #[test]
    fn medians() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0]), 2.5);
        assert_eq!(median(&[]), 0.0);
    }
}
