//! Child processes that are forked off, with a copy of everything and without the other threads.

/// Seconds after which a child that hangs is ended.
const SECONDS: u32 = 30;

/// Lets this process hear of the ends of its children where it was started to ignore SIGCHLD, as
/// some daemons and build systems do: the kernel would forget them, and nobody could wait for one.
pub fn hear_of_children() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        // SAFETY: the default action is no function of ours, and is what tests expect.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
    });
}

/// Runs `body` in a child process that is forked off, and waits for its end. Returns the child's
/// exit status: the error of `body`, or 0. Values that `body` takes from its surroundings are the
/// parent's afterwards.
///
/// # Panics
///
/// When there can be no child, or if it hangs for 30 seconds or dies.
pub fn in_forked_child(body: &mut dyn FnMut() -> Result<(), i32>) -> i32 {
    hear_of_children();
    // SAFETY: the child uses only what goes on without other threads, and ends by `_exit`, or by a
    // signal if it hangs.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: no handler is set; the default ends the process.
        unsafe { libc::alarm(SECONDS) };
        let code = body().err().unwrap_or(0);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(code) };
    }
    let mut status = -1;
    // SAFETY: a child of ours that nobody else waits for; the pointer is to a live variable.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert!(child > 0 && waited == child, "cannot fork");
    assert!(libc::WIFEXITED(status), "the child hangs");
    libc::WEXITSTATUS(status)
}
