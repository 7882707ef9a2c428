//! The tcp transport among many peers, behind address translation, and with a peer that is stopped.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use na::conformance::PATIENCE;
use na::{Access, Addr, Arrival, Completion, Endpoint, Error, LocalMem, Memory, MsgBuf};
use na::{OpId, OpenOptions, Tag, Transfer};

use crate::common::test_path;

/// The variable that tells a process of this file its role.
const ROLE: &str = "NA_TCP_NET_ROLE";

fn open(uri: &str, listen: bool) -> Arc<dyn Endpoint> {
    na::open(uri, &OpenOptions::listening(listen)).unwrap()
}

fn message(endpoint: &Arc<dyn Endpoint>, bytes: &[u8]) -> MsgBuf {
    let mut buf = endpoint.alloc_msg();
    assert!(buf.try_extend(bytes));
    buf
}

/// Polls `endpoint`, and `others` beside it, until it has reported the end of `op`.
fn end_of(endpoint: &Arc<dyn Endpoint>, others: &[&Arc<dyn Endpoint>], op: u64) -> Completion {
    let deadline = Instant::now() + PATIENCE;
    let mut end = None;
    while end.is_none() {
        assert!(Instant::now() < deadline, "operation {op} does not end");
        let mut sink = |completion: Completion| {
            let (Completion::Send { op: done, .. }
            | Completion::Recv { op: done, .. }
            | Completion::Transfer { op: done, .. }) = &completion;
            if done.0 == op {
                end = Some(completion);
            }
        };
        endpoint.poll(64, &mut sink).unwrap();
        for other in others {
            other.poll(64, &mut |_| ()).unwrap();
        }
    }
    end.unwrap()
}

fn received(completion: Completion) -> (MsgBuf, Arrival) {
    match completion {
        Completion::Recv { buf, result: Ok(arrival), .. } => (buf, arrival),
        other => panic!("not received: {other:?}"),
    }
}

/// The unexpected message that comes next.
fn next_of(endpoint: &Arc<dyn Endpoint>) -> (MsgBuf, Arrival) {
    endpoint.recv_unexpected(OpId(1), endpoint.alloc_msg()).unwrap();
    received(end_of(endpoint, &[], 1))
}

/// Sends `bytes` and returns what is answered.
fn call(endpoint: &Arc<dyn Endpoint>, target: &Addr, bytes: &[u8]) -> Completion {
    endpoint.recv_expected(OpId(2), target, Tag(5), endpoint.alloc_msg()).unwrap();
    endpoint.send_unexpected(OpId(3), target, Tag(5), message(endpoint, bytes)).unwrap();
    end_of(endpoint, &[], 2)
}

