//! A snapshot as families of Prometheus. The table in `docs/metrics.md` lists them; a test keeps
//! both alike.

use std::collections::BTreeSet;

use super::tables::{families, fits_kind, is_name};
use super::text::{Kind, Sample, Text, count, size};
use super::{ColumnKind, GateKind, GateMetrics, Metrics, Phase, RpcEnd};
use Kind::{Counter, Gauge};

const STATES: [&str; 5] = ["running", "idle", "joining", "terminated", "removed"];

impl Metrics {
    /// This snapshot in the text format of Prometheus, version 0.0.4: what `GET /metrics` answers.
    /// For programs that have an HTTP server of their own. Peers are summed up by transport, not
    /// named.
    pub fn prometheus(&self) -> String {
        let mut text = Text::default();
        self.instance(&mut text);
        self.calls(&mut text);
        self.progress(&mut text);
        self.pools(&mut text);
        self.xstreams(&mut text);
        self.blocking(&mut text);
        self.admission(&mut text);
        self.rpcs(&mut text);
        self.peers(&mut text);
        self.memory(&mut text);
        self.process(&mut text);
        self.tables(&mut text);
        text.finish()
    }

    fn instance(&self, text: &mut Text) {
        let labels = [("version", self.version.as_str()), ("address", self.address.as_str())];
        text.family(Gauge, "margo_info", "Version and address of the instance.", &[(&labels, 1.0)]);
        let phases = [
            ("running", Phase::Running),
            ("finalizing", Phase::Finalizing),
            ("finalized", Phase::Finalized),
        ];
        let labels = phases.map(|(name, phase)| ([("phase", name)], phase == self.phase));
        let samples = labels.each_ref().map(|(labels, is_it)| (&labels[..], truth(*is_it)));
        text.family(Gauge, "margo_phase", "1 for where the instance is in its life.", &samples);
        let help = "Seconds since the instance started.";
        text.one(Gauge, "margo_uptime_seconds", help, self.uptime_sec);
        if let Some(expires) = self.certificate_expires_unix_sec {
            let help = "Seconds since 1970 at which the own certificate expires.";
            text.one(Gauge, "margo_certificate_expires_seconds", help, count(expires));
        }
        let help = "Times that the stall detector found something.";
        text.one(Counter, "margo_stalls_total", help, count(self.stats.stalls));
    }

    fn blocking(&self, text: &mut Text) {
        let blocking = &self.blocking;
        let help = "Threads for closures of `ult::blocking`.";
        text.one(Gauge, "margo_blocking_threads", help, size(blocking.threads));
        let help = "Closures that run on them.";
        text.one(Gauge, "margo_blocking_running", help, size(blocking.running));
        let help = "Closures that wait for one of them.";
        text.one(Gauge, "margo_blocking_queued", help, size(blocking.queued));
        let help = "Closures that have run to their end.";
        text.one(Counter, "margo_blocking_total", help, count(blocking.done));
    }

