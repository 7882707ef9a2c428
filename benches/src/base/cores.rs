//! The cores that a run uses, and threads on both of them.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::{Deserialize, Serialize};

use super::failure::{Doing, Failure, OrFail, Result, ensure, fail};

/// The cores of a run, by the kernel's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cores {
    /// Where the origin runs, and everything that needs one core only.
    pub(crate) origin: usize,
    /// Where the target runs. `None` on a machine (or in a container) with one core.
    pub(crate) target: Option<usize>,
}

impl Cores {
    /// The first two cores that this process may use.
    ///
    /// # Errors
    ///
    /// When the kernel does not say, or allows none below its set's size.
    pub(crate) fn first_allowed() -> Result<Self> {
        let allowed = sched_getaffinity(None).doing("asking for usable cores")?;
        let mut cores = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core));
        Ok(Self { origin: cores.next().or_fail("no usable core")?, target: cores.next() })
    }

    /// The cores that the user named as `A,B`.
    ///
    /// # Errors
    ///
    /// When the text is not two different numbers.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let numbers: Vec<usize> = text.split(',').filter_map(|n| n.trim().parse().ok()).collect();
        match numbers[..] {
            [origin, target] if origin != target && origin.max(target) < CpuSet::MAX_CPU => {
                Ok(Self { origin, target: Some(target) })
            }
            _ => fail!("`{text}` does not name two different cores; expected for example `0,1`"),
        }
    }

    /// Checks that both cores may be used, before anything waits for the other one.
    ///
    /// # Errors
    ///
    /// When one of them does not exist or is not allowed.
    pub(crate) fn check(self) -> Result<Self> {
        let allowed = sched_getaffinity(None).doing("asking for usable cores")?;
        for core in [self.origin].into_iter().chain(self.target) {
            ensure!(allowed.is_set(core), "core {core} cannot be used here");
        }
        Ok(self)
    }

    /// The target's core.
    ///
    /// # Errors
    ///
    /// When there is none: two sides that poll on one core would measure the kernel's scheduler.
    pub(crate) fn target(&self) -> Result<usize> {
        self.target.or_fail("needs two cores, and only one is usable")
    }

    /// The first `count` of them, one or two, which the calling thread may then use.
    ///
    /// # Errors
    ///
    /// When there are fewer.
    pub(crate) fn take(&self, count: usize) -> Result<Vec<usize>> {
        let mut cores = vec![self.origin];
        if count > 1 {
            cores.push(self.target()?);
        }
        pin(&cores)?;
        Ok(cores)
    }

    /// Runs both closures at once in threads of their own, the first on the origin's core.
    ///
    /// # Errors
    ///
    /// When there is one core only, or the first error of one of them.
    pub(crate) fn run_on_both<T: Send, U: Send>(
        &self,
        origin: impl FnOnce() -> Result<T> + Send,
        target: impl FnOnce() -> Result<U> + Send,
    ) -> Result<(T, U)> {
        let cores = (self.origin, self.target()?);
        std::thread::scope(|scope| {
            let target = scope.spawn(move || pin(&[cores.1]).and_then(|()| target()));
            let origin = scope.spawn(move || pin(&[cores.0]).and_then(|()| origin()));
            let panicked = |_| Failure::new("a measuring thread panicked");
            let (origin, target) = (origin.join(), target.join());
            Ok((origin.map_err(panicked)??, target.map_err(panicked)??))
        })
    }
}

/// Pins the calling thread, and the threads that it starts from now on, to `cores`, between which
/// the kernel chooses.
///
/// # Errors
///
/// When none of them exists and is allowed.
pub(crate) fn pin(cores: &[usize]) -> Result<()> {
    let mut set = CpuSet::new();
    cores.iter().for_each(|core| set.set(*core));
    sched_setaffinity(None, &set).doing(&format!("pinning to {cores:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_cores_are_named_by_two_different_numbers() {
        let cores = Cores::parse("2, 5").unwrap();
        assert_eq!((cores.origin, cores.target), (2, Some(5)));
        for bad in ["", "1", "1,1", "0,1,2", "a,b", "0,-1", "0,1024"] {
            assert!(Cores::parse(bad).unwrap_err().to_string().contains("two different"), "{bad}");
        }
    }

    #[test]
    fn one_core_is_no_pair() {
        let error = Cores { origin: 0, target: None }.target().unwrap_err();
        assert!(error.to_string().contains("two cores"));
    }
}
