//! The reasons why a peer was not asked something, or not told.

use crate::ForwardError;

/// The reason why a provider is not what it was taken for.
///
/// ```
/// use margo::{Instance, ProviderHandle, errors::IdentityError};
///
/// let instance = Instance::builder("na+sm://").start()?;
/// let target = ProviderHandle::from(instance.self_addr());
/// match instance.network().check_identity(&target, "kv") {
///     Ok(()) => println!("it is a `kv`"),
///     Err(IdentityError::Other { found, .. }) => println!("it is a `{found}`"),
///     Err(IdentityError::None { expected, .. }) => assert_eq!(expected, "kv"),
///     Err(error) => println!("not reached: {error}"),
/// }
/// # instance.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// It is something else. Check the provider id, and which of the two sides is configured wrong.
    #[error("{provider} is `{}`, not `{expected}`", na::plain::text(.found))]
    Other {
        /// Which one.
        provider: String,
        /// The identity that it was taken for.
        expected: String,
        /// The identity that it reports.
        found: String,
    },
    /// There is no such provider, or it does not say what it is.
    #[error("{provider} does not say that it is `{expected}`, or is not there")]
    None {
        /// Which one.
        provider: String,
        /// The identity that it was taken for.
        expected: String,
    },
    /// It could not be asked.
    #[error("cannot ask a provider what it is: {0}")]
    Forward(#[from] ForwardError),
}

/// The reason why a peer was not shut down.
///
/// ```
/// use margo::{Instance, errors::ShutdownRemoteError};
///
/// let instance = Instance::builder("na+sm://").start()?;
/// match instance.network().shutdown_remote(&instance.self_addr()) {
///     Ok(()) => println!("it shuts down"),
///     Err(ShutdownRemoteError::NotEnabled { peer }) => println!("{peer} does not allow it"),
///     Err(ShutdownRemoteError::Forward(error)) => println!("not reached: {error}"),
///     Err(error) => println!("{error}"),
/// }
/// # assert!(!instance.is_finalizing());
/// # instance.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShutdownRemoteError {
    /// The peer does not allow it. Set `margo.remote_shutdown` in its configuration, or have it
    /// call [`enable_remote_shutdown`](crate::groups::InstanceNetwork::enable_remote_shutdown).
    #[error("{peer} does not let others shut it down (`margo.remote_shutdown` is not set there)")]
    NotEnabled {
        /// The peer's address.
        peer: String,
    },
    /// The peer was not reached, or did not answer. It may have shut down all the same, unless
    /// [`never_ran`](ForwardError::never_ran).
    #[error("cannot shut down a peer: {0}")]
    Forward(#[from] ForwardError),
}

/// The reason why the services of a peer are not known.
///
/// ```
/// use std::time::Duration;
///
/// use margo::{Instance, errors::DescribeError, service::services_of};
///
/// let instance = Instance::builder("na+sm://").start()?;
/// match services_of(&instance, &instance.self_addr(), Duration::from_secs(10)) {
///     Ok(services) => println!("{} services", services.len()),
///     Err(DescribeError::Unknown { peer }) => println!("{peer} describes none"),
///     Err(error) => println!("{error}"),
/// }
/// # instance.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DescribeError {
    /// The peer describes none: its providers have RPCs that were written by hand, or it is a C
    /// program.
    #[error("{peer} describes no services: its RPCs were written by hand, or it is a C program")]
    Unknown {
        /// The peer's address.
        peer: String,
    },
    /// The answer does not mean anything here: the peer is of a later version.
    #[error("the services of {peer} cannot be read: {reason}")]
    Unreadable {
        /// The peer's address.
        peer: String,
        /// The reason why not.
        reason: String,
    },
    /// The peer was not reached, or did not answer.
    #[error("cannot ask a peer for its services: {0}")]
    Forward(#[from] ForwardError),
}

/// The reason why the metrics of a peer cannot be read.
///
/// ```
/// use margo::{Instance, errors::MetricsError};
///
/// let instance = Instance::builder("na+sm://").start()?;
/// let (network, peer) = (instance.network(), instance.self_addr());
/// assert!(matches!(network.metrics_of(&peer), Err(MetricsError::NotEnabled { .. })));
/// network.enable_remote_metrics(); // Usually done by the peer.
/// assert!(network.metrics_of(&peer).is_ok());
/// # instance.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MetricsError {
    /// The peer does not allow it. Set `margo.metrics.remote` in its configuration, or have it call
    /// [`enable_remote_metrics`](crate::groups::InstanceNetwork::enable_remote_metrics).
    #[error(
        "{peer} does not let others read its metrics (`margo.metrics.remote` is not set there)"
    )]
    NotEnabled {
        /// The peer's address.
        peer: String,
    },
    /// The peer does not have the RPC: it is of a version that had no metrics, or a C program.
    #[error("{peer} has no metrics: it is a C program, or margo before it had them")]
    Unknown {
        /// The peer's address.
        peer: String,
    },
    /// The answer does not mean anything here.
    #[error("the metrics of {peer} cannot be read: {reason}")]
    Unreadable {
        /// The peer's address.
        peer: String,
        /// The reason why not.
        reason: String,
    },
    /// The peer was not reached, or did not answer.
    #[error("cannot read the metrics of a peer: {0}")]
    Forward(#[from] ForwardError),
}