    fn calls(&self, text: &mut Text) {
        let (network, stats) = (&self.network, &self.stats);
        let help = "Requests sent and received.";
        directions(
            text,
            "margo_requests_total",
            help,
            [network.requests_sent, network.requests_received],
        );
        let help = "Responses sent and received.";
        let both = [network.responses_sent, network.responses_received];
        directions(text, "margo_responses_total", help, both);
        let samples = [
            ([("message", "request")], network.requests_overflowed),
            ([("message", "response")], network.responses_overflowed),
        ];
        let samples = samples.each_ref().map(|(labels, value)| (&labels[..], count(*value)));
        let help = "Requests and responses that did not fit into a message, sent or received.";
        text.family(Counter, "margo_overflows_total", help, &samples);
        let help = "Bulk transfers that this instance asked for.";
        text.one(Counter, "margo_bulk_transfers_total", help, count(network.bulk_transfers));
        let help = "Bytes that these have moved.";
        text.one(Counter, "margo_bulk_bytes_total", help, count(network.bulk_bytes));
        let help = "Bytes sent to peers and received from them, by connections that count them.";
        let both = [network.sent_bytes, network.received_bytes];
        directions(text, "margo_network_bytes_total", help, both);
        let help = "Handlers that have begun and not ended.";
        text.one(Gauge, "margo_handlers_running", help, size(self.handlers_running));
        let help = "Handlers that ran to their end or panicked.";
        text.one(Counter, "margo_handlers_total", help, count(stats.handlers_run));
        let help = "Handlers that panicked.";
        text.one(Counter, "margo_handler_panics_total", help, count(stats.handlers_panicked));
        let reasons = [
            ("abandoned", stats.requests_abandoned),
            ("busy", stats.requests_busy),
            ("closing", stats.requests_refused.saturating_sub(stats.requests_no_ult)),
            ("no_ult", stats.requests_no_ult),
            ("not_allowed", stats.requests_not_allowed),
            ("not_registered", network.not_registered),
            ("over_limit", stats.requests_over_limit),
            ("undecodable", stats.arguments_undecodable),
        ];
        let labels = reasons.map(|(reason, value)| ([("reason", reason)], value));
        let samples = labels.each_ref().map(|(labels, value)| (&labels[..], count(*value)));
        let help = "Requests whose handler was not run.";
        text.family(Counter, "margo_requests_refused_total", help, &samples);
        let help = "Calls and answers given up.";
        text.one(Counter, "margo_canceled_total", help, count(network.canceled));
        let help = "Messages of peers that could not be read or fetched.";
        text.one(Counter, "margo_messages_malformed_total", help, count(network.malformed));
        let help = "Messages of peers whose checksum was wrong.";
        text.one(Counter, "margo_checksum_errors_total", help, count(network.checksum_errors));
        let help = "Requests that got memory of their own as too many held the large buffers.";
        let beyond = count(network.requests_beyond_buffers);
        text.one(Counter, "margo_requests_beyond_buffers_total", help, beyond);
        let help = "Responses of ours that were damaged when they arrived, as their origins said.";
        text.one(Counter, "margo_responses_unread_total", help, count(network.responses_unread));
        let help = "Introductions and requests whose proof of membership was not right.";
        text.one(Counter, "margo_proofs_refused_total", help, count(network.proofs_refused));
    }

    fn progress(&self, text: &mut Text) {
        let names: Vec<_> = self.shards.iter().map(|shard| shard.index.to_string()).collect();
        let shards = || self.shards.iter().zip(&names);
        let labels: Vec<_> = shards()
            .map(|(shard, name)| [("shard", &**name), ("pool", &*shard.progress_pool)])
            .collect();
        type Value = fn(&super::ShardMetrics) -> f64;
        let families: [(Kind, &str, &str, Value); 6] = [
            (
                Gauge,
                "margo_shard_operations",
                "Operations in flight: calls, transfers, answers on their way.",
                |one| size(one.in_flight),
            ),
            (
                Gauge,
                "margo_shard_requests_held",
                "Requests that have arrived and are not decoded.",
                |one| size(one.requests_held),
            ),
            (Gauge, "margo_shard_receives_posted", "Receives that wait for requests.", |one| {
                size(one.receives_posted)
            }),
            (
                Counter,
                "margo_progress_polls_total",
                "Rounds of the progress loop, to some hundred.",
                |one| count(one.polls),
            ),
            (
                Counter,
                "margo_progress_events_total",
                "Completions that the progress loop found.",
                |one| count(one.events),
            ),
            (
                Counter,
                "margo_progress_sleeps_total",
                "Times that the progress loop had nothing to do and stopped polling.",
                |one| count(one.sleeps),
            ),
        ];
        for (kind, name, help, value) in families {
            let values = self.shards.iter().map(value);
            let samples: Vec<Sample<'_>> = labels.iter().map(|l| &l[..]).zip(values).collect();
            text.family(kind, name, help, &samples);
        }
    }

