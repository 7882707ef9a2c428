//! Spawning: a block, a descriptor, a push.

use crate::current;
use crate::descriptor::{UltName, UltPtr, UltRef};
use crate::error::SpawnError;
use crate::join::{JoinHandle, detach_new};
use crate::pool::{PoolRef, PoolShared, PushReason, Queue};
use crate::stack::class_of;
use crate::sync::Arc;
use crate::sync::atomic::Ordering::Relaxed;
use crate::trace::event::EventKind;
use crate::unit::Unit;
use crate::xstream::{Xstream, bump};

/// Describes a ULT; see [`PoolRef::ult`].
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until `spawn` is called"]
pub struct UltBuilder<'a> {
    pub(crate) pool: &'a PoolRef,
    pub(crate) name: UltName,
    pub(crate) stack_bytes: Option<usize>,
}

impl UltBuilder<'_> {
    /// A name for messages. A literal or an `Arc<str>` costs no allocation.
    pub fn name(mut self, name: impl Into<UltName>) -> Self {
        self.name = name.into();
        self
    }

    /// Stack size in bytes, virtual; rounded up to whole pages, at least 16 KiB. Includes the
    /// descriptor (below 1 KiB). Default: that of the pool.
    pub fn stack_bytes(mut self, bytes: usize) -> Self {
        self.stack_bytes = Some(bytes);
        self
    }

    /// Spawns a ULT that runs `f`.
    ///
    /// # Errors
    ///
    /// See [`SpawnError`]; `f` has then been dropped.
    ///
    /// Counterpart: `ABT_thread_create` with attributes.
    pub fn spawn<F, T>(self, f: F) -> Result<JoinHandle<T>, SpawnError>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let ult = self.spawn_with(f, 2, |_| {})?;
        // SAFETY:
        // - `f` returns a `T`; the only handle, and one of the two counts is its own.
        Ok(unsafe { JoinHandle::new(UltRef::adopt(ult)) })
    }

    /// Spawns a ULT that nobody will join. A panic in it is logged.
    ///
    /// # Errors
    ///
    /// See [`SpawnError`]; `f` has then been dropped.
    ///
    /// Counterpart: `ABT_thread_create` of an unnamed ULT.
    pub fn spawn_detached<F>(self, f: F) -> Result<(), SpawnError>
    where
        F: FnOnce() + Send + 'static,
    {
        self.spawn_with(f, 1, detach_new).map(drop)
    }

    /// `prepared` sees the ULT before it can run. The result is valid as long as the caller owns
    /// one of the `refs` counts.
    #[inline]
    fn spawn_with<F, T>(
        self,
        f: F,
        refs: usize,
        prepared: impl FnOnce(UltPtr),
    ) -> Result<UltPtr, SpawnError>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let core = &self.pool.core;
        let pool = self.pool.shared();
        let here = current::xstream_in(core);
        let pass = match here {
            Some(xstream) => (!xstream.closing.get()).then_some(None),
            None => core.enter_gate().map(Some),
        };
        let Some(_pass) = pass else {
            return Err(SpawnError::ShutDown { pool: pool.name.to_string() });
        };
        let bytes = self.stack_bytes.map_or(pool.stack_bytes, class_of);
        let block = match here {
            Some(xstream) => xstream.cache.borrow_mut().take(core, bytes),
            None => core.depot.take(core, bytes),
        };
        let ult = block.map_err(|source| SpawnError::Stack {
            pool: pool.name.to_string(),
            bytes,
            source,
        })?;
        let id = here.map_or_else(|| core.draw_ids(1), Xstream::next_id);
        ult.prepare(id, pool, self.name, refs);
        ult.payload.set_closure(f);
        prepared(ult);
        match here.and_then(|xstream| Some((xstream, xstream.slot_of(pool.index)?))) {
            Some((xstream, slot)) => bump(&xstream.shared().slots[slot].created),
            None => {
                pool.foreign_created.fetch_add(1, Relaxed);
            }
        }
        match here {
            Some(xstream) => xstream.on_event(ult, EventKind::Create),
            None => crate::diag::tell(ult, EventKind::Create),
        }
        push_new(ult, pool, here);
        Ok(ult)
    }
}

/// Queues an unstarted ULT, whose queue membership the caller has.
pub(crate) fn enqueue(ult: UltPtr) {
    push_new(ult, ult.pool(), current::xstream_in(&ult.core));
}

fn push_new(ult: UltPtr, pool: &PoolShared, here: Option<&Xstream>) {
    // An xstream of the runtime keeps the shared part alive; other threads hold a `PoolRef`, or
    // are here for a unit that a pool of another runtime had swallowed.
    let held = here.is_none().then(|| Arc::clone(&ult.core));
    let core = match (&held, here) {
        (Some(core), _) => core,
        (None, Some(xstream)) => &xstream.core,
        (None, None) => return,
    };
    match &pool.queue {
        Queue::Local => {
            let server = pool.servers[0];
            match here {
                Some(xstream) if xstream.shared().index == server.xstream => {
                    xstream.list_back(ult, server.slot);
                }
                _ => {
                    pool.in_flight.fetch_add(1, Relaxed);
                    core.xstreams[server.xstream].send(ult);
                }
            }
        }
        Queue::Object(object) => {
            object.push(Unit::from_ult(ult), PushReason::Create);
            let only_here = here.is_some_and(|xstream| {
                !pool.is_shared() && pool.servers[0].xstream == xstream.shared().index
            });
            if !only_here {
                core.wake_one(pool);
            }
        }
    }
}
