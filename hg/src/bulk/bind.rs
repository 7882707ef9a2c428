//! The owner's address within a descriptor, so that a third party can transfer.
//!
//! A handle is bound by its owner and then travels as it is. A peer that gets it, over however many
//! hops, transfers directly with the owner. The owner checks key, range and access as always; by
//! giving the key away it has consented to transfers of third parties.
//!
//! The address is only as reliable as the peer that sent the handle: a transfer with the owner
//! connects to that address, within the transport of the endpoint.

use std::ops::Range;

use super::handle::Bulk;
use crate::ProcError;
use crate::proc::descriptor::Binding;

/// The owner, as a descriptor tells it.
#[derive(Debug, Clone)]
pub(super) struct Bound {
    /// Where the network layer's bytes of the address stand in the descriptor.
    pub(super) address: Range<usize>,
    /// The owner's context.
    pub(super) context: u8,
}

impl Bound {
    /// Returns where the owner stands in a descriptor of this process, which ends with `binding`.
    pub(super) fn at_the_end_of(bytes: &[u8], binding: &Binding<'_>) -> Self {
        // The context, and the empty address for shared memory.
        let end = bytes.len() - 1 - 8;
        Self { address: end + 16 - binding.address.len()..end, context: binding.context }
    }
}

/// C's form of an address: with an empty one for shared memory, as its default builds write it.
pub(crate) fn blob(address: &[u8]) -> Vec<u8> {
    let mut blob = Vec::with_capacity(16 + address.len());
    blob.extend((address.len() as u64).to_le_bytes());
    blob.extend(address);
    blob.extend(0u64.to_le_bytes());
    blob
}

/// The network layer's part of C's form of an address, with or without one for shared memory.
pub(super) fn network_address(blob: &[u8]) -> Result<&[u8], ProcError> {
    let bad = || ProcError::Unsupported("a bulk descriptor holds an address of unknown form");
    let sized = |bytes: &'_ [u8]| -> Option<(usize, usize)> {
        let (len, rest) = bytes.split_first_chunk::<8>()?;
        let len = usize::try_from(u64::from_le_bytes(*len)).ok()?;
        (len <= rest.len()).then(|| (8, 8 + len))
    };
    let (start, end) = sized(blob).ok_or_else(bad)?;
    let rest = &blob[end..];
    let complete = rest.is_empty() || sized(rest).is_some_and(|(_, end)| end == rest.len());
    if complete { Ok(&blob[start..end]) } else { Err(bad()) }
}

impl Bulk {
    /// Returns whether the owner's address is in it. Counterpart: `HG_BULK_BIND`.
    pub fn is_bound(&self) -> bool {
        self.bound().is_some()
    }

    /// The owner's context, if it is told. Counterpart: `HG_Bulk_get_context_id`.
    pub fn owner_context(&self) -> Option<u8> {
        self.bound().map(|bound| bound.context)
    }

    /// The network layer's bytes of the owner's address, if they are told.
    pub(crate) fn owner_address(&self) -> Option<&[u8]> {
        self.bound().map(|bound| &self.as_bytes()[bound.address.clone()])
    }

    fn bound(&self) -> Option<&Bound> {
        self.0.as_ref()?.bound.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_of_cs_forms_are_read_and_others_are_refused() {
        let with_sm = blob(b"where");
        assert_eq!(network_address(&with_sm).unwrap(), b"where");
        assert_eq!(network_address(&with_sm[..13]).unwrap(), b"where", "built without sm");
        let mut both = with_sm[..13].to_vec();
        both.extend([3, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3]);
        assert_eq!(network_address(&both).unwrap(), b"where");
        for len in (0..13).chain(14..21).chain(22..24) {
            assert!(network_address(&both[..len]).is_err(), "{len}");
        }
        let mut hostile = with_sm.clone();
        hostile[..8].fill(0xff);
        assert!(network_address(&hostile).is_err());
    }
}
