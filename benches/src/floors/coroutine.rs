//! Floor of `ult.create_join` and `ult.yield`: corosensei alone, without pool, scheduler, join.
//!
//! - `floor.coroutine.create`: put a coroutine on a pooled stack, run it to its end, take the
//!   stack back.
//! - `floor.coroutine.switch`: resume one coroutine and come back by suspending it. One stack,
//!   always warm: the best case.

use corosensei::{Coroutine, CoroutineResult, Yielder};

use super::stack::GuardedStack;
use crate::base::failure::{Failure, Result};
use crate::base::row::Figure;
use crate::base::stats::{Effort, Samples};
use crate::process::context::Context;

/// Operations per sample.
pub(crate) const BATCH: u32 = 256;

/// One coroutine that suspends for ever.
pub(crate) struct Switch {
    coroutine: Coroutine<(), (), (), GuardedStack>,
}

impl Switch {
    /// A coroutine on a stack of its own.
    ///
    /// # Errors
    ///
    /// When the system gives no stack.
    pub(crate) fn new() -> Result<Self> {
        let coroutine =
            Coroutine::with_stack(GuardedStack::new()?, |yielder: &Yielder<(), ()>, ()| {
                loop {
                    yielder.suspend(());
                }
            });
        Ok(Self { coroutine })
    }

    /// One round of resume and suspend pairs.
    ///
    /// # Errors
    ///
    /// None in practice.
    pub(crate) fn round(&mut self, effort: Effort, samples: &mut Samples) -> Result<()> {
        effort.batched(samples, || match self.coroutine.resume(()) {
            CoroutineResult::Yield(()) => Ok(()),
            CoroutineResult::Return(()) => Err(Failure::new("the coroutine ended")),
        })
    }
}

/// A pool of one stack.
#[derive(Debug)]
pub(crate) struct Create {
    stack: Option<GuardedStack>,
}

impl Create {
    /// With a stack of the default size.
    ///
    /// # Errors
    ///
    /// When the system gives no stack.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self { stack: Some(GuardedStack::new()?) })
    }

    /// One round of coroutines that return at once.
    ///
    /// # Errors
    ///
    /// None in practice.
    pub(crate) fn round(&mut self, effort: Effort, samples: &mut Samples) -> Result<()> {
        effort.batched(samples, || {
            let stack = self.stack.take().ok_or_else(|| Failure::new("the stack is lost"))?;
            let mut coroutine = Coroutine::with_stack(stack, |_: &Yielder<(), ()>, ()| BATCH);
            match coroutine.resume(()) {
                CoroutineResult::Return(value) => std::hint::black_box(value),
                CoroutineResult::Yield(()) => return Err(Failure::new("it did not end")),
            };
            self.stack = Some(coroutine.into_stack());
            Ok(())
        })
    }
}

/// Row `floor.coroutine.switch`.
pub(crate) fn switch(context: &Context) -> Result<Figure> {
    let effort = Effort::batches(context.quick);
    let (mut samples, mut switch) = (effort.room(BATCH), Switch::new()?);
    for _ in 0..effort.rounds {
        switch.round(effort, &mut samples)?;
    }
    Ok(Figure::median(samples.latency(), None))
}

/// Row `floor.coroutine.create`.
pub(crate) fn create(context: &Context) -> Result<Figure> {
    let effort = Effort::batches(context.quick);
    let (mut samples, mut create) = (effort.room(BATCH), Create::new()?);
    for _ in 0..effort.rounds {
        create.round(effort, &mut samples)?;
    }
    Ok(Figure::median(samples.latency(), None))
}
