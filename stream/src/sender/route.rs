//! Which receiver gets an item: [`Route`].

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use twox_hash::XxHash64;

/// Which of its receivers a sender gives an item to.
///
/// ```
/// use margo_stream::Route;
///
/// // All words that are the same go to the same receiver.
/// let route: Route<(String, u64)> = Route::by_key(|(word, _): &(String, u64)| word.clone());
/// assert_eq!(format!("{route:?}"), "Hash");
/// ```
pub enum Route<T> {
    /// To one receiver after the other, a batch at a time.
    RoundRobin,
    /// To the receiver that has the least without an acknowledgement, a batch at a time.
    OnDemand,
    /// To the receiver whose number is the remainder of this hash by their number: items with the
    /// same hash go to the same receiver, in order. See [`by_key`](Self::by_key).
    Hash(Arc<dyn Fn(&T) -> u64 + Send + Sync>),
    /// To all receivers. Encoded once.
    Broadcast,
    /// To the receiver that the program names ([`Sender::send_to`](crate::Sender::send_to)).
    Direct,
}

impl<T> Route<T> {
    /// Items with the same key go to the same receiver, in order. The hash is the same in all
    /// processes that run one program.
    pub fn by_key<K: Hash>(key: impl Fn(&T) -> K + Send + Sync + 'static) -> Self {
        Self::Hash(Arc::new(move |item| {
            let mut hasher = XxHash64::with_seed(0);
            key(item).hash(&mut hasher);
            hasher.finish()
        }))
    }
}

impl<T> Clone for Route<T> {
    fn clone(&self) -> Self {
        match self {
            Self::RoundRobin => Self::RoundRobin,
            Self::OnDemand => Self::OnDemand,
            Self::Hash(hash) => Self::Hash(hash.clone()),
            Self::Broadcast => Self::Broadcast,
            Self::Direct => Self::Direct,
        }
    }
}

impl<T> fmt::Debug for Route<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RoundRobin => "RoundRobin",
            Self::OnDemand => "OnDemand",
            Self::Hash(_) => "Hash",
            Self::Broadcast => "Broadcast",
            Self::Direct => "Direct",
        })
    }
}
