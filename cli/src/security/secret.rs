//! `margo security new-secret`.

use std::path::Path;

use margo::daemon::Failure;

use super::{SECRET, failed, replace, write_new};
use crate::support::output;

/// Steps of the life of a secret. To change it everywhere, each step is made in all files before
/// the next one begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// A first one.
    New,
    /// One that is accepted.
    Add,
    /// The added one is shown.
    Promote,
    /// The old one is gone.
    Retire,
}

impl Step {
    pub(super) fn of(add: bool, promote: bool, retire: bool) -> Self {
        match (add, promote, retire) {
            (true, ..) => Self::Add,
            (_, true, _) => Self::Promote,
            (.., true) => Self::Retire,
            _ => Self::New,
        }
    }
}

pub(super) fn write(file: &Path, step: Step) -> Result<(), Failure> {
    let shown = file.display();
    if step == Step::New {
        write_new(file, SECRET, &format!("{}\n", fresh()?))?;
        return output::line(format_args!("{shown}: a new secret; copy it to all hosts"));
    }
    let text = std::fs::read_to_string(file)
        .map_err(|error| Failure::new(format_args!("cannot read {shown}"), error))?;
    let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let (lines, said) = match (step, &lines[..]) {
        (Step::Add, [first]) => {
            ([(*first).to_owned(), fresh()?].join("\n"), "a second secret is accepted")
        }
        (Step::Promote, [first, second]) => {
            ([*second, *first].join("\n"), "the second secret is shown to others now")
        }
        (Step::Retire, [first, _]) => ((*first).to_owned(), "the second secret is gone"),
        (_, lines) => {
            let count = output::count(lines.len() as u64, "secret");
            let wanted = if step == Step::Add { "one" } else { "two" };
            return Err(Failure::Usage(format!("{shown} has {count}: this step needs {wanted}")));
        }
    };
    replace(file, SECRET, &format!("{lines}\n"))?;
    output::line(format_args!("{shown}: {said}; do the same on all hosts before the next step"))
}

/// 256 random bits in letters.
pub(crate) fn fresh() -> Result<String, Failure> {
    let mut bytes = [0_u8; 32];
    rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty())
        .map_err(|errno| failed(Path::new("a secret"))(errno.into()))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
