//! Programs that serve what a document says: a whole command line in one line.
//!
//! ```no_run
//! # mod kv { pub fn component() -> Box<dyn margo::component::Component> { loop {} } }
//! fn main() -> std::process::ExitCode {
//!     margo::daemon::main([kv::component()])
//! }
//! ```
//!
//! That program has the commands below, whatever its own name; `margo serve` is the same with the
//! providers of margo's repository.
//!
//! | command | what it does |
//! |---|---|
//! | `serve FILE` | runs the providers of a document (`-` is standard input) until a signal or a peer ends it |
//! | `check FILE` | explains a document, or says all that is wrong with it, with path, line and column; what `config` of a provider may have is up to its [`Component`] |
//! | `schema` | prints the JSON Schema of the document, that of each type's `config` included |
//! | `--version`, `help` | says what it is, and what its commands take |
//!
//! `serve` prints one line when its providers have started, `listening on ADDRESS`, and one for
//! Prometheus if the document has a port for it (`metrics at URL`). With `--address-file`, or
//! `margo.address_file` in the document, others find the address in a file for as long as they may
//! call.
//!
//! | signal | what happens |
//! |---|---|
//! | Ctrl-C, SIGTERM, SIGHUP of its terminal | it ends in order: the address file goes, handlers are waited for (`margo.grace_msec`), status 0; a second one ends it at once, with status 128 plus the signal's number. Before it serves, the first one does |
//! | SIGHUP without a terminal | secrets and certificates are read again if they have changed, and the log says so, or why they cannot be used; without it the next connection does that |
//! | one that its parent ignores (`nohup`) | nothing |
//! | SIGUSR1 (`margo.dump_on_signal`) | it writes what it does at the moment to standard error, as JSON |
//! | SIGXFSZ (`ulimit -f`) | the write fails, and the service goes on |
//!
//! [`Failure`] has the other statuses. Logs go to standard error, as `MARGO_LOG`, or else
//! `RUST_LOG`, asks for; warnings are the default.
//!
//! # The feature
//!
//! This module is there with the feature `daemon`, which adds a parser of command lines (`clap`)
//! and a subscriber for logs (`tracing-subscriber`) to the program. It is no crate of its own,
//! because `margo` could not re-export a crate that needs `margo`. Its types implement traits of
//! `clap` 4, for programs with a command line of their own: see [`Daemon`].
//!
//! Counterpart: the program `bedrock`, whose providers are shared libraries.

mod args;
mod callers;
mod check;
mod devices;
mod failure;
mod serve;
/// For the command `margo`, which has more commands.
#[doc(hidden)]
pub mod support;

use std::error::Error;
use std::fmt;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{CommandFactory, FromArgMatches};

use self::args::{Args, Command};
use self::support::output;
use crate::Instance;
use crate::component::Component;

pub use self::args::{CheckArgs, ServeArgs};
pub use self::failure::Failure;

/// How the line begins in which a service tells its address.
pub const LISTENING_ON: &str = "listening on ";

/// Runs the command line of a daemon that has providers of these types. `main` returns what this
/// returns; wrong arguments end the process here, with status 2.
///
/// [`Daemon`] has what can be said besides.
pub fn main<C: Component + 'static>(components: impl IntoIterator<Item = C>) -> ExitCode {
    Daemon::new(components).main()
}

type Prepare = Box<dyn Fn(&Instance) -> Result<(), Box<dyn Error + Send + Sync>>>;

/// A daemon: the types of providers that it has, and what it does besides.
///
/// ```no_run
/// # mod kv { pub fn component() -> Box<dyn margo::component::Component> { loop {} } }
/// use std::process::ExitCode;
///
/// use margo::daemon::Daemon;
/// use margo::Rpc;
///
/// const UPTIME: Rpc<(), f64> = Rpc::new("uptime");
///
/// fn main() -> ExitCode {
///     let begun = std::time::Instant::now();
///     Daemon::new([kv::component()])
///         .version(env!("CARGO_PKG_VERSION"))
///         .prepare(move |instance| {
///             instance.serve(UPTIME).returning(move |_| begun.elapsed().as_secs_f64())?;
///             Ok(())
///         })
///         .main()
/// }
/// ```
///
/// A program with a command line of its own calls [`serve`](Self::serve), [`check`](Self::check)
/// and [`schema`](Self::schema) from it:
///
/// ```no_run
/// # mod kv { pub fn component() -> Box<dyn margo::component::Component> { loop {} } }
/// use std::process::ExitCode;
///
/// use clap::Parser;
/// use margo::daemon::{CheckArgs, Daemon, ServeArgs};
///
/// #[derive(Parser)]
/// enum Command {
///     Serve(ServeArgs),
///     Check(CheckArgs),
///     // … and others.
/// }
///
/// fn main() -> ExitCode {
///     let daemon = Daemon::new([kv::component()]);
///     let done = match Command::parse() {
///         Command::Serve(args) => daemon.serve(&args),
///         Command::Check(args) => daemon.check(&args),
///     };
///     done.map_or_else(
///         |failure| {
///             eprintln!("{failure}");
///             ExitCode::from(failure.status())
///         },
///         |()| ExitCode::SUCCESS,
///     )
/// }
/// ```
pub struct Daemon {
    command: String,
    version: Option<&'static str>,
    components: Arc<[Box<dyn Component>]>,
    prepare: Vec<Prepare>,
}

