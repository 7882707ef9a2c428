//! Panics of stores, and failures of the disk, as errors.

use std::io::{Error, ErrorKind};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

use crate::KvError;

/// The panic that has ended a database, if one has. Shared by the database and its views.
#[derive(Debug, Clone, Default)]
pub(super) struct Health(Arc<OnceLock<String>>);

impl Health {
    /// # Errors
    ///
    /// [`KvError::Failed`] for ever after a panic.
    pub(super) fn check(&self) -> Result<(), KvError> {
        self.0.get().map_or(Ok(()), |message| Err(KvError::Failed(message.clone())))
    }

    /// Calls into a store. If it panics, what it has in memory may be half changed, so that it is
    /// not called again.
    pub(super) fn contain<T>(
        &self,
        call: impl FnOnce() -> Result<T, KvError>,
    ) -> Result<T, KvError> {
        self.check()?;
        catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
            let message = panic.downcast_ref::<String>().map(String::as_str);
            let message = message.or_else(|| panic.downcast_ref::<&str>().copied());
            let message = format!("it panicked: {}", message.unwrap_or("without a message"));
            tracing::error!(message, "a key-value store panicked");
            Err(KvError::Failed(self.0.get_or_init(|| message).clone()))
        })
    }
}

/// The error of a disk. `place` names the file.
pub(super) fn io_error(place: &str, error: &Error) -> KvError {
    let message = format!("{place}: {error}");
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
            KvError::Full(message)
        }
        _ => KvError::Failed(message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_panic_nothing_is_called_any_more() {
        let health = Health::default();
        let failed: Result<(), _> = health.contain(|| Err(KvError::Busy));
        assert_eq!((failed, health.check()), (Err(KvError::Busy), Ok(())));
        let panicked = health.clone().contain(|| -> Result<(), _> { panic!("a {}", "test") });
        let error = KvError::Failed("it panicked: a test".into());
        assert_eq!(panicked, Err(error.clone()));
        assert_eq!(health.contain(|| -> Result<(), _> { unreachable!() }), Err(error));
    }
}
