//! Standard output and standard error, without the panics of `println!` when they are closed.

use std::ffi::OsStr;
use std::fmt::Display;
use std::io::{self, Write};
use std::path::Path;
use std::sync::LazyLock;

pub use margo_config::text::printable;

use crate::daemon::failure::Failure;

/// Writes `text` and a line end to standard output, at once.
pub fn line(text: impl Display) -> Result<(), Failure> {
    write(format_args!("{text}\n"))
}

/// Writes `text` to standard output, at once.
pub fn write(text: impl Display) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    write!(stdout, "{text}").and_then(|()| stdout.flush()).map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::OutputClosed,
        _ => Failure::new("cannot write to standard output", why(&error)),
    })
}

/// An error of writing, with what to do about it.
pub fn why(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::FileTooLarge => {
            format!("{error}: files of this process are limited; raise that with `ulimit -f`")
        }
        _ => error.to_string(),
    }
}

/// Writes a remark to standard error. If nobody reads it, it is lost.
pub fn note(text: impl Display) {
    let text = lines_printable(&text.to_string());
    let _ = writeln!(io::stderr(), "{}: {text}", program());
}

/// The name under which this program was started, as it stands before what it says.
pub fn program() -> &'static str {
    static NAME: LazyLock<String> = LazyLock::new(|| {
        let name = std::env::args_os().next();
        let name = name.as_deref().and_then(|path| Path::new(path).file_name());
        printable(&name.unwrap_or(OsStr::new("margo")).to_string_lossy())
    });
    &NAME
}

/// Text of several lines, some of it of others: without what would steer a terminal.
pub fn lines_printable(text: &str) -> String {
    text.split('\n').map(printable).collect::<Vec<_>>().join("\n")
}

/// `1234567` as `1,234,567`.
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// "1 file", "2 files".
pub fn count(number: u64, noun: &str) -> String {
    format!("{} {noun}{}", thousands(number), if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        for (number, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (1_234_567, "1,234,567"),
            (u64::MAX, "18,446,744,073,709,551,615"),
        ] {
            assert_eq!(thousands(number), text);
        }
        assert_eq!(count(1, "file"), "1 file");
        assert_eq!(count(0, "file"), "0 files");
    }

    #[test]
    fn lines_stay_and_what_steers_a_terminal_does_not() {
        assert_eq!(lines_printable("a: \u{1b}[2J\nb \u{202e}"), "a: \\u{1b}[2J\nb \\u{202e}");
    }
}