    fn pools(&self, text: &mut Text) {
        let labels: Vec<_> = self.pools.iter().map(|pool| [("pool", &*pool.name)]).collect();
        type Value = fn(&super::PoolMetrics) -> f64;
        let families: [(Kind, &str, &str, Value); 7] = [
            (Gauge, "margo_pool_waiting", "Runnable units that wait for their turn.", |pool| {
                size(pool.waiting)
            }),
            (
                Gauge,
                "margo_pool_oldest_wait_seconds",
                "For how long the oldest of them has waited, at least; 0: nobody has for long.",
                |pool| pool.oldest_wait_sec.unwrap_or_default(),
            ),
            (Gauge, "margo_pool_blocked", "ULTs that are suspended.", |pool| count(pool.blocked)),
            (Gauge, "margo_pool_units", "Units that have not ended.", |pool| count(pool.alive)),
            (Counter, "margo_pool_created_total", "Units spawned.", |pool| count(pool.created)),
            (Counter, "margo_pool_finished_total", "Units that ended.", |pool| {
                count(pool.finished)
            }),
            (Counter, "margo_pool_runs_total", "Times that a unit was switched to.", |pool| {
                count(pool.executed)
            }),
        ];
        for (kind, name, help, value) in families {
            let values = self.pools.iter().map(value);
            let samples: Vec<Sample<'_>> = labels.iter().map(|l| &l[..]).zip(values).collect();
            text.family(kind, name, help, &samples);
        }
    }

    fn xstreams(&self, text: &mut Text) {
        let states: Vec<_> = self
            .xstreams
            .iter()
            .flat_map(|one| STATES.map(|state| (one, state)))
            .map(|(one, state)| {
                ([("xstream", &*one.name), ("state", state)], truth(one.state == state))
            })
            .collect();
        let samples: Vec<Sample<'_>> = states.iter().map(|(l, value)| (&l[..], *value)).collect();
        let help = "1 for the state of the execution stream.";
        text.family(Gauge, "margo_xstream_state", help, &samples);
        let labels: Vec<_> = self.xstreams.iter().map(|one| [("xstream", &*one.name)]).collect();
        type Value = fn(&super::XstreamMetrics) -> f64;
        let families: [(Kind, &str, &str, Value); 5] = [
            (Gauge, "margo_xstream_ults", "ULTs at home here.", |one| size(one.ults)),
            (Gauge, "margo_xstream_stacks", "Stacks, in use or kept for reuse.", |one| {
                size(one.stacks)
            }),
            (Counter, "margo_xstream_runs_total", "Times that a unit has run.", |one| {
                count(one.executed)
            }),
            (Counter, "margo_xstream_sleeps_total", "Times that it slept.", |one| {
                count(one.sleeps)
            }),
            (
                Counter,
                "margo_xstream_slept_seconds_total",
                "Seconds that it has slept; the rest is units, polling, and looking for work.",
                |one| one.slept_sec,
            ),
        ];
        for (kind, name, help, value) in families {
            let values = self.xstreams.iter().map(value);
            let samples: Vec<Sample<'_>> = labels.iter().map(|l| &l[..]).zip(values).collect();
            text.family(kind, name, help, &samples);
        }
    }

    fn admission(&self, text: &mut Text) {
        let providers: Vec<_> = self
            .gates
            .iter()
            .map(|gate| gate.provider.map_or_else(String::new, |id| id.to_string()))
            .collect();
        let labels: Vec<_> = self
            .gates
            .iter()
            .zip(&providers)
            .map(|(gate, provider)| {
                let kind = match gate.kind {
                    GateKind::Pool => "pool",
                    GateKind::Rpc => "rpc",
                    GateKind::Unknown => "unknown",
                };
                [("gate", kind), ("name", &*gate.name), ("provider", &**provider)]
            })
            .collect();
        type Value = fn(&GateMetrics) -> f64;
        let families: [(Kind, &str, &str, Value); 4] = [
            (Gauge, "margo_admission_in_hand", "Handlers made and not ended.", |gate| {
                size(gate.in_hand)
            }),
            (Gauge, "margo_admission_limit", "Most handlers at once.", |gate| {
                size(gate.handlers_max)
            }),
            (Gauge, "margo_admission_waiting", "Requests that wait for a place.", |gate| {
                size(gate.waiting)
            }),
            (Counter, "margo_admission_refused_total", "Requests refused as busy.", |gate| {
                count(gate.refused)
            }),
        ];
        for (kind, name, help, value) in families {
            let values = self.gates.iter().map(value);
            let samples: Vec<Sample<'_>> = labels.iter().map(|l| &l[..]).zip(values).collect();
            text.family(kind, name, help, &samples);
        }
    }

