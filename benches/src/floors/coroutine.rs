//! Floor of `ult.create_join` and `ult.yield`: corosensei alone, without pool, scheduler, join.
//!
//! - `floor.coroutine.create`: put a coroutine on a pooled stack, run it to its end, take the
//!   stack back.
//! - `floor.coroutine.switch`: resume one coroutine and come back by suspending it. One stack,
//!   always warm: the best case.

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};

use crate::base::{Effort, Figure, OrFail, Result, Round, fail};
use crate::process::Context;

/// Operations per sample.
pub(crate) const BATCH: u32 = 256;

/// Bytes of a stack; as much as corosensei's own default.
const STACK_BYTES: usize = 1 << 20;

/// A round resumes one coroutine, which suspends for ever.
///
/// # Errors
///
/// When the system gives no stack.
pub(crate) fn switches() -> Result<Round> {
    let stack = DefaultStack::new(STACK_BYTES)?;
    let mut coroutine = Coroutine::with_stack(stack, |yielder: &Yielder<(), ()>, ()| {
        loop {
            yielder.suspend(());
        }
    });
    Ok(Box::new(move |samples| {
        samples.batched(|| match coroutine.resume(()) {
            CoroutineResult::Yield(()) => Ok(()),
            CoroutineResult::Return(()) => fail!("the coroutine ended"),
        })
    }))
}

/// A round makes coroutines that return at once, on one pooled stack.
///
/// # Errors
///
/// When the system gives no stack.
pub(crate) fn creations() -> Result<Round> {
    let mut pool = Some(DefaultStack::new(STACK_BYTES)?);
    Ok(Box::new(move |samples| {
        samples.batched(|| {
            let stack = pool.take().or_fail("the stack is lost")?;
            let mut coroutine = Coroutine::with_stack(stack, |_: &Yielder<(), ()>, ()| BATCH);
            match coroutine.resume(()) {
                CoroutineResult::Return(value) => std::hint::black_box(value),
                CoroutineResult::Yield(()) => fail!("it did not end"),
            };
            pool = Some(coroutine.into_stack());
            Ok(())
        })
    }))
}

/// Rows `floor.coroutine.*`.
pub(crate) fn run(context: &Context, floor: fn() -> Result<Round>) -> Result<Figure> {
    let mut samples = Effort::batches(context.quick).alone(BATCH, floor()?)?;
    Ok(Figure::median(samples.latency(), None))
}
