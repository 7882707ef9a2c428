//! Waiting for the first of several units.

use std::ptr::NonNull;
use std::time::Instant;

use crate::engine::error::JoinError;
use crate::engine::model::waiter::Waiter;
use crate::engine::waiting::watch::Watch;
use crate::spawn::join::JoinHandle;
use crate::wait::select::{Selectable, wait_any};

/// Ready when the unit has ended, so that [`JoinHandle::join`] does not wait. A unit that waits for
/// its own handle this way waits for the other objects, and in vain if there are none.
impl<T> Selectable for JoinHandle<T> {}

impl<T> Watch for JoinHandle<T> {
    fn is_ready(&self) -> bool {
        self.is_finished()
    }

    unsafe fn register(&self, node: NonNull<Waiter>) -> bool {
        // SAFETY: the duties of the caller are the same.
        unsafe { self.word().register(node) }
    }

    fn unregister(&self, node: NonNull<Waiter>) -> bool {
        self.word().unregister(node)
    }
}

/// Waits for the first of `handles` whose unit has ended; the lowest if there are several. Removes
/// it, and returns where it was and its outcome. The others keep their order. `None`: there
/// are no handles.
///
/// A ULT suspends, an OS thread blocks. If the handle of the calling unit is among them, the
/// outcome is [`JoinError::Deadlock`], at once.
///
/// ```
/// # use ult::{PoolSpec, Runtime, XstreamSpec};
/// # let runtime = Runtime::builder()
/// #     .pool(PoolSpec::new("main"))
/// #     .xstream(XstreamSpec::new("x0").pools(["main"]))
/// #     .start()?;
/// # let pool = runtime.pool("main").expect("defined above");
/// let mut handles: Vec<_> = (0..3).filter_map(|n| pool.spawn(move || n).ok()).collect();
/// let mut sum = 0;
/// while let Some((_, outcome)) = ult::join_any(&mut handles) {
///     sum += outcome?;
/// }
/// assert_eq!(sum, 3);
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Counterpart: none; `ABT_thread_join_many` waits for all.
pub fn join_any<T>(handles: &mut Vec<JoinHandle<T>>) -> Option<(usize, Result<T, JoinError>)> {
    join_first(handles, None)
}

/// Like [`join_any`], but no longer than until `deadline`. `None`: none had ended by then.
pub fn join_any_deadline<T>(
    handles: &mut Vec<JoinHandle<T>>,
    deadline: Instant,
) -> Option<(usize, Result<T, JoinError>)> {
    join_first(handles, Some(deadline))
}

fn join_first<T>(
    handles: &mut Vec<JoinHandle<T>>,
    deadline: Option<Instant>,
) -> Option<(usize, Result<T, JoinError>)> {
    if handles.is_empty() {
        return None;
    }
    if let Some(index) = handles.iter().position(JoinHandle::is_own) {
        drop(handles.remove(index));
        return Some((index, Err(JoinError::Deadlock)));
    }
    let index = match handles.iter().position(JoinHandle::is_finished) {
        Some(index) => index,
        None => {
            let objects: Vec<&dyn Selectable> = handles.iter().map(|it| it as _).collect();
            wait_any(&objects, deadline)?
        }
    };
    Some((index, handles.remove(index).outcome()))
}
