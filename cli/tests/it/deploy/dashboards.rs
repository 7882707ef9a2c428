//! The alerts of Prometheus and the dashboard of Grafana, beside what the metrics port prints.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use margo::{Instance, ProviderHandle, ProviderId, config::Config};
use margo_provider_echo::{EchoClient, EchoComponent};
use serde_json::{Value, json};

use super::{output, program, root, text};
use crate::common::PATIENCE;
use crate::port;

/// Labels with their values, by the name of a sample.
type Printed = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

/// All that an instance prints that serves others, and calls itself.
fn printed() -> Printed {
    // Its statistics are written there when it ends.
    let temp = tempfile::tempdir().unwrap();
    let prefix = temp.path().join("own");
    let document = json!({
        "monitoring": { "config": { "filename_prefix": prefix } },
        "margo": {
            "address": "na+sm://",
            "metrics": { "listen": "127.0.0.1:0" },
            "providers": [{ "type": "echo", "provider_id": 1 }],
        },
    });
    let config = Config::from_json(&document.to_string()).unwrap();
    let own = Instance::from_config(&config).unwrap();
    let providers = own.start_providers(&[&EchoComponent]).unwrap();
    let target = ProviderHandle::new(own.self_addr().clone(), ProviderId::new(1));
    assert_eq!(EchoClient::new(&own, target).echo("x", PATIENCE).unwrap(), "x");
    let other = Instance::builder("na+sm://").listen(false).start().unwrap();
    let address = other.lookup(own.self_addr().uri()).unwrap();
    let to = ProviderHandle::new(address, ProviderId::new(1));
    assert_eq!(EchoClient::new(&other, to).echo("y", PATIENCE).unwrap(), "y");
    let address = own.monitoring().metrics_addr().unwrap().to_string();
    let (_, body) = port::get(&address, "/metrics");
    drop(providers);
    other.finalize_and_wait().unwrap();
    own.finalize_and_wait().unwrap();

    let mut printed = Printed::new();
    for line in body.lines().filter(|line| !line.starts_with('#')) {
        let (sample, _) = line.rsplit_once(' ').unwrap();
        let (name, labels) = sample.split_once('{').unwrap_or((sample, "}"));
        let entry = printed.entry(name.to_owned()).or_default();
        // What Prometheus adds.
        for label in ["instance", "job"] {
            entry.entry(label.to_owned()).or_default();
        }
        for label in labels.trim_end_matches('}').split("\",").filter(|label| !label.is_empty()) {
            let (label, value) = label.split_once("=\"").unwrap();
            let values = entry.entry(label.to_owned()).or_default();
            values.insert(value.trim_end_matches('"').to_owned());
        }
    }
    printed
}

fn word(text: &str) -> &str {
    let end = text.find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    &text[..end.unwrap_or(text.len())]
}

/// Refuses metrics, labels and values that are not printed. Returns the labels that there are.
fn check(expression: &str, printed: &Printed) -> BTreeSet<String> {
    let mut labels = BTreeSet::new();
    let mut is_any = false;
    let starts = expression.char_indices().filter(|(at, _)| {
        let before = expression[..*at].chars().next_back();
        before.is_none_or(|letter| !letter.is_ascii_alphanumeric() && !"_$\"".contains(letter))
    });
    for name in starts.map(|(at, _)| &expression[at..]) {
        let rest = name;
        let name = word(name);
        if !["margo_", "process_"].iter().any(|head| name.starts_with(head)) {
            continue;
        }
        is_any = true;
        let own = printed.get(name);
        let own = own.unwrap_or_else(|| panic!("no metric {name}, in {expression}"));
        labels.extend(own.keys().cloned());
        let Some(selector) = rest[name.len()..].strip_prefix('{') else { continue };
        let (selector, _) = selector.split_once('}').unwrap();
        for one in selector.split(',') {
            let label = word(one);
            let values = own.get(label);
            let values = values.unwrap_or_else(|| panic!("{name} has no {label}: {expression}"));
            let value = one.split('"').nth(1).unwrap();
            if !value.contains('$') {
                for value in value.split('|') {
                    assert!(values.contains(value), "{name} has no {label} {value}: {values:?}");
                }
            }
        }
    }
    assert!(is_any || expression.starts_with("up{"), "no metric of ours: {expression}");
    for (at, _) in expression.match_indices("by (") {
        let (list, _) = expression[at + 4..].split_once(')').unwrap();
        for label in list.split(", ") {
            assert!(labels.contains(label), "nothing has {label}: {expression}");
        }
    }
    labels
}

