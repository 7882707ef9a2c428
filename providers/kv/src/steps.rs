//! The RPC by which the members of a cluster change. What the steps do is said in `members.rs`.

use margo::encoding::Bytes;
use margo::{Bulk, Rpc};
use serde::{Deserialize, Serialize};

use crate::KvError;
use crate::members::Membership;
use crate::rpc::Meta;

/// Makes a step of a change of the members. Only a rule that names it allows it.
pub(crate) const CHANGE_MEMBERS: Rpc<MembersArgs, Result<Step, KvError>> =
    Rpc::new("__admin_kv_members__");

/// Arguments of [`CHANGE_MEMBERS`]: the steps of an administrator, and those that servers ask of
/// each other (`members.rs`). Epochs are those of the members that follow.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum MembersArgs {
    /// To a server of either: the members change.
    Begin { from: Membership, to: Membership },
    /// To a source: hands keys over for a while. Done: all are where they belong.
    HandOver { epoch: u64 },
    /// The keys are where they belong, everywhere.
    Finish { epoch: u64 },
    /// Erases copies that nobody sees, for a while. Done: there are none.
    Clean,
    /// Takes the change back.
    Abort { epoch: u64 },
    /// To a destination: keys of the source come. Those that have come before are erased, for a
    /// while.
    Start { epoch: u64, source: u64 },
    /// To a destination: keys, as they are.
    Take(TakeArgs),
    /// To a destination: the source serves its keys no more, and has had no higher version.
    Open {
        epoch: u64,
        source: u64,
        version: u64,
        /// The stream that all keys have come by, and the number of the last part. If the
        /// destination knows of no such stream, keys are missing, and it says
        /// [`KvError::Gone`].
        stream: u64,
        number: u64,
    },
}

/// Keys that a source hands over.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct TakeArgs {
    pub(crate) epoch: u64,
    pub(crate) source: u64,
    /// The one of the last [`MembersArgs::Start`].
    pub(crate) stream: u64,
    /// Grows; what comes late is refused.
    pub(crate) number: u64,
    /// Keys, and the version and length of each that is there.
    pub(crate) keys: Vec<(Bytes, Option<Meta>)>,
    /// The values, one behind the other.
    pub(crate) values: Bulk,
}

/// Result of [`CHANGE_MEMBERS`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Step {
    Done,
    /// There is more to do: the same call again. So many keys were moved or erased.
    More {
        keys: u64,
    },
    /// The stream has begun.
    Started {
        stream: u64,
    },
}
