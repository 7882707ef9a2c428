//! UCX's description of an endpoint: the *lanes* by which it reaches the peer.
//!
//! The description is a text (`ucp_ep_print_info`); later versions have a query for it.

/// Returns whether a transport other than TCP is among those that move memory (`rma_bw`).
pub(crate) fn names_rdma(description: &str) -> bool {
    let mut lanes = description.lines().filter_map(Lane::of);
    lanes.any(|lane| {
        lane.uses.iter().any(|word| word.starts_with("rma_bw"))
            && !matches!(lane.transport, "" | "tcp" | "self")
    })
}

/// Returns whether all lanes are connections of InfiniBand or RoCE: adapters move memory to and
/// from the peer by remote keys, and the end of a connection ends that. Over others puts and gets
/// are emulated by messages, or go by one queue for all peers, which outlives the connection
/// (`dc_mlx5`).
///
/// UCX does not tell which lanes puts and gets take (until 1.10 it did: `rma#0`), so it has to be
/// true of each, but for the connection manager's. And of those which do nothing but find out
/// whether the peer lives: UCX prefers `ud` or TCP for that, which have no puts and gets of their
/// own but for those that it tells (`rma_bw`).
pub(crate) fn names_only_rc(description: &str) -> bool {
    let lanes: Vec<_> = description.lines().filter_map(Lane::of).collect();
    lanes.iter().any(Lane::is_rc) && lanes.iter().all(|lane| lane.is_rc() || lane.only_watches())
}

/// A lane of UCX's description of an endpoint, but the connection manager's:
/// `lane[2]:  5:rc_mlx5/mlx5_0:1.0 md[4] -> md[4]/ib/sysdev[1] rma_bw#0 am am_bw#0`.
struct Lane<'a> {
    transport: &'a str,
    uses: Vec<&'a str>,
}

impl<'a> Lane<'a> {
    fn of(line: &'a str) -> Option<Self> {
        let (_, lane) = line.split_once("lane[")?.1.split_once("]:")?;
        if lane.split_whitespace().next() == Some("cm") {
            return None;
        }
        // Of what cannot be read nothing is known, which is not `rc`.
        let (resource, peer) = lane.split_once("->").unwrap_or((lane, ""));
        let name = resource.split_once(':').map_or("", |(_, name)| name);
        let transport = name.split('/').next().unwrap_or_default();
        let is_use = |word: &&str| !word.contains('[') && *word != "seg" && !is_number(word);
        let uses = peer.split_whitespace().filter(is_use).collect();
        Some(Self { transport, uses })
    }

    fn is_rc(&self) -> bool {
        self.transport.starts_with("rc_")
    }

    /// Returns whether it moves no bytes of ours.
    fn only_watches(&self) -> bool {
        let watches = |word: &&str| *word == "keepalive" || word.starts_with("wireup");
        (self.transport.starts_with("ud_") || self.transport == "tcp")
            && self.uses.contains(&"keepalive")
            && self.uses.iter().all(watches)
    }
}

fn is_number(word: &str) -> bool {
    word.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As UCX 1.13 and 1.22 print them.
    #[test]
    fn transports_that_move_memory_are_told_from_tcp() {
        let tcp = "#  lane[0]: cm rdmacm\n\
            #  lane[1]:  0:tcp/lo.0 md[0]  -> md[0]/tcp/sysdev[255] rma_bw#0 am am_bw#0 wireup\n\
            #  lane[2]:  1:tcp/eth0.0 md[0] -> md[0]/tcp/sysdev[255] seg 4294967295 rma_bw#1\n\
            #  rma_bw: mds [0] rndv_rkey_size 10\n";
        assert!(!names_rdma(tcp));
        let rc = "#  lane[1]:  5:rc_mlx5/mlx5_0:1.0 md[4] -> md[4]/ib/sysdev[1] rma_bw#0 am\n";
        assert!(names_rdma(&[tcp, rc].concat()));
        let messages = "#  lane[1]:  6:ud_verbs/mlx5_0:1.0 md[4] -> md[4]/ib/sysdev[1] am wireup\n";
        assert!(!names_rdma(messages));
        assert!(!names_rdma(""));
    }
    /// As UCX 1.11 and later print them (`ucp_ep_config_lane_info_str`): nothing says which lanes
    /// puts and gets take.
    #[test]
    fn only_connections_of_adapters_have_remote_keys() {
        let cm = "#                 lane[0]: cm rdmacm\n";
        let tcp = "#  lane[1]:  0:tcp/lo.0 md[0]  -> md[0]/tcp/sysdev[255] rma_bw#0 am am_bw#0\n";
        assert!(!names_only_rc(tcp), "puts and gets are emulated");
        let rc = "#  lane[1]:  5:rc_mlx5/mlx5_0:1.0 md[4] -> md[4]/ib/sysdev[1] rma_bw#0 am\n\
            #  lane[2]:  6:rc_verbs/mlx5_1:1.0 md[5] -> md[5]/ib/sysdev[2] rma_bw#1 am_bw#0\n";
        assert!(names_only_rc(rc) && names_only_rc(&[cm, rc].concat()));
        assert!(!names_only_rc(&[rc, tcp].concat()), "some of it goes by messages");
        let newer = "# lane[1]: 5:rc_mlx5/mlx5_0:1.0 md[10] -> md[4]/ib/sysdev[1] seg 8256 am\n";
        assert!(names_only_rc(newer), "1.16 and later");
        let dc = "#  lane[1]:  5:dc_mlx5/mlx5_0:1.0 md[4] -> md[4]/ib/sysdev[1] rma_bw#0 am\n";
        assert!(!names_only_rc(dc), "its queue outlives the connection");
        assert!(!names_only_rc(&[rc, dc].concat()));
        assert!(!names_only_rc(cm) && !names_only_rc(""));
        assert!(!names_only_rc(&[rc, "# lane[7]: something new\n"].concat()));
    }

    /// UCX asks by transports that serve many peers whether one lives.
    #[test]
    fn a_lane_that_only_finds_out_whether_the_peer_lives_does_not_count() {
        let rc = "#  lane[1]:  5:rc_mlx5/mlx5_0:1.0 md[4] -> md[4]/ib/sysdev[1] rma_bw#0 am\n";
        let with = |lane: &str| names_only_rc(&[rc, lane].concat());
        assert!(with("# lane[2]: 7:ud_mlx5/mlx5_0:1.0 md[4] -> md[4]/ib/sysdev[1] keepalive\n"));
        assert!(with(
            "# lane[2]: 7:tcp/ib0.0 md[4] -> md[4]/tcp/sysdev[1] seg 99 keepalive wireup\n"
        ));
        assert!(!with("# lane[2]: 7:tcp/ib0.0 md[4] -> md[4]/tcp/sysdev[1] am_bw#1 keepalive\n"));
        assert!(!with("# lane[2]: 7:ud_mlx5/mlx5_0:1.0 md[4] -> md[4]/ib/sysdev[1]\n"));
        assert!(!with("# lane[2]: 7:dc_mlx5/mlx5_0:1.0 md[4] -> md[4]/ib/sysdev[1] keepalive\n"));
        let alone = "# lane[2]: 7:ud_mlx5/mlx5_0:1.0 md[4] -> md[4]/ib/sysdev[1] keepalive\n";
        assert!(!names_only_rc(alone));
    }
}
