//! `margo.admission`: how many requests may be in hand. The only home of these defaults.

use serde::{Deserialize, Serialize};

use super::is_default;
use super::pool_ref::PoolRef;

/// How many requests may be in hand at once, waiting for an xstream or being handled, and what
/// happens to those beyond.
///
/// ```
/// use margo_config::{Admission, Overload};
///
/// let bounds = Admission::new(1000).per_peer(100).overload(Overload::Wait);
/// assert_eq!(bounds.peer_max(), Some(100));
/// assert_eq!(bounds.host_max(), Some(500), "half of the places");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Admission {
    /// Handlers that have been made and have not ended, those that wait for an xstream included.
    /// Default 131072.
    pub handlers_max: usize,
    /// Bound on the requests of one peer; 0: no bound of its own. Default: see
    /// [`peer_max`](Self::peer_max).
    pub peer_handlers_max: Option<usize>,
    /// Bound on the requests of all peers of one host (tcp, ucx) or of one user (sm), however many
    /// connections they have; 0: no bound of its own. Default: see
    /// [`host_max`](Self::host_max).
    pub host_handlers_max: Option<usize>,
    /// The treatment of a request beyond a bound. Default [`Overload::Busy`].
    pub overload: Overload,
}

/// Pools and RPCs with fewer places than this have no shares by default: a service with a single
/// client is to have all of the few.
const SHARES_FROM: usize = 256;

impl Admission {
    /// At most so many handlers at once; the rest as by default.
    ///
    /// # Panics
    ///
    /// If `handlers_max` is 0.
    #[must_use]
    pub const fn new(handlers_max: usize) -> Self {
        assert!(handlers_max > 0, "a bound of no handlers would refuse every request");
        let (peer_handlers_max, host_handlers_max) = (None, None);
        Self { handlers_max, peer_handlers_max, host_handlers_max, overload: Overload::Busy }
    }

    /// At most so many of them for one peer; 0: no bound of its own.
    #[must_use]
    pub const fn per_peer(self, peer_handlers_max: usize) -> Self {
        Self { peer_handlers_max: Some(peer_handlers_max), ..self }
    }

    /// At most so many of them for all peers of one host (tcp, ucx) or user (sm); 0: no bound of
    /// its own.
    #[must_use]
    pub const fn per_host(self, host_handlers_max: usize) -> Self {
        Self { host_handlers_max: Some(host_handlers_max), ..self }
    }

    /// The bound of one peer in effect: the one that was set, or seven sixteenths of
    /// `handlers_max` if that is 256 or more. `None`: there is none.
    pub fn peer_max(&self) -> Option<usize> {
        let by_default = self.handlers_max / 16 * 7;
        let bound =
            self.peer_handlers_max.unwrap_or(if self.has_shares() { by_default } else { 0 });
        Some(bound).filter(|bound| (1..=self.handlers_max).contains(bound))
    }

    /// The bound of one host or user in effect: the one that was set, or half of `handlers_max`
    /// (but not less than a bound that was set for one peer) if that is 256 or more. `None`: there
    /// is none.
    pub fn host_max(&self) -> Option<usize> {
        let by_default = (self.handlers_max / 2).max(self.peer_handlers_max.unwrap_or(0));
        let bound =
            self.host_handlers_max.unwrap_or(if self.has_shares() { by_default } else { 0 });
        Some(bound).filter(|bound| (1..=self.handlers_max).contains(bound))
    }

    fn has_shares(&self) -> bool {
        self.handlers_max >= SHARES_FROM
    }

    /// Sets the treatment of a request beyond a bound.
    #[must_use]
    pub const fn overload(self, overload: Overload) -> Self {
        Self { overload, ..self }
    }
}

impl Default for Admission {
    fn default() -> Self {
        Self::new(128 << 10)
    }
}

/// The treatment of a request beyond a bound.
///
/// ```
/// use margo_config::{Config, Overload};
///
/// let config = Config::from_json(r#"{ "margo": { "admission": { "overload": "wait" } } }"#)?;
/// assert_eq!(config.margo.admission.overload, Overload::Wait);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Overload {
    /// Tells the caller at once that the target is busy.
    #[default]
    Busy,
    /// It waits, and with it, from `margo.requests_max` waiting requests on, everything that the
    /// transport brings. Peers take turns.
    Wait,
}

