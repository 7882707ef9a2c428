//! Connections to C Mercury, where `MARGO_TEST_UCX=1` is set.

use std::ffi::c_void;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use super::tests::{OPEN, open, send, until};
use super::*;
use crate::operations::inbox::{Event, Inbox};
use na_core::conformance::PATIENCE;
use na_core::matching::Matcher;
use na_core::{Completion, Endpoint, OpenOptions, Uri};

/// Set for the process that has C Mercury's part.
const MERCURY: &str = "MARGO_TEST_UCX_MERCURY";

/// An active message at Mercury's plugin, which hands UCX an error for what has no tag
/// (`na_ucp_am_recv_cb`, na_ucx.c), and gives the rest to the RPC layer, which drops what is no
/// request (`hg_core_header_request_verify`, mercury_core_header.c).
///
/// # Safety
///
/// Only as a callback of UCX.
unsafe extern "C" fn on_am_of_mercury(
    _arg: *mut c_void,
    _header: *const c_void,
    header_length: usize,
    data: *mut c_void,
    length: usize,
    _param: *const ucx_sys::ucp_am_recv_param_t,
) -> ucs_status_t {
    // SAFETY: UCX hands so many bytes, which stay until the return; the caller sends some.
    let data = unsafe { std::slice::from_raw_parts(data.cast::<u8>(), length) };
    println!("\ncame: header of {header_length}, first byte {:#04x}", data[0]);
    if header_length == 8 { UCS_OK } else { ucx_sys::UCS_ERR_INVALID_PARAM }
}

/// Takes connections as C Mercury does: with active message 0 registered and no other one. Ends
/// with standard input.
fn be_mercury() {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).unwrap();
    let uri = Uri::parse(OPEN.uri).unwrap();
    let settings = address::settings(&uri, &OpenOptions::listening(true));
    let ucp = library::library().unwrap();
    let inbox = Box::leak(Box::new(Inbox::new(ucp, 4096, 64, Matcher::new(1, 1))));
    // SAFETY: the inbox lives for ever, and its state is not borrowed across calls of the worker.
    let mut mercury = unsafe { Worker::deaf(ucp, &settings, inbox) }.unwrap();
    mercury.handle(crate::wire::AM_UNEXPECTED, on_am_of_mercury).unwrap();
    let there = mercury.listen("127.0.0.1:0".parse().unwrap(), uri.text).unwrap();
    println!("\nat {there}");
    std::thread::spawn(|| {
        std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
        std::process::exit(0);
    });
    loop {
        mercury.progress();
        let event = inbox.state().events.pop_front();
        if let Some(Event::Connection(request)) = event {
            mercury.accept(request).unwrap();
        }
        std::thread::yield_now();
    }
}

/// A child process, which goes with the test.
struct Reaped(std::process::Child);

impl Drop for Reaped {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// UCX calls whatever it finds for an active message that a process has not registered.
#[test]
fn c_mercury_is_told_nothing_that_it_does_not_know_and_its_caller_why() {
    if let Some(lacks) = OPEN.lacks() {
        return println!("SKIPPED: {lacks}");
    }
    if std::env::var_os(MERCURY).is_some() {
        return be_mercury();
    }
    let this = module_path!().split_once("::").unwrap().1;
    let test = "c_mercury_is_told_nothing_that_it_does_not_know_and_its_caller_why";
    na_core::conformance::hear_of_children();
    let child = Command::new(std::env::current_exe().unwrap())
        .args([&format!("{this}::{test}"), "--exact", "--nocapture"])
        .env(MERCURY, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut child = Reaped(child);
    let lines = BufReader::new(child.0.stdout.take().unwrap()).lines().map_while(Result::ok);
    let (said, lines_said) = mpsc::channel();
    std::thread::spawn(move || lines.into_iter().for_each(|line| drop(said.send(line))));
    let heard = |what: &str, poll: &mut dyn FnMut()| {
        let began = Instant::now();
        loop {
            match lines_said.try_recv() {
                Ok(line) if line.starts_with(what) => return line[what.len()..].to_owned(),
                Ok(_) => {}
                Err(mpsc::TryRecvError::Empty) => poll(),
                Err(mpsc::TryRecvError::Disconnected) => panic!("no {what:?}: the child has ended"),
            }
            assert!(began.elapsed() < PATIENCE, "no {what:?}");
        }
    };
    let there: SocketAddr = heard("at ", &mut std::thread::yield_now).parse().unwrap();
    let origin = open(false);
    let to = origin.lookup(&format!("ucx+tcp://{there}")).unwrap();
    for _ in 0..3 {
        send(&origin, &to);
        let mut nothing = || {
            origin.poll(16, &mut |end| panic!("{end:?}")).unwrap();
        };
        assert_eq!(heard("came: ", &mut nothing), "header of 8, first byte 0x00");
        let is_sent = |driver: &mut Driver| {
            let index = driver.index_of(&to).unwrap();
            driver.peer(index).unwrap().hello_sent
        };
        let began = Instant::now();
        while !origin.with(is_sent).unwrap() {
            assert!(began.elapsed() < PATIENCE, "UCX does not tell that the hello was sent");
            nothing();
        }
        // Its time is over.
        origin
            .with(|driver| {
                driver.facts.connect_timeout = Duration::ZERO;
                driver.deadline_at = Some(Instant::now());
            })
            .unwrap();
        let error = until([&origin, &origin], |end| match end {
            Completion::Send { result, .. } => Some(result.unwrap_err()),
            other => panic!("{other:?}"),
        });
        let why = error.to_string();
        assert!(matches!(error, Error::Unreachable { .. }) && why.contains("C Mercury"), "{why}");
        origin.with(|driver| driver.facts.connect_timeout = Duration::from_secs(3600)).unwrap();
    }
    drop(child.0.stdin.take());
    assert!(child.0.wait().unwrap().success(), "it was not harmed");
}
