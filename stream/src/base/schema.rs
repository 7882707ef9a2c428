//! A number for the shape of a type, which two programs compare when they connect.

use std::any::TypeId;
use std::collections::{BTreeSet, HashMap};
use std::hash::Hasher;
use std::sync::{LazyLock, Mutex, PoisonError};

use serde::de::DeserializeOwned;
use serde_reflection::{Error, Samples, Tracer, TracerConfig};
use twox_hash::XxHash64;

/// The shape of a type that says nothing of itself: it fits any.
const UNKNOWN: u64 = 0;

static KNOWN: LazyLock<Mutex<HashMap<TypeId, u64>>> = LazyLock::new(Mutex::default);

/// A hash of what the encoding of `T` depends on: numbers and their widths, fields and variants in
/// their order, with their names. The name of the type itself is no part of it. [`UNKNOWN`] for
/// types that cannot be asked: those whose `Deserialize` refuses values that are made up, or which
/// have no end.
pub(crate) fn schema_of<T: DeserializeOwned + 'static>() -> u64 {
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    *known.entry(TypeId::of::<T>()).or_insert_with(|| traced::<T>().unwrap_or(UNKNOWN))
}

/// Returns whether a stream of one shape may be connected with one of the other.
pub(crate) fn fits(one: u64, other: u64) -> bool {
    one == other || one == UNKNOWN || other == UNKNOWN
}

/// The most passes for one type, in each of which one more variant of its enums is seen.
const PASSES_MAX: usize = 256;

fn traced<T: DeserializeOwned>() -> Option<u64> {
    // The enums inside, which have to be asked for by their names.
    let mut enums = BTreeSet::<String>::new();
    let (format, registry) = loop {
        let mut tracer = Tracer::new(TracerConfig::default());
        let samples = Samples::new();
        let mut format = tracer.trace_type::<T>(&samples).ok()?.0;
        for _ in 0..PASSES_MAX {
            // All of them: each is let go on by this.
            let left = enums.iter().filter(|it| tracer.check_incomplete_enum(it).is_some());
            if left.count() == 0 {
                break;
            }
            format = tracer.trace_type::<T>(&samples).ok()?.0;
        }
        match tracer.registry() {
            Ok(registry) => break (format, registry),
            Err(Error::MissingVariants(names)) => {
                let known = enums.len();
                enums.extend(names);
                if enums.len() == known {
                    return None;
                }
            }
            Err(_) => return None,
        }
    };
    let mut hash = XxHash64::with_seed(0);
    hash.write(format!("{format:?} {registry:?}").as_bytes());
    Some(hash.finish().max(1))
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};

    use super::*;

    #[derive(Serialize, Deserialize)]
    struct Event {
        key: String,
        at: u64,
        kind: Kind,
    }

    #[derive(Serialize, Deserialize)]
    enum Kind {
        Begin,
        End { code: i32, why: Option<Why> },
        Middle(Why),
    }

    #[derive(Serialize, Deserialize)]
    enum Why {
        Done,
        Signal(u8),
    }

    mod other {
        use serde::{Deserialize, Serialize};

        #[derive(Serialize, Deserialize)]
        pub(super) struct Event {
            key: String,
            at: u32,
            kind: super::Kind,
        }
    }

    #[test]
    fn types_of_another_shape_do_not_fit() {
        let events = schema_of::<Event>();
        assert_ne!(events, UNKNOWN);
        assert_eq!(events, schema_of::<Event>());
        assert!(!fits(events, schema_of::<other::Event>()));
        assert!(!fits(schema_of::<u64>(), schema_of::<i64>()));
        assert!(!fits(schema_of::<(u64, u32)>(), schema_of::<(u32, u64)>()));
        assert!(fits(schema_of::<Vec<(String, u64)>>(), schema_of::<Vec<(String, u64)>>()));
    }
}
