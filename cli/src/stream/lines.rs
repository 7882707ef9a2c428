//! Lines out of a pipe, as far as they have come.

use std::io::{self, Read};
use std::os::fd::AsFd;

/// Longest line that is kept whole, bytes. What is longer goes on in the next one.
pub(super) const LINE_MAX: usize = 16 << 10;

/// Bytes of a pipe at most in one go, so that the others have their turn.
const TURN: usize = 64 << 10;

/// A pipe from which lines are taken.
#[derive(Debug)]
pub(super) struct LinePipe<R> {
    /// `None` after the end.
    pipe: Option<R>,
    /// The beginning of a line.
    rest: Vec<u8>,
}

impl<R: Read + AsFd> LinePipe<R> {
    /// Reads do not wait from now on.
    pub(super) fn new(pipe: R) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&pipe, true)?;
        Ok(Self { pipe: Some(pipe), rest: Vec::new() })
    }

    /// The pipe, until its end.
    pub(super) fn pipe(&self) -> Option<&R> {
        self.pipe.as_ref()
    }

    /// Takes what has come; `line` gets each line, without its end. Returns whether there may be
    /// more.
    pub(super) fn take(&mut self, mut line: impl FnMut(&[u8])) -> bool {
        let mut chunk = [0; 8 << 10];
        let mut taken = 0;
        while taken < TURN {
            let Some(pipe) = &mut self.pipe else { return false };
            match pipe.read(&mut chunk) {
                Ok(0) => self.pipe = None,
                Ok(count) => {
                    taken += count;
                    self.split(&chunk[..count], &mut line);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                Err(_) => self.pipe = None,
            }
        }
        true
    }

    /// The end: what there is of a last line.
    pub(super) fn end(&mut self, mut line: impl FnMut(&[u8])) {
        self.pipe = None;
        if !self.rest.is_empty() {
            line(&std::mem::take(&mut self.rest));
        }
    }

    fn split(&mut self, chunk: &[u8], line: &mut impl FnMut(&[u8])) {
        for piece in chunk.split_inclusive(|byte| *byte == b'\n') {
            self.rest.extend_from_slice(piece);
            let is_whole = self.rest.last() == Some(&b'\n');
            if is_whole {
                self.rest.pop();
            }
            let mut rest = &self.rest[..];
            while rest.len() > LINE_MAX {
                line(&rest[..LINE_MAX]);
                rest = &rest[LINE_MAX..];
            }
            if is_whole {
                line(rest);
                self.rest.clear();
            } else {
                let left = rest.len();
                self.rest.drain(..self.rest.len() - left);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn lines_come_whole_and_are_bounded() {
        let (pipe, mut writer) = io::pipe().unwrap();
        let mut lines = LinePipe::new(pipe).unwrap();
        let mut found = Vec::new();
        writer.write_all(b"one\n\ntw").unwrap();
        assert!(!lines.take(|line| found.push(line.to_vec())));
        assert_eq!(found, [&b"one"[..], b""]);
        writer.write_all(b"o\n").unwrap();
        writer.write_all(&[b'x'; 2 * LINE_MAX + 1]).unwrap();
        writer.write_all(b"\nlast").unwrap();
        drop(writer);
        while lines.take(|line| found.push(line.to_vec())) {}
        assert!(lines.pipe().is_none());
        lines.end(|line| found.push(line.to_vec()));
        let lengths: Vec<_> = found.iter().map(Vec::len).collect();
        assert_eq!(lengths, [3, 0, 3, LINE_MAX, LINE_MAX, 1, 4]);
    }
}
