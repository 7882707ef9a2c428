//! Standard output, which somebody reads or not.

use std::fmt::Display;
use std::io::{ErrorKind, Write};

use super::failure::{Doing, Result};

/// The exit code that shells report for a program that wrote to a pipe without a reader.
pub(crate) const UNREAD: u8 = 141;

/// Writes lines to standard output, at once. `false`: nobody reads them.
///
/// # Errors
///
/// When they cannot be written otherwise.
pub(crate) fn say(lines: impl IntoIterator<Item = impl Display>) -> Result<bool> {
    let mut stdout = std::io::stdout().lock();
    let written = lines
        .into_iter()
        .try_for_each(|line| writeln!(stdout, "{line}"))
        .and_then(|()| stdout.flush());
    match written {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        written => written.doing("writing to standard output").map(|()| true),
    }
}
