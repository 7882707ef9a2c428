//! Says which ULT overflowed its stack, then aborts.
//!
//! A stack that grows into its guard page raises SIGSEGV (SIGBUS on some systems). The handler
//! runs on the thread's alternate signal stack, compares the faulting address with the guard of
//! the ULT that runs on this thread, writes one message with plain `write`, and aborts. Every other
//! fault goes to the handler that was installed before ours.
//!
//! The process-wide handlers are installed when the first runtime starts, and stay. A thread
//! made by Rust's standard library usually has an alternate stack already; if not, the xstream
//! gets one from here for its lifetime.

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::{Once, OnceLock};

use crate::engine::model::unit::UltPtr;
use crate::engine::xstream::current;
use crate::engine::xstream::owner::Xstream;

const SIGNALS: [libc::c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];
const ALT_STACK_BYTES: usize = 64 * 1024;

/// The handlers that were installed before ours, in the order of `SIGNALS`. Written before our
/// handlers can run.
static PREVIOUS: [OnceLock<Previous>; 2] = [const { OnceLock::new() }; 2];

struct Previous(libc::sigaction);

// SAFETY: plain data: an address of a handler, flags and a mask.
unsafe impl Send for Previous {}
// SAFETY: as above.
unsafe impl Sync for Previous {}

/// Installs the handlers, once per process.
pub(crate) fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // The handler must not be the first to ask for it.
        let _ = rustix::param::page_size();
        for (signal, previous) in SIGNALS.iter().zip(&PREVIOUS) {
            let mut old = MaybeUninit::<libc::sigaction>::uninit();
            // SAFETY: a query; `old` has room for the answer.
            if unsafe { libc::sigaction(*signal, ptr::null(), old.as_mut_ptr()) } != 0 {
                continue;
            }
            // SAFETY: filled by the successful call.
            let _ = previous.set(Previous(unsafe { old.assume_init() }));
            // SAFETY: all-zero is a valid `sigaction` (default handler, empty mask).
            let mut new: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
            let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                on_fault;
            new.sa_sigaction = handler as libc::sighandler_t;
            new.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            // SAFETY: a valid action whose handler is async-signal-safe (see there).
            unsafe { libc::sigaction(*signal, &new, ptr::null_mut()) };
        }
    });
}

/// An alternate signal stack for the calling thread, if it had none.
pub(crate) struct AltStack(Option<Box<[MaybeUninit<u8>]>>);

impl AltStack {
    pub(crate) fn ensure() -> Self {
        let mut old = MaybeUninit::<libc::stack_t>::uninit();
        // SAFETY: a query; `old` has room for the answer.
        if unsafe { libc::sigaltstack(ptr::null(), old.as_mut_ptr()) } != 0 {
            return Self(None);
        }
        // SAFETY: filled by the successful call.
        let old = unsafe { old.assume_init() };
        if old.ss_flags & libc::SS_DISABLE == 0 {
            return Self(None);
        }
        let mut memory = Box::new_uninit_slice(ALT_STACK_BYTES);
        let stack = libc::stack_t {
            ss_sp: memory.as_mut_ptr().cast(),
            ss_flags: 0,
            ss_size: ALT_STACK_BYTES,
        };
        // SAFETY: the memory lives until `drop` takes the stack away again.
        let result = unsafe { libc::sigaltstack(&stack, ptr::null_mut()) };
        Self((result == 0).then_some(memory))
    }
}

