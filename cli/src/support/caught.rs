//! Signals as descriptors, for loops that wait for several things.

use std::io;
use std::os::unix::net::UnixStream;

/// A stream that has something to read when one of the signals has come.
pub(crate) fn caught(signals: impl IntoIterator<Item = i32>) -> io::Result<UnixStream> {
    let (ours, theirs) = UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    for signal in signals {
        signal_hook::low_level::pipe::register(signal, theirs.try_clone()?)?;
    }
    Ok(ours)
}
