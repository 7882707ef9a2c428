//! A second process of this program that answers a message: for a question that two endpoints of
//! one process cannot answer. A process may always attach to itself; whether it may attach to
//! another one is up to Yama's `ptrace_scope`, capabilities, containers and user namespaces.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use margo::na::{self, Completion, Endpoint, OpId, OpenOptions, Tag};

use crate::support::signals::die_with;
use margo::daemon::Failure;

pub(super) const TEXT: &[u8] = b"margo info";
const TAG: Tag = Tag(3);

/// The other process; it ends with this.
struct Second(Child);

impl Drop for Second {
    fn drop(&mut self) {
        // It may have ended; nobody waits for more of it.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// How bulk data moves between an endpoint of this process and one of another, at `address`.
pub(crate) fn bulk_path_to(
    address: &str,
    options: &OpenOptions,
    patience: Duration,
) -> Result<String, String> {
    let own = std::process::id().to_string();
    let child = Command::new("/proc/self/exe")
        .args(["answer", address, "--parent", &own])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .map_err(|error| format!("cannot start a second process to talk to: {error}"))?;
    let mut second = Second(child);
    let out = second.0.stdout.take().ok_or("the second process has no output")?;
    let uri = first_line(out, patience).map_err(|error| match error.kind() {
        ErrorKind::TimedOut => format!("a second process did not start within {patience:?}"),
        _ => "the second process ended before it could be talked to".to_owned(),
    })?;
    let transport = uri.split("://").next().unwrap_or_default();
    let calling = na::open(&format!("{transport}://"), options).map_err(text)?;
    let answered = ask(&calling, &uri, patience);
    let path = calling.bulk_path();
    calling.close();
    answered.map(|()| path)
}

/// Reads up to the end of the first line.
///
/// # Errors
///
/// `TimedOut`, `UnexpectedEof`, and those of the system.
fn first_line(mut from: impl Read + AsFd, patience: Duration) -> io::Result<String> {
    let deadline = Instant::now() + patience;
    let mut line = Vec::new();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let limit = Timespec::try_from(left).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(&from, PollFlags::IN)], Some(&limit)) {
            Ok(0) => return Err(ErrorKind::TimedOut.into()),
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
        let mut some = [0; 256];
        match from.read(&mut some)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            count => line.extend_from_slice(&some[..count]),
        }
        if let Some(end) = line.iter().position(|byte| *byte == b'\n') {
            line.truncate(end);
            return String::from_utf8(line).map_err(io::Error::other);
        }
    }
}

/// Sends a message and waits for the answer, after which the connection is settled.
fn ask(calling: &Arc<dyn Endpoint>, uri: &str, patience: Duration) -> Result<(), String> {
    let peer = calling.lookup(uri).map_err(text)?;
    calling.recv_expected(OpId(1), &peer, TAG, calling.alloc_msg()).map_err(text)?;
    calling.send_unexpected(OpId(2), &peer, TAG, message(calling)?).map_err(text)?;
    let deadline = Instant::now() + patience;
    let mut answered = None;
    while answered.is_none() {
        let mut sink = |completion| match completion {
            Completion::Recv { result: Ok(_), .. } => answered = Some(Ok(())),
            Completion::Recv { result: Err(error), .. }
            | Completion::Send { result: Err(error), .. } => answered = Some(Err(text(error))),
            _ => {}
        };
        calling.poll(16, &mut sink).map_err(text)?;
        if Instant::now() > deadline {
            return Err(format!("a second process did not answer within {patience:?}"));
        }
        std::thread::yield_now();
    }
    answered.unwrap_or(Ok(()))
}

pub(super) fn message(endpoint: &Arc<dyn Endpoint>) -> Result<na::MsgBuf, String> {
    let mut message = endpoint.alloc_msg();
    match message.try_extend(TEXT) {
        true => Ok(message),
        false => Err(format!("its messages are shorter than {} bytes", TEXT.len())),
    }
}

/// Runs the second process: says its address, answers, and ends with its parent.
pub(crate) fn answer(address: &str, parent: i32) -> Result<(), Failure> {
    die_with(parent)?;
    let failed = |error: &dyn std::fmt::Display| Failure::Failed(format!("{address}: {error}"));
    let endpoint = na::open(address, &OpenOptions::listening(true)).map_err(|e| failed(&e))?;
    endpoint.recv_unexpected(OpId(1), endpoint.alloc_msg()).map_err(|e| failed(&e))?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", endpoint.self_addr().uri())
        .and_then(|()| out.flush())
        .map_err(|error| Failure::new("cannot tell the address", error))?;
    std::thread::spawn(|| {
        // Nothing comes; the end says that nobody needs us any more.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    loop {
        let mut asked = None;
        let mut sink = |completion| {
            if let Completion::Recv { result: Ok(arrival), .. } = completion {
                asked = Some(arrival);
            }
        };
        endpoint.poll(16, &mut sink).map_err(|error| failed(&error))?;
        if let Some(arrival) = asked {
            let answer = message(&endpoint).map_err(|error| failed(&error))?;
            let sent = endpoint.send_expected(OpId(2), &arrival.from, arrival.tag, answer);
            sent.map_err(|error| failed(&error))?;
        }
        std::thread::yield_now();
    }
}

pub(super) fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_waited_for_until_it_is_over_and_no_longer_than_that_takes() {
        let (from, mut to) = io::pipe().unwrap();
        to.write_all(b"half").unwrap();
        let short = Duration::from_millis(1);
        // Whoever writes is there, and never goes on.
        let kind = first_line(from.try_clone().unwrap(), short).unwrap_err().kind();
        assert_eq!(kind, ErrorKind::TimedOut);
        to.write_all(b"a line\nand more").unwrap();
        let long = Duration::from_secs(60);
        assert_eq!(first_line(from.try_clone().unwrap(), long).unwrap(), "a line");
        drop(to);
        assert_eq!(first_line(from, long).unwrap_err().kind(), ErrorKind::UnexpectedEof);
    }
}