impl Drop for AltStack {
    fn drop(&mut self) {
        if self.0.is_some() {
            let none =
                libc::stack_t { ss_sp: ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
            // SAFETY: the thread is not on that stack, since it runs this.
            unsafe { libc::sigaltstack(&none, ptr::null_mut()) };
        }
    }
}

/// Async-signal-safe: reads memory of this thread, calls `write`, `abort`, `sigaction`.
extern "C" fn on_fault(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: the kernel passes a valid `siginfo_t` to an SA_SIGINFO handler.
    let info_ref = unsafe { &*info };
    // SAFETY: for SIGSEGV and SIGBUS `si_addr` is the member in use.
    let addr = unsafe { info_ref.si_addr() }.addr();
    // SAFETY: null or this thread's xstream, which waits in the frame below the ULT.
    if let Some(xstream) = unsafe { current::xstream_ptr().as_ref() }
        && let Some(ult) = xstream.current.get().or(xstream.caller.get())
        && let Some(block) = ult.block()
        && block.guards(addr, rustix::param::page_size())
    {
        report(xstream, ult);
        // SAFETY: no preconditions.
        unsafe { libc::abort() };
    }
    chain(signal, info, context);
}

/// Hands a fault that is not ours to the handler that was installed before.
fn chain(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let slot = SIGNALS.iter().position(|known| *known == signal);
    let previous = slot.and_then(|slot| PREVIOUS[slot].get());
    let handler = previous.map_or(libc::SIG_DFL, |previous| previous.0.sa_sigaction);
    if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
        // Back to the default action: the instruction faults again and the process dies of it.
        // SAFETY: all-zero is a valid `sigaction` (default handler, empty mask).
        let default: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
        // SAFETY: a valid action.
        unsafe { libc::sigaction(signal, &default, ptr::null_mut()) };
        return;
    }
    let takes_info = previous.is_some_and(|previous| previous.0.sa_flags & libc::SA_SIGINFO != 0);
    if takes_info {
        type Handler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
        // SAFETY: installed with SA_SIGINFO, so it has this type.
        let handler = unsafe { std::mem::transmute::<libc::sighandler_t, Handler>(handler) };
        handler(signal, info, context);
    } else {
        // SAFETY: installed without SA_SIGINFO, so it has this type.
        let handler = unsafe {
            std::mem::transmute::<libc::sighandler_t, extern "C" fn(libc::c_int)>(handler)
        };
        handler(signal);
    }
}

/// Text of bounded length, without allocation.
struct Message {
    bytes: [u8; 768],
    len: usize,
}

impl Message {
    fn add(&mut self, text: &str) {
        for byte in text.bytes() {
            if let Some(place) = self.bytes.get_mut(self.len) {
                *place = byte;
                self.len += 1;
            }
        }
    }

    /// A name of any length, cut so that the rest of the message has room.
    fn add_name(&mut self, name: &str) {
        const SHOWN: usize = 120;
        let end = (0..=SHOWN.min(name.len())).rev().find(|end| name.is_char_boundary(*end));
        self.add(&name[..end.unwrap_or(0)]);
    }

    fn add_number(&mut self, mut number: u64) {
        let mut digits = [0u8; 20];
        let mut at = digits.len();
        loop {
            at -= 1;
            digits[at] = b'0' + u8::try_from(number % 10).unwrap_or(0);
            number /= 10;
            if number == 0 {
                break;
            }
        }
        self.add(std::str::from_utf8(&digits[at..]).unwrap_or("?"));
    }
}

fn report(xstream: &Xstream, ult: UltPtr) {
    let mut message = Message { bytes: [0; 768], len: 0 };
    message.add("margo: stack overflow in ULT `");
    message.add_name(ult.name().unwrap_or("(unnamed)"));
    message.add("` (id ");
    message.add_number(ult.id.get());
    message.add(") of pool `");
    message.add_name(&ult.pool().name);
    message.add("` on xstream `");
    message.add_name(&xstream.shared().name);
    message.add("`: stack of ");
    message.add_number(ult.class.get().bytes() as u64);
    message.add(
        " bytes; raise `stack_bytes` of the ULT, the pool or the runtime \
         (argobots.abt_thread_stacksize in a Margo configuration)\n",
    );
    // SAFETY: the buffer is valid for that length. There is nobody to tell of an error.
    unsafe { libc::write(libc::STDERR_FILENO, message.bytes.as_ptr().cast(), message.len) };
}

#[cfg(test)]
mod tests {
    use super::Message;

    #[test]
    fn message_is_bounded() {
        let mut message = Message { bytes: [0; 768], len: 0 };
        message.add_number(0);
        message.add_number(u64::MAX);
        message.add_name(&"ä".repeat(500));
        let text = std::str::from_utf8(&message.bytes[..message.len]).expect("cut at a boundary");
        assert!(text.starts_with("018446744073709551615ä"));
        message.add(&"x".repeat(2000));
        assert_eq!(message.len, 768);
    }
}
