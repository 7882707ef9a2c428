//! Serving `__admin__`, and the RPCs of Bedrock that mean the same.
//!
//! An act may take its time: files are read, requests waited for. So a thread does it, one act
//! after the other; progress goes on meanwhile.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use hg::ProviderId;
use margo_config::Config;
use prim::sync::lock;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{ADMIN, DONE, FAILED, NOT_ALLOWED, bedrock};
use crate::admin::AdminRequest;
use crate::admission::gates::Internal;
use crate::admission::rules::Callers;
use crate::component::{Component, RunningProviders};
use crate::instance::inner::Inner;
use crate::observe::audit::AuditEvent;
use crate::support::contain::contain;
use crate::support::log::log;
use crate::support::own_rpcs;
use crate::{Handle, Instance, Principal, RegisterError, Rpc};

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
        let rules = self.inner().rules.as_ref();
        let acts = Arc::new(Acts {
            // The RPCs live as long as the instance, the providers as long as their owner wants.
            administered: Arc::downgrade(&administered.0),
            components,
            admins: rules.map(|rules| rules.of(own_rpcs::ADMIN, ProviderId::DEFAULT, true)),
            refused: AtomicU64::new(0),
        });
        acts.serve(
            self,
            ADMIN,
            ProviderId::DEFAULT,
            |_, text| {
                serde_json::from_str(text)
                    .map_err(|error| format!("it is no request that is known here: {error}"))
            },
            |done| match done {
                Ok(told) => (DONE, told.to_string()),
                Err(Undone::NotAllowed(reason)) => (NOT_ALLOWED, reason),
                Err(Undone::Failed(reason)) => (FAILED, reason),
            },
        )?;
        if self.inner().resolved.remote_admin {
            bedrock::serve(self, &acts)?;
        }
        Ok(administered)
    }
}

/// The reason why an act was not done.
pub(super) enum Undone {
    /// The caller may do nothing.
    NotAllowed(String),
    Failed(String),
}

/// State that the RPCs of administration share.
pub(super) struct Acts {
    administered: Weak<Mutex<RunningProviders>>,
    components: Arc<[Box<dyn Component>]>,
    /// The callers of `__admin__` by the rules, if there are rules. Nobody else may do the same by
    /// RPCs of other names, which a rule for all RPCs is about as well.
    admins: Option<Callers>,
    /// Requests of others.
    refused: AtomicU64,
}

/// Makes an act of the arguments of an RPC.
pub(super) type Read<A> = fn(&Instance, &A) -> Result<AdminRequest, String>;

/// Makes the answer of an RPC of what an act has told.
pub(super) type Tell<R> = fn(Result<Value, Undone>) -> R;

impl Acts {
    /// Serves an RPC by which acts are asked for.
    pub(super) fn serve<A, R>(
        self: &Arc<Self>,
        instance: &Instance,
        rpc: Rpc<A, R>,
        provider: ProviderId,
        read: Read<A>,
        tell: Tell<R>,
    ) -> Result<(), RegisterError>
    where
        A: DeserializeOwned + Send + Sync + 'static,
        R: Serialize + Send + Sync + 'static,
    {
        let (pool, acts) = (instance.layout().progress_pool(), self.clone());
        let serve = instance.serve(rpc).at(provider).pool(&pool).internal(Internal::Admin);
        serve.handler(move |request: Handle<A, R>| {
            if let Err(reason) = acts.may(request.instance().inner(), request.principal()) {
                return acts.refuse(&request, reason, tell);
            }
            let acts = acts.clone();
            let inner = request.instance().inner().clone();
            let thread = std::thread::Builder::new().name("margo-admin".to_owned());
            let run = move || {
                // It begins with the processors of the execution stream that makes progress. If
                // others are not to be had, these are as good.
                let _ = ult::topology::bind_this_thread(inner.runtime.cpus());
                // Whose request is dropped by a panic gets an error.
                let _ = contain(&inner.log, "an act of administration", || {
                    acts.answer(&inner, &request, read, tell);
                });
            };
            if let Err(error) = thread.spawn(run) {
                // The request was dropped with the closure.
                tracing::error!(%error, "no thread for an act of administration");
            }
        })
    }

