//! Serving `__admin__`.
//!
//! An act may take its time: files are read, requests waited for. So a thread does it, one act
//! after the other; progress goes on meanwhile.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use margo_config::Config;
use prim::sync::lock;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{ADMIN, DONE, FAILED, NOT_ALLOWED};
use crate::admin::AdminRequest;
use crate::admission::gates::Internal;
use crate::component::{Component, RunningProviders};
use crate::instance::inner::Inner;
use crate::observe::audit::AuditEvent;
use crate::support::contain::contain;
use crate::support::log::log;
use crate::{Handle, Instance, Principal, RegisterError};

/// The providers of an instance that others may administer. Dropping it stops those that run then,
/// as dropping [`RunningProviders`] does, and ends administration.
///
/// ```
/// # fn administered() -> Result<(), Box<dyn std::error::Error>> {
/// let instance = margo::init("{}")?;
/// let providers = instance.start_providers(&[])?;
/// let providers = instance.administer(providers, [])?;
/// instance.wait_for_finalize()?;
/// drop(providers); // stops those that run at the end
/// # Ok(())
/// # }
/// # let instance = margo::Instance::builder("na+sm://").start()?;
/// # let providers = instance.administer(instance.start_providers(&[])?, [])?;
/// # assert!(providers.names().is_empty());
/// # instance.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "dropping this stops the providers"]
pub struct AdministeredProviders(Arc<Mutex<RunningProviders>>);

impl fmt::Debug for AdministeredProviders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}

impl AdministeredProviders {
    /// The names of the providers that run now.
    pub fn names(&self) -> Vec<String> {
        lock(&self.0).names().map(str::to_owned).collect()
    }

    /// Takes the providers back: from now on others can neither see nor change them. Waits for an
    /// act that is under way.
    pub fn take(&self) -> RunningProviders {
        std::mem::take(&mut *lock(&self.0))
    }
}

impl Instance {
    /// Lets others administer this instance and these providers, as far as its document allows it:
    /// see [`margo::admin`](crate::admin). `components` are the types of providers that they can
    /// start.
    ///
    /// # Errors
    ///
    /// [`RegisterError`], above all [`Exists`](RegisterError::Exists) the second time.
    pub fn administer(
        &self,
        providers: RunningProviders,
        components: impl IntoIterator<Item = Box<dyn Component>>,
    ) -> Result<AdministeredProviders, RegisterError> {
        self.administer_with(providers, components.into_iter().collect())
    }

    pub(crate) fn administer_with(
        &self,
        providers: RunningProviders,
        components: Arc<[Box<dyn Component>]>,
    ) -> Result<AdministeredProviders, RegisterError> {
        let administered = AdministeredProviders(Arc::new(Mutex::new(providers)));
        if !self.inner().resolved.listen {
            return Ok(administered);
        }
        // The RPC lives as long as the instance, the providers as long as their owner wants.
        let (pool, own) = (self.layout().progress_pool(), Arc::downgrade(&administered.0));
        let refused = AtomicU64::new(0);
        self.serve(ADMIN).pool(&pool).internal(Internal::Admin).handler(move |request| {
            if let Err(reason) = may(request.instance().inner(), request.principal()) {
                return refuse(&request, reason, &refused);
            }
            let (own, components) = (own.clone(), components.clone());
            let inner = request.instance().inner().clone();
            let thread = std::thread::Builder::new().name("margo-admin".to_owned());
            let run = move || {
                // It begins with the processors of the execution stream that makes progress. If
                // others are not to be had, these are as good.
                let _ = ult::topology::bind_this_thread(inner.runtime.cpus());
                // Whose request is dropped by a panic gets an error.
                let _ = contain(&inner.log, "an act of administration", || {
                    answer(&inner, request, &own, &components);
                });
            };
            if let Err(error) = thread.spawn(run) {
                // The request was dropped with the closure.
                tracing::error!(%error, "no thread for an act of administration");
            }
        })?;
        Ok(administered)
    }
}

type Request = Handle<String, (i32, String)>;