/// How many requests each pool may have in hand at once.
///
/// ```
/// use margo_config::{Admission, Config};
///
/// let mut config = Config::default();
/// config.margo.admission = Admission::new(512).per_peer(64).into();
/// assert_eq!(config.resolve(&|_| None)?.admission.other.peer_max(), Some(64));
///
/// let same = r#"{ "margo": { "admission": { "handlers_max": 512, "peer_handlers_max": 64 } } }"#;
/// assert_eq!(Config::from_json(same)?, config);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct AdmissionOptions {
    /// Most handlers that run or wait for an xstream in each pool, from 1 to 1073741824. Default
    /// 131072.
    pub handlers_max: usize,
    /// Bound on the requests of one peer; 0: no bound of its own. Default none: of a pool with 256
    /// places or more, one peer gets seven sixteenths at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer_handlers_max: Option<usize>,
    /// Bound on the requests of all peers of one host (tcp, ucx) or of one user (sm), however many
    /// connections they have; 0: no bound of its own. Default none: of a pool with 256 places or
    /// more, one host or user gets half at most. Where the transport does not know who is
    /// behind a peer (ofi, sim), it counts for itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_handlers_max: Option<usize>,
    /// The treatment of a request beyond a bound: `"busy"` tells its caller at once, `"wait"` lets
    /// it wait.
    /// Default `"busy"`.
    pub overload: Overload,
    /// Pools that are to have other bounds than these. Default none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<PoolAdmission>,
}

impl Default for AdmissionOptions {
    fn default() -> Self {
        Admission::default().into()
    }
}

impl From<Admission> for AdmissionOptions {
    fn from(bounds: Admission) -> Self {
        let Admission { handlers_max, peer_handlers_max, host_handlers_max, overload } = bounds;
        Self { handlers_max, peer_handlers_max, host_handlers_max, overload, pools: Vec::new() }
    }
}

/// The bounds of one pool. What is left out is as for all.
///
/// ```
/// use margo_config::Config;
///
/// let config = Config::from_json(r#"{
///     "argobots": { "pools": [{ "name": "__primary__" }] },
///     "margo": { "admission": { "pools": [{ "pool": "__primary__", "handlers_max": 16 }] } },
/// }"#)?;
/// assert_eq!(config.resolve(&|_| None)?.admission.of(0).handlers_max, 16);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct PoolAdmission {
    /// Which pool. Required.
    pub pool: Option<PoolRef>,
    /// See [`AdmissionOptions::handlers_max`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handlers_max: Option<usize>,
    /// See [`AdmissionOptions::peer_handlers_max`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer_handlers_max: Option<usize>,
    /// See [`AdmissionOptions::host_handlers_max`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_handlers_max: Option<usize>,
    /// See [`AdmissionOptions::overload`].
    #[serde(skip_serializing_if = "is_default")]
    pub overload: Option<Overload>,
}

/// The bounds of all pools, resolved.
///
/// ```
/// use margo_config::{Admission, Config};
///
/// let resolved = Config::default().resolve(&|_| None)?;
/// assert_eq!(resolved.admission.of(resolved.rpc_pool), Admission::default());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ResolvedAdmission {
    /// The bounds of pools that are not listed, and of pools that are added later.
    pub other: Admission,
    /// Indices of pools, and their bounds.
    pub pools: Vec<(usize, Admission)>,
}

impl ResolvedAdmission {
    /// The bounds of the pool of that index.
    pub fn of(&self, pool: usize) -> Admission {
        let listed = self.pools.iter().find(|(index, _)| *index == pool);
        listed.map_or(self.other, |(_, bounds)| *bounds)
    }

    /// As the document says it.
    pub(crate) fn document(&self, pool_ref: &dyn Fn(usize) -> Option<PoolRef>) -> AdmissionOptions {
        let entry = |(pool, bounds): &(usize, Admission)| {
            Some(PoolAdmission {
                pool: Some(pool_ref(*pool)?),
                handlers_max: Some(bounds.handlers_max),
                peer_handlers_max: bounds.peer_handlers_max,
                host_handlers_max: bounds.host_handlers_max,
                overload: Some(bounds.overload),
            })
        };
        AdmissionOptions {
            pools: self.pools.iter().filter_map(entry).collect(),
            ..self.other.into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_parts_of_many_places_unless_they_are_set() {
        let shares = |bounds: Admission| (bounds.peer_max(), bounds.host_max());
        assert_eq!(shares(Admission::default()), (Some(57_344), Some(65_536)));
        assert_eq!(shares(Admission::new(256)), (Some(112), Some(128)));
        assert_eq!(shares(Admission::new(255)), (None, None), "few places");
        assert_eq!(shares(Admission::new(1000).per_peer(0).per_host(0)), (None, None));
        assert_eq!(shares(Admission::new(4).per_peer(2)), (Some(2), None));
        assert_eq!(shares(Admission::new(4).per_peer(9).per_host(4)), (None, Some(4)));
        let much = Admission::new(1000).per_peer(900);
        assert_eq!(shares(much), (Some(900), Some(900)), "what was set holds");
    }
}
