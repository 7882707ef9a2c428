//! `margo admin`: looks at a service that allows it (`margo.remote_admin`), and changes it.

use std::path::Path;
use std::time::Duration;

use margo::admin::{AdminError, AdminRequest};
use margo::daemon::Failure;
use serde_json::Value;

use crate::args::{AdminArgs, AdminCommand};
use crate::support::peer::Callers;
use crate::support::table::Table;
use crate::support::{document, output};

/// Longer than the peer waits, so that it says itself what is left.
const ON_THE_WAY: f64 = 2.0;

pub(crate) fn run(args: &AdminArgs) -> Result<(), Failure> {
    let request = request(args)?;
    let mut callers = Callers::with(args.client.config.as_deref())?;
    let (instance, peer) = callers.reach(&args.address)?;
    let limit = Duration::from_secs_f64(args.limit + ON_THE_WAY);
    let told = instance.network().administer(&peer, &request, limit);
    drop((instance, peer));
    callers.end()?;
    // Some of it is text of others.
    let told = told.map_err(|error| Failure::Failed(output::printable(&explained(&error))))?;
    let text = match (args.json, &args.command) {
        (true, _) | (_, AdminCommand::Config) => format!("{told:#}\n"),
        (_, AdminCommand::List) => tables(&told),
        _ => match told.as_object().and_then(|told| told.values().next()) {
            Some(name) => format!("{}\n", plain(name)),
            None => String::new(),
        },
    };
    output::write(output::lines_printable(&text))
}

fn request(args: &AdminArgs) -> Result<AdminRequest, Failure> {
    let name = String::clone;
    let limit_msec = Duration::from_secs_f64(args.limit).as_millis();
    let limit_msec = u64::try_from(limit_msec).unwrap_or(u64::MAX);
    Ok(match &args.command {
        AdminCommand::List => AdminRequest::List {},
        AdminCommand::Config => AdminRequest::Config {},
        AdminCommand::Set { key, value } => {
            let text = || Value::String(value.clone());
            let value = serde_json::from_str(value).unwrap_or_else(|_| text());
            AdminRequest::Set { key: name(key), value }
        }
        AdminCommand::Start { provider } => {
            AdminRequest::StartProvider { provider: entry(provider)? }
        }
        AdminCommand::Stop { name: stop, needed } => {
            AdminRequest::StopProvider { name: name(stop), needed: *needed, limit_msec }
        }
        AdminCommand::Drain { name: drain } => {
            AdminRequest::DrainProvider { name: name(drain), limit_msec }
        }
        AdminCommand::Move { name: whom, pool } => {
            AdminRequest::MoveProvider { name: name(whom), pool: name(pool) }
        }
        AdminCommand::Snapshot { name: whom, to } => {
            AdminRequest::SnapshotProvider { name: name(whom), to: to.clone() }
        }
        AdminCommand::Restore { name: whom, from } => {
            AdminRequest::RestoreProvider { name: name(whom), from: from.clone() }
        }
        AdminCommand::AddPool { pool } => AdminRequest::AddPool { pool: entry(pool)? },
        AdminCommand::RemovePool { name: pool } => AdminRequest::RemovePool { name: name(pool) },
        AdminCommand::AddXstream { xstream } => {
            AdminRequest::AddXstream { xstream: entry(xstream)? }
        }
        AdminCommand::RemoveXstream { name: one } => {
            AdminRequest::RemoveXstream { name: name(one) }
        }
        AdminCommand::AddShard => AdminRequest::AddShard {},
        AdminCommand::RemoveShard { shard } => AdminRequest::RemoveShard { shard: *shard },
    })
}

/// An entry of a document: itself, or a file that has it.
fn entry(given: &str) -> Result<Value, Failure> {
    let (text, from) = match given.trim_start().starts_with('{') {
        true => (given.to_owned(), "the argument".to_owned()),
        false => {
            let file = Path::new(given);
            (document::read(file)?, document::called(file))
        }
    };
    serde_json::from_str(&text)
        .map_err(|error| Failure::Usage(format!("{from} is no JSON object: {error}")))
}

fn explained(error: &AdminError) -> String {
    let help = match error {
        AdminError::NotAllowed { .. } => {
            "; the service needs \"margo\": { \"remote_admin\": true } in its configuration, and \
             a rule in `margo.security.allow` for who may, unless that is its own user over na+sm"
        }
        _ => "",
    };
    format!("{error}{help}")
}

/// A value in a cell: text without quotes, a list without brackets.
fn plain(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(all) if all.is_empty() => "-".to_owned(),
        Value::Array(all) => all.iter().map(plain).collect::<Vec<_>>().join(", "),
        Value::Object(all) if all.is_empty() => "-".to_owned(),
        Value::Object(all) => {
            let each = all.iter().map(|(key, value)| format!("{key}: {}", plain(value)));
            each.collect::<Vec<_>>().join("; ")
        }
        other => other.to_string(),
    }
}

fn tables(told: &Value) -> String {
    let columns: [(&str, &[&str]); 3] = [
        ("providers", &["name", "type", "provider_id", "pool", "dependencies"]),
        ("pools", &["name", "kind", "access"]),
        ("xstreams", &["name", "pools"]),
    ];
    let mut lines = vec![format!("{}, shards: {}", plain(&told["address"]), told["shards"])];
    for (key, columns) in columns {
        let head = columns.iter().map(|column| match *column {
            "name" => key.trim_end_matches('s').to_uppercase(),
            column => column.to_owned(),
        });
        let head: Vec<_> = head.collect();
        let words: Vec<_> = (0..columns.len()).filter(|at| columns[*at] != "provider_id").collect();
        let mut table = Table::new(&head, &words);
        for row in told[key].as_array().into_iter().flatten() {
            table.row(columns.iter().map(|column| match *column {
                "name" if row["running"] == false => format!("{} (stopped)", plain(&row["name"])),
                column => plain(&row[column]),
            }));
        }
        lines.extend(table.finish());
    }
    lines.join("\n") + "\n"
}
