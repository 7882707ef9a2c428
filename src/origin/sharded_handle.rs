//! Handles of providers that keep each part of their keys at a shard of its own.

use std::fmt;

use hg::ProcError;

use crate::support::parts::{PARTS_MAX, part_of_key};
use crate::{ForwardError, Instance, ProviderHandle, Rpc};

/// Answers with the number of the provider's parts.
pub(crate) const PARTS: Rpc<(), u32> = Rpc::new("__parts__");

/// A sharded provider of a peer: which of its shards has which key. From
/// [`Instance::sharded_handle`]; see [`Instance::sharded_provider`] for an example.
///
/// Each part is called over a connection with the shard that has it, so that the request arrives
/// where it is handled. A request that arrives elsewhere all the same is handled at the right
/// shard, too, and costs the way there. It knows the ways of the execution stream that has called
/// through it first: in an instance of several shards, each had better have a clone of its own.
///
/// ```
/// use margo::{ProviderHandle, ProviderId, Rpc};
///
/// const PART: Rpc<(), usize> = Rpc::new("part");
///
/// let service = margo::init(r#"{ "margo": { "address": "na+sm://", "shards": 2 } }"#)?;
/// let provider = service.sharded_provider(ProviderId::new(1), |place| place.index())?;
/// provider.serve(PART).part_function(|part, ()| *part)?;
///
/// let target = ProviderHandle::new(service.self_addr(), provider.id());
/// let sharded = service.sharded_handle(&target)?;
/// let second = sharded.for_part(1).expect("there are two");
/// assert_eq!(service.forward(PART, second, &())?, 1);
/// assert_eq!(sharded.for_key("a"), sharded.for_key("a"));
/// # drop(provider);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct ShardedHandle {
    parts: Box<[ProviderHandle]>,
}

impl Instance {
    /// Asks a provider how many parts it has ([`sharded_provider`](Self::sharded_provider)), which
    /// does not change while it lives. Waits for the answer like [`forward`](Self::forward).
    ///
    /// # Errors
    ///
    /// [`ForwardError`]: [`NotRegistered`](ForwardError::NotRegistered) if it is not sharded, or
    /// not there; [`Decode`](ForwardError::Decode) if it names a number of parts that cannot be.
    pub fn sharded_handle(&self, provider: &ProviderHandle) -> Result<ShardedHandle, ForwardError> {
        let count = self.forward(PARTS, provider, &())? as usize;
        if !(1..=PARTS_MAX).contains(&count) {
            return Err(ForwardError::Decode {
                rpc: PARTS.name(),
                peer: provider.addr().to_string(),
                source: ProcError::Unsupported("a provider has 1 to 128 parts"),
            });
        }
        Ok(ShardedHandle::new(provider, count))
    }
}

impl ShardedHandle {
    fn new(provider: &ProviderHandle, count: usize) -> Self {
        Self { parts: (0..count).map(|part| provider.clone().in_shard(part as u8)).collect() }
    }

    /// Returns how many parts there are, at least one.
    pub fn parts(&self) -> usize {
        self.parts.len()
    }

    /// Returns the provider as the one that has this key: see [`part_of_key`].
    pub fn for_key(&self, key: impl AsRef<[u8]>) -> &ProviderHandle {
        &self.parts[part_of_key(key.as_ref(), self.parts.len())]
    }

    /// Returns the provider as the one that has this part; `None`: there is no such part.
    pub fn for_part(&self, part: usize) -> Option<&ProviderHandle> {
        self.parts.get(part)
    }
}

impl fmt::Debug for ShardedHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ShardedHandle({} parts of {})", self.parts(), self.parts[0])
    }
}
