//! The cost of a layout: cores, memory, time spent in looking for work.

use margo_config::{Config, Resolved};
use ult::Topology;

use super::{Layout, LayoutXstream};
use crate::InitError;
use crate::layout::options::{hg_options, na_options, never_sleeps};

impl Layout {
    /// Returns the layout that `config` leads to here and its cost, for people, a line each:
    /// xstreams, pools, cores, polling, memory. Starts nothing.
    ///
    /// Doubts about the layout are in the warnings of [`Config::check`].
    ///
    /// # Errors
    ///
    /// As [`Layout::of`].
    pub fn explain(config: &Config) -> Result<Vec<String>, InitError> {
        let resolved = config.resolve(&margo_config::process_env)?;
        let layout = Self::plan(&resolved)?;
        let cpus = Topology::get().map(|topology| topology.allowed().iter().count()).ok();
        let mut lines: Vec<_> = layout.xstreams.iter().map(ToString::to_string).collect();
        lines.extend(layout.pools.iter().map(ToString::to_string));
        layout.cores(cpus, &mut lines);
        layout.polling(&resolved, &mut lines);
        layout.memory(&resolved, &mut lines);
        lines.extend(receives(&resolved));
        layout.far_memory(&mut lines);
        Ok(lines)
    }

    fn cores(&self, cpus: Option<usize>, lines: &mut Vec<String>) {
        let threads = self.xstreams.len();
        let Some(cpus) = cpus else { return };
        let turns = if threads > cpus { ": they take turns" } else { "" };
        let (threads, cpus) = (count(threads, "xstream"), count(cpus, "CPU"));
        lines.push(format!("cores: {threads}, a thread each, on {cpus} of this process{turns}"));
        for (at, one) in self.xstreams.iter().enumerate() {
            for other in self.xstreams[at + 1..].iter().filter(|other| on_one_cpu(one, other)) {
                let (one, other, cpu) = (&one.name, &other.name, one.cpus[0]);
                lines.push(format!("cores: {one} and {other} share CPU {cpu} and take turns"));
            }
        }
    }

    fn polling(&self, resolved: &Resolved, lines: &mut Vec<String>) {
        let progress: Vec<_> = self.pools.iter().filter(|pool| pool.progress).collect();
        let homes: Vec<_> = progress.iter().flat_map(|pool| pool.xstreams.clone()).collect();
        let homes = homes.join(", ");
        if never_sleeps(resolved) {
            let key = match resolved.mercury.na_no_block {
                true => "mercury.na_no_block",
                false => "progress_timeout_ub_msec",
            };
            lines.push(format!(
                "polling: progress never sleeps (`{key}`), so {homes} keeps a core busy all the \
                 time"
            ));
        } else if resolved.progress_spindown.is_zero() {
            lines.push(format!(
                "polling: after the last message {homes} does not poll (`progress_spindown_msec`) \
                 but sleeps at once; idle it costs nothing"
            ));
        } else {
            lines.push(format!(
                "polling: after the last message {homes} polls for up to {:?} \
                 (`progress_spindown_msec`), then sleeps; idle it costs nothing",
                resolved.progress_spindown
            ));
        }
        lines.push(if resolved.spin_max.is_zero() {
            "polling: an xstream without work does not look for some (`margo.spin_max_usec`) but \
             sleeps at once"
                .to_owned()
        } else {
            format!(
                "polling: an xstream without work looks for some for up to {:?} \
                 (`margo.spin_max_usec`), then sleeps",
                resolved.spin_max
            )
        });
    }

    fn memory(&self, resolved: &Resolved, lines: &mut Vec<String>) {
        let largest = self.pools.iter().map(|pool| pool.stack_bytes).max().unwrap_or_default();
        let kept = resolved.stack_cache_max.saturating_mul(self.xstreams.len());
        lines.push(format!(
            "memory: a started ULT has a stack of up to {} of address space and uses as much of it \
             as it touches, from one page on; one that waits to start has none",
            bytes(largest as u64)
        ));
        lines.push(format!(
            "memory: idle, {} are kept for reuse ({} of address space)",
            count(kept, "stack"),
            bytes((kept as u64).saturating_mul(largest as u64))
        ));
        lines.push(format!(
            "memory: at most {} wait to be decoded (`margo.requests_max`); long arguments take at \
             most {}, and long results that wait to be fetched as much again \
             (`margo.overflow_held_max`)",
            count(resolved.requests_max, "request"),
            bytes(resolved.overflow_held_max)
        ));
    }

    /// Stacks on another NUMA node than the xstreams that run on them.
    pub(super) fn far_memory(&self, lines: &mut Vec<String>) {
        for pool in &self.pools {
            let Some(node) = pool.numa_node else { continue };
            let homes =
                self.xstreams.iter().filter(|xstream| pool.xstreams.contains(&xstream.name));
            for (name, own) in homes.filter_map(|home| Some((&home.name, home.numa_node?))) {
                if own != node {
                    let pool = &pool.name;
                    lines.push(format!(
                        "memory: {name} runs on NUMA node {own}, and stacks of {pool} are on node \
                         {node}: it reaches them through the other node's memory controller"
                    ));
                }
            }
        }
    }
}

