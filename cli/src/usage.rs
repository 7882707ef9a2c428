//! `margo completions` and `margo man`: files for shells and `man`, from the definition of the
//! command line.

use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::Args;
use crate::support::output;
use margo::daemon::Failure;

/// `margo completions`.
pub(crate) fn completions(shell: Shell) -> Result<(), Failure> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "margo", &mut text);
    output::write(String::from_utf8_lossy(&text))
}

/// `margo man`.
pub(crate) fn man(dir: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(dir)
        .and_then(|()| clap_mangen::generate_to(Args::command(), dir))
        .map_err(|error| {
            let what = format!("cannot write man pages to {}", dir.display());
            Failure::new(what, output::why(&error))
        })
}
