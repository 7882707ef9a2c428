//! A second process of this program that answers a message: for what two endpoints of one process
//! cannot tell. A process may always attach to itself; whether it may attach to another one is up
//! to Yama's `ptrace_scope`, capabilities, containers and user namespaces.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use margo::na::{self, Completion, Endpoint, OpId, OpenOptions, Tag};

use crate::failure::Failure;
use crate::serve;

const TEXT: &[u8] = b"margo info";
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
pub(crate) fn bulk_path_to(address: &str, patience: Duration) -> Result<String, String> {
    let own = std::process::id().to_string();
    let child = Command::new("/proc/self/exe")
        .args(["answer", address, "--parent", &own])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .map_err(|error| format!("cannot start a second process to talk to: {error}"))?;
    let mut second = Second(child);
    let mut uri = String::new();
    let out = second.0.stdout.take().map(BufReader::new);
    let read = out.map(|mut out| out.read_line(&mut uri));
    match read {
        Some(Ok(1..)) => {}
        _ => return Err("the second process ended before it could be talked to".to_owned()),
    }
    let transport = uri.split("://").next().unwrap_or_default();
    let calling = na::open(&format!("{transport}://"), &OpenOptions::default()).map_err(text)?;
    let answered = ask(&calling, uri.trim_end(), patience);
    let path = calling.bulk_path();
    calling.close();
    answered.map(|()| path)
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

fn message(endpoint: &Arc<dyn Endpoint>) -> Result<na::MsgBuf, String> {
    let mut message = endpoint.alloc_msg();
    match message.try_extend(TEXT) {
        true => Ok(message),
        false => Err(format!("its messages are shorter than {} bytes", TEXT.len())),
    }
}

/// What the second process does: says its address, answers, and ends with its parent.
pub(crate) fn answer(address: &str, parent: i32) -> Result<(), Failure> {
    serve::die_with(parent)?;
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

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