/// This test again, in a process of its own with a role.
fn again(program: &[&str], test: &str, role: &str) -> Child {
    na::conformance::hear_of_children();
    let me = std::env::current_exe().unwrap();
    let (first, rest) = program
        .split_first()
        .map_or((me.as_os_str(), &[][..]), |(first, rest)| (std::ffi::OsStr::new(*first), rest));
    let mut command = Command::new(first);
    command.args(rest);
    if !program.is_empty() {
        command.arg(&me);
    }
    command
        .args([test, "--exact", "--nocapture"])
        .env(ROLE, role)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

fn role() -> Option<String> {
    let role = std::env::var(ROLE).ok()?;
    let kill = Some(rustix::process::Signal::KILL);
    rustix::process::set_parent_process_death_signal(kill).unwrap();
    Some(role)
}

/// The two pipes of a process that was started by [`again`]; kills and reaps it when dropped.
struct Process {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Process {
    fn new(mut child: Child) -> Self {
        let stdin = child.stdin.take().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Self { child, stdin, stdout }
    }

    /// Returns the text that it says after `word`, on a line of its own. `None`: it has ended
    /// without.
    fn hear(&mut self, word: &str) -> Option<String> {
        loop {
            let mut line = String::new();
            if self.stdout.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            if let Some((_, rest)) = line.split_once(word) {
                return Some(rest.trim().to_owned());
            }
        }
    }

    /// The line on which it says one of these. `None`: it has ended without.
    fn hear_either(&mut self, one: &str, other: &str) -> Option<String> {
        loop {
            let mut line = String::new();
            if self.stdout.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            if line.contains(one) || line.contains(other) {
                return Some(line.trim().to_owned());
            }
        }
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    fn stop(&mut self) {
        self.signal(rustix::process::Signal::STOP);
        // Another processor may run it a little longer.
        let pid = rustix::process::Pid::from_child(&self.child);
        let stopped = rustix::process::WaitOptions::UNTRACED;
        let (_, status) = rustix::process::waitpid(Some(pid), stopped).unwrap().unwrap();
        assert!(status.stopped());
    }

    fn go_on(&mut self) {
        self.signal(rustix::process::Signal::CONT);
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.stdin, "{line}").unwrap();
    }

    fn ends_well(mut self) -> bool {
        self.child.wait().unwrap().success()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn say(word: &str, rest: &str) {
    println!("\n{word}{rest}");
    std::io::stdout().flush().unwrap();
}

fn told() -> String {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    line.trim().to_owned()
}

#[test]
fn a_stopped_peer_is_given_up_and_found_again() {
    if role().is_some() {
        let target = open("na+tcp://", true);
        say("at ", target.self_addr().uri());
        loop {
            let (buf, Arrival { from, tag }) = next_of(&target);
            target.send_expected(OpId(2), &from, tag, buf).unwrap();
            end_of(&target, &[], 2);
        }
    }
    let mut target = Process::new(again(
        &[],
        test_path!("a_stopped_peer_is_given_up_and_found_again"),
        "target",
    ));
    let uri = target.hear("at ").unwrap();
    let mut options = OpenOptions::listening(false);
    options.liveness_limit = Duration::from_millis(300);
    let origin = na::open("na+tcp://", &options).unwrap();
    let to_target = origin.lookup(&uri).unwrap();
    received(call(&origin, &to_target, b"one"));
    target.stop();
    match call(&origin, &to_target, b"two") {
        Completion::Recv { result: Err(error @ Error::PeerGone { .. }), .. } => {
            assert!(error.to_string().contains("no sign of life"), "{error}");
        }
        other => panic!("not given up: {other:?}"),
    }
    target.go_on();
    let (buf, _) = received(call(&origin, &to_target, b"three"));
    assert_eq!(buf.as_slice(), b"three");
}

/// The limits of an origin that is itself stopped for longer.
const OWN_LIMIT: Duration = Duration::from_millis(1500);

/// Calls the target that it is told, sleeping in between, and says what became of it.
fn origin_that_is_stopped() -> ! {
    let mut options = OpenOptions::listening(false);
    (options.liveness_limit, options.connect_timeout) = (OWN_LIMIT, OWN_LIMIT);
    let origin = na::open("na+tcp://", &options).unwrap();
    say("ready", "");
    let uri = told();
    let to_target = origin.lookup(&uri).unwrap();
    loop {
        origin.recv_expected(OpId(2), &to_target, Tag(5), origin.alloc_msg()).unwrap();
        origin.send_unexpected(OpId(3), &to_target, Tag(5), message(&origin, b"call")).unwrap();
        say("called", "");
        let mut end = None;
        while end.is_none() {
            origin
                .poll(64, &mut |completion| {
                    if let Completion::Recv { result, .. } = completion {
                        end = Some(result);
                    }
                })
                .unwrap();
            // With the time: the other process wants a poll after a time of its own.
            say("ran ", &now_ns().to_string());
            if end.is_none() && origin.prepare_wait() {
                let fd = origin.wait_fd().unwrap();
                let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
                // Broken off by a signal: look again.
                let _ = rustix::event::poll(&mut fds, None);
            }
        }
        match end.unwrap() {
            Ok(_) => say("answered", ""),
            Err(error) => say("failed: ", &error.to_string()),
        }
    }
}

/// Time on a clock of all processes, ns.
fn now_ns() -> i64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

/// Waits until `process` has polled at `time` or later.
fn has_polled(process: &mut Process, time: i64) {
    loop {
        let said = process.hear_either("ran ", "failed").unwrap();
        let polled = said.strip_prefix("ran ").unwrap_or_else(|| panic!("{said}"));
        if polled.parse::<i64>().unwrap() >= time {
            return;
        }
    }
}

/// Lets `process` stand still for longer than its limits, `meanwhile` running, and then look at
/// them before anything else happens.
fn stop_for_long(process: &mut Process, mut meanwhile: impl FnMut()) {
    process.stop();
    let until = Instant::now() + OWN_LIMIT * 4 / 3;
    while Instant::now() < until {
        meanwhile();
        std::thread::yield_now();
    }
    let from = now_ns();
    process.go_on();
    has_polled(process, from);
}

/// Slow: the process is stopped three times, each time for longer than its limit.
#[test]
fn a_process_that_was_stopped_itself_does_not_give_up_its_peers() {
    let test = test_path!("a_process_that_was_stopped_itself_does_not_give_up_its_peers");
    if role().is_some() {
        origin_that_is_stopped();
    }
    let target = open("na+tcp://", true);
    let mut origin = Process::new(again(&[], test, "origin"));
    origin.hear("ready").unwrap();
    origin.tell(target.self_addr().uri());
    origin.hear("called").unwrap();
    // It waits for a hello, which only a poll of the target sends.
    has_polled(&mut origin, now_ns());
    stop_for_long(&mut origin, || ());
    for target_is_stopped in [false, true] {
        // Now it waits for an answer, and has heard nothing while it was stopped if the target was
        // stopped as well, like two processes in a machine that is paused.
        let (buf, Arrival { from, tag }) = next_of(&target);
        // It looks four times within its limit. What it heard before the last look is forgotten.
        has_polled(&mut origin, now_ns() + (OWN_LIMIT / 3).as_nanos() as i64);
        stop_for_long(&mut origin, || {
            if !target_is_stopped {
                target.poll(64, &mut |_| ()).unwrap();
            }
        });
        target.send_expected(OpId(2), &from, tag, buf).unwrap();
        end_of(&target, &[], 2);
        let said = origin.hear_either("answered", "failed");
        assert_eq!(said.as_deref(), Some("answered"));
        origin.hear("called").unwrap();
    }
}

/// As many peers as there are descriptors for, up to a thousand. Half of the descriptors are for
/// other tests.
fn peers_possible() -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    const PER_PEER: u64 = 5;
    const ALL: u64 = 2 * (1000 * PER_PEER + 500);
    let limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.map_or(ALL, |hard| hard.min(ALL));
    if limit.current.is_some_and(|current| current < wanted) {
        setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), ..limit }).unwrap();
    }
    let own = getrlimit(Resource::Nofile).current.unwrap_or(ALL) / 2;
    (own.saturating_sub(500) / PER_PEER).min(1000) as usize
}

