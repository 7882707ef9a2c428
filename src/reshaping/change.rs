//! Adding pools and xstreams.

use margo_config::{Affinity, Scheduler, Xstream};
use margo_config::{Config, ConfigFlags, Errors, Pool, PoolAccess, PoolKind, Resolved, Warning};
use ult::{PoolRef, Runtime, XstreamRef, XstreamState};

use crate::InstanceLayout;
use crate::elastic::{Elastic, ElasticPool, Part, RuntimeOwner, XstreamEntry, listed};
use crate::error::LayoutErrors;
use crate::observe::monitor::LifeEvent;
use crate::support::log::{Log, log};
use crate::{ElasticityError, InitError, Layout, PoolInfo, PoolKey, XstreamInfo};

/// References by name, which do not change when others are added or removed.
const NAMES: ConfigFlags = ConfigFlags { use_names: true, hide_external: false };

/// Resolves `after`, if `init` accepts it. Warnings that `before` does not give are logged, except
/// about paths that are `expected`.
fn check(
    log: &Log,
    before: &Config,
    after: &Config,
    expected: impl Fn(&str) -> bool,
) -> Result<Resolved, Errors> {
    let known = before.resolve(&|_| None).map(|before| before.warnings).unwrap_or_default();
    let after = after.resolve(&|_| None)?;
    let is_new = |warning: &&Warning| !known.contains(warning) && !expected(&warning.path);
    for warning in after.warnings.iter().filter(is_new) {
        log!(log, WARN, "{warning}");
    }
    Ok(after)
}

impl Elastic {
    /// Resolves the document with this change, if it is still a document that `init` accepts. New
    /// warnings are logged, except about `expected`.
    pub(super) fn checked(
        &self,
        (resolved, log): (&Resolved, &Log),
        expected: &str,
        change: impl FnOnce(&mut Config),
    ) -> Result<Resolved, Errors> {
        let before = self.document(resolved, NAMES, Part::All);
        let mut after = before.clone();
        change(&mut after);
        check(log, &before, &after, |path| path == expected)
    }

    /// Checks the document without this xstream.
    pub(super) fn check_without(
        &self,
        (resolved, log): (&Resolved, &Log),
        left: &XstreamInfo,
    ) -> Result<(), Errors> {
        let before = self.document(resolved, NAMES, Part::All);
        let after = self.document(resolved, NAMES, Part::Without(left.index));
        // That no xstream runs them any more is no news.
        let pools = before.argobots.pools.iter().enumerate();
        let alone = |name: &str| {
            let is_run = |xstream: &Xstream| {
                let pools = xstream.scheduler.iter().flat_map(|scheduler| &scheduler.pools);
                pools.into_iter().any(|pool| *pool == name.into())
            };
            !after.argobots.xstreams.iter().any(is_run)
        };
        let left_alone: Vec<_> = pools
            .filter(|(_, pool)| pool.name.as_deref().is_some_and(alone))
            .map(|(place, _)| format!("argobots.pools[{place}]"))
            .collect();
        check(log, &before, &after, |path| left_alone.iter().any(|pool| pool == path))?;
        Ok(())
    }

    /// `__pool_7__` for index 7, or the next number that is free.
    fn new_pool_name(&self, runtime: &Runtime) -> String {
        let first = self.table().next_pool;
        let is_free = |name: &String| runtime.pool(name).is_none();
        (first..).map(|number| format!("__pool_{number}__")).find(is_free).unwrap_or_default()
    }

    fn new_xstream_name(&self, runtime: &Runtime) -> String {
        let first = self.table().next_xstream;
        let is_free = |name: &String| runtime.xstream(name).is_none();
        (first..).map(|number| format!("__xstream_{number}__")).find(is_free).unwrap_or_default()
    }

    fn enter_pool(&self, entry: ElasticPool) -> PoolInfo {
        let mut table = self.table();
        let info = PoolInfo { index: table.next_pool, pool: entry.pool.clone() };
        table.pools.insert(info.index, entry);
        table.next_pool += 1;
        info
    }