/// Describes the memory that requests are received into.
fn receives(resolved: &Resolved) -> Option<String> {
    let (hg, longest) = (hg_options(resolved), na_options(resolved).message_bytes_max as u64);
    let all = (hg.request_post_init as u64).saturating_mul(longest);
    let posted = count(hg.request_post_init, "receive");
    hg.listen.then(|| match hg.multi_recv {
        true => format!(
            "memory: requests share {} of {} of address space (`mercury.request_post_init`), which \
             take memory as it is used",
            count(hg.multi_recv_op_max, "buffer"),
            bytes(all)
        ),
        false => format!(
            "memory: {posted} (`mercury.request_post_init`) of {} each take {} from the start \
             (`mercury.no_multi_recv`)",
            bytes(longest),
            bytes(all)
        ),
    })
}

fn on_one_cpu(one: &LayoutXstream, other: &LayoutXstream) -> bool {
    one.cpus.len() == 1 && one.cpus == other.cpus
}

fn count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// Whole units where possible.
fn bytes(bytes: u64) -> String {
    for (unit, shift) in [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)] {
        if bytes >= 1 << shift {
            let (whole, rest) = (bytes >> shift, bytes & ((1 << shift) - 1));
            let tenths = (rest >> (shift - 10)) * 10 / 1024;
            let tenths = if tenths == 0 { String::new() } else { format!(".{tenths}") };
            return format!("{whole}{tenths} {unit}");
        }
    }
    format!("{bytes} bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explained(document: &str) -> String {
        Layout::explain(&Config::from_json(document).unwrap()).unwrap().join("\n")
    }

    #[test]
    fn the_empty_document_is_explained() {
        let text = explained("{}");
        for part in [
            "xstream __primary__: any CPU, scheduler basic_wait, pools __primary__",
            "pool __primary__: fifo_wait, mpmc, run by __primary__, stacks of 2048 KiB, progress",
            "cores: 1 xstream, a thread each",
            "__primary__ polls for up to 10ms (`progress_spindown_msec`), then sleeps",
            "up to 50µs",
            "a stack of up to 2 MiB",
            "8 stacks are kept for reuse (16 MiB of address space)",
            "at most 16384 requests wait",
            "at most 1 GiB",
            "requests share 4 buffers of 1 MiB of address space",
        ] {
            assert!(text.contains(part), "{part}:\n{text}");
        }
    }

    #[test]
    fn what_costs_more_is_said() {
        let document = r#"{ "rpc_thread_count": 500, "mercury": { "na_no_block": true } }"#;
        let text = explained(document);
        assert!(text.contains("501 xstreams") && text.contains("they take turns"), "{text}");
        assert!(text.contains("progress never sleeps (`mercury.na_no_block`)"), "{text}");
        let text = explained(r#"{ "progress_timeout_ub_msec": 0 }"#);
        assert!(text.contains("never sleeps (`progress_timeout_ub_msec`)"), "{text}");
        let text = explained(r#"{ "progress_spindown_msec": 0, "margo": { "spin_max_usec": 0 } }"#);
        assert!(text.contains("__primary__ does not poll (`progress_spindown_msec`)"), "{text}");
        assert!(text.contains("does not look for some (`margo.spin_max_usec`)"), "{text}");
        assert!(!text.contains("0ns"), "{text}");
        let text =
            explained(r#"{ "mercury": { "no_multi_recv": true, "request_post_init": 300 } }"#);
        let said = "memory: 300 receives (`mercury.request_post_init`) of 4 KiB each take 1.1 MiB";
        assert!(text.contains(said), "{text}");
        let text = explained(r#"{ "margo": { "listen": false } }"#);
        assert!(!text.contains("request_post_init"), "{text}");
        let cpu = Topology::get().unwrap().allowed().iter().next().unwrap();
        let text = explained(&format!(
            r#"{{ "argobots": {{ "pools": [ {{ "name": "a" }} ], "xstreams": [
                 {{ "name": "x", "cpubind": {cpu}, "scheduler": {{ "pools": [0] }} }},
                 {{ "name": "y", "affinity": [{cpu}], "scheduler": {{ "pools": [0] }} }} ] }} }}"#
        ));
        assert!(text.contains(&format!("x and y share CPU {cpu} and take turns")), "{text}");
    }

    #[test]
    fn sizes_have_one_decimal() {
        for (size, text) in [
            (0, "0 bytes"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            ((1 << 20) - 1, "1023.9 KiB"),
            (2 << 20, "2 MiB"),
            (1 << 40, "1 TiB"),
        ] {
            assert_eq!(bytes(size), text);
        }
    }
}