#[test]
fn a_thousand_peers_are_served_and_the_rest_goes_on_without_those_that_leave() {
    let _turn = na::conformance::one_crowd();
    let count = peers_possible();
    println!("{count} peers");
    let target = open("na+tcp://", true);
    let mut peers: Vec<_> = (0..count)
        .map(|_| {
            let origin = open("na+tcp://", false);
            let to_target = origin.lookup(target.self_addr().uri()).unwrap();
            (origin, to_target)
        })
        .collect();
    for round in 0..3u8 {
        // All at once.
        for (number, (origin, to_target)) in peers.iter().enumerate() {
            origin.recv_expected(OpId(2), to_target, Tag(5), origin.alloc_msg()).unwrap();
            let bytes = [&[round][..], &number.to_le_bytes()].concat();
            origin.send_unexpected(OpId(3), to_target, Tag(5), message(origin, &bytes)).unwrap();
            origin.poll(8, &mut |_| ()).unwrap();
            target.recv_unexpected(OpId(number as u64), target.alloc_msg()).unwrap();
        }
        let mut answered = 0;
        let deadline = Instant::now() + PATIENCE;
        while answered < peers.len() {
            assert!(Instant::now() < deadline, "{answered} answers of {}", peers.len());
            let mut sink = |completion| match completion {
                Completion::Recv { buf, result, .. } => {
                    let Arrival { from, tag } = result.unwrap();
                    target.send_expected(OpId(5000), &from, tag, buf).unwrap();
                }
                Completion::Send { result, .. } => result.unwrap(),
                Completion::Transfer { .. } => {}
            };
            target.poll(64, &mut sink).unwrap();
            for (number, (origin, _)) in peers.iter().enumerate() {
                let mut sink = |completion| {
                    if let Completion::Recv { buf, result, .. } = completion {
                        result.unwrap();
                        assert_eq!(buf.as_slice()[0], round);
                        assert_eq!(buf.as_slice()[1..], number.to_le_bytes());
                        answered += 1;
                    }
                };
                origin.poll(8, &mut sink).unwrap();
            }
        }
        // Every second one leaves.
        let mut number = 0;
        peers.retain(|_| {
            number += 1;
            number % 2 == 0
        });
    }
}

/// Sends what `get` and `put` of the other side need, answers it, and compares.
fn origin_behind_nat(uri: &str, listen: bool) {
    let origin = open("na+tcp://eth0:0", listen);
    let to_target = origin.lookup(uri).unwrap();
    let memory = Memory::from_vec(vec![1; 300_000]);
    let memory = origin.register(memory, Access::ReadWrite).unwrap();
    let (buf, _) = received(call(&origin, &to_target, &origin.mem_to_bytes(&memory)));
    assert_eq!(buf.as_slice(), b"done");
    let mut got = vec![0; 300_000];
    assert!(memory.read_at(0, &mut got));
    assert!(got[..150_000].iter().all(|byte| *byte == 1));
    assert!(got[150_000..].iter().all(|byte| *byte == 2), "the target's put has arrived");
}

