//! The end of copies, also of those whose device does not go on.
//!
//! A device cannot be told to leave memory alone. When a transfer ends early, its copies are waited
//! for a little. Those that are not over by then are left, with all that they use, to a thread that
//! gives it back when they are; the transfer ends. With a device that never goes on, that memory is
//! lost, and nothing else is.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use device::{DeviceCopy, DeviceError};
use na::{LingeringMemory, LocalMem};
use prim::sync::lock;

/// Looks at copies, with other ULTs in between, before the ULT sleeps.
const LOOKS: u32 = 2000;

/// The sleep between later looks.
const PAUSE: Duration = Duration::from_micros(50);

/// How long copies are waited for after their transfer has ended early.
pub(super) const GRACE: Duration = Duration::from_millis(100);

/// Transfers whose copies are left to threads at a time, of all instances: those of a peer that
/// asks and gives up again and again must not grow. Beyond, a transfer waits for its device.
const LEFT_MAX: usize = 64;

/// The pause between looks at copies that were left.
const LATE_PAUSE: Duration = Duration::from_millis(5);

/// Why not all copies have come to their end.
pub(super) enum CopyEnd {
    Failed(DeviceError),
    /// The transfer was to end early.
    Left,
}

/// Waits for copies, which use `kept`, until `is_early` says that nobody waits for the transfer any
/// more, and a little longer. `written`: the registered memory that they write, if it is not
/// `kept`.
pub(super) fn finish<K: Send + 'static>(
    mut copies: Vec<DeviceCopy>,
    kept: K,
    written: Option<&LocalMem>,
    is_early: impl Fn() -> bool,
) -> Result<K, CopyEnd> {
    let (mut looks, mut until, mut failed) = (0, None, None);
    loop {
        copies.retain_mut(|copy| match copy.is_over() {
            Ok(is_over) => !is_over,
            Err(error) => {
                failed.get_or_insert(error);
                false
            }
        });
        let now = Instant::now();
        if copies.is_empty() {
            return failed.map_or(Ok(kept), |error| Err(CopyEnd::Failed(error)));
        }
        if (failed.is_some() || is_early())
            && now >= *until.get_or_insert(now + GRACE)
            && let Some(place) = LeftPlace::take()
        {
            leave(copies, (kept, written.map(LingeringMemory::new), place));
            return Err(failed.map_or(CopyEnd::Left, CopyEnd::Failed));
        }
        looks += 1;
        match looks < LOOKS {
            true => ult::yield_now(),
            false => ult::sleep(PAUSE),
        }
    }
}

/// One of the [`LEFT_MAX`] places.
struct LeftPlace;

/// Those that are taken. Relaxed: a count.
static LEFT: AtomicUsize = AtomicUsize::new(0);

impl LeftPlace {
    fn take() -> Option<Self> {
        let more = |left: usize| (left < LEFT_MAX).then_some(left + 1);
        LEFT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok().then_some(Self)
    }
}

impl Drop for LeftPlace {
    fn drop(&mut self) {
        LEFT.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Keeps what copies use until they are over. Not on a ULT, which would hold up the end of the
/// runtime.
fn leave(copies: Vec<DeviceCopy>, kept: impl Send + 'static) {
    let parked = Arc::new(Mutex::new(Some((copies, kept))));
    let own = parked.clone();
    let wait = move || {
        let Some((mut copies, kept)) = lock(&own).take() else { return };
        while copies.iter_mut().any(|copy| matches!(copy.is_over(), Ok(false))) {
            std::thread::sleep(LATE_PAUSE);
        }
        drop(copies);
        drop(kept);
    };
    if std::thread::Builder::new().name("margo-late-copy".to_owned()).spawn(wait).is_err() {
        // Dropping a copy waits for it.
        std::mem::forget(lock(&parked).take());
    }
}
