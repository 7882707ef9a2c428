//! The terminal: plain ANSI sequences, and keys.
//!
//! The terminal is put back when the value is dropped, and the signals that would end the process
//! are taken as keys, so that the value is always dropped.

use std::collections::VecDeque;
use std::fmt::Display;
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{self, LocalModes, OptionalActions, Termios};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGWINCH};

use super::window::{Scroll, Size};
use crate::support::caught;
use crate::support::output;
use crate::support::signals::not_ignored;
use margo::daemon::Failure;

/// Another screen, without a cursor.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
const HOME: &str = "\x1b[H";
const CLEAR_LINE_REST: &str = "\x1b[K";
const CLEAR_BELOW: &str = "\x1b[J";

/// The event that ended a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    /// Nothing: the time is over.
    None,
    /// The terminal has another size.
    Redraw,
    Scroll(Scroll),
    Quit,
}

/// Longest sequence that a key is known by, bytes.
const SEQUENCE_MAX: usize = 8;

/// The keys that were typed, as far as they mean something here; what is left in `typed` is the
/// beginning of a sequence.
fn keys_of(typed: &mut Vec<u8>) -> Vec<Key> {
    let (mut keys, mut rest) = (Vec::new(), &typed[..]);
    while let [first, behind @ ..] = rest {
        let (key, used) = match (*first, behind) {
            (b'q' | b'Q' | 3, _) => (Some(Key::Quit), 1),
            (b'k', _) => (Some(Key::Scroll(Scroll::Up)), 1),
            (b'j', _) => (Some(Key::Scroll(Scroll::Down)), 1),
            (b'b', _) => (Some(Key::Scroll(Scroll::PageUp)), 1),
            (b' ' | b'f', _) => (Some(Key::Scroll(Scroll::PageDown)), 1),
            (b'g', _) => (Some(Key::Scroll(Scroll::Home)), 1),
            (b'G', _) => (Some(Key::Scroll(Scroll::End)), 1),
            (b'h', _) => (Some(Key::Scroll(Scroll::Left)), 1),
            (b'l', _) => (Some(Key::Scroll(Scroll::Right)), 1),
            // What a key without a letter sends: ESC [ or ESC O, numbers, and what ends it.
            (0x1b, [b'[' | b'O', sequence @ ..]) => {
                let is_end = |byte: &u8| (0x40..=0x7e).contains(byte);
                match sequence.iter().take(SEQUENCE_MAX).position(is_end) {
                    Some(end) => (scroll_of(&sequence[..=end]).map(Key::Scroll), 2 + end + 1),
                    None if sequence.len() >= SEQUENCE_MAX => (None, 2),
                    None => break,
                }
            }
            (0x1b, []) => break,
            _ => (None, 1),
        };
        keys.extend(key);
        rest = &rest[used..];
    }
    *typed = rest.to_vec();
    keys
}

fn scroll_of(sequence: &[u8]) -> Option<Scroll> {
    Some(match sequence {
        b"A" => Scroll::Up,
        b"B" => Scroll::Down,
        b"C" => Scroll::Right,
        b"D" => Scroll::Left,
        b"5~" => Scroll::PageUp,
        b"6~" => Scroll::PageDown,
        b"H" | b"1~" | b"7~" => Scroll::Home,
        b"F" | b"4~" | b"8~" => Scroll::End,
        _ => return None,
    })
}

/// Where to draw, or nothing but the signals.
pub(super) struct Screen {
    is_terminal: bool,
    /// The terminal's key settings before ours.
    before: Option<Termios>,
    /// Keys can be read from the terminal.
    has_keys: bool,
    /// Typed bytes that are not a whole key yet.
    typed: Vec<u8>,
    /// Keys that nobody has asked for yet.
    keys: VecDeque<Key>,
    /// Ctrl-\ was among what ends it.
    is_aborted: Arc<AtomicBool>,
    ends: UnixStream,
    resizes: UnixStream,
}

impl Screen {
    /// No terminal.
    pub(super) fn plain() -> Result<Self, Failure> {
        Self::catching(&[])
    }

    /// Ends at these signals too.
    fn catching(more: &[i32]) -> Result<Self, Failure> {
        let failed = |error: io::Error| Failure::new("cannot catch signals", error);
        let is_aborted = Arc::new(AtomicBool::new(false));
        for signal in more {
            // Before the stream, which wakes who looks at it.
            signal_hook::flag::register(*signal, is_aborted.clone()).map_err(failed)?;
        }
        let ending = [SIGINT, SIGTERM].into_iter().chain(not_ignored(&[SIGHUP]));
        let ends = caught(ending.chain(more.iter().copied())).map_err(failed)?;
        let resizes = caught([SIGWINCH]).map_err(failed)?;
        let (is_terminal, has_keys, before) = (false, false, None);
        let (typed, keys) = (Vec::new(), VecDeque::new());
        Ok(Self { is_terminal, before, has_keys, typed, keys, is_aborted, ends, resizes })
    }

