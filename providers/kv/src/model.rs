//! The data that callers and stores speak of: conditions, changes, their outcomes, ranges of keys.
//!
//! Each type has a parameter for its bytes, so that an origin sends what it borrows, and a target
//! decodes what it may keep. Imports nothing of the crate but the errors.

use std::ops::Bound;

use margo::encoding::Bytes;
use serde::{Deserialize, Serialize};

use crate::KvError;

/// The state of a key that a change asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Condition<B = Bytes> {
    /// Any.
    #[default]
    Always,
    /// The key is not there.
    Absent,
    /// The key is there.
    Present,
    /// The key is there with this version.
    Version(u64),
    /// The key is there with this value.
    Value(B),
}

/// A change of one key, or of a range of keys.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change<B = Bytes> {
    /// Sets the value of a key.
    Put {
        /// The key.
        key: B,
        /// The new value.
        value: B,
        /// Otherwise [`KvError::Conflict`], [`KvError::Exists`] or [`KvError::NotFound`].
        when: Condition<B>,
    },
    /// Adds bytes at the end of a value, which is empty where the key is not there.
    Append {
        /// The key.
        key: B,
        /// The bytes.
        value: B,
        /// As in [`Put`](Self::Put).
        when: Condition<B>,
    },
    /// Erases a key.
    Erase {
        /// The key.
        key: B,
        /// As in [`Put`](Self::Put).
        when: Condition<B>,
        /// The outcome has the value that is erased; a key that is not there is an error.
        take: bool,
    },
    /// Erases every key of a range.
    EraseRange(KeyRange<B>),
}

/// Changes that are made one after the other.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Batch<B = Bytes> {
    /// All of them or none: the first one that fails undoes those before it.
    pub is_atomic: bool,
    /// Conditions that hold before the first change, or none is made.
    pub only_if: Vec<(B, Condition<B>)>,
    /// The changes.
    pub changes: Vec<Change<B>>,
}

/// The outcome of a change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Changed {
    /// The key has this version now.
    Put {
        /// Grows with every change of the database.
        version: u64,
    },
    /// So many keys were erased.
    Erased {
        /// 0 or 1 for a single key.
        count: u64,
    },
    /// The key was erased, and had this value.
    Taken {
        /// The last version.
        version: u64,
        /// The last value.
        value: Bytes,
    },
}

/// How safe a change is before it is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// It survives the end of the process, unless the machine ends with it.
    Written,
    /// It is on the disk.
    Synced,
}

/// A range of keys, in the order of their bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyRange<B = Bytes> {
    /// The first one.
    pub from: Bound<B>,
    /// The last one.
    pub to: Bound<B>,
}

/// The outcome of each change of a batch, in its order.
pub type Outcomes = Vec<Result<Changed, KvError>>;
