//! The callbacks that run when an instance ends; `lifecycle/finalize.rs` says when and how.

use std::panic::Location;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use na::fork::Process;

use crate::Instance;

pub(crate) type Callback = Box<dyn FnOnce(&Instance) + Send>;

/// When a callback runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallbackStage {
    /// The network works.
    Before,
    /// It is closed.
    After,
}

/// A callback that has not run.
pub(crate) struct Entered {
    pub(crate) number: u64,
    pub(crate) callback: Callback,
    /// Where, for the log: callbacks have no names.
    pub(crate) at: &'static Location<'static>,
}

/// The callbacks of one stage, last one on top.
#[derive(Default)]
pub(crate) struct Stack {
    /// With numbers that grow.
    callbacks: Vec<Entered>,
    entered: u64,
    /// It takes no more. Those that are left still run.
    pub(crate) is_over: bool,
}

/// A thread, or a ULT, which stays on its thread.
pub(crate) type Runner = (ThreadId, Option<u64>);

pub(crate) fn runner_here() -> Runner {
    (std::thread::current().id(), ult::current().map(|unit| unit.id))
}

/// The callbacks of an instance.
#[derive(Default)]
pub(crate) struct Callbacks {
    before: Mutex<Stack>,
    after: Mutex<Stack>,
    runners: Mutex<Vec<Runner>>,
    pub(crate) process: Process,
}

impl Callbacks {
    pub(crate) fn stack(&self, stage: CallbackStage) -> MutexGuard<'_, Stack> {
        let stack = match stage {
            CallbackStage::Before => &self.before,
            CallbackStage::After => &self.after,
        };
        stack.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None`: the stage is over.
    pub(crate) fn enter(
        &self,
        stage: CallbackStage,
        callback: Callback,
        at: &'static Location<'static>,
    ) -> Option<u64> {
        let mut stack = self.stack(stage);
        if stack.is_over {
            return None;
        }
        stack.entered += 1;
        let number = stack.entered;
        stack.callbacks.push(Entered { number, callback, at });
        Some(number)
    }

    pub(crate) fn remove(&self, stage: CallbackStage, number: u64) -> Option<Callback> {
        let mut stack = self.stack(stage);
        let found = stack.callbacks.binary_search_by_key(&number, |entered| entered.number);
        found.ok().map(|place| stack.callbacks.remove(place).callback)
    }

    /// Takes the next one to run. The stage is over if there is none, or if it takes no more.
    pub(crate) fn next(&self, stage: CallbackStage, takes_more: bool) -> Option<Entered> {
        let mut stack = self.stack(stage);
        let next = stack.callbacks.pop();
        stack.is_over |= next.is_none() || !takes_more;
        next
    }

    /// How many have not run.
    pub(crate) fn left(&self, stage: CallbackStage) -> usize {
        self.stack(stage).callbacks.len()
    }

    pub(crate) fn runners(&self) -> MutexGuard<'_, Vec<Runner>> {
        self.runners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether the end waits for the calling thread or ULT.
    pub(crate) fn awaits_caller(&self) -> bool {
        self.runners().contains(&runner_here())
    }
}