    fn answer<A, R: Serialize>(
        &self,
        inner: &Inner,
        request: &Handle<A, R>,
        read: Read<A>,
        tell: Tell<R>,
    ) {
        let administered = self.administered.upgrade();
        // One act at a time, of which each is read when its turn has come.
        let mut providers = administered.as_deref().map(lock);
        let asked = read(request.instance(), request.args());
        let done = asked.as_ref().map_err(String::clone).and_then(|asked| {
            let providers = providers.as_mut().ok_or_else(|| "the instance ends".to_owned())?;
            act(request.instance(), request.remaining(), asked, providers, &self.components)
        });
        drop(providers);
        drop(administered);
        let name = asked.as_ref().map_or_else(|_| "unknown".to_owned(), AdminRequest::to_string);
        if done.is_err() || asked.is_ok_and(|asked| asked.changes()) {
            let (origin, caller) = (request.origin(), request.principal());
            match &done {
                Ok(_) => log!(inner.log, INFO, %origin, %caller, act = name, "administered"),
                Err(why) => {
                    log!(inner.log, WARN, %origin, %caller, act = name, why, "not administered");
                }
            }
            record(request, name, done.as_ref().err());
        }
        // Who is gone needs no answer.
        let _ = request.respond(&tell(done.map_err(Undone::Failed)));
    }

    /// Answers a caller who may do nothing, whatever it asks for.
    fn refuse<A, R: Serialize>(&self, request: &Handle<A, R>, reason: String, tell: Tell<R>) {
        let count = self.refused.fetch_add(1, Ordering::Relaxed) + 1;
        // A peer that asks for nothing else must not fill the log.
        if count.is_power_of_two() {
            let (log, origin, caller) =
                (&request.instance().inner().log, request.origin(), request.principal());
            let text = "a peer may not administer this instance";
            log!(log, WARN, %origin, %caller, count, reason, "{text}");
        }
        record(request, "not read".to_owned(), Some(&reason));
        // Who is gone needs no answer.
        let _ = request.respond(&tell(Err(Undone::NotAllowed(reason))));
    }

    /// Returns whether a caller whom the rules have let in may administer the instance, or else
    /// why not.
    fn may(&self, inner: &Inner, caller: Principal) -> Result<(), String> {
        if !inner.resolved.remote_admin {
            return Err("`margo.remote_admin` is not set there".to_owned());
        }
        let own = rustix::process::geteuid().as_raw();
        match &self.admins {
            None if caller != Principal::User(own) => Err(format!(
                "without `margo.security.allow` only its own user may, over na+sm, and this is \
                 {caller}"
            )),
            Some(admins) if !admins.may(caller) => {
                Err(format!("no rule of `margo.security.allow` lets {caller} call `__admin__`"))
            }
            _ => Ok(()),
        }
    }
}

fn record<A, R>(request: &Handle<A, R>, act: String, why: Option<&String>) {
    if let Some(audit) = &request.instance().inner().audit {
        let (caller, origin) = (request.principal().to_string(), request.origin().to_string());
        let (done, why) = (why.is_none(), why.cloned());
        audit.record(|| AuditEvent::Admin { act, done, why, caller, origin });
    }
}

fn act(
    instance: &Instance,
    left: Option<Duration>,
    asked: &AdminRequest,
    providers: &mut RunningProviders,
    components: &[Box<dyn Component>],
) -> Result<Value, String> {
    let layout = instance.layout();
    // Nobody else is served meanwhile, so nothing is waited for longer than by the caller.
    let limit = |msec: &u64| {
        let limit = Duration::from_millis(*msec);
        left.map_or(limit, |left| limit.min(left))
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
            let (name, id) = instance.start_provider(&components, entry, providers)?;
            Ok(json!({ "name": name, "provider_id": id }))
        }
        AdminRequest::StopProvider { name, needed, limit_msec } => {
            let stopped = match needed {
                true => providers.stop_needed(name, limit(limit_msec)),
                false => providers.stop(name, limit(limit_msec)),
            };
            stopped.map_err(|error| text(&error))?;
            // One that is to come back stays part of the document.
            if providers.awaited().all(|own| own != name) {
                instance.inner().provider_configs.leave(name);
            }
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
    let awaited = |name: Option<&str>| providers.awaited().any(|own| Some(own) == name);
    let described = document.margo.providers.iter().filter(|own| {
        let name = own.name.as_deref();
        runs(name) || awaited(name)
    });
    let described: Vec<_> = described
        .map(|own| {
            json!({
                "running": runs(own.name.as_deref()),
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