    fn rpcs(&self, text: &mut Text) {
        let target = [
            ("margo_rpc_handled_total", "Requests that were answered or refused."),
            ("margo_rpc_in_hand", "Requests that were admitted and are not answered."),
            ("margo_rpc_duration_seconds", "Time that requests took here, by phase."),
        ];
        let origin = [
            ("margo_rpc_calls_total", "Calls that have ended."),
            ("margo_rpc_in_flight", "Calls that have not ended."),
            ("margo_rpc_call_duration_seconds", "Time that calls took, by phase."),
        ];
        for (end, [ended, in_flight, duration]) in
            [(RpcEnd::Target, target), (RpcEnd::Origin, origin)]
        {
            let rpcs: Vec<_> = self.rpcs.iter().filter(|rpc| rpc.end == end).collect();
            let providers: Vec<_> = rpcs.iter().map(|rpc| rpc.provider.to_string()).collect();
            let rpcs = || rpcs.iter().copied().zip(&providers);
            let labels: Vec<_> = rpcs()
                .flat_map(|(rpc, provider)| {
                    rpc.outcomes.iter().map(move |(outcome, value)| {
                        let rpc = [("rpc", &*rpc.name), ("provider", &**provider)];
                        ([rpc[0], rpc[1], ("outcome", &**outcome)], count(*value))
                    })
                })
                .collect();
            let samples: Vec<Sample<'_>> =
                labels.iter().map(|(l, value)| (&l[..], *value)).collect();
            text.family(Counter, ended.0, ended.1, &samples);
            let labels: Vec<_> = rpcs()
                .map(|(rpc, provider)| {
                    let labels = [("rpc", &*rpc.name), ("provider", &**provider)];
                    (labels, count(rpc.in_flight))
                })
                .collect();
            let samples: Vec<Sample<'_>> =
                labels.iter().map(|(l, value)| (&l[..], *value)).collect();
            text.family(Gauge, in_flight.0, in_flight.1, &samples);
            let phases = rpcs().flat_map(|(rpc, provider)| {
                rpc.phases.iter().map(move |(phase, times)| {
                    let rpc = [("rpc", &*rpc.name), ("provider", &**provider)];
                    (vec![rpc[0], rpc[1], ("phase", &**phase)], times)
                })
            });
            text.histograms(duration.0, duration.1, phases);
        }
    }

    fn peers(&self, text: &mut Text) {
        let labels: Vec<_> = self
            .peers
            .counts
            .iter()
            .map(|kind| ([("transport", &*kind.transport), ("link", &*kind.link)], kind.count))
            .collect();
        let samples: Vec<Sample<'_>> =
            labels.iter().map(|(l, value)| (&l[..], size(*value))).collect();
        text.family(Gauge, "margo_peers", "Peers that are known.", &samples);
        let help = "Calls to peers whose response has not come.";
        text.one(Gauge, "margo_calls_in_flight", help, size(self.peers.calls_in_flight));
        let help = "Seconds since the oldest of these calls began, at least.";
        let oldest = self.peers.oldest_call_sec.unwrap_or(0.0);
        text.one(Gauge, "margo_oldest_call_seconds", help, oldest);
    }