fn target_outside() {
    let target = open("tcp://eth0:7000", true);
    assert_eq!(target.self_addr().uri(), "na+tcp://10.77.2.2:7000");
    say("at ", target.self_addr().uri());
    for _ in 0..2 {
        let (buf, Arrival { from, tag }) = next_of(&target);
        assert!(from.uri().contains("10.77.2.1"), "it comes from the router: {from}");
        let remote = target.mem_from_bytes(buf.as_slice()).unwrap();
        let local = Memory::from_vec(vec![2; 300_000]);
        let local: LocalMem = target.register(local, Access::ReadWrite).unwrap();
        let transfer = |at| Transfer {
            local: local.clone(),
            local_offset: at,
            remote: remote.clone(),
            remote_offset: at,
            len: 150_000,
        };
        let ends_well = |op| match end_of(&target, &[], op) {
            Completion::Transfer { result, .. } => result.unwrap(),
            other => panic!("not a transfer: {other:?}"),
        };
        target.get(OpId(10), &from, transfer(0)).unwrap();
        ends_well(10);
        target.put(OpId(11), &from, transfer(150_000)).unwrap();
        ends_well(11);
        let mut got = vec![0; 150_000];
        assert!(local.read_at(0, &mut got));
        assert!(got.iter().all(|byte| *byte == 1), "the origin's memory was read");
        target.send_expected(OpId(12), &from, tag, message(&target, b"done")).unwrap();
        end_of(&target, &[], 12);
    }
    say("served", "");
    told();
}

/// Runs a command line; why it did not succeed.
fn run(line: &str) -> Result<(), String> {
    let output = Command::new("sh").args(["-c", line]).output().unwrap();
    if output.status.success() {
        return Ok(());
    }
    Err(format!("`{line}`: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

/// Address translation between the namespaces of two processes.
fn translate(inside: u32, outside: u32) -> Result<(), String> {
    run(&format!("ip link add in0 type veth peer name eth0 netns {inside}"))?;
    run(&format!("ip link add out0 type veth peer name eth0 netns {outside}"))?;
    run("ip address add 10.77.1.1/24 dev in0 && ip link set in0 up")?;
    run("ip address add 10.77.2.1/24 dev out0 && ip link set out0 up")?;
    run("echo 1 > /proc/sys/net/ipv4/ip_forward")?;
    let chain = "{ type nat hook postrouting priority 100; }";
    let nft = format!(
        "nft add table ip nat && nft 'add chain ip nat post {chain}' && \
         nft add rule ip nat post oifname out0 masquerade"
    );
    let iptables = "iptables -t nat -A POSTROUTING -o out0 -j MASQUERADE";
    run(&nft).or_else(|nft| run(iptables).map_err(|iptables| format!("{nft}; {iptables}")))
}

fn router(test: &str) {
    let mut inside = Process::new(again(&["unshare", "-n"], test, "inside"));
    let mut outside = Process::new(again(&["unshare", "-n"], test, "outside"));
    let ready = inside.hear("ready").and(outside.hear("ready"));
    let set_up = match ready {
        Some(_) => translate(inside.child.id(), outside.child.id()),
        None => Err("no further network namespaces".into()),
    };
    if let Err(reason) = set_up {
        return say("skip ", &reason);
    }
    outside.tell("go");
    let uri = outside.hear("at ").unwrap();
    inside.tell(&uri);
    assert!(inside.ends_well(), "the origin has failed");
    outside.hear("served").unwrap();
    outside.tell("end");
    assert!(outside.ends_well(), "the target has failed");
    say("passed", "");
}

/// The target has no route to the origin's network, only to the router that translates.
#[test]
fn an_origin_behind_address_translation_is_answered_on_its_connection() {
    let test = test_path!("an_origin_behind_address_translation_is_answered_on_its_connection");
    match role().as_deref() {
        Some("router") => return router(test),
        Some("inside") => {
            say("ready", "");
            let uri = told();
            run("ip link set lo up").unwrap();
            run("ip address add 10.77.1.2/24 dev eth0 && ip link set eth0 up").unwrap();
            run("ip route add default via 10.77.1.1").unwrap();
            origin_behind_nat(&uri, false);
            // One that listens announces an address that cannot be reached.
            return origin_behind_nat(&uri, true);
        }
        Some("outside") => {
            say("ready", "");
            told();
            run("ip address add 10.77.2.2/24 dev eth0 && ip link set eth0 up").unwrap();
            return target_outside();
        }
        _ => {}
    }
    if let Err(reason) = run("unshare -Urn true && ip link help 2>/dev/null; command -v ip unshare")
    {
        return println!("not tested: network namespaces are not permitted here: {reason}");
    }
    let output = again(&["unshare", "-Urn"], test, "router").wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    if let Some((_, reason)) = text.split_once("\nskip ") {
        return println!("not tested: {}", reason.lines().next().unwrap_or_default());
    }
    assert!(output.status.success() && text.contains("\npassed"), "{text}");
}
