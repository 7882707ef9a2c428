//! The entry point of the fuzz target `capability`.

use std::time::SystemTime;

use super::{Attempt, Capability, CapabilityError, CapabilityKey};
use crate::Principal;

/// The object of the only capability that is issued.
const OBJECT: &str = "object";

fn attempt<'a>(object: &'a str, operation: &'a str) -> Attempt<'a> {
    Attempt { object, operation, caller: Principal::Unknown, now: SystemTime::UNIX_EPOCH }
}

/// Bytes of a stranger: what can be read comes back as it was and allows nothing; narrowed by what
/// they say, a capability that was issued allows no more than before.
pub fn capabilities(data: &[u8]) {
    let key = CapabilityKey::from_bytes(&[7; 32]);
    let Ok(read) = Capability::from_bytes(data) else { return };
    assert_eq!(read.to_bytes(), data, "there is one way to write it");
    assert_eq!(key.verify(&read, &attempt(OBJECT, "get")), Err(CapabilityError::Forged));
    let until = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1);
    let mut issued = key.issue(OBJECT, &["get"], until).expect("it is short");
    for caveat in read.caveats() {
        match issued.narrow(&caveat) {
            Ok(narrowed) => issued = narrowed,
            Err(error) => assert_eq!(error, CapabilityError::TooLong),
        }
    }
    assert_eq!(Capability::from_bytes(&issued.to_bytes()).as_ref(), Ok(&issued));
    let expected = read.caveats().try_for_each(|caveat| caveat.allows(&attempt(OBJECT, "get")));
    if issued.caveats().count() == read.caveats().count() + 3 {
        assert_eq!(key.verify(&issued, &attempt(OBJECT, "get")), expected);
    }
    for (object, operation) in [(OBJECT, "put"), ("other", "get")] {
        assert!(key.verify(&issued, &attempt(object, operation)).is_err());
    }
}