fn answer(
    inner: &Inner,
    request: Request,
    administered: &Weak<Mutex<RunningProviders>>,
    components: &[Box<dyn Component>],
) {
    let asked = serde_json::from_str::<AdminRequest>(request.args());
    let done = match &asked {
        Err(error) => Err(format!("it is no request that is known here: {error}")),
        Ok(asked) => administered.upgrade().ok_or_else(|| "the instance ends".to_owned()).and_then(
            // One act at a time.
            |providers| act(&request, asked, &mut lock(&providers), components),
        ),
    };
    let name = asked.as_ref().map_or_else(|_| "unknown".to_owned(), AdminRequest::to_string);
    if done.is_err() || asked.is_ok_and(|asked| asked.changes()) {
        let (origin, caller) = (request.origin(), request.principal());
        match &done {
            Ok(_) => log!(inner.log, INFO, %origin, %caller, act = name, "administered"),
            Err(why) => {
                log!(inner.log, WARN, %origin, %caller, act = name, why, "not administered");
            }
        }
        record(&request, name, done.as_ref().err());
    }
    let done = done.map_or_else(|reason| (FAILED, reason), |told| (DONE, told.to_string()));
    // Who is gone needs no answer.
    let _ = request.respond(&done);
}

/// Answers a caller who may do nothing, whatever it asks for.
fn refuse(request: &Request, reason: String, refused: &AtomicU64) {
    let count = refused.fetch_add(1, Ordering::Relaxed) + 1;
    // A peer that asks for nothing else must not fill the log.
    if count.is_power_of_two() {
        let (log, origin, caller) =
            (&request.instance().inner().log, request.origin(), request.principal());
        log!(log, WARN, %origin, %caller, count, reason, "a peer may not administer this instance");
    }
    record(request, "not read".to_owned(), Some(&reason));
    // Who is gone needs no answer.
    let _ = request.respond(&(NOT_ALLOWED, reason));
}

fn record(request: &Request, act: String, why: Option<&String>) {
    if let Some(audit) = &request.instance().inner().audit {
        let (caller, origin) = (request.principal().to_string(), request.origin().to_string());
        let (done, why) = (why.is_none(), why.cloned());
        audit.record(|| AuditEvent::Admin { act, done, why, caller, origin });
    }
}

/// Returns whether a caller whom the rules have let in may administer the instance, or else why
/// not.
fn may(inner: &Inner, caller: Principal) -> Result<(), String> {
    if !inner.resolved.remote_admin {
        return Err("`margo.remote_admin` is not set there".to_owned());
    }
    let own = rustix::process::geteuid().as_raw();
    match inner.rules {
        None if caller != Principal::User(own) => Err(format!(
            "without `margo.security.allow` only its own user may, over na+sm, and this is {caller}"
        )),
        _ => Ok(()),
    }
}

fn act(
    request: &Request,
    asked: &AdminRequest,
    providers: &mut RunningProviders,
    components: &[Box<dyn Component>],
) -> Result<Value, String> {
    let instance = request.instance();
    let layout = instance.layout();
    // Nobody else is served meanwhile, so nothing is waited for longer than by the caller.
    let limit = |msec: &u64| {
        let limit = Duration::from_millis(*msec);
        request.remaining().map_or(limit, |left| limit.min(left))
    };
    let text = |error: &dyn ToString| error.to_string();
    let nothing = |()| Value::Null;
    match asked {
        AdminRequest::List {} => Ok(list(instance, providers)),
        AdminRequest::Config {} => {
            serde_json::from_str(&instance.config().to_json()).map_err(|error| text(&error))
        }
        AdminRequest::Set { key, value } => set(instance, key, value).map(nothing),
        AdminRequest::StartProvider { provider } => {
            let entry = serde_json::from_value(provider.clone())
                .map_err(|error| format!("provider: {error}"))?;
            let components: Vec<_> = components.iter().map(|one| &**one).collect();
            instance.start_provider(&components, entry, providers)?;
            Ok(json!({ "name": providers.names().last() }))
        }
        AdminRequest::StopProvider { name, limit_msec } => {
            providers.stop(name, limit(limit_msec)).map_err(|error| text(&error))?;
            instance.inner().provider_configs.leave(name);
            Ok(Value::Null)
        }
        AdminRequest::DrainProvider { name, limit_msec } => {
            providers.drain_one(name, limit(limit_msec)).map(nothing).map_err(|error| text(&error))
        }
        AdminRequest::MoveProvider { name, pool } => {
            let found = layout.find_pool(&**pool).map_err(|error| text(&error))?;
            providers.move_to(name, &found.pool).map_err(|error| text(&error))?;
            instance.inner().provider_configs.moved(name, pool);
            Ok(Value::Null)
        }
        AdminRequest::SnapshotProvider { name, to } => {
            providers.snapshot(name, to).map(nothing).map_err(|error| text(&error))
        }
        AdminRequest::RestoreProvider { name, from } => {
            providers.restore(name, from).map(nothing).map_err(|error| text(&error))
        }
        AdminRequest::AddPool { pool } => {
            let added = layout.add_pool_from_json(&pool.to_string());
            added.map(|pool| json!({ "name": pool.name() })).map_err(|error| text(&error))
        }
        AdminRequest::RemovePool { name } => {
            layout.remove_pool(&**name).map(nothing).map_err(|error| text(&error))
        }
        AdminRequest::AddXstream { xstream } => {
            let added = layout.add_xstream_from_json(&xstream.to_string());
            added.map(|one| json!({ "name": one.name() })).map_err(|error| text(&error))
        }
        AdminRequest::RemoveXstream { name } => {
            layout.remove_xstream(&**name).map(nothing).map_err(|error| text(&error))
        }
        AdminRequest::AddShard {} => {
            let added = layout.add_shard();
            added.map(|shard| json!({ "shard": shard })).map_err(|error| text(&error))
        }
        AdminRequest::RemoveShard { shard } => {
            layout.remove_shard(*shard).map(nothing).map_err(|error| text(&error))
        }
    }
}

