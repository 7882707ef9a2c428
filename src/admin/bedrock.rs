//! The RPCs of Bedrock that mean what acts of administration here do, for its clients: with
//! Bedrock's names and provider id, and with arguments and results as Thallium encodes them.
//!
//! A text is a length of 64 bits and its bytes. A result is a byte that says whether it was done,
//! a text, which is the error or what is told, and a value if the RPC has one.
//!
//! These RPCs are for callers who may call `__admin__`, where a rule of `margo.security.allow` is
//! about these names, too.

use std::sync::Arc;

use hg::ProviderId;
use serde_json::{Map, Value, json};

use super::serve::{Acts, Undone};
use crate::admin::AdminRequest;
use crate::encoding::Bytes;
use crate::support::own_rpcs;
use crate::{Instance, RegisterError, Rpc};

type Text = Bytes<Vec<u8>>;

/// Returns whether it was done, and the error or what is told.
type Told = (bool, Text);

const GET_CONFIG: Rpc<(), Told> = Rpc::new(own_rpcs::BEDROCK[0]);
const ADD_POOL: Rpc<Text, Told> = Rpc::new(own_rpcs::BEDROCK[1]);
const REMOVE_POOL: Rpc<Text, Told> = Rpc::new(own_rpcs::BEDROCK[2]);
const ADD_XSTREAM: Rpc<Text, Told> = Rpc::new(own_rpcs::BEDROCK[3]);
const REMOVE_XSTREAM: Rpc<Text, Told> = Rpc::new(own_rpcs::BEDROCK[4]);
/// Takes a description; the value is the id of the provider.
const START_PROVIDER: Rpc<Text, (bool, Text, u16)> = Rpc::new(own_rpcs::BEDROCK[5]);
/// Takes a provider and a pool.
const CHANGE_PROVIDER_POOL: Rpc<(Text, Text), Told> = Rpc::new(own_rpcs::BEDROCK[6]);
/// Takes a provider, a folder, a configuration, and whether the provider is to end.
const SNAPSHOT_PROVIDER: Rpc<(Text, Text, Text, bool), Told> = Rpc::new(own_rpcs::BEDROCK[7]);
/// Takes a provider, a folder and a configuration.
const RESTORE_PROVIDER: Rpc<(Text, Text, Text), Told> = Rpc::new(own_rpcs::BEDROCK[8]);

/// Serves them.
pub(super) fn serve(instance: &Instance, acts: &Arc<Acts>) -> Result<(), RegisterError> {
    let id = own_rpcs::BEDROCK_ID;
    acts.serve(
        instance,
        GET_CONFIG,
        id,
        |_, ()| Ok(AdminRequest::Config {}),
        |done| tell(done.map(|own| document(own).to_string())),
    )?;
    acts.serve(
        instance,
        ADD_POOL,
        id,
        |_, pool| Ok(AdminRequest::AddPool { pool: json(pool)? }),
        no_value,
    )?;
    acts.serve(
        instance,
        REMOVE_POOL,
        id,
        |_, name| Ok(AdminRequest::RemovePool { name: text(name)? }),
        no_value,
    )?;
    acts.serve(
        instance,
        ADD_XSTREAM,
        id,
        |_, xstream| Ok(AdminRequest::AddXstream { xstream: json(xstream)? }),
        no_value,
    )?;
    acts.serve(
        instance,
        REMOVE_XSTREAM,
        id,
        |_, name| Ok(AdminRequest::RemoveXstream { name: text(name)? }),
        no_value,
    )?;
    serve_providers(instance, acts)
}

fn serve_providers(instance: &Instance, acts: &Arc<Acts>) -> Result<(), RegisterError> {
    let id = own_rpcs::BEDROCK_ID;
    acts.serve(instance, START_PROVIDER, id, start, |done| {
        let id = done.as_ref().ok().and_then(|told| told["provider_id"].as_u64());
        let (is_done, error) = no_value(done);
        // The id is one of 16 bits.
        (is_done, error, id.and_then(|id| u16::try_from(id).ok()).unwrap_or_default())
    })?;
    acts.serve(
        instance,
        CHANGE_PROVIDER_POOL,
        id,
        |_, (name, pool)| Ok(AdminRequest::MoveProvider { name: text(name)?, pool: text(pool)? }),
        no_value,
    )?;
    acts.serve(
        instance,
        SNAPSHOT_PROVIDER,
        id,
        |_, (name, to, config, ends)| {
            no_settings(config)?;
            match ends {
                false => {
                    let to = text(to)?.into();
                    Ok(AdminRequest::SnapshotProvider { name: text(name)?, to })
                }
                true => Err("the source is not removed here: stop the provider then".to_owned()),
            }
        },
        no_value,
    )?;
    acts.serve(
        instance,
        RESTORE_PROVIDER,
        id,
        |_, (name, from, config)| {
            no_settings(config)?;
            Ok(AdminRequest::RestoreProvider { name: text(name)?, from: text(from)?.into() })
        },
        no_value,
    )
}

