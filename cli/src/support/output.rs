//! Standard output and standard error, without the panics of `println!` when they are closed.

use std::fmt::Display;
use std::io::{self, Write};

pub(crate) use margo::config::text::printable;

use super::failure::Failure;

/// Writes `text` and a line end to standard output, at once.
pub(crate) fn line(text: impl Display) -> Result<(), Failure> {
    write(format_args!("{text}\n"))
}

/// Writes `text` to standard output, at once.
pub(crate) fn write(text: impl Display) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    write!(stdout, "{text}").and_then(|()| stdout.flush()).map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::OutputClosed,
        _ => Failure::new("cannot write to standard output", why(&error)),
    })
}

/// An error of writing, with what to do about it.
pub(crate) fn why(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::FileTooLarge => {
            format!("{error}: files of this process are limited; raise that with `ulimit -f`")
        }
        _ => error.to_string(),
    }
}

/// Writes a remark to standard error. If nobody reads it, it is lost.
pub(crate) fn note(text: impl Display) {
    let text = lines_printable(&text.to_string());
    let _ = writeln!(io::stderr(), "margo: {text}");
}

/// Text of several lines, some of it of others: without what would steer a terminal.
pub(crate) fn lines_printable(text: &str) -> String {
    text.split('\n').map(printable).collect::<Vec<_>>().join("\n")
}

/// `1234567` as `1,234,567`.
pub(crate) fn thousands(number: u64) -> String {
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
pub(crate) fn count(number: u64, noun: &str) -> String {
    format!("{} {noun}{}", thousands(number), if number == 1 { "" } else { "s" })
}

/// Bytes in the unit that suits.
pub(crate) fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return count(bytes, "byte");
    }
    #[expect(clippy::cast_precision_loss, reason = "one decimal is shown")]
    let mut value = bytes as f64 / 1024.0;
    let mut unit = UNITS[0];
    for next in &UNITS[1..] {
        if value < 1023.95 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    format!("{value:.1} {unit}")
}

/// A short time in the unit that suits.
pub(crate) fn time(seconds: f64) -> String {
    let (value, unit) = match seconds {
        s if s < 1e-6 => (s * 1e9, "ns"),
        s if s < 1e-3 => (s * 1e6, "us"),
        s if s < 1.0 => (s * 1e3, "ms"),
        s => (s, "s"),
    };
    if value < 10.0 { format!("{value:.1} {unit}") } else { format!("{value:.0} {unit}") }
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

    #[test]
    fn bytes_get_a_unit() {
        for (number, text) in [
            (0, "0 bytes"),
            (1, "1 byte"),
            (1023, "1,023 bytes"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            ((1 << 20) - 1, "1.0 MiB"),
            (5 << 30, "5.0 GiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(bytes(number), text);
        }
    }
}
