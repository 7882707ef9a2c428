//! Turns two snapshots into lines.

use std::time::SystemTime;

use margo::{
    Metrics, metrics::ColumnKind, metrics::GateKind, metrics::PeerMetrics, metrics::Phase,
    metrics::PhaseMetrics, metrics::RpcEnd, metrics::RpcMetrics, metrics::TableMetrics,
};

use crate::support::output;
use crate::support::table::{Table, cell};

/// Lines for the peers when there is no screen that says how many fit.
const PEERS_SHOWN: usize = 10;
/// Lines for RPCs.
const RPCS_SHOWN: usize = 12;

/// Labels, columns and rows that are shown of a table of the service's own.
const OWN_SHOWN: (usize, usize, usize) = (3, 12, 20);

/// In place of the table of RPCs.
const STATISTICS_OFF: &str =
    "RPC  statistics are off at the service: \"monitoring\": {} in its configuration";

/// Returns true if `later` is of the same run of the service as `earlier`, so that counters go on.
pub(super) fn is_same_run(earlier: &Metrics, later: &Metrics) -> bool {
    earlier.process.id == later.process.id && earlier.uptime_sec <= later.uptime_sec
}

/// All there is to show: what `now` says, and how fast it has changed since `before`.
pub(super) fn lines(now: &Metrics, before: &Metrics) -> Vec<String> {
    let change = Change { now, before, seconds: now.uptime_sec - before.uptime_sec };
    let mut lines = change.summary();
    lines.extend(now.tables.iter().flat_map(|table| change.table(table)));
    lines.extend(change.rpcs());
    lines.extend(change.pools());
    lines.extend(change.xstreams());
    lines.extend(change.progress());
    lines.extend(change.gates());
    lines.extend(change.peers());
    lines
}

struct Change<'a> {
    now: &'a Metrics,
    before: &'a Metrics,
    seconds: f64,
}

/// The time that a certificate is good for.
fn certificate(expires: u64) -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    match expires.checked_sub(now.as_secs()) {
        #[expect(clippy::cast_precision_loss, reason = "it is shown in days")]
        Some(left) => format!("certificate good for {}", duration(left as f64)),
        None => "certificate EXPIRED: peers refuse it".to_owned(),
    }
}

/// The troubles since the start, in a line, if there were any.
fn troubles(now: &Metrics) -> Option<String> {
    let (network, stats) = (&now.network, &now.stats);
    let troubles = [
        (network.malformed, "messages malformed"),
        (network.checksum_errors, "checksum errors"),
        (network.responses_unread, "answers damaged on their way"),
        (network.proofs_refused, "proofs of membership refused"),
        (network.not_registered, "requests for RPCs that are not registered"),
        (stats.arguments_undecodable, "arguments undecodable"),
        (stats.requests_not_allowed, "requests that no rule allows"),
        (stats.requests_over_limit, "requests over the limit of their caller"),
    ];
    let troubles = troubles.iter().filter(|(count, _)| *count > 0);
    let troubles: Vec<_> = troubles.map(|(count, what)| format!("{count} {what}")).collect();
    (!troubles.is_empty()).then(|| format!("trouble   {}", troubles.join(", ")))
}

