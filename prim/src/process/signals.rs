//! Signals, which are for the program's own threads.

/// Has the calling thread, one of the runtime's, get no signals that are sent to the process.
pub fn block_all() {
    let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY:
    // - memory: the call initialises the set, and looks at nothing else.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY:
    // - memory: the set was initialised just above and is only read; no old mask is stored;
    // - the mask is this thread's own.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), std::ptr::null_mut()) };
}
