//! How many connections a process can have.

/// Descriptors that are not for connections: at least, at most.
const KEPT: (u64, u64) = (16, 256);

/// How many connections others may have of the `wanted` ones: each takes `each` descriptors, and
/// some are kept for everything else, such as those that are to be told that there are too many.
pub(crate) fn connections_max(wanted: usize, each: u64) -> usize {
    use rustix::process::{Resource, getrlimit};
    let Some(limit) = getrlimit(Resource::Nofile).current else { return wanted };
    let possible = possible(limit, each);
    if possible < wanted {
        tracing::info!(
            wanted,
            "others may have {possible} connections to this endpoint: the process may have {limit} \
             descriptors (ulimit -n, RLIMIT_NOFILE)"
        );
    }
    wanted.min(possible)
}

/// For how many connections there are descriptors.
fn possible(limit: u64, each: u64) -> usize {
    let kept = (limit / 8).clamp(KEPT.0, KEPT.1);
    usize::try_from((limit.saturating_sub(kept) / each).max(1)).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_share_the_descriptors_but_for_some() {
        assert_eq!(possible(1024, 1), 896);
        assert_eq!(possible(1024, 3), 298);
        assert_eq!(possible(64, 1), 48);
        assert_eq!(possible(1 << 20, 2), (1 << 19) - 128);
        assert_eq!(possible(10, 1), 1, "one in any case");
    }
}
