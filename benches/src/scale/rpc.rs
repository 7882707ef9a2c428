//! A step of calls: a server, and clients on the other cores.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use super::child::{Job, Order};
use super::layout::Layout;
use super::line::median;
use super::meter::{Measured, around, quantile_us};
use super::server::{BYTES, Calls, Place, Work};
use crate::base::{Deadline, OrFail, Result, cpu_time};
use crate::process::ChildProcess;
use crate::process::signals::nap;

/// Where a step runs, and for how long.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setting<'a> {
    /// All cores.
    pub(crate) cores: &'a [usize],
    /// How many of them the server has; or all that units run on.
    pub(crate) count: usize,
    pub(crate) window: Duration,
    pub(crate) deadline: Deadline,
}

impl<'a> Setting<'a> {
    /// The order for `job` on these cores.
    pub(crate) fn order(&self, job: Job, cores: &[usize]) -> Order {
        let (window, deadline) = (self.window, self.deadline);
        Order { job, cores: cores.to_vec(), window, deadline }
    }

    /// The cores of the server, and those of its clients. Transfers have one client for each
    /// xstream of the server, calls one on each core that is left.
    pub(crate) fn split(&self, work: Work) -> (&'a [usize], &'a [usize]) {
        let (server, clients) = self.cores.split_at(self.count);
        let most = if work == Work::Bulk { self.count } else { clients.len() };
        (server, &clients[..most.min(clients.len())])
    }
}

/// Measures a server with clients in processes of their own.
///
/// # Errors
///
/// When a process does not start, fails, or is late; and when the user interrupts.
pub(crate) fn apart(calls: Calls, setting: Setting<'_>) -> Result<Map<String, Value>> {
    let (server_cores, client_cores) = setting.split(calls.work);
    let mut server = setting.order(Job::Serve(calls), server_cores).start()?;
    let places: Vec<Place> = server.receive("the server's places")?;
    let mut clients = Vec::new();
    for (core, place) in client_cores.iter().zip(places.iter().cycle()) {
        clients.push(setting.order(Job::Call(calls, place.clone()), &[*core]).start()?);
    }
    let (measured, used) = measure(&mut clients, server.id(), setting)?;
    clients.into_iter().try_for_each(ChildProcess::finish)?;
    server.finish()?;
    fields(calls, &measured, used, false)
}

/// Measures a server with a client on each of its xstreams.
///
/// # Errors
///
/// As [`apart`].
pub(crate) fn beside(
    calls: Calls,
    layout: Layout,
    setting: Setting<'_>,
) -> Result<Map<String, Value>> {
    let cores = &setting.cores[..setting.count];
    let process = setting.order(Job::ServeAndCall(calls, layout), cores).start()?;
    let pid = process.id();
    let mut clients = vec![process];
    let (measured, used) = measure(&mut clients, pid, setting)?;
    clients.into_iter().try_for_each(ChildProcess::finish)?;
    fields(calls, &measured, used, true)
}

/// Has the clients call when all are ready: their figures, and the cores that the server used.
fn measure(
    clients: &mut [ChildProcess],
    server: u32,
    setting: Setting<'_>,
) -> Result<(Vec<Measured>, f64)> {
    clients.iter_mut().try_for_each(|client| client.receive("a client"))?;
    clients.iter_mut().try_for_each(ChildProcess::say_word)?;
    nap(around(setting.window))?;
    let before = (Instant::now(), cpu_time::of(server)?);
    nap(setting.window)?;
    let after = (Instant::now(), cpu_time::of(server)?);
    let used = (after.1 - before.1).as_secs_f64() / (after.0 - before.0).as_secs_f64();
    let measured = clients.iter_mut().map(|client| client.receive("a client's figures"));
    let measured: Vec<Vec<Measured>> = measured.collect::<Result<_>>()?;
    Ok((measured.concat(), used))
}

fn fields(
    calls: Calls,
    measured: &[Measured],
    used: f64,
    is_beside: bool,
) -> Result<Map<String, Value>> {
    let (unit, scale) = match calls.work {
        Work::Bulk => ("GB/s", BYTES as f64 / 1e9),
        Work::Null | Work::Burn => ("RPC/s", 1.0),
    };
    let slices = measured.iter().map(|client| client.rates.len()).min().unwrap_or_default();
    let sum = |slice: usize| measured.iter().map(|client| client.rates[slice]).sum::<f64>();
    let reps: Vec<f64> = (0..slices).map(|slice| sum(slice) * scale).collect();
    let each: Vec<f64> = measured.iter().map(|client| client.rates.iter().sum()).collect();
    let [slowest, fastest] =
        [f64::min, f64::max].map(|pick| each.iter().copied().reduce(pick).unwrap_or_default());
    let mut times = BTreeMap::new();
    for (bucket, count) in measured.iter().flat_map(|client| &client.times) {
        *times.entry(*bucket).or_default() += count;
    }
    let mut fields = json!({
        "net": calls.over.word(), "kind": calls.work.word(), "mode": "busy",
        "value": median(&reps), "unit": unit, "reps": reps,
        "clients": measured.len(), "clients_beside": is_beside,
        "in_flight": calls.work.in_flight(),
        "p50_us": quantile_us(&times, 500), "p99_us": quantile_us(&times, 990),
        "p999_us": quantile_us(&times, 999),
        "server_cores_used": used, "slowest_client_of_fastest": slowest / fastest,
    });
    if calls.work == Work::Bulk {
        fields["bytes"] = json!(BYTES);
    }
    fields.as_object_mut().map(std::mem::take).or_fail("no fields")
}
