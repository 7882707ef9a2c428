//! A child that is forked off has copies of everything; dropping them must not harm its parent.

use std::sync::Arc;
use std::time::Instant;

use na::conformance::Optional;
use na::{AllocOptions, Completion, Endpoint, OpId, OpenOptions, SharedBuffer, Tag};

/// In the parent: waits for the child, which is to end well. In the child: `false`.
fn is_parent_of_a_child() -> bool {
    na::conformance::hear_of_children();
    // SAFETY: the child runs this thread alone; it drops values and exits.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "no second process");
    if child == 0 {
        return false;
    }
    let pid = rustix::process::Pid::from_raw(child).unwrap();
    let (_, status) = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty())
        .unwrap()
        .unwrap();
    assert_eq!(status.exit_status(), Some(0), "{status:?}");
    true
}

/// Ends the child without its parent's destructors and output.
fn exit() -> ! {
    // SAFETY: ends the process.
    unsafe { libc::_exit(0) }
}

fn exchange(from: &Arc<dyn Endpoint>, to: &Arc<dyn Endpoint>, tag: Tag) {
    let peer = from.lookup(to.self_addr().uri()).unwrap();
    to.recv_unexpected(OpId(1), to.alloc_msg()).unwrap();
    from.send_unexpected(OpId(2), &peer, tag, from.alloc_msg()).unwrap();
    let deadline = Instant::now() + na::conformance::PATIENCE;
    let mut arrived = false;
    while !arrived {
        assert!(Instant::now() < deadline, "no message");
        let mut sent = |completion| match completion {
            Completion::Send { result, .. } => result.unwrap(),
            other => panic!("{other:?}"),
        };
        from.poll(8, &mut sent).unwrap();
        let mut sink = |completion| match completion {
            Completion::Recv { result, .. } => arrived = result.unwrap().tag == tag,
            other => panic!("{other:?}"),
        };
        to.poll(8, &mut sink).unwrap();
    }
}

#[test]
fn memory_that_a_child_drops_keeps_its_bytes() {
    let mut buffer = SharedBuffer::new(1 << 16, &AllocOptions::default()).unwrap();
    buffer.as_mut_slice().unwrap().fill(5);
    if !is_parent_of_a_child() {
        drop(buffer);
        exit();
    }
    assert!(buffer.as_mut_slice().unwrap().iter().all(|byte| *byte == 5));
}

/// The pages of both are the same, and peers of the parent may write there.
#[test]
fn memory_that_a_child_changes_is_its_own() {
    let mut buffer = SharedBuffer::new(1 << 16, &AllocOptions::default()).unwrap();
    buffer.as_mut_slice().unwrap().fill(5);
    if !is_parent_of_a_child() {
        let bytes = buffer.as_mut_slice().unwrap();
        assert!(bytes.iter().all(|byte| *byte == 5));
        bytes.fill(6);
        exit();
    }
    assert!(buffer.as_mut_slice().unwrap().iter().all(|byte| *byte == 5));
}

/// A child has the listening socket too.
#[test]
fn nobody_waits_at_a_name_that_was_closed() {
    let open = |listen| na::open("na+sm://", &OpenOptions::listening(listen)).unwrap();
    let (target, early, late) = (open(true), open(false), open(false));
    let uri = target.self_addr().uri().to_owned();
    let dial = |origin: &Arc<dyn Endpoint>| {
        let peer = origin.lookup(&uri).unwrap();
        origin.send_unexpected(OpId(2), &peer, Tag(0), origin.alloc_msg()).unwrap();
    };
    let told = |origin: &Arc<dyn Endpoint>| {
        let (deadline, mut told) = (Instant::now() + na::conformance::PATIENCE, None);
        while told.is_none() {
            assert!(Instant::now() < deadline, "it waits for ever");
            let mut sink = |completion| match completion {
                Completion::Send { result, .. } => told = Some(result.unwrap_err().to_string()),
                other => panic!("{other:?}"),
            };
            origin.poll(8, &mut sink).unwrap();
        }
        told.unwrap()
    };
    na::conformance::hear_of_children();
    // SAFETY: the child makes system calls only.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "no second process");
    if child == 0 {
        // SAFETY: ends this process when the time is over.
        unsafe { libc::alarm(180) };
        loop {
            // SAFETY: waits.
            unsafe { libc::pause() };
        }
    }
    dial(&early);
    drop(target);
    let early = told(&early);
    dial(&late);
    let late = told(&late);
    let pid = rustix::process::Pid::from_raw(child).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty()).unwrap();
    assert!(early.contains("closed the connection"), "{early}");
    assert!(late.contains("nobody listens there"), "{late}");
}

#[test]
fn connections_of_an_endpoint_that_a_child_closes_go_on() {
    let uris = ["na+sm://", "na+tcp://127.0.0.1:0", "ucx+tcp://127.0.0.1:0", "ucx+sm://"];
    for uri in uris {
        let ucx = Optional { variable: "MARGO_TEST_UCX", uri, open: na::open };
        if let Some(lacks) = ucx.lacks().filter(|_| uri.starts_with("ucx+")) {
            eprintln!("SKIPPED in part: {uri}: {lacks}");
            continue;
        }
        let open = |listen| na::open(uri, &OpenOptions::listening(listen)).unwrap();
        let (target, origin) = (open(true), open(false));
        exchange(&origin, &target, Tag(1));
        if !is_parent_of_a_child() {
            target.close();
            drop((target, origin));
            exit();
        }
        exchange(&origin, &target, Tag(2));
    }
}