fn text(bytes: &Text) -> Result<String, String> {
    String::from_utf8(bytes.0.clone()).map_err(|error| error.to_string())
}

fn json(bytes: &Text) -> Result<Value, String> {
    serde_json::from_slice(&bytes.0).map_err(|error| format!("it is no JSON: {error}"))
}

/// Providers here take no settings for a snapshot.
fn no_settings(config: &Text) -> Result<(), String> {
    let is_empty = |config: Value| match config {
        Value::Null => true,
        Value::Object(config) => config.is_empty(),
        _ => false,
    };
    match config.0.is_empty() || is_empty(json(config)?) {
        true => Ok(()),
        false => Err("snapshots have no settings here".to_owned()),
    }
}

fn tell(done: Result<String, Undone>) -> Told {
    match done {
        Ok(told) => (true, Bytes(told.into_bytes())),
        Err(Undone::NotAllowed(reason) | Undone::Failed(reason)) => {
            (false, Bytes(reason.into_bytes()))
        }
    }
}

fn no_value(done: Result<Value, Undone>) -> Told {
    tell(done.map(|_| String::new()))
}

/// Makes an entry of `margo.providers` of what Bedrock says about a provider: there the pool is a
/// dependency, the id may be left out, and tags are kept for queries.
fn start(instance: &Instance, description: &Text) -> Result<AdminRequest, String> {
    let Value::Object(mut entry) = json(description)? else {
        return Err("a provider is an object".to_owned());
    };
    let is_empty = |tags: &Value| tags.as_array().is_some_and(Vec::is_empty);
    if entry.get("tags").is_some_and(is_empty) {
        entry.remove("tags");
    }
    let pool = match entry.get_mut("dependencies") {
        Some(Value::Object(dependencies)) => dependencies.remove("pool"),
        _ => None,
    };
    entry.extend(pool.map(|pool| ("pool".to_owned(), pool)));
    if entry.get("provider_id").is_none_or(Value::is_null) {
        let document = instance.config();
        let is_used =
            |id: &u16| document.margo.providers.iter().any(|own| own.provider_id == Some(*id));
        let free = (1..ProviderId::DEFAULT.get()).find(|id| !is_used(id));
        entry.insert("provider_id".to_owned(), json!(free));
    }
    Ok(AdminRequest::StartProvider { provider: Value::Object(entry) })
}

/// A document in effect, as Bedrock prints its own: what Margo prints, and beside it the providers.
fn document(mut own: Value) -> Value {
    let providers = own["margo"].as_object_mut().and_then(|margo| margo.remove("providers"));
    let pool_of = |provider: &Value| match provider["pool"].as_u64() {
        // The place in the document.
        Some(place) => own["argobots"]["pools"][place as usize]["name"].clone(),
        None => provider["pool"].clone(),
    };
    let providers = providers.as_ref().and_then(Value::as_array).into_iter().flatten();
    let providers: Vec<_> = providers
        .map(|provider| {
            let mut dependencies = match &provider["dependencies"] {
                Value::Object(all) => all.clone(),
                _ => Map::new(),
            };
            dependencies.insert("pool".to_owned(), pool_of(provider));
            json!({
                "name": provider["name"],
                "type": provider["type"],
                "provider_id": provider["provider_id"],
                "config": provider["config"],
                "dependencies": dependencies,
                "tags": [],
            })
        })
        .collect();
    let bedrock = json!({ "provider_id": own_rpcs::BEDROCK_ID.get() });
    json!({ "margo": own, "providers": providers, "libraries": [], "bedrock": bedrock })
}