    fn memory(&self, text: &mut Text) {
        let memory = &self.memory;
        let help = "Registrations of memory for bulk transfers.";
        text.one(Gauge, "margo_memory_regions", help, size(memory.regions));
        let help = "Bytes of the registered memory.";
        text.one(Gauge, "margo_memory_region_bytes", help, count(memory.region_bytes));
        let help = "Taken for the large buffers that requests share.";
        let buffers = size(memory.request_buffer_bytes);
        text.one(Gauge, "margo_memory_request_buffer_bytes", help, buffers);
        let help = "Long results that their origins have not fetched yet.";
        let kept = size(memory.result_bytes_kept);
        text.one(Gauge, "margo_memory_result_bytes_kept", help, kept);
        let (staged, shared) = (memory.device_staged_bytes, memory.device_shared_bytes);
        if staged > 0 || shared > 0 || memory.device_mappings > 0 {
            let help = "Bytes of device memory that were copied here.";
            let by_way: [(&[(&str, &str)], f64); 2] =
                [(&[("way", "staged")], count(staged)), (&[("way", "shared")], count(shared))];
            text.family(Counter, "margo_device_bytes_total", help, &by_way);
            let help = "Pieces of device memory of other processes that are mapped.";
            text.one(Gauge, "margo_device_mappings", help, size(memory.device_mappings));
            let help = "Bytes of these.";
            text.one(Gauge, "margo_device_mapped_bytes", help, count(memory.device_mapped_bytes));
        }
        let names: Vec<_> = memory
            .bulk_pools
            .iter()
            .map(|class| (class.pool.to_string(), class.buffer_bytes.to_string()))
            .collect();
        let labels: Vec<_> =
            names.iter().map(|(pool, bytes)| [("pool", &**pool), ("bytes", &**bytes)]).collect();
        type Value = fn(&super::BulkPoolMetrics) -> f64;
        let families: [(Kind, &str, &str, Value); 5] = [
            (Gauge, "margo_bulk_pool_buffers", "Buffers of a class.", |class| size(class.buffers)),
            (Gauge, "margo_bulk_pool_free", "Buffers that nobody uses.", |class| size(class.free)),
            (Gauge, "margo_bulk_pool_waiting", "Who waits for a buffer.", |class| {
                size(class.waiting)
            }),
            (Counter, "margo_bulk_pool_gets_total", "Buffers given out.", |class| {
                count(class.gets)
            }),
            (Counter, "margo_bulk_pool_waits_total", "Those that were waited for.", |class| {
                count(class.waits)
            }),
        ];
        for (kind, name, help, value) in families {
            let values = memory.bulk_pools.iter().map(value);
            let samples: Vec<Sample<'_>> = labels.iter().map(|l| &l[..]).zip(values).collect();
            text.family(kind, name, help, &samples);
        }
    }

    /// Under the names that all programs use.
    fn process(&self, text: &mut Text) {
        let own = &self.process;
        let help = "CPU time of the process, seconds.";
        text.one(Counter, "process_cpu_seconds_total", help, own.cpu_sec);
        let told = |value: f64| (value > 0.0).then_some(value);
        let resident = "Memory that the process occupies, bytes.";
        let address_space = "Address space of the process, bytes.";
        let start = "When the process started, seconds since 1970.";
        let open = "File descriptors that are open.";
        let families = [
            ("process_resident_memory_bytes", resident, told(count(own.resident_bytes))),
            ("process_virtual_memory_bytes", address_space, told(count(own.virtual_bytes))),
            ("process_start_time_seconds", start, told(own.start_sec)),
            ("process_threads", "OS threads of the process.", told(count(own.threads))),
            ("process_open_fds", open, own.open_fds.map(count)),
            ("process_max_fds", "File descriptors that may be open.", own.max_fds.map(count)),
        ];
        // What the system does not tell is left out.
        for (name, help, value) in families {
            if let Some(value) = value {
                text.one(Gauge, name, help, value);
            }
        }
    }

    /// Tables of the program. The snapshot may be that of another process, so nothing of it is
    /// taken for granted.
    fn tables(&self, text: &mut Text) {
        let mut seen = BTreeSet::new();
        for table in &self.tables {
            let names = std::iter::once(&table.name).chain(&table.labels);
            if !names.chain(table.columns.iter().map(|one| &one.name)).all(|name| is_name(name)) {
                continue;
            }
            for (at, (column, name)) in table.columns.iter().zip(families(table)).enumerate() {
                let kind = match column.kind {
                    ColumnKind::Counter => Counter,
                    ColumnKind::Gauge => Gauge,
                    ColumnKind::Unknown => continue,
                };
                if !fits_kind(column) || !seen.insert(name.clone()) {
                    continue;
                }
                let rows = table.rows.iter().filter_map(|row| {
                    let labels = table.labels.iter().zip(&row.labels);
                    let labels = labels.map(|(label, text)| (label.as_str(), text.as_str()));
                    Some((labels.collect(), *row.values.get(at)?))
                });
                let rows: Vec<(Vec<_>, f64)> = rows.collect();
                let samples: Vec<Sample<'_>> =
                    rows.iter().map(|(labels, value)| (&labels[..], *value)).collect();
                text.family(kind, &name, &column.help, &samples);
            }
        }
    }
}

fn truth(is_true: bool) -> f64 {
    f64::from(u8::from(is_true))
}

fn directions(text: &mut Text, name: &str, help: &str, [sent, received]: [u64; 2]) {
    let sent: Sample<'_> = (&[("direction", "sent")], count(sent));
    text.family(Counter, name, help, &[sent, (&[("direction", "received")], count(received))]);
}
