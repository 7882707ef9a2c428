//! Rows of null calls to targets that look at who calls. In each, the two targets are instances in
//! one process, and the two origins in the other one, whose xstreams poll for both, so that no time
//! is that of `rpc.*.rtt.poll`; times are averages of batches. Floor: the same without what the row
//! is about, alternating.
//!
//! - `rpc.sm.rtt.rules`: at a target with 1,000 rules of who may call what, each of another user,
//!   all about every RPC. Floor: at a target without rules.
//! - `trust.tcp.rtt.principals`: the same over TCP, with rules of 1,000 subnets, and after 10,000
//!   hosts have called, by as many addresses of this one.
//! - `trust.*.rtt`: to a member of our cluster, over a fabric: with a proof in each request
//!   (`margo.security.fabrics`). Floor: without a secret on either side.
//! - `trust.*.rate32`: completed calls per second with 32 callers, with and without proofs, one
//!   after the other.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use margo::{Instance, ProviderHandle, Rpc};
use serde_json::{Value, json};

use super::null::{NULL, flow, null, start};
use super::pair::{Pair, Settings};
use crate::base::{Deadline, Doing, Effort, Failure, Figure, OrFail, Result, Samples, fail};
use crate::floors::tls;
use crate::floors::transport::Transport;
use crate::process::Context;
use crate::rows::ult::on_ult::on_ult;

/// Starts an instance with that `margo.security` beside the target, and tells its address.
const BESIDE: Rpc<String, std::result::Result<String, String>> = Rpc::new("bench_beside");

/// Rules of the rows about them.
const RULES: u32 = 1000;

/// Hosts that have called before the row about them begins.
const PRINCIPALS: u32 = 10_000;

/// Calls in one sample.
const BATCH: u32 = 256;

/// An origin and a target.
type Between = (Instance, ProviderHandle);

/// Serves [`BESIDE`].
///
/// # Errors
///
/// When the registration is refused.
pub(super) fn serve_beside(instance: &Instance, settings: Settings) -> Result<()> {
    // They end with the target.
    let started = Mutex::new(Vec::new());
    instance.serve(BESIDE).returning(move |request| {
        let security = serde_json::from_str(request.args()).map_err(|error| error.to_string())?;
        let beside = start_beside(request.instance(), settings, security);
        let beside = beside.map_err(|failure| failure.to_string())?;
        let address = beside.self_addr().uri().to_owned();
        started.lock().unwrap_or_else(PoisonError::into_inner).push(beside);
        Ok(address)
    })?;
    Ok(())
}

/// Starts an instance in the pools of another one.
fn start_beside(parent: &Instance, settings: Settings, security: Value) -> Result<Instance> {
    let document = json!({
        "margo": { "address": settings.transport.uri(), "security": security },
        "mercury": { "na_no_block": true },
    });
    let beside = parent.init_child(&document.to_string()).doing("starting another instance")?;
    beside.register(NULL, |request| drop(request.respond(&())))?;
    Ok(beside)
}

/// Has an instance started beside the target. Returns its address.
fn ask_for_beside(between: &Between, security: &Value) -> Result<String> {
    let (instance, target) = between;
    instance.forward(BESIDE, target, &security.to_string())?.map_err(Failure::new)
}

fn effort(context: &Context, transport: Transport) -> Effort {
    let (rounds, samples, warmup) = match transport {
        _ if context.quick => (4, 10, 1),
        Transport::Sm => (50, 100, 10),
        // A call takes some ten times as long.
        _ => (20, 50, 5),
    };
    Effort { rounds, samples, warmup, round_max: Duration::from_secs(1) }
}

/// Calls the two in turns.
fn in_turns(
    (context, settings): (&Context, Settings),
    pair: Pair,
    other: impl FnOnce(&Between) -> Result<Between> + Send + 'static,
) -> Result<Figure> {
    let effort = effort(context, settings.transport);
    let plain = (pair.instance.clone(), pair.target.clone());
    let rounds = on_ult(&pair.instance.layout().rpc_pool(), context.deadline, move || {
        let other = other(&plain)?;
        let calls =
            |samples: &mut Samples, (origin, to): &Between| samples.batched(|| null(origin, to));
        let floor = |floors: &mut Samples| calls(floors, &plain);
        effort.in_turns([BATCH, BATCH], floor, |samples| calls(samples, &other))
    })?;
    pair.stop(context.deadline)?;
    Ok(Figure::latency(rounds))
}

fn look_up(instance: &Instance, address: &str) -> Result<ProviderHandle> {
    Ok(instance.lookup(address).doing("looking the other target up")?.into())
}

/// The row `rpc.sm.rtt.rules`.
pub(crate) fn rules(context: &Context, settings: Settings) -> Result<Figure> {
    let (pair, _caller) = start(context, settings)?;
    in_turns((context, settings), pair, |plain| {
        let others = (0..RULES - 1).map(|n| format!("uid:{}", 100_000 + 2 * n));
        let allow = others.chain(["uid:self".to_owned()]).map(|who| json!({ "who": who }));
        let security = json!({ "allow": allow.collect::<Vec<_>>() });
        let address = ask_for_beside(plain, &security)?;
        Ok((plain.0.clone(), look_up(&plain.0, &address)?))
    })
}

/// The first address of a subnet of 16, of which there is one for each rule.
fn subnet(rule: u32) -> u32 {
    let first = u32::from(Ipv4Addr::new(127, 1, 0, 0));
    first + 256 * rule
}

