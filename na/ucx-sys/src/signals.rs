//! Handlers of fatal signals, kept over the loading of a library that installs its own.

use std::mem::MaybeUninit;

/// Those that UCX catches by default (`UCX_ERROR_SIGNALS`).
const SIGNALS: [libc::c_int; 4] = [libc::SIGILL, libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE];

/// The handlers of [`SIGNALS`] at one moment.
pub(crate) struct Handlers([Option<libc::sigaction>; SIGNALS.len()]);

impl Handlers {
    /// The current ones.
    pub(crate) fn save() -> Self {
        Self(SIGNALS.map(|signal| {
            let mut action = MaybeUninit::uninit();
            // SAFETY: asks only; the result has room for one.
            let done = unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) };
            // SAFETY: the call succeeded, so it has written the result.
            (done == 0).then(|| unsafe { action.assume_init() })
        }))
    }

    /// Installs them again.
    pub(crate) fn restore(self) {
        for (signal, action) in SIGNALS.into_iter().zip(self.0) {
            let Some(action) = action else { continue };
            // SAFETY: a handler that was installed before, whose code is still there.
            let done = unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
            debug_assert_eq!(done, 0, "it was valid before");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handler(signal: libc::c_int) -> usize {
        let mut action = MaybeUninit::<libc::sigaction>::uninit();
        // SAFETY: asks only; the result has room for one.
        let done = unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) };
        assert_eq!(done, 0);
        // SAFETY: the call succeeded, so it has written the result.
        unsafe { action.assume_init() }.sa_sigaction
    }

    #[test]
    fn the_library_changes_no_handler() {
        let before = SIGNALS.map(handler);
        if let Err(error) = crate::library() {
            eprintln!("SKIPPED: {error}");
            return;
        }
        assert_eq!(SIGNALS.map(handler), before);
    }
}