    fn enter_xstream(&self, entry: XstreamEntry) -> XstreamInfo {
        let mut table = self.table();
        let info = XstreamInfo { index: table.next_xstream, xstream: entry.xstream.clone() };
        table.xstreams.insert(info.index, entry);
        table.next_xstream += 1;
        info
    }
}

impl InstanceLayout<'_> {
    /// Adds a pool from its description in JSON, as it stands in `argobots.pools` of a document;
    /// `{}` and an empty string are the default pool. Without a name it is called
    /// `__pool_<index>__`. No xstream runs it yet: [`add_xstream`](Self::add_xstream).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let margo = margo::init("{}")?;
    /// let pool = margo.layout().add_pool_from_json(r#"{ "name": "work", "kind": "prio_wait" }"#)?;
    /// margo.layout().add_xstream_from_json(r#"{ "scheduler": { "pools": ["work"] } }"#)?;
    /// assert_eq!(pool.pool.spawn(|| 6 * 7)?.join()?, 42);
    ///
    /// // It is part of the configuration, so the next start can have it from the beginning.
    /// assert!(margo.config().to_json().contains("prio_wait"));
    /// # margo.finalize_and_wait()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ElasticityError::Description`] with all that is wrong; `Layout`, `Start`, `Closing`.
    ///
    /// Counterpart: `margo_add_pool_from_json`.
    pub fn add_pool_from_json(&self, json: &str) -> Result<PoolInfo, ElasticityError> {
        self.add_pool(Pool::from_json(json)?)
    }

    /// Adds a pool. As [`add_pool_from_json`](Self::add_pool_from_json).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn add_pool(&self, mut pool: Pool) -> Result<PoolInfo, ElasticityError> {
        let (inner, elastic) = (self.inner(), self.instance.elastic());
        let _one_at_a_time = self.extend_layout()?;
        pool.name.get_or_insert_with(|| elastic.new_pool_name(&inner.runtime));
        let (resolved, place) = self.with_pool(pool)?;
        let layout = Layout::plan(&resolved).map_err(|error| below(error, "pools", place))?;
        let made = inner.runtime.add_pool(layout.pools[place].spec())?;
        let info = elastic.enter_pool(ElasticPool::new(resolved.pools[place].clone(), made));
        inner.monitoring.tell(&LifeEvent::PoolAdded(&info.pool));
        Ok(info)
    }

    /// Adds a pool that the program has made with [`Instance::runtime`](crate::Instance::runtime).
    /// Removing it from the instance leaves it in the runtime. Its name has to be one that a
    /// document could have.
    ///
    /// # Errors
    ///
    /// [`ElasticityError::Known`], `NotOurs`, `Description` (its name), `Closing`.
    ///
    /// Counterpart: `margo_add_pool_external`.
    pub fn add_external_pool(&self, pool: &PoolRef) -> Result<PoolInfo, ElasticityError> {
        let (inner, elastic) = (self.inner(), self.instance.elastic());
        let _one_at_a_time = self.change_layout()?;
        let name = pool.name().to_owned();
        if elastic.table().find_pool(PoolKey::Handle(pool)).is_ok() {
            return Err(ElasticityError::Known { what: "pool", name });
        }
        if !inner.runtime.pools().contains(pool) {
            return Err(ElasticityError::NotOurs { what: "pool", name });
        }
        let (resolved, place) = self.with_pool(described(pool))?;
        let mut about = resolved.pools[place].clone();
        about.external = true;
        let info = elastic.enter_pool(ElasticPool::new(about, pool.clone()));
        inner.monitoring.tell(&LifeEvent::PoolAdded(&info.pool));
        Ok(info)
    }

    /// Adds an xstream from its description in JSON, as it stands in `argobots.xstreams` of a
    /// document. Indices in it are those of this instance. Without a name it is called
    /// `__xstream_<index>__`. It runs when this returns.
    ///
    /// # Errors
    ///
    /// [`ElasticityError::Description`] with all that is wrong; `NoSuchPool`, `Layout`, `Start`,
    /// `Closing`.
    ///
    /// Counterpart: `margo_add_xstream_from_json`.
    pub fn add_xstream_from_json(&self, json: &str) -> Result<XstreamInfo, ElasticityError> {
        self.add_xstream(Xstream::from_json(json)?)
    }

    /// Adds an xstream. As [`add_xstream_from_json`](Self::add_xstream_from_json).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn add_xstream(&self, mut xstream: Xstream) -> Result<XstreamInfo, ElasticityError> {
        let (inner, elastic) = (self.inner(), self.instance.elastic());
        let _one_at_a_time = self.extend_layout()?;
        xstream.name.get_or_insert_with(|| elastic.new_xstream_name(&inner.runtime));
        for pool in xstream.scheduler.iter_mut().flat_map(|scheduler| &mut scheduler.pools) {
            if let margo_config::PoolRef::Index(index) = *pool {
                *pool = self.find_pool(index)?.name().into();
            }
        }
        let (resolved, place) = self.with_xstream(xstream)?;
        let layout = Layout::plan(&resolved).map_err(|error| below(error, "xstreams", place))?;
        let made = inner.runtime.add_xstream(layout.xstreams[place].spec())?;
        let entry = XstreamEntry::new(resolved.xstreams[place].clone(), made);
        let info = elastic.enter_xstream(entry);
        inner.monitoring.tell(&LifeEvent::XstreamAdded(&info.xstream));
        Ok(info)
    }

    /// Adds an xstream that the program has made with
    /// [`Instance::runtime`](crate::Instance::runtime), with pools of this instance. Removing it
    /// from the instance leaves it in the runtime.
    ///
    /// # Errors
    ///
    /// [`ElasticityError::Known`], `NotOurs`; `NoSuchPool` when it runs a pool that the instance
    /// does not know; `Description` (its name), `Closing`.
    ///
    /// Counterpart: `margo_add_xstream_external`.
    pub fn add_external_xstream(
        &self,
        xstream: &XstreamRef,
    ) -> Result<XstreamInfo, ElasticityError> {
        let elastic = self.instance.elastic();
        let _one_at_a_time = self.change_layout()?;
        let name = xstream.name().to_owned();
        if elastic.table().find_xstream(xstream.into()).is_ok() {
            return Err(ElasticityError::Known { what: "xstream", name });
        }
        let ours = self.inner().runtime.xstreams().contains(xstream);
        if !ours || xstream.state() == XstreamState::Removed {
            return Err(ElasticityError::NotOurs { what: "xstream", name });
        }
        for pool in &xstream.pools() {
            self.find_pool(pool)?;
        }
        let (resolved, place) = self.with_xstream(described_xstream(xstream))?;
        let mut about = resolved.xstreams[place].clone();
        about.external = true;
        let info = elastic.enter_xstream(XstreamEntry::new(about, xstream.clone()));
        self.inner().monitoring.tell(&LifeEvent::XstreamAdded(&info.xstream));
        Ok(info)
    }

    /// As [`change`](crate::Instance::change), for changes that a child may not make.
    pub(super) fn change_layout(&self) -> Result<ult::MutexGuard<'_, ()>, ElasticityError> {
        match self.inner().runtime_owner {
            RuntimeOwner::Parent => Err(ElasticityError::Child),
            RuntimeOwner::Own | RuntimeOwner::Program => self.change(),
        }
    }

    /// As [`change_layout`](crate::Instance::change_layout), for changes that make something in the
    /// runtime.
    fn extend_layout(&self) -> Result<ult::MutexGuard<'_, ()>, ElasticityError> {
        match self.inner().runtime_owner {
            RuntimeOwner::Program => Err(ElasticityError::Program),
            RuntimeOwner::Own | RuntimeOwner::Parent => self.change_layout(),
        }
    }

    /// Begins a change; none once the end has begun.
    pub(super) fn change(&self) -> Result<ult::MutexGuard<'_, ()>, ElasticityError> {
        // Before the lock, which may be held for ever in a child process. And who waits for it may
        // be in the way of who has it, for whom an xstream has to run something.
        if self.inner().is_forked() {
            return Err(ElasticityError::Forked);
        }
        if ult::is_tasklet() {
            return Err(ElasticityError::Inline);
        }
        let turn = self.instance.elastic().hold_still();
        if self.instance.is_finalizing() { Err(ElasticityError::Closing) } else { Ok(turn) }
    }

    /// The settings against which a change is checked, and the log for its warnings.
    pub(super) fn checks(&self) -> (&Resolved, &Log) {
        (&self.inner().resolved, &self.inner().log)
    }

    /// The document with one more pool, and the pool's place in it.
    fn with_pool(&self, pool: Pool) -> Result<(Resolved, usize), ElasticityError> {
        let place = self.instance.elastic().table().pools.len();
        let path = format!("argobots.pools[{place}]");
        // That no xstream runs it is no news.
        let resolved = self
            .instance
            .elastic()
            .checked(self.checks(), &path, |document| document.argobots.pools.push(pool))
            .map_err(|errors| errors.below(&path))?;
        Ok((resolved, place))
    }

    /// The document with one more xstream, and the xstream's place in it.
    fn with_xstream(&self, xstream: Xstream) -> Result<(Resolved, usize), ElasticityError> {
        // Not that of the table: one that runs only pools unknown here is not in a document.
        let mut place = 0;
        let resolved = self.instance.elastic().checked(self.checks(), "", |document| {
            place = document.argobots.xstreams.len();
            document.argobots.xstreams.push(xstream);
        });
        let resolved =
            resolved.map_err(|errors| errors.below(&format!("argobots.xstreams[{place}]")))?;
        Ok((resolved, place))
    }
}

