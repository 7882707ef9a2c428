//! A panic hook that says which ULT panicked.

use std::io::Write;
use std::panic;
use std::sync::Once;

use crate::engine::xstream::current;

/// Makes panic messages name the ULT: each is preceded by one line on standard error such as
/// ``in ULT `name` (id 7) of pool `p` on xstream `x`:``. Panics elsewhere look as before. The hook
/// that was there is kept and called afterwards. Further calls have no effect.
///
/// A panic of a ULT is caught and given to the party that joins it, so without this line the
/// message shows only the name of the thread, which is that of the xstream.
///
/// # Panics
///
/// If called by a panicking thread, like [`std::panic::set_hook`].
pub fn install_panic_hook() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            say_where();
            previous(info);
        }));
    });
}

/// Must not panic: that would abort.
fn say_where() {
    let Some(xstream) = current::xstream() else { return };
    let Some(ult) = xstream.current.get() else { return };
    let (id, name) = (ult.id.get(), ult.name().unwrap_or("(unnamed)"));
    let (pool, xstream) = (&ult.pool().name, &xstream.shared().name);
    let line = format!("in ULT `{name}` (id {id}) of pool `{pool}` on xstream `{xstream}`:\n");
    // One write, so that lines of several threads do not mix. Nobody to tell of an error.
    let _ = std::io::stderr().write_all(line.as_bytes());
}
