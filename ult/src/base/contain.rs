//! Code of the program that the runtime calls: methods of its pools, schedulers and sinks, its
//! callbacks, destructors of what it has given to the runtime, and whatever takes the log.
//!
//! All of it may panic, and most of it runs where an unwinding would lose what the runtime has in
//! hand, or would unwind the stack of a ULT that has nothing to do with it: after a direct switch
//! from ULT to ULT the second one carries out the command of the first on its own stack, in the
//! middle of a wait, whose node stays linked.
//!
//! - Every such call goes through [`contained_alone`] or [`caught`], every message through
//!   [`log!`], and what the program has given to the runtime for good stands in a [`Foreign`].
//! - What runs between two units is under a [`NoUnwind`]: a panic that is not contained there is an
//!   error of the runtime, and ends the process before it does harm.

use std::any::Any;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

pub use prim::panic::discard_panic;

/// The payload of a panic, which a ULT leaves behind.
pub(crate) type Panic = Box<dyn Any + Send + 'static>;

/// Makes an event of `tracing`, whatever the program's subscriber does with it:
/// `log!(ERROR, %error, "what happened")`.
macro_rules! log {
    ($level:ident, $($event:tt)+) => {
        $crate::base::contain::tell(|| ::tracing::event!(::tracing::Level::$level, $($event)+))
    };
}
pub(crate) use log;

/// Runs what makes an event, for [`log!`]. A subscriber that waits blocks the thread: the unit that
/// it would suspend may be in the middle of a wait, or gone. One that panics is heard of by the
/// panic hook alone.
#[cold]
pub(crate) fn tell(event: impl FnOnce()) {
    let mut event = Some(event);
    let mut once = || event.take().into_iter().for_each(|event| event());
    drop(caught(|| match ASIDE.get() {
        Some(aside) => aside(&mut once),
        None => once(),
    }));
}

/// Runs code in no unit.
type Aside = fn(&mut dyn FnMut());

/// How the engine has code run in no unit; empty until there are units.
static ASIDE: OnceLock<Aside> = OnceLock::new();

/// Installs what runs code in no unit. The first call counts.
pub(crate) fn set_aside(aside: Aside) {
    let _ = ASIDE.set(aside);
}

/// Runs `code`. `None`: it panicked, and that has been logged with `what`.
#[cold]
pub(crate) fn contained_alone<R>(what: &str, code: impl FnOnce() -> R) -> Option<R> {
    caught(code).map_err(|message| log!(ERROR, message, "{what} panicked")).ok()
}

/// Runs `code`. An error: it panicked, with this message.
#[inline]
pub(crate) fn caught<R>(code: impl FnOnce() -> R) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(code)).map_err(message)
}

#[cold]
fn message(panic: Panic) -> String {
    let message = panic_message(&panic).to_owned();
    discard_panic(panic);
    message
}

/// The text of a panic.
pub(crate) fn panic_message(panic: &Panic) -> &str {
    if let Some(text) = panic.downcast_ref::<&'static str>() {
        text
    } else if let Some(text) = panic.downcast_ref::<String>() {
        text
    } else {
        "(the panic payload is not a string)"
    }
}

/// A value of the program's that the runtime drops, wherever it is: a panic of its destructor is
/// logged.
pub(crate) struct Foreign<T> {
    value: ManuallyDrop<T>,
    /// For the log: `the destructor of ...`.
    what: &'static str,
}

impl<T> Foreign<T> {
    pub(crate) fn new(value: T, what: &'static str) -> Self {
        Self { value: ManuallyDrop::new(value), what }
    }
}

impl<T> Deref for Foreign<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Foreign<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T> Drop for Foreign<T> {
    fn drop(&mut self) {
        // SAFETY: taken once, in `drop`, and not used afterwards.
        let value = unsafe { ManuallyDrop::take(&mut self.value) };
        contained_alone(self.what, || drop(value));
    }
}

/// Stands for code of the runtime's own, which has contained what it calls, and of which a panic is
/// not to be survived: it would unwind the stack of a unit that is not at fault, or lose one. Ends
/// the process if it is dropped instead of [defused](Self::defuse).
pub(crate) struct NoUnwind(());

impl NoUnwind {
    #[inline(always)]
    pub(crate) fn begin() -> Self {
        Self(())
    }

    #[inline(always)]
    pub(crate) fn defuse(self) {
        std::mem::forget(self);
    }
}

impl Drop for NoUnwind {
    #[cold]
    fn drop(&mut self) {
        use std::io::Write;
        // If nobody can be told, the abort tells.
        let _ = writeln!(
            std::io::stderr(),
            "ult: a panic in the runtime itself, between two units: to unwind from there would \
             corrupt memory, so the process aborts. Please report it, with the message of the \
             panic above"
        );
        std::process::abort();
    }
}

/// Runs `code` under a [`NoUnwind`].
#[inline(always)]
pub(crate) fn no_unwind<R>(code: impl FnOnce() -> R) -> R {
    let guard = NoUnwind::begin();
    let value = code();
    guard.defuse();
    value
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::process::Command;

    use super::*;

    thread_local! {
        static DROPPED: Cell<u32> = const { Cell::new(0) };
    }

    /// A payload whose destructor panics with another one, so many times.
    struct Nested(u32);

    impl Drop for Nested {
        fn drop(&mut self) {
            DROPPED.set(DROPPED.get() + 1);
            if self.0 > 0 {
                std::panic::resume_unwind(Box::new(Self(self.0 - 1)));
            }
        }
    }

    #[test]
    fn payloads_that_panic_one_inside_of_another_are_all_dropped() {
        for depth in 0..4 {
            DROPPED.set(0);
            discard_panic(Box::new(Nested(depth)));
            assert_eq!(DROPPED.get(), depth + 1);
        }
        DROPPED.set(0);
        discard_panic(Box::new(Nested(u32::MAX)));
        assert_eq!(DROPPED.get(), prim::panic::NESTED_MAX, "there is an end to it");
    }

    #[test]
    fn a_value_of_the_program_may_panic_when_it_is_dropped() {
        DROPPED.set(0);
        drop(Foreign::new(Nested(3), "the destructor of a test"));
        assert_eq!(DROPPED.get(), 4);
    }

    const CHILD: &str = "ULT_TEST_NO_UNWIND";

    #[test]
    fn what_must_not_unwind_aborts_and_says_so() {
        if std::env::var_os(CHILD).is_some() {
            no_unwind(|| panic!("an error"));
        }
        assert_eq!(no_unwind(|| 7), 7);
        let name = "base::contain::tests::what_must_not_unwind_aborts_and_says_so";
        // The process may have been started to ignore the ends of its children.
        // SAFETY: the default action is no function of ours.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
        let mut child = Command::new(std::env::current_exe().unwrap());
        let output = child.args([name, "--exact", "--nocapture"]).env(CHILD, "1").output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains("a panic in the runtime itself"), "{text}");
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&output.status), Some(6));
    }
}