/// Gives a setting another value.
fn set(instance: &Instance, key: &str, value: &Value) -> Result<(), String> {
    fn as_one<T: DeserializeOwned>(key: &str, value: &Value) -> Result<T, String> {
        T::deserialize(value).map_err(|error| format!("{key}: {error}"))
    }
    let (inner, monitoring) = (instance.inner(), instance.monitoring());
    match key {
        "margo.log_level" => monitoring.set_log_level(as_one(key, value)?),
        "margo.metrics.remote" => {
            inner.metrics.remote.store(as_one(key, value)?, Ordering::Relaxed);
        }
        "margo.progress_when_needed" => {
            instance.layout().set_progress_when_needed(as_one(key, value)?);
        }
        "margo.remote_shutdown" => {
            inner.remote_shutdown.store(as_one(key, value)?, Ordering::Relaxed);
        }
        "statistics" => match as_one(key, value)? {
            true => {
                let options = inner.resolved.monitor.clone().unwrap_or_default();
                monitoring.start_statistics(options.statistics.sample_rpcs_every);
            }
            false => monitoring.stop_statistics(),
        },
        _ => {
            return Err(format!(
                "`{key}` cannot be changed while the instance runs (what can: margo.log_level, \
                 margo.metrics.remote, margo.progress_when_needed, margo.remote_shutdown, \
                 statistics)"
            ));
        }
    }
    Ok(())
}

fn list(instance: &Instance, providers: &RunningProviders) -> Value {
    let document: Config = instance.layout().config_as(margo_config::ConfigFlags {
        use_names: true,
        ..margo_config::ConfigFlags::default()
    });
    let runs = |name: Option<&str>| providers.names().any(|own| Some(own) == name);
    let described = document.margo.providers.iter().filter(|own| runs(own.name.as_deref()));
    let described: Vec<_> = described
        .map(|own| {
            json!({
                "name": own.name,
                "type": own.type_name,
                "provider_id": own.provider_id,
                "pool": own.pool,
                "dependencies": own.dependencies,
            })
        })
        .collect();
    let pools: Vec<_> = document
        .argobots
        .pools
        .iter()
        .map(|own| json!({ "name": own.name, "kind": own.kind, "access": own.access }))
        .collect();
    let xstreams: Vec<_> = document
        .argobots
        .xstreams
        .iter()
        .map(|own| {
            let pools = own.scheduler.as_ref().map(|scheduler| &scheduler.pools);
            json!({ "name": own.name, "pools": pools })
        })
        .collect();
    json!({
        "address": instance.self_addr().uri(),
        "providers": described,
        "pools": pools,
        "xstreams": xstreams,
        "shards": instance.inner().shards.count(),
    })
}
