//! Statistics in the layout of C Margo's default monitor.
//!
//! Its keys, and what they say here:
//!
//! | C's phase | here |
//! |---|---|
//! | `iforward` | from the beginning until the network had taken the request; a handle is made then, so `relative_timestamp_from_create` is 0 |
//! | `forward_cb` | `relative_timestamp_from_iforward_start`: until the response was here; there is no callback, so its `duration` is 0 |
//! | `iforward_wait` | from when the network had taken the request until the caller ran again |
//! | `set_input`, `get_output` | encoding the arguments, decoding the result |
//! | `handler` | from when the request was here until its ULT could be made |
//! | `ult` | the handler's ULT; `relative_timestamp_from_handler_start` is how long the request waited for it |
//! | `get_input`, `set_output` | decoding the arguments, encoding the result |
//! | `irespond` | encoding the result and giving it to the network |
//! | `respond_cb` | `relative_timestamp_from_irespond_start`: until the network had taken all of it |
//! | `irespond_wait` | from `irespond`'s end until then, whether or not somebody waits |
//! | `itransfer`, `transfer_cb`, `itransfer_wait` | asking for a transfer, its end, the caller's wait |
//!
//! Times are in seconds. `num` is exact: of phases that all calls of a path go through, the number
//! of calls; `min` and `max` are of the calls that were looked at.

use serde_json::{Map, Value, json};

use super::histogram::Figures;
use super::statistics::{BulkStatistics, OriginStatistics, RpcName, Statistics, TargetStatistics};
use crate::observe::span::{BulkDirection, CallOutcome, RequestOutcome};
use crate::support::files::hostname;

/// Seconds with so many decimal digits.
pub(super) fn rounded(seconds: f64, precision: u32) -> f64 {
    // At most 9 digits.
    let unit = 10f64.powi(precision.min(9) as i32);
    (seconds * unit).round() / unit
}

/// How a quantity is printed.
#[derive(Clone, Copy)]
struct Print {
    /// The factor from nanoseconds to seconds; for bytes 1.
    unit: f64,
    precision: u32,
}

impl Print {
    /// `exact`: how many there were, if that is known and some were looked at.
    #[allow(clippy::cast_precision_loss, reason = "nanoseconds and bytes below 2^53")]
    fn leaf(self, figures: &Figures, exact: Option<u64>) -> Value {
        let num = exact.filter(|_| figures.count > 0).unwrap_or(figures.count);
        let scaled = |value: f64| rounded(value * self.unit, self.precision);
        json!({
            "num": num,
            "min": scaled(figures.min as f64),
            "max": scaled(figures.max as f64),
            "avg": scaled(figures.mean),
            // Of the square of the unit: as many digits as there are.
            "var": figures.variance * self.unit * self.unit,
            "sum": scaled(figures.mean * num as f64),
        })
    }

    fn none(self, num: u64) -> Value {
        json!({ "num": num, "min": 0.0, "max": 0.0, "avg": 0.0, "var": 0.0, "sum": 0.0 })
    }
}

/// The `stats` document.
pub(super) fn stats(statistics: &Statistics, precision: u32) -> Value {
    let time = Print { unit: 1e-9, precision };
    let mut rpcs = Map::new();
    for row in &statistics.origin {
        let of_rpc = entry(&mut rpcs, &row.rpc, row.parent.as_ref());
        of_rpc["origin"][format!("sent to {}", row.peer)] = origin(row, time);
    }
    for row in &statistics.target {
        let of_rpc = entry(&mut rpcs, &row.rpc, row.parent.as_ref());
        of_rpc["target"][format!("received from {}", row.peer)] = target(row, time);
    }
    for row in &statistics.bulk {
        bulk(&mut rpcs, statistics, row, time);
    }
    let progress = &statistics.progress;
    let mut polls = progress.idle_poll.clone();
    polls.merge(&progress.busy_poll);
    json!({
        "address": statistics.address,
        "hostname": hostname(),
        "pid": std::process::id(),
        "cmdline": std::env::args_os()
            .map(|arg| arg.to_string_lossy().into_owned())
            .collect::<Vec<_>>(),
        "progress_loop": {
            "progress_with_timeout": time.leaf(&progress.sleep, None),
            // A sleep has no timeout here.
            "progress_timeout_value_msec": time.none(0),
            "progress_without_timeout": time.leaf(&polls, None),
            "trigger": time.leaf(&progress.busy_poll, None),
        },
        "rpcs": rpcs,
    })
}

/// As C splits a number: the provider, and the rest with all bits of the provider set.
fn parts(id: u64) -> (u64, u64) {
    (id | 0xffff, id & 0xffff)
}

const NO_PARENT: u64 = 0xffff;