/// Describes a pool as a document would; a document has no word for a queue of the program's own.
pub(crate) fn described(pool: &PoolRef) -> Pool {
    Pool {
        name: Some(pool.name().to_owned()),
        kind: match pool.kind() {
            ult::PoolKind::Fifo => PoolKind::Fifo,
            ult::PoolKind::PrioWait => PoolKind::PrioWait,
            ult::PoolKind::EarliestFirst => PoolKind::EarliestFirst,
            ult::PoolKind::RandWs => PoolKind::RandWs,
            _ => PoolKind::FifoWait,
        },
        access: match pool.access() {
            ult::Access::Private => PoolAccess::Private,
            ult::Access::Spsc => PoolAccess::Spsc,
            ult::Access::Mpsc => PoolAccess::Mpsc,
            ult::Access::Spmc => PoolAccess::Spmc,
            _ => PoolAccess::Mpmc,
        },
        stack_bytes: Some(pool.stack_bytes()),
        ..Pool::default()
    }
}

/// Describes an xstream as a document would; its scheduler may be one of the program's own.
pub(crate) fn described_xstream(xstream: &XstreamRef) -> Xstream {
    let cpus = listed(&xstream.cpus());
    let pools = xstream.pools().iter().map(|pool| pool.as_str().into()).collect();
    Xstream {
        name: Some(xstream.name().to_owned()),
        affinity: Affinity::Cpus(cpus),
        scheduler: Some(Scheduler { pools, ..Scheduler::default() }),
        ..Xstream::default()
    }
}

/// Turns an error about the layout, for instance a processor that the machine does not have, into
/// one whose paths begin at the description.
fn below(error: InitError, list: &str, place: usize) -> ElasticityError {
    let prefix = format!("argobots.{list}[{place}].");
    match error {
        InitError::Layout(LayoutErrors(mut errors)) => {
            for error in &mut errors {
                if let Some(rest) = error.path.strip_prefix(&prefix) {
                    error.path = rest.to_owned();
                }
            }
            ElasticityError::Layout(LayoutErrors(errors))
        }
        InitError::Config(errors) => ElasticityError::Description(errors),
        // Planning starts nothing, so nothing else can go wrong.
        _ => ElasticityError::Closing,
    }
}