/// The row `trust.tcp.rtt.principals`.
pub(crate) fn principals(context: &Context, settings: Settings) -> Result<Figure> {
    let (pair, _caller) = start(context, settings)?;
    let count = if context.quick { 50 } else { PRINCIPALS };
    let deadline = context.deadline;
    in_turns((context, settings), pair, move |plain| {
        let of_subnet = |rule| format!("host:{}/28", Ipv4Addr::from(subnet(rule)));
        let others = (0..RULES - 1).map(of_subnet).chain(["host:127.0.0.1".to_owned()]);
        let allow: Vec<_> = others.map(|who| json!({ "who": who })).collect();
        let address = ask_for_beside(plain, &json!({ "allow": allow }))?;
        let instance = &plain.0;
        have_called(instance, &address, count, deadline)?;
        Ok((instance.clone(), look_up(instance, &address)?))
    })
}

/// Has so many hosts call a target, one after the other.
fn have_called(instance: &Instance, target: &str, count: u32, deadline: Deadline) -> Result<()> {
    let listener = TcpListener::bind("0.0.0.0:0")?;
    listener.set_nonblocking(true)?;
    let port = listener.local_addr()?.port();
    let at = target.rsplit('/').next().and_then(|at| at.parse().ok());
    let at: SocketAddr = at.or_fail("the target has no address")?;
    let is_over = Arc::new(AtomicBool::new(false));
    let seen = is_over.clone();
    let between = move || somebody_between(&listener, at, &seen, deadline);
    let between = instance.layout().rpc_pool().spawn(between)?;
    let called = (0..count).try_for_each(|n| {
        let host = Ipv4Addr::from(subnet(n % (RULES - 1)) + n / (RULES - 1));
        let to = look_up(instance, &format!("na+tcp://{host}:{port}"))?;
        null(instance, &to).doing("calling by an address of its own")
    });
    is_over.store(true, Ordering::Relaxed);
    between.join()??;
    called
}

/// Passes on what comes to an address of this host, from that address.
fn somebody_between(
    listener: &TcpListener,
    target: SocketAddr,
    is_over: &AtomicBool,
    deadline: Deadline,
) -> Result<()> {
    let mut way: Option<[TcpStream; 2]> = None;
    while !is_over.load(Ordering::Relaxed) {
        deadline.check("calls by many hosts")?;
        match listener.accept() {
            // Whoever came before has been answered.
            Ok((origin, _)) => {
                origin.set_nonblocking(true)?;
                let onward = connect_from(origin.local_addr()?.ip(), target)?;
                way = Some([origin, onward]);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => fail!("accepting: {error}"),
        }
        if let Some([one, other]) = &way {
            let open = pass_on(one, other)? && pass_on(other, one)?;
            way = way.filter(|_| open);
        }
        ult::yield_now();
    }
    Ok(())
}

fn connect_from(own: IpAddr, target: SocketAddr) -> Result<TcpStream> {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let onward = socket(AddressFamily::INET, SocketType::STREAM, None).doing("making a socket")?;
    bind(&onward, &SocketAddr::new(own, 0)).doing("binding a socket")?;
    connect(&onward, &target).doing("connecting")?;
    let onward = TcpStream::from(onward);
    onward.set_nonblocking(true)?;
    onward.set_nodelay(true)?;
    Ok(onward)
}

/// Passes on what there is; `false`: that was all.
fn pass_on(mut from: &TcpStream, mut to: &TcpStream) -> Result<bool> {
    let mut bytes = [0; 4096];
    match from.read(&mut bytes) {
        Ok(0) => Ok(false),
        Ok(count) => to.write_all(&bytes[..count]).doing("passing bytes on").map(|()| true),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(true),
        Err(_) => Ok(false),
    }
}

/// Starts an origin and a target that prove who they are, beside those of a pair that do not.
fn members(plain: &Between, settings: Settings) -> Result<Between> {
    let fabrics = json!({ "mode": "cluster_secret", "secret": tls::secret_file()? });
    let security = json!({ "fabrics": fabrics });
    let address = ask_for_beside(plain, &security)?;
    let origin = start_beside(&plain.0, settings, security)?;
    let target = look_up(&origin, &address)?;
    Ok((origin, target))
}

/// Rows `trust.*.rtt`.
pub(crate) fn proven_rtt(context: &Context, settings: Settings) -> Result<Figure> {
    let (pair, _caller) = start(context, settings)?;
    in_turns((context, settings), pair, move |plain| members(plain, settings))
}

/// Rows `trust.*.rate32`.
pub(crate) fn proven_rate(context: &Context, settings: Settings) -> Result<Figure> {
    let (calls, limit) = if context.quick { (4_000, 150) } else { (1_000_000, 5_000) };
    let (limit, deadline) = (Duration::from_millis(limit), context.deadline);
    let (pair, _caller) = start(context, settings)?;
    let plain = (pair.instance.clone(), pair.target.clone());
    let pool = pair.instance.layout().rpc_pool();
    let (origin, target) = on_ult(&pool, deadline, move || members(&plain, settings))?;
    let (without, with) = ((&pair.instance, &pair.target), (&origin, &target));
    for between in [without, with] {
        flow(between, calls / 10, limit / 10, deadline)?;
    }
    let (floor, _) = flow(without, calls, limit, deadline)?;
    let (rate, mut slices) = flow(with, calls, limit, deadline)?;
    pair.stop(deadline)?;
    Ok(Figure { value: Some(rate), ..Figure::median(slices.rate(), Some(floor)) })
}