impl Change<'_> {
    fn summary(&self) -> Vec<String> {
        let now = self.now;
        let phase = match now.phase {
            Phase::Running => "running",
            Phase::Finalizing => "finalizing",
            Phase::Finalized => "finalized",
            _ => "in a state that is not known here",
        };
        let (network, stats) = (&now.network, &now.stats);
        let (network_before, stats_before) = (&self.before.network, &self.before.stats);
        let refused = |stats: &margo::metrics::Stats| {
            let refused = stats.requests_refused.saturating_add(stats.requests_busy);
            refused.saturating_add(stats.requests_abandoned)
        };
        let cpu = 100.0 * (now.process.cpu_sec - self.before.process.cpu_sec) / self.seconds;
        // The first snapshot: the process may be older than the instance.
        let cpu =
            if self.before.process.id == 0 { String::new() } else { format!("cpu {cpu:.0} %  ") };
        let calls = match now.peers.oldest_call_sec {
            Some(age) => format!("{}, oldest {}", now.peers.calls_in_flight, duration(age)),
            None => now.peers.calls_in_flight.to_string(),
        };
        // As a rule there are none.
        let kept = match now.memory.result_bytes_kept as u64 {
            0 => String::new(),
            bytes => format!("  results kept {}", output::bytes(bytes)),
        };
        let mut lines = vec![
            format!(
                "{}  {phase}  up {}  margo {}  process {}",
                cell(&now.address),
                duration(now.uptime_sec),
                cell(&now.version),
                now.process.id
            ),
            format!(
                "requests  in {}/s  out {}/s  refused {}/s  bulk {}/s  calls in flight {calls}",
                self.rate(network.requests_received, network_before.requests_received),
                self.rate(network.requests_sent, network_before.requests_sent),
                self.rate(refused(stats), refused(stats_before)),
                self.rate(network.bulk_transfers, network_before.bulk_transfers),
            ),
            format!(
                "handlers  running {}  {}/s  panicked {}  stalls {}  blocking {} + {} queued",
                now.handlers_running,
                self.rate(stats.handlers_run, stats_before.handlers_run),
                stats.handlers_panicked,
                stats.stalls,
                now.blocking.running,
                now.blocking.queued,
            ),
            format!(
                "process   {cpu}memory {}  fds {}  threads {}  registered {}{kept}",
                output::bytes(now.process.resident_bytes),
                now.process.open_fds.map_or_else(|| "?".to_owned(), |count| count.to_string()),
                now.process.threads,
                output::bytes(now.memory.region_bytes),
            ),
        ];
        lines.extend(self.device_memory());
        lines.extend(now.certificate_expires_unix_sec.map(certificate));
        lines.extend(troubles(now));
        lines
    }

    /// How device memory has moved, if any has.
    fn device_memory(&self) -> Option<String> {
        let (now, before) = (&self.now.memory, &self.before.memory);
        let (staged, shared) = (now.device_staged_bytes, now.device_shared_bytes);
        let rate = |now: u64, before: u64| self.rate(now >> 20, before >> 20);
        (staged > 0 || shared > 0 || now.device_mappings > 0).then(|| {
            format!(
                "devices   by buffers {} MiB/s  by device {} MiB/s  mapped {} ({} pieces)",
                rate(staged, before.device_staged_bytes),
                rate(shared, before.device_shared_bytes),
                output::bytes(now.device_mapped_bytes),
                now.device_mappings,
            )
        })
    }

    fn rpcs(&self) -> Vec<String> {
        let mut table = Table::new(
            &["RPC", "end", "begun/s", "in flight", "errors/s", "p50", "p99", "max"],
            &[0, 1],
        );
        let mut rpcs: Vec<_> = self.now.rpcs.iter().collect();
        rpcs.sort_by_key(|rpc| std::cmp::Reverse(rpc.begun));
        for rpc in rpcs.iter().take(RPCS_SHOWN) {
            let is_it = |other: &&RpcMetrics| {
                (other.end, &other.name, other.provider) == (rpc.end, &rpc.name, rpc.provider)
            };
            let before = self.before.rpcs.iter().find(is_it).cloned().unwrap_or_default();
            let errors = |rpc: &RpcMetrics| {
                let bad = rpc.outcomes.iter().filter(|(outcome, _)| *outcome != "ok");
                bad.fold(0, |sum: u64, (_, count)| sum.saturating_add(*count))
            };
            let total = rpc.phases.get("total");
            let time = |of: fn(&PhaseMetrics) -> f64| {
                total.map_or_else(String::new, |total| output::time(of(total)))
            };
            table.row([
                match rpc.provider {
                    u16::MAX => rpc.name.clone(),
                    provider => format!("{} of provider {provider}", rpc.name),
                },
                match rpc.end {
                    RpcEnd::Origin => "calls",
                    RpcEnd::Target => "serves",
                    _ => "?",
                }
                .to_owned(),
                self.rate(rpc.begun, before.begun),
                rpc.in_flight.to_string(),
                self.rate(errors(rpc), errors(&before)),
                time(|total| total.p50_sec),
                time(|total| total.p99_sec),
                time(|total| total.max_sec),
            ]);
        }
        if rpcs.is_empty() && self.now.statistics == Some(false) {
            return vec![String::new(), STATISTICS_OFF.to_owned()];
        }
        let mut lines = table.finish();
        let more = rpcs.len().saturating_sub(RPCS_SHOWN);
        if more > 0 {
            lines.push(format!("and {}", output::count(more as u64, "other RPC")));
        }
        lines
    }

    fn pools(&self) -> Vec<String> {
        let mut table = Table::new(
            &["POOL", "waiting", "blocked", "units", "new/s", "runs/s", "run by"],
            &[0, 6],
        );
        for pool in &self.now.pools {
            let before = self.before.pools.iter().find(|other| other.name == pool.name);
            let before = before.cloned().unwrap_or_default();
            table.row([
                pool.name.clone(),
                pool.waiting.to_string(),
                pool.blocked.to_string(),
                pool.alive.to_string(),
                self.rate(pool.created, before.created),
                self.rate(pool.executed, before.executed),
                pool.xstreams.join(" "),
            ]);
        }
        table.finish()
    }

    fn xstreams(&self) -> Vec<String> {
        let mut table = Table::new(
            &["XSTREAM", "state", "busy", "runs/s", "sleeps/s", "ULTs", "stacks", "runs now"],
            &[0, 1, 7],
        );
        for one in &self.now.xstreams {
            let known = self.before.xstreams.iter().find(|other| other.name == one.name);
            let before = known.cloned().unwrap_or_default();
            let slept = (one.slept_sec - before.slept_sec) / self.seconds;
            let busy = 100.0 * (1.0 - slept).clamp(0.0, 1.0);
            let has_moved = (one.executed, one.sleeps) != (before.executed, before.sleeps);
            let state = match one.state.as_str() {
                // It has run one unit all the time.
                "running" if known.is_some() && !has_moved => "HELD",
                state => state,
            };
            let unit = one.current.as_ref().map(|unit| {
                let name = unit.name.clone().unwrap_or_else(|| format!("ULT {}", unit.id));
                format!("{name} of {}", unit.pool)
            });
            table.row([
                one.name.clone(),
                state.to_owned(),
                format!("{busy:.0} %"),
                self.rate(one.executed, before.executed),
                self.rate(one.sleeps, before.sleeps),
                one.ults.to_string(),
                one.stacks.to_string(),
                unit.unwrap_or_default(),
            ]);
        }
        table.finish()
    }

    fn progress(&self) -> Vec<String> {
        let mut table = Table::new(
            &["PROGRESS", "in flight", "held", "posted", "events/s", "polls/s", "sleeps/s"],
            &[0],
        );
        for one in &self.now.shards {
            let is_it = |before: &&margo::metrics::ShardMetrics| before.index == one.index;
            let before = self.before.shards.iter().find(is_it).cloned().unwrap_or_default();
            table.row([
                one.progress_pool.clone(),
                one.in_flight.to_string(),
                one.requests_held.to_string(),
                one.receives_posted.to_string(),
                self.rate(one.events, before.events),
                self.rate(one.polls, before.polls),
                self.rate(one.sleeps, before.sleeps),
            ]);
        }
        table.finish()
    }

    fn gates(&self) -> Vec<String> {
        let mut table = Table::new(&["ADMISSION", "in hand", "of", "waiting", "refused"], &[0]);
        // Pools of which nobody has come near the bound say nothing that is not above.
        let says_more = |gate: &&margo::metrics::GateMetrics| {
            gate.kind != GateKind::Pool || gate.waiting > 0 || gate.refused > 0
        };
        for gate in self.now.gates.iter().filter(says_more) {
            let name = match gate.provider {
                Some(provider) => format!("{} of provider {provider}", gate.name),
                None if gate.kind == GateKind::Pool => format!("pool {}", gate.name),
                None => gate.name.clone(),
            };
            table.row([
                name,
                gate.in_hand.to_string(),
                gate.handlers_max.to_string(),
                gate.waiting.to_string(),
                gate.refused.to_string(),
            ]);
        }
        table.finish()
    }

    fn peers(&self) -> Vec<String> {
        let peers = &self.now.peers;
        let is_whole = self.before.peers.list.len() >= self.before.peers.total();
        let head = ["PEER", "link", "who", "calls", "oldest", "out/s", "in/s"];
        let mut table = Table::new(&head, &[0, 1, 2]);
        for peer in peers.list.iter().take(PEERS_SHOWN) {
            let before = self.before.peers.list.iter().find(|one| one.address == peer.address);
            let traffic = |of: fn(&PeerMetrics) -> Option<u64>| {
                let then = match before {
                    Some(before) => of(before),
                    // It may be new, or have been beyond the end of the list.
                    None => is_whole.then_some(0),
                };
                let (Some(now), Some(then)) = (of(peer), then) else { return "-".to_owned() };
                #[expect(clippy::cast_precision_loss, reason = "one decimal is shown")]
                let rate = now.saturating_sub(then) as f64 / self.seconds;
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "a rate"
                )]
                let rate = rate as u64;
                output::bytes(rate)
            };
            table.row([
                peer.address.clone(),
                peer.link.clone(),
                peer.principal.clone().unwrap_or_default(),
                peer.calls_in_flight.to_string(),
                peer.oldest_call_sec.map_or_else(String::new, duration),
                traffic(|peer| peer.sent_bytes),
                traffic(|peer| peer.received_bytes),
            ]);
        }
        let mut lines = table.finish();
        let more = peers.total().saturating_sub(PEERS_SHOWN);
        if more > 0 {
            lines.push(format!("and {}", output::count(more as u64, "other peer")));
        }
        lines
    }

    /// A table that the service has published.
    fn table(&self, own: &TableMetrics) -> Vec<String> {
        let (labels_shown, columns_shown, rows_shown) = OWN_SHOWN;
        let columns = own.columns.iter().take(columns_shown);
        let labels = |labels: &[String]| {
            let first = labels.first().cloned().unwrap_or_default();
            let others = labels.iter().skip(1).take(labels_shown - 1).cloned();
            std::iter::once(first).chain(others).collect::<Vec<_>>()
        };
        let mut head = labels(&own.labels);
        head[0] = own.name.replace('_', " ").to_uppercase();
        let words: Vec<_> = (0..head.len()).collect();
        head.extend(columns.clone().map(|column| match column.name.strip_suffix("_total") {
            Some(name) => format!("{}/s", name.replace('_', " ")),
            None => {
                let name =
                    ["_bytes", "_seconds"].iter().find_map(|it| column.name.strip_suffix(it));
                name.unwrap_or(&column.name).replace('_', " ")
            }
        }));
        let mut table = Table::new(&head, &words);
        let before = self.before.tables.iter().find(|before| before.name == own.name);
        for row in own.rows.iter().take(rows_shown) {
            let then = before.iter().flat_map(|before| &before.rows);
            let then = then.clone().find(|then| then.labels == row.labels);
            let mut cells = labels(&row.labels);
            cells.resize(words.len(), String::new());
            cells.extend(columns.clone().enumerate().map(|(at, column)| {
                let value = |values: &Vec<f64>| values.get(at).copied().unwrap_or_default();
                let then = then.map_or(0.0, |then| value(&then.values));
                self.own_value((&column.name, column.kind), value(&row.values), then)
            }));
            table.row(cells);
        }
        let mut lines = table.finish();
        let more = own.rows.len().saturating_sub(rows_shown).saturating_add(own.rows_left_out);
        if more > 0 {
            lines.push(format!("and {}", output::count(more as u64, "other row")));
        }
        lines
    }

    /// A value of a column; of a counter, how much it has grown in a second.
    fn own_value(&self, (name, kind): (&str, ColumnKind), now: f64, then: f64) -> String {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "not negative")]
        let whole = |value: f64| value.max(0.0) as u64;
        match kind {
            ColumnKind::Counter if name.ends_with("bytes_total") && self.seconds > 0.0 => {
                output::bytes(whole((now - then) / self.seconds))
            }
            ColumnKind::Counter => self.rate(whole(now), whole(then)),
            _ if name.ends_with("bytes") => output::bytes(whole(now)),
            _ if name.ends_with("seconds") => output::time(now),
            _ if now.fract() != 0.0 || now < 0.0 => format!("{now:.1}"),
            _ => output::thousands(whole(now)),
        }
    }

    /// How much a counter has grown in a second.
    fn rate(&self, now: u64, before: u64) -> String {
        #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
        let grown = now.saturating_sub(before) as f64;
        if self.seconds <= 0.0 {
            return "-".to_owned();
        }
        match grown / self.seconds {
            0.0 => "0".to_owned(),
            rate if rate < 10.0 => format!("{rate:.1}"),
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate")]
            rate => output::thousands(rate as u64),
        }
    }
}