impl Daemon {
    /// Makes a daemon with providers of these types.
    pub fn new<C: Component + 'static>(components: impl IntoIterator<Item = C>) -> Self {
        let boxed = |component| -> Box<dyn Component> { Box::new(component) };
        Self {
            command: output::program().to_owned(),
            version: None,
            components: components.into_iter().map(boxed).collect(),
            prepare: Vec::new(),
        }
    }

    /// The command that serves, as messages call it. Default: the name of the program.
    #[must_use]
    pub fn command(self, command: impl Into<String>) -> Self {
        Self { command: command.into(), ..self }
    }

    /// The version of the program, as `env!("CARGO_PKG_VERSION")` is: `--version` prints it before
    /// that of margo. Default: none.
    #[must_use]
    pub fn version(self, version: &'static str) -> Self {
        Self { version: Some(version), ..self }
    }

    /// Calls `prepare` with the instance that has started, before its providers do: for RPCs that
    /// belong to no provider, for instance. An error ends the program, with status 1.
    #[must_use]
    pub fn prepare(
        mut self,
        prepare: impl Fn(&Instance) -> Result<(), Box<dyn Error + Send + Sync>> + 'static,
    ) -> Self {
        self.prepare.push(Box::new(prepare));
        self
    }

    /// Runs the command line; see [`main`](fn@main).
    pub fn main(self) -> ExitCode {
        let margo = concat!("(margo ", env!("CARGO_PKG_VERSION"), ")");
        let version = self.version.map_or(margo.to_owned(), |own| format!("{own} {margo}"));
        // For the rest of the process, as clap wants them.
        let version: &'static str = version.leak();
        let command = Args::command().name(output::program()).version(version);
        let args = Args::from_arg_matches(&command.about(self.about()).get_matches());
        let args = args.unwrap_or_else(|error| error.exit());
        support::run(|| match args.command {
            Command::Serve(args) => self.serve(&args),
            Command::Check(args) => self.check(&args),
            Command::Schema => output::line(format_args!("{:#}", self.schema())),
        })
    }

    fn about(&self) -> String {
        let types: Vec<_> = self.components.iter().map(|one| one.type_name()).collect();
        format!("Runs the providers of a document: {}.", types.join(", "))
    }

    /// Serves a document until a signal or a peer ends it. Takes the signals of the process, for
    /// which it has to be called once, on the thread that has no other work.
    ///
    /// # Errors
    ///
    /// [`Failure`]: the document cannot be read or is not valid, or what it says cannot be started.
    pub fn serve(&self, args: &ServeArgs) -> Result<(), Failure> {
        serve::run(self, args)
    }

    /// Checks a document for this program, and prints what it comes to.
    ///
    /// # Errors
    ///
    /// [`Failure`]: the document cannot be read or is not valid, or has warnings under `--strict`.
    pub fn check(&self, args: &CheckArgs) -> Result<(), Failure> {
        check::run(self, args, None)
    }

    /// As [`check`](Self::check), for a document that may be of another program: `types` are types
    /// of providers which that one has. A type that nobody is known to have is no error, but a
    /// remark; a warning, if a known one seems to be meant.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check).
    pub fn check_for_others(&self, args: &CheckArgs, types: &[String]) -> Result<(), Failure> {
        check::run(self, args, Some(types))
    }

    /// The JSON Schema of documents of this program; see
    /// [`document_schema`](crate::component::document_schema).
    pub fn schema(&self) -> serde_json::Value {
        crate::component::document_schema(&self.components())
    }

    fn components(&self) -> Vec<&dyn Component> {
        self.components.iter().map(|one| &**one).collect()
    }
}

impl fmt::Debug for Daemon {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let types: Vec<_> = self.components.iter().map(|one| one.type_name()).collect();
        f.debug_struct("Daemon").field("command", &self.command).field("types", &types).finish()
    }
}