/// Refuses placeholders that no label stands behind.
fn check_placeholders(text: &str, labels: &BTreeSet<String>) {
    for (at, _) in text.match_indices("{{") {
        let inside = text[at + 2..].trim_start().trim_start_matches("$labels.");
        let label = word(inside);
        assert!(labels.contains(label), "nothing has {label}: {text}");
    }
}

#[test]
fn each_alert_asks_for_what_is_printed() {
    let alerts: Value = serde_saphyr::from_str(&text("contrib/alerts.yml")).unwrap();
    let printed = printed();
    let mut names = BTreeSet::new();
    for rule in alerts["groups"][0]["rules"].as_array().unwrap() {
        let labels = check(rule["expr"].as_str().unwrap(), &printed);
        let name = rule["alert"].as_str().unwrap();
        assert!(names.insert(name), "{name} is there twice");
        let summary = rule["annotations"]["summary"].as_str().unwrap();
        if name != "MargoDown" {
            check_placeholders(summary, &labels);
        }
        // The page says what to do.
        assert!(text("docs/guide/src/deploy.md").contains(&format!("`{name}`")), "{name}");
    }
    let scrape: Value = serde_saphyr::from_str(&text("contrib/prometheus/prometheus.yml")).unwrap();
    let rules = scrape["rule_files"][0].as_str().unwrap();
    assert!(root().join("contrib/prometheus").join(rules).is_file(), "{rules}");
    assert_eq!(scrape["scrape_configs"][0]["job_name"], "margo");
}

/// The panels of the dashboard, each with its queries.
fn dashboard() -> Value {
    serde_json::from_str(&text("contrib/grafana/margo.json")).unwrap()
}

fn queries(panel: &Value) -> impl Iterator<Item = (&str, &str)> {
    let targets = panel["targets"].as_array().unwrap().iter();
    targets.map(|one| (one["expr"].as_str().unwrap(), one["legendFormat"].as_str().unwrap()))
}

#[test]
fn each_panel_shows_what_is_printed() {
    let (dashboard, printed) = (dashboard(), printed());
    let mut places = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        for (expression, legend) in queries(panel) {
            let labels = check(expression, &printed);
            check_placeholders(legend, &labels);
        }
        let place = panel["gridPos"].to_string();
        assert!(places.insert(place), "two panels are at {}", panel["gridPos"]);
    }
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        if variable["type"] == "query" {
            let query = variable["query"]["query"].as_str().unwrap();
            check(query.strip_prefix("label_values(").unwrap(), &printed);
        }
    }
}

#[test]
fn prometheus_understands_alerts_and_panels() {
    let Some(promtool) = program("promtool") else {
        return println!("SKIPPED: there is no promtool here");
    };
    let config = root().join("contrib/prometheus/prometheus.yml");
    let (ok, said) = output(Command::new(&promtool).args(["check", "config"]).arg(config));
    assert!(ok, "{said}");
    let dashboard = dashboard();
    let panels = dashboard["panels"].as_array().unwrap();
    let rules: Vec<_> = panels
        .iter()
        .flat_map(queries)
        .enumerate()
        .map(|(number, (expr, _))| {
            let expr = expr.replace("$__rate_interval", "1m");
            json!({ "record": format!("panel:{number}"), "expr": expr })
        })
        .collect();
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("panels.yml");
    // JSON is YAML.
    let text = json!({ "groups": [{ "name": "panels", "rules": rules }] }).to_string();
    std::fs::write(&path, text).unwrap();
    let (ok, said) = output(Command::new(&promtool).args(["check", "rules"]).arg(path));
    assert!(ok, "{said}");
}