/// The object of a call path.
fn entry<'a>(
    rpcs: &'a mut Map<String, Value>,
    rpc: &RpcName,
    parent: Option<&RpcName>,
) -> &'a mut Value {
    let (id, provider) = parts(rpc.rpc_id);
    let (parent_id, parent_provider) = parts(parent.map_or(NO_PARENT, |parent| parent.rpc_id));
    let key = format!("{parent_id}:{parent_provider}:{id}:{provider}");
    rpcs.entry(key).or_insert_with(|| {
        json!({
            "rpc_id": id,
            "provider_id": provider,
            "parent_rpc_id": parent_id,
            "parent_provider_id": parent_provider,
            "name": rpc.name,
            "origin": {},
            "target": {},
        })
    })
}

fn origin(row: &OriginStatistics, time: Print) -> Value {
    let figures = &row.figures;
    let not = |outcomes: &[CallOutcome]| {
        let sum = |outcome| row.outcomes.get(outcome).copied().unwrap_or_default();
        outcomes.iter().map(sum).sum::<u64>()
    };
    // All calls were encoded and sent but for these.
    let sent = row.calls.saturating_sub(not(&[CallOutcome::Encode]));
    let ended = row.outcomes.values().sum::<u64>() - not(&[CallOutcome::Encode]);
    json!({
        "iforward": {
            "duration": time.leaf(&figures.send, Some(sent)),
            "relative_timestamp_from_create": time.none(sent),
        },
        "forward_cb": {
            "duration": time.none(ended),
            "relative_timestamp_from_iforward_start": time.leaf(&figures.arrived_at, Some(ended)),
        },
        "iforward_wait": {
            "duration": time.leaf(&figures.waited, None),
            "relative_timestamp_from_iforward_end": time.none(figures.waited.count),
        },
        "set_input": {
            "duration": time.leaf(&figures.encode, Some(sent)),
            "relative_timestamp_from_iforward_start": time.leaf(&figures.encode_at, Some(sent)),
        },
        "get_output": {
            "duration": time.leaf(&figures.decode, None),
            "relative_timestamp_from_wait_end": time.none(figures.decode.count),
        },
    })
}

fn target(row: &TargetStatistics, time: Print) -> Value {
    let figures = &row.figures;
    let refused = [RequestOutcome::Busy, RequestOutcome::Closing]
        .iter()
        .filter_map(|outcome| row.outcomes.get(outcome))
        .sum::<u64>();
    let admitted = row.requests.saturating_sub(refused);
    json!({
        "handler": { "duration": time.leaf(&figures.admission, Some(admitted)) },
        "ult": {
            "duration": time.leaf(&figures.unit, None),
            "relative_timestamp_from_handler_start": time.leaf(&figures.started_at, None),
        },
        "irespond": {
            "duration": time.leaf(&figures.respond, None),
            "relative_timestamp_from_ult_start": time.leaf(&figures.respond_at, None),
        },
        "respond_cb": {
            "duration": time.none(figures.sent_at.count),
            "relative_timestamp_from_irespond_start": time.leaf(&figures.sent_at, None),
        },
        "irespond_wait": {
            "duration": time.leaf(&figures.network, None),
            "relative_timestamp_from_irespond_end": time.none(figures.network.count),
        },
        "set_output": {
            "duration": time.leaf(&figures.encode, None),
            "relative_timestamp_from_irespond_start": time.none(figures.encode.count),
        },
        "get_input": {
            "duration": time.leaf(&figures.decode, None),
            "relative_timestamp_from_ult_start": time.none(figures.decode.count),
        },
    })
}

/// Transfers belong to the requests of their RPC, there to those of the same peer, if there are
/// any. C leaves those outside of handlers to the RPC of number 0; here too.
fn bulk(rpcs: &mut Map<String, Value>, statistics: &Statistics, row: &BulkStatistics, time: Print) {
    let of_rpc = |target: &&TargetStatistics| row.rpc.as_ref() == Some(&target.rpc);
    let candidates = || statistics.target.iter().filter(of_rpc);
    let found = candidates().find(|target| target.peer == row.peer).or_else(|| candidates().next());
    let unknown = RpcName { rpc_id: NO_PARENT, provider: u16::MAX, ..RpcName::default() };
    let (rpc, parent, peer) = match found {
        Some(target) => (&target.rpc, target.parent.as_ref(), &target.peer),
        None => (row.rpc.as_ref().unwrap_or(&unknown), None, &row.peer),
    };
    let of_peer = &mut entry(rpcs, rpc, parent)["target"][format!("received from {peer}")];
    let key = match row.direction {
        BulkDirection::Pull => format!("pull from {}", row.peer),
        BulkDirection::Push => format!("push to {}", row.peer),
    };
    let figures = &row.figures;
    let all = Some(row.transfers);
    let ended = row.outcomes.values().sum::<u64>();
    of_peer["bulk"][key] = json!({
        "itransfer": {
            "duration": time.leaf(&figures.start, all),
            "size": Print { unit: 1.0, ..time }.leaf(&figures.size, all),
        },
        "transfer_cb": {
            "duration": time.none(ended),
            "relative_timestamp_from_itransfer_start": time.leaf(&figures.total, Some(ended)),
        },
        "itransfer_wait": {
            "duration": time.leaf(&figures.waited, None),
            "relative_timestamp_from_itransfer_end": time.none(figures.waited.count),
        },
    });
}
