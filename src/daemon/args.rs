//! The command line of a daemon, and the parts of it that other command lines share.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use super::support::LOGGING;

#[derive(Debug, Parser)]
#[command(after_help = LOGGING)]
pub(super) struct Args {
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Runs the providers of a configuration until Ctrl-C, SIGTERM or the end of its terminal.
    /// SIGUSR1: writes what it does at the moment to standard error, as JSON.
    Serve(ServeArgs),
    /// Explains a document: which xstream runs what, what could wait for long, what it costs, and
    /// the complete configuration that it comes to; or all that is wrong with it.
    ///
    /// The explanation is a comment, so what is printed is a document again. Status 0: valid; 1:
    /// valid with warnings, under --strict; 2: not valid, as is what no machine could start, or a
    /// provider that this program has not. What this machine lacks is a warning.
    Check(CheckArgs),
    /// Prints the JSON Schema of the document, with the settings of this program's providers, for
    /// editors.
    Schema,
}

/// Arguments of a command that serves ([`Daemon::serve`](super::Daemon::serve)).
///
/// ```
/// use clap::Parser;
/// use margo::daemon::ServeArgs;
///
/// #[derive(Parser)]
/// struct Args {
///     #[command(flatten)]
///     serve: ServeArgs,
///     #[arg(long)]
///     read_only: bool,
/// }
///
/// let args = Args::parse_from(["kvd", "--read-only", "--address", "na+sm://", "kv.json"]);
/// assert_eq!((args.serve.address.as_deref(), args.read_only), (Some("na+sm://"), true));
/// ```
#[derive(Debug, Clone, clap::Args)]
#[command(about = None, long_about = None)]
#[non_exhaustive]
pub struct ServeArgs {
    /// The configuration; `-` is standard input.
    pub file: PathBuf,
    /// Address to listen on, in place of the configuration's.
    #[arg(long, value_name = "URI")]
    pub address: Option<String>,
    /// File to write the address to while it serves, in place of the configuration's.
    #[arg(long, value_name = "FILE")]
    pub address_file: Option<PathBuf>,
    /// Folder of snapshots that the providers take over before they are found: each that of its
    /// name.
    #[arg(long, value_name = "DIR")]
    pub restore: Option<PathBuf>,
    /// Folder that is made for snapshots of the providers at the end, when no request is left; each
    /// has one of its name in it. Types without snapshots are passed over, with a note.
    #[arg(long, value_name = "DIR")]
    pub snapshot: Option<PathBuf>,
    /// End when this process, the parent, does.
    #[arg(long, value_name = "PID", hide = true)]
    pub die_with: Option<i32>,
}

/// Arguments of a command that checks a document ([`Daemon::check`](super::Daemon::check)).
///
/// ```
/// use clap::Parser;
/// use margo::daemon::CheckArgs;
///
/// #[derive(Parser)]
/// enum Command {
///     /// Checks a document, as a job does before it is queued.
///     Check(CheckArgs),
/// }
///
/// let Command::Check(args) = Command::parse_from(["kvd", "check", "--strict", "kv.json"]);
/// assert!(args.strict && !args.names && args.file.ends_with("kv.json"));
/// ```
#[derive(Debug, Clone, clap::Args)]
#[command(about = None, long_about = None)]
#[non_exhaustive]
pub struct CheckArgs {
    /// The document; `-` is standard input.
    pub file: PathBuf,
    /// Only the complete configuration, as plain JSON.
    #[arg(long)]
    pub json: bool,
    /// Refers to pools by name instead of by index.
    #[arg(long)]
    pub names: bool,
    /// Takes warnings for errors.
    #[arg(long)]
    pub strict: bool,
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, CommandFactory};

    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Args::command().debug_assert();
    }

    /// It is for programmers; `--help` of their programs is for others.
    #[test]
    fn help_has_no_documentation_of_types() {
        let command = || clap::Command::new("x").about("of the program");
        let commands = [ServeArgs::augment_args(command()), CheckArgs::augment_args(command())];
        for command in commands {
            assert_eq!(command.get_about(), None);
            assert_eq!(command.get_long_about(), None);
        }
    }
}
