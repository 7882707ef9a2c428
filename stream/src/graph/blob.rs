//! Large bytes beside an item: [`Blob`].

use std::fmt;
use std::ops::Deref;

use crate::Data;

/// Large bytes beside an item, such as an image beside its name.
///
/// On the edges of [`Flow::blob_stage`](super::Flow::blob_stage) they are neither encoded nor
/// copied: within a process they are handed on, and to another group they go by bulk transfer from
/// where they are.
///
/// ```
/// use margo_stream::graph::{Blob, Graph};
///
/// let graph = Graph::new();
/// let sums = graph
///     .source("images", (1..=3u8).map(|n| (n, Blob::from(vec![n; 100_000]))))
///     .blob_stage("sum")
///     .replicas(2)
///     .map(|(n, image)| (n, image.iter().map(|byte| u64::from(*byte)).sum::<u64>()))
///     .collect();
/// graph.run()?;
/// let mut sums = sums.take();
/// sums.sort();
/// assert_eq!(sums, [(1, 100_000), (2, 200_000), (3, 300_000)]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Blob(BlobBytes);

enum BlobBytes {
    Own(Vec<u8>),
    Received(Data),
}

impl Blob {
    pub(crate) fn received(data: Data) -> Self {
        Self(BlobBytes::Received(data))
    }

    /// Takes the bytes. Those that have come from another group are copied.
    pub fn into_vec(self) -> Vec<u8> {
        match self.0 {
            BlobBytes::Own(bytes) => bytes,
            BlobBytes::Received(data) => data.to_vec(),
        }
    }
}

impl From<Vec<u8>> for Blob {
    fn from(bytes: Vec<u8>) -> Self {
        Self(BlobBytes::Own(bytes))
    }
}

impl Deref for Blob {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            BlobBytes::Own(bytes) => bytes,
            BlobBytes::Received(data) => data,
        }
    }
}

impl fmt::Debug for Blob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Blob({} bytes)", self.len())
    }
}
