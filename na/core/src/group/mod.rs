//! Groups: several endpoints behind one address, one for each core of an instance.
//!
//! An endpoint of a group is a *shard*: it has connections, matching and polls of its own. A group
//! has one listener. The shard that has it accepts connections, and hands each one over to the
//! shard that is to have it before the connection is answered, so nothing is on its way meanwhile.
//!
//! - Imports: `base`.
//! - Reading order: `placement.rs` (which shard gets a connection, and how it gets there) ·
//!   `directory.rs` (a peer has one identity, whichever shards know it) · `bells.rs` (a shard hears
//!   that it has got something).

pub mod bells;
pub mod directory;
pub mod placement;

use self::placement::NotAdmitted;
pub use self::placement::SHARDS_MAX;
use crate::Error;

/// Refuses a number of shards that no transport takes.
///
/// # Errors
///
/// [`Error::InvalidArgument`] for none, and for more than [`SHARDS_MAX`].
pub fn check_shards(shards: usize) -> Result<(), Error> {
    match shards {
        1..=SHARDS_MAX => Ok(()),
        _ => {
            let text = format!("a group of {shards} endpoints; 1 to {SHARDS_MAX} are possible");
            Err(Error::InvalidArgument(text))
        }
    }
}

/// Tells why a group does not grow.
pub fn not_grown(why: NotAdmitted) -> Error {
    match why {
        NotAdmitted::Closed => Error::Closed,
        NotAdmitted::TooMany | NotAdmitted::TooManyOfCaller => Error::InvalidArgument(format!(
            "one more endpoint in a group that has had {SHARDS_MAX}, which are all there can be"
        )),
    }
}

/// Most connections of a group of `theirs` endpoints that calls a group of `ours`: each of its
/// endpoints has one for each endpoint here, and one that names none.
pub fn connections_max(theirs: usize, ours: usize) -> usize {
    theirs.clamp(1, SHARDS_MAX) * (ours + 1)
}