    /// The terminal that standard output is.
    pub(super) fn full() -> Result<Self, Failure> {
        let aborting: Vec<i32> = not_ignored(&[SIGQUIT]).collect();
        let mut screen = Self::catching(&aborting)?;
        screen.is_terminal = true;
        if let Ok(before) = termios::tcgetattr(io::stdin()) {
            let mut keys = before.clone();
            // Keys at once and unseen; Ctrl-C is a signal still.
            keys.local_modes &= !(LocalModes::ICANON | LocalModes::ECHO);
            let set = termios::tcsetattr(io::stdin(), OptionalActions::Now, &keys);
            screen.has_keys = set.is_ok();
            screen.before = Some(before);
        }
        output::write(ENTER)?;
        Ok(screen)
    }

    /// `None`: there is no terminal.
    pub(super) fn size(&self) -> Option<Size> {
        if !self.is_terminal {
            return None;
        }
        let size = termios::tcgetwinsize(io::stdout()).ok();
        let (columns, rows) = size.map_or((0, 0), |size| (size.ws_col, size.ws_row));
        let or = |given: u16, default: usize| if given == 0 { default } else { given.into() };
        Some((or(columns, 80), or(rows, 24)))
    }

    /// Shows these lines, which fit, in place of those before.
    pub(super) fn draw(&self, lines: &[String]) -> Result<(), Failure> {
        let mut page = HOME.to_owned();
        page.push_str(&lines.join(&format!("{CLEAR_LINE_REST}\n")));
        page.push_str(CLEAR_LINE_REST);
        page.push_str(CLEAR_BELOW);
        output::write(page)
    }

    /// Waits for a key, until that time at most.
    pub(super) fn wait(&mut self, until: Instant) -> Result<Key, Failure> {
        let failed = |error: &dyn Display| Failure::new("cannot wait for a key", error);
        loop {
            if let Some(key) = self.keys.pop_front() {
                return Ok(key);
            }
            let left = until.saturating_duration_since(Instant::now());
            let limit = Timespec::try_from(left).map_err(|error| failed(&error))?;
            let stdin = io::stdin();
            let mut fds = vec![
                PollFd::new(&self.ends, PollFlags::IN),
                PollFd::new(&self.resizes, PollFlags::IN),
            ];
            if self.has_keys {
                fds.push(PollFd::new(&stdin, PollFlags::IN));
            }
            match poll(&mut fds, Some(&limit)) {
                Ok(0) => return Ok(Key::None),
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(failed(&error)),
            }
            let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            if ready[0] {
                return Ok(Key::Quit);
            }
            if ready[1] {
                // However many there were.
                let _ = self.resizes.read(&mut [0; 64]);
                return Ok(Key::Redraw);
            }
            let mut typed = [0; 64];
            match stdin.lock().read(&mut typed) {
                Ok(0) | Err(_) => self.has_keys = false,
                Ok(count) => {
                    self.typed.extend_from_slice(&typed[..count]);
                    self.keys.extend(keys_of(&mut self.typed));
                }
            }
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if self.is_terminal {
            let _ = output::write(LEAVE);
        }
        if let Some(before) = &self.before {
            let _ = termios::tcsetattr(io::stdin(), OptionalActions::Now, before);
        }
        // Pairs with the store of signal-hook's handler, which comes before the byte that we read.
        if self.is_aborted.load(Ordering::SeqCst) {
            // As it would have done, had the terminal not had to be put back first.
            let _ = signal_hook::low_level::emulate_default_handler(SIGQUIT);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_known_also_when_they_come_in_pieces() {
        let mut typed = Vec::new();
        let mut type_in = |bytes: &[u8]| {
            typed.extend_from_slice(bytes);
            keys_of(&mut typed)
        };
        let scroll = Key::Scroll;
        assert_eq!(
            type_in(b"jx \x1b[A\x1bOB"),
            [
                scroll(Scroll::Down),
                scroll(Scroll::PageDown),
                scroll(Scroll::Up),
                scroll(Scroll::Down)
            ]
        );
        assert_eq!(type_in(b"\x1b"), []);
        assert_eq!(type_in(b"["), []);
        assert_eq!(type_in(b"6"), []);
        assert_eq!(type_in(b"~\x1b[1;5C\x1b[F"), [scroll(Scroll::PageDown), scroll(Scroll::End)]);
        // Somebody who types ESC, and then goes.
        assert_eq!(type_in(b"\x1bq"), [Key::Quit]);
        // A sequence without an end.
        assert_eq!(type_in(b"\x1b[111111111111111q"), [Key::Quit]);
    }
}