/// Seconds as people say them.
fn duration(seconds: f64) -> String {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "of some years")]
    let whole = seconds.max(0.0) as u64;
    match whole {
        0..10 => format!("{seconds:.1} s"),
        10..60 => format!("{whole} s"),
        60..3600 => format!("{}:{:02}", whole / 60, whole % 60),
        3600..86_400 => {
            format!("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60)
        }
        _ => format!("{} d {}:{:02}", whole / 86_400, whole / 3600 % 24, whole / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::super::window::Window;
    use super::*;

    fn snapshot(json: serde_json::Value) -> Metrics {
        serde_json::from_value(json).unwrap()
    }

    fn two() -> (Metrics, Metrics) {
        let before = snapshot(serde_json::json!({
            "address": "na+tcp://h:1", "uptime_sec": 10.0, "process": { "id": 7, "cpu_sec": 1.0 },
            "network": { "requests_received": 100 },
            "pools": [{ "name": "p", "executed": 50 }],
            "xstreams": [
                { "name": "a", "state": "idle", "slept_sec": 5.0, "sleeps": 1 },
                { "name": "b", "state": "running", "executed": 9 },
            ],
        }));
        let now = snapshot(serde_json::json!({
            "address": "na+tcp://h:1", "uptime_sec": 12.0, "process": { "id": 7, "cpu_sec": 2.0 },
            "network": { "requests_received": 2100 },
            "memory": { "region_bytes": 1024, "result_bytes_kept": 3072 },
            "pools": [{ "name": "p", "executed": 53, "waiting": 4, "xstreams": ["a", "b"] }],
            "xstreams": [
                { "name": "a", "state": "idle", "slept_sec": 6.5, "sleeps": 3 },
                { "name": "b", "state": "running", "executed": 9,
                  "current": { "id": 3, "name": "put", "pool": "p" } },
            ],
            "rpcs": [{ "end": "target", "name": "put", "provider": 1, "begun": 100, "in_flight": 1,
                       "outcomes": { "ok": 90, "busy": 9 },
                       "phases": { "total": { "count": 99, "p50_sec": 1.5e-6, "p99_sec": 0.02,
                                              "max_sec": 3.0 } } }],
            "gates": [
                { "kind": "pool", "name": "p", "in_hand": 1, "handlers_max": 9 },
                { "kind": "rpc", "name": "put", "provider": 1, "in_hand": 1, "handlers_max": 2 },
            ],
            "peers": {
                "counts": [{ "transport": "tcp", "link": "connected", "count": 12 }],
                "list": [{ "address": "na+tcp://h:2", "link": "connected",
                           "principal": "host 10.0.0.2", "calls_in_flight": 3,
                           "oldest_call_sec": 75.0, "sent_bytes": 4096 }],
                "calls_in_flight": 3, "oldest_call_sec": 75.0,
            },
        }));
        (before, now)
    }

    #[test]
    fn rates_are_those_between_two_snapshots() {
        let (before, now) = two();
        let text = lines(&now, &before).join("\n");
        for expected in [
            "in 1,000/s",
            "cpu 50 %",
            "registered 1.0 KiB  results kept 3.0 KiB",
            "calls in flight 3, oldest 1:15",
            "p           4        0      0      0     1.5  a b",
            "a        idle    25 %",
            "b        HELD   100 %",
            "put of p",
            "put of provider 1  serves       50          1       4.5  1.5 us  20 ms  3.0 s",
            "put of provider 1",
            "na+tcp://h:2  connected  host 10.0.0.2      3    1:15  2.0 KiB     -",
            "and 2 other peers",
        ] {
            assert!(text.contains(expected), "no {expected:?} in\n{text}");
        }
        assert!(!text.contains("pool p"), "its gate says nothing new\n{text}");
    }

    #[test]
    fn tables_of_the_service_have_rates_and_units() {
        let table = |hits: u64, bytes: u64| {
            serde_json::json!([{ "name": "cache_part", "labels": ["cache", "part"],
                "columns": [
                    { "name": "hits_total", "kind": "counter" },
                    { "name": "read_bytes_total", "kind": "counter" },
                    { "name": "used_bytes" }, { "name": "age_seconds" }, { "name": "load" },
                ],
                "rows": [{ "labels": ["users", "0"], "values": [hits, bytes, 3072, 0.25, 1.5] }],
                "rows_left_out": 2 }])
        };
        let (mut before, mut now) = two();
        before.tables = serde_json::from_value(table(100, 0)).unwrap();
        now.tables = serde_json::from_value(table(2100, 4096)).unwrap();
        let text = lines(&now, &before).join("\n");
        let expected = "\nCACHE PART  part  hits/s  read bytes/s     used     age  load\n\
                        users       0      1,000       2.0 KiB  3.0 KiB  250 ms   1.5\n\
                        and 2 other rows\n";
        assert!(text.contains(expected), "{text}");
    }

    #[test]
    fn traffic_of_a_peer_that_comes_into_a_list_that_was_cut_is_not_known() {
        let (mut before, now) = two();
        let count = serde_json::json!({ "transport": "tcp", "link": "connected", "count": 2 });
        before.peers.counts = vec![serde_json::from_value(count).unwrap()];
        let text = lines(&now, &before).join("\n");
        let peer = "na+tcp://h:2  connected  host 10.0.0.2      3    1:15      -     -";
        assert!(text.contains(peer), "no {peer:?} in\n{text}");
    }

    #[test]
    fn statistics_that_are_off_are_told_from_rpcs_that_nobody_calls() {
        for (statistics, told) in [(None, false), (Some(true), false), (Some(false), true)] {
            let now = snapshot(serde_json::json!({ "statistics": statistics }));
            let text = lines(&now, &Metrics::default()).join("\n");
            assert_eq!(text.contains("statistics are off at the service"), told, "{text}");
            assert_eq!(text.contains(r#""monitoring": {}"#), told);
        }
        // Of when they were on.
        let (before, mut now) = two();
        now.statistics = Some(false);
        let text = lines(&now, &before).join("\n");
        assert!(text.contains("put of provider 1") && !text.contains("statistics are off"));
    }

    #[test]
    fn the_first_page_shows_averages_and_nothing_that_is_not_known() {
        let (_, now) = two();
        let text = lines(&now, &Metrics::default()).join("\n");
        assert!(text.contains("in 175/s") && !text.contains("cpu") && !text.contains("HELD"));
        let nothing = lines(&Metrics::default(), &Metrics::default()).join("\n");
        assert!(nothing.contains("in -/s") && !nothing.contains("NaN"), "{nothing}");
        assert!(!nothing.contains("results kept"), "{nothing}");
    }

    #[test]
    fn a_service_may_say_anything() {
        let (evil, long) = ("\u{1b}[2J\n\u{9b}x", "n".repeat(70_000));
        let most = u64::MAX;
        let xstream = |name: &str| {
            serde_json::json!({ "name": name, "state": evil,
                "current": { "id": 1, "name": name, "pool": name } })
        };
        let column = serde_json::json!({ "name": evil });
        let now = snapshot(serde_json::json!({
            "address": evil, "version": long, "uptime_sec": 1e300,
            "stats": { "requests_refused": most, "requests_busy": most },
            "pools": [{ "name": long, "executed": most, "xstreams": [evil, long] }],
            "xstreams": [xstream(evil), xstream(&long)],
            "shards": [{ "progress_pool": evil }],
            "rpcs": [{ "end": "target", "name": evil, "provider": 1, "begun": most,
                       "outcomes": { "busy": most, "worse": most } }],
            "gates": [{ "kind": "rpc", "name": long, "provider": 1, "refused": most }],
            "tables": [{ "name": long, "labels": vec![evil; 99], "columns": vec![column; 99],
                         "rows": [{ "labels": [evil], "values": [-1e308] }, {}],
                         "rows_left_out": most }, {}],
            "peers": { "counts": [{ "count": most }, { "count": most }],
                       "list": [{ "address": evil, "link": long, "sent_bytes": most }] },
        }));
        let lines = lines(&now, &Metrics::default());
        assert!(lines.iter().all(|line| !line.contains(char::is_control)), "{lines:?}");
        assert!(lines.iter().all(|line| line.chars().count() < 1_000));
        assert!(lines.iter().any(|line| line.contains("n…")), "{lines:?}");
    }

    #[test]
    fn a_page_fits_on_the_screen_and_tells_what_does_not() {
        let (before, now) = two();
        let all = lines(&now, &before);
        let mut window = Window::default();
        let page = window.page(&all, (20, 5));
        assert_eq!((page.len(), page[0].as_str()), (5, "na+tcp://h:1  runni…"));
        assert!(page.iter().all(|line| line.chars().count() <= 20));
        let whole = window.page(&all, (200, 5));
        let more = format!("… {} more lines   (arrows", all.len() - 4);
        assert!(whole[4].starts_with(&more), "{whole:#?}");
        assert_eq!(window.page(&all, (200, all.len())), all);
        let roomy = window.page(&all, (200, all.len() + 9));
        assert!(roomy.len() == all.len() + 1 && roomy.last().unwrap().starts_with("(q ends"));
    }

    #[test]
    fn another_run_is_told_from_the_same() {
        let (before, now) = two();
        assert!(is_same_run(&before, &now) && !is_same_run(&now, &before));
        let other = snapshot(serde_json::json!({ "uptime_sec": 99.0, "process": { "id": 8 } }));
        assert!(!is_same_run(&before, &other));
    }

    #[test]
    fn times_are_short() {
        for (seconds, text) in [
            (0.04, "0.0 s"),
            (9.96, "10.0 s"),
            (59.9, "59 s"),
            (61.0, "1:01"),
            (3723.0, "1:02:03"),
            (200_000.0, "2 d 7:33"),
        ] {
            assert_eq!(duration(seconds), text);
        }
    }
}
