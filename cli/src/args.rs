//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Parser, Subcommand};
use margo::daemon::support::LOGGING;
use margo::daemon::{CheckArgs, ServeArgs};

/// A thread-per-core RPC runtime: try it, look at it, run services with it.
#[derive(Debug, Parser)]
#[command(name = "margo", version, after_help = LOGGING)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Stores files with another process and reads them back, over each transport.
    Demo(DemoArgs),
    /// Says what this machine has, and which transports work on it; with a document also which
    /// execution streams and pools that comes to here.
    ///
    /// Status 1: the address that was given does not work; 2: the document is not valid here.
    Info {
        /// A document (`-` is standard input), or an address such as na+tcp://0.0.0.0:7000, which
        /// is then tried in place of all transports.
        #[arg(value_name = "FILE or ADDRESS")]
        file: Option<PathBuf>,
        /// As one JSON object.
        #[arg(long)]
        json: bool,
        /// Document whose settings of transports an address is tried with (`-` is standard input).
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
    },
    /// The process that `info` talks to.
    #[command(hide = true)]
    Answer {
        address: String,
        #[arg(long)]
        parent: i32,
    },
    /// Looks at configurations.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Reads files that instances write with `margo.trace`: which calls belong together, across
    /// processes, and where the time went.
    #[command(subcommand)]
    Trace(TraceCommand),
    /// Writes a crate with a service: trait, client, provider, daemon with its document, and
    /// tests over a simulated network.
    ///
    /// Nothing is written where NAME is there already.
    New(NewArgs),
    /// Runs the providers of a configuration until Ctrl-C, SIGTERM or the end of its terminal.
    /// SIGUSR1: writes what it does at the moment to standard error, as JSON.
    Serve(ServeArgs),
    /// Makes the secrets and certificates by which instances know each other over na+tcp
    /// (`margo.security.tcp`).
    #[command(subcommand)]
    Security(SecurityCommand),
    /// Calls a service again and again, and says how long each call takes.
    ///
    /// Every service of margo answers, also while its handlers are stuck; so do those of C Margo,
    /// without sending back the bytes. Ctrl-C or SIGTERM ends it, with the summary. The first call
    /// makes the connection. Status 0: at least one call was answered; 1: none was; 2: wrong usage.
    Ping(PingArgs),
    /// Shows what running services do, again and again: pools, execution streams, requests,
    /// peers. The service allows it with `margo.metrics.remote` in its configuration.
    ///
    /// In a terminal q or Ctrl-C ends it, and arrows, PgUp, PgDn, Home and End (or k, j, h, l, b,
    /// space, g and G) show what does not fit; elsewhere it prints block after block. A service
    /// that goes away is waited for.
    Top(TopArgs),
    /// Runs graphs of stages that a document cuts into groups of processes.
    #[command(subcommand)]
    Stream(StreamCommand),
    /// Reads and changes a key-value store (`"type": "kv"`).
    #[command(subcommand)]
    Kv(KvCommand),
    /// Prints completions for a shell, for `~/.local/share/bash-completion/completions/margo` for
    /// instance.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Writes man pages, one for the command and one for each of its own commands.
    Man {
        /// Folder that they go to; it is made if it is not there.
        #[arg(value_name = "DIR")]
        dir: PathBuf,
    },
    /// Asks running services to shut down, those of C Margo as well, and returns when each has
    /// agreed. A service allows it with `margo.remote_shutdown` in its configuration.
    ///
    /// All are asked at once. Status 0: all have agreed, and are gone with --wait; 1: one has not,
    /// or was not reached, which standard error says; the others shut down.
    Shutdown(ShutdownArgs),
    /// Looks at a running service, and changes it: its providers, pools, execution streams, shards.
    ///
    /// The service allows it with `margo.remote_admin` in its configuration, and to whom a rule of
    /// `margo.security.allow` lets call `__admin__`; without rules to its own user over na+sm.
    Admin(AdminArgs),
    /// Says which services are at an address: their providers, and their methods with the types of
    /// arguments and results.
    ///
    /// Services describe themselves that are made with `#[margo::service]`, or call
    /// `Provider::describe`.
    Describe(DescribeArgs),
    /// Calls a method of a service that describes itself, and prints the result as JSON.
    ///
    /// Status 0: there is a result; 1: there is none, or it is an error of the service, which
    /// standard error has; 2: the arguments are not those of the method.
    Call(CallArgs),
}

#[derive(Debug, Subcommand)]
pub(crate) enum SecurityCommand {
    /// Writes a fresh secret for a cluster. Whoever can read the file is a member.
    ///
    /// For `"security": { "tcp": { "mode": "cluster_secret", "secret": "FILE" } }`. The file gets
    /// mode 600 and is not overwritten.
    NewSecret {
        /// The file.
        file: PathBuf,
        /// Adds the secret to a file that has one: it is accepted, and not yet shown. The next step
        /// of changing a secret everywhere is --promote.
        #[arg(long, conflicts_with = "promote")]
        add: bool,
        /// Makes the added secret the one that is shown; the other one stays accepted.
        #[arg(long, conflicts_with = "retire")]
        promote: bool,
        /// Removes the secret that is only accepted.
        #[arg(long)]
        retire: bool,
    },
    /// Makes an authority that issues certificates: DIR/ca.pem, which all instances trust, and
    /// DIR/ca.key, which nobody but `issue` needs.
    NewCa {
        /// The folder. It is made if it is not there.
        #[arg(value_name = "DIR")]
        dir: PathBuf,
        /// Days for which it is good.
        #[arg(long, default_value_t = 3650)]
        days: u32,
    },
    /// Issues a certificate for NAME: DIR/NAME.pem and DIR/NAME.key.
    ///
    /// For `"security": { "tcp": { "mode": "mutual_tls", "certificate": "DIR/NAME.pem", "key":
    /// "DIR/NAME.key", "trust": "DIR/ca.pem" } }`.
    Issue {
        /// The name by which rules know the instance (`"who": "name:NAME"`).
        name: String,
        /// The folder of the authority.
        #[arg(long, value_name = "DIR", default_value = ".")]
        ca: PathBuf,
        /// An address at which the instance is called. Not needed where callers say which names
        /// they expect (`names`).
        #[arg(long = "address", value_name = "IP")]
        addresses: Vec<std::net::IpAddr>,
        /// Days for which it is good.
        #[arg(long, default_value_t = 365)]
        days: u32,
    },
    /// Says what is in a file: whose certificate it is, how long it is good, how many secrets it
    /// has. Never shows a secret.
    Show {
        /// Files.
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum KvCommand {
    /// Sets the value of a key.
    Put {
        #[command(flatten)]
        of: KvArgs,
        /// The key.
        key: OsString,
        /// The value; `-` is standard input.
        value: OsString,
    },
    /// Prints the value of a key as it is. Status 1: there is no such key.
    Get {
        #[command(flatten)]
        of: KvArgs,
        /// The key.
        key: OsString,
    },
    /// Erases a key. Status 1: there is no such key.
    Erase {
        #[command(flatten)]
        of: KvArgs,
        /// The key.
        key: OsString,
    },
    /// Prints keys in their order, one on a line. What would steer a terminal, or is no text, is
    /// shown by numbers; `dump` has all keys as they are.
    List {
        #[command(flatten)]
        of: KvArgs,
        /// The keys that begin so. Default: all.
        #[arg(long, value_name = "TEXT", default_value = "")]
        prefix: OsString,
    },
    /// Prints keys and their values, each pair as one line of JSON: {"key": "a", "value": "1"}.
    ///
    /// Bytes that are no text are {"base64": "/w=="}. All keys of a server are of one moment.
    Dump {
        #[command(flatten)]
        of: KvArgs,
        /// The keys that begin so. Default: all.
        #[arg(long, value_name = "TEXT", default_value = "")]
        prefix: OsString,
    },
    /// Sets the keys that `dump` has printed; others stay.
    ///
    /// If it fails, the lines before the one that standard error names have been stored, and some
    /// of those behind it may have been.
    Load {
        #[command(flatten)]
        of: KvArgs,
        /// The lines; `-` is standard input.
        #[arg(value_name = "FILE", default_value = "-")]
        file: PathBuf,
    },
    /// Prints the servers that share out the keys, or changes them, while they are in use.
    ///
    /// With a change it first ends the one that was begun before, so after a failure the same
    /// command goes on. A server has the address that is written here in all programs that will
    /// call it, and the servers have to allow each other, and who calls this, to change members.
    Members {
        #[command(flatten)]
        of: KvArgs,
        /// A server that gets a share of the keys; its store is empty. Several times: several.
        #[arg(long, value_name = "ADDRESS")]
        add: Vec<String>,
        /// A server whose keys go to the others. With as many `--add`, each of these gets all keys
        /// of one that is removed.
        #[arg(long, value_name = "ADDRESS")]
        remove: Vec<String>,
        /// Ends the change that was begun, or finds servers that have moved with their files.
        #[arg(long)]
        finish: bool,
        /// First takes back the change that was begun, if no keys have changed hands yet.
        #[arg(long, conflicts_with = "finish")]
        take_back: bool,
    },
    /// Puts, gets and erases keys of its own, and says how many each second.
    Bench {
        #[command(flatten)]
        of: KvArgs,
        /// How many keys.
        #[arg(long, value_name = "COUNT", default_value_t = 10_000,
              value_parser = clap::value_parser!(u64).range(1..))]
        keys: u64,
        /// Bytes of each value, up to 1048576.
        #[arg(long, value_name = "BYTES", default_value_t = 100,
              value_parser = clap::value_parser!(u32).range(..=1 << 20))]
        value_bytes: u32,
        /// Calls that are under way at a time.
        #[arg(long, value_name = "COUNT", default_value_t = 32,
              value_parser = clap::value_parser!(u16).range(1..=4096))]
        in_flight: u16,
    },
}

/// The options of all commands of a key-value store.
#[derive(Debug, clap::Args)]
pub(crate) struct KvArgs {
    /// Address of the process, as `margo serve` prints one. Several, of one transport, separated by
    /// commas: the servers that have the keys together, all of them, in any order.
    #[arg(value_name = "ADDRESS[,ADDRESS…]")]
    pub(crate) address: String,
    /// The provider, of every server. Default: the only one there that describes itself as a
    /// key-value store.
    #[arg(long, value_name = "ID")]
    pub(crate) provider_id: Option<u16>,
    /// Seconds after which a call is given up.
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, value_parser = interval)]
    pub(crate) timeout: f64,
    #[command(flatten)]
    pub(crate) client: ClientArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct NewArgs {
    /// Name of the crate, and of the folder that is made here: lower-case letters, digits, `-` and
    /// `_`. The service and the type of its providers have it with `_`.
    pub(crate) name: String,
    /// Folder of the crate margo that it depends on. Default: the one that this program was built
    /// from, if that is still there, or else the version of this program.
    #[arg(long, value_name = "DIR")]
    pub(crate) margo: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DescribeArgs {
    /// Address of the process, as `margo serve` prints one.
    pub(crate) address: String,
    /// As JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Seconds after which the process is given up.
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, value_parser = interval)]
    pub(crate) limit: f64,
    #[command(flatten)]
    pub(crate) client: ClientArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct CallArgs {
    /// Address of the process, as `margo serve` prints one.
    pub(crate) address: String,
    /// The method, as `margo describe` prints it, such as `kv.put`.
    pub(crate) method: String,
    /// The arguments: an object with each of them by its name. Bytes are text, `{"hex": "00ff"}`,
    /// or an array of numbers. `-` is standard input.
    #[arg(long, value_name = "JSON", default_value = "{}")]
    pub(crate) json: String,
    /// The provider, where several have the method.
    #[arg(long, value_name = "ID")]
    pub(crate) provider: Option<u16>,
    /// Seconds after which the call is given up. Default: the deadline of the method, or 10.
    #[arg(long, value_name = "SECONDS", value_parser = interval)]
    pub(crate) limit: Option<f64>,
    #[command(flatten)]
    pub(crate) client: ClientArgs,
}

/// The options of commands that call services.
#[derive(Debug, clap::Args)]
pub(crate) struct ClientArgs {
    /// Document of the instance that calls (`-` is standard input): settings of its transports, its
    /// pools and execution streams. It serves nobody, whatever the document says; an address of
    /// another transport than the service's is passed over.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ShutdownArgs {
    /// Addresses of the services, as `margo serve` prints them.
    #[arg(value_name = "ADDRESS", required_unless_present = "address_file")]
    pub(crate) addresses: Vec<String>,
    /// File that holds the address of a service, as `margo serve --address-file` writes it. May be
    /// given several times.
    #[arg(long, value_name = "FILE")]
    pub(crate) address_file: Vec<PathBuf>,
    /// Waits until they are gone, too: until nobody answers at their addresses any more. That is a
    /// moment before the process ends; over ofi it is taken for granted when there is no answer for
    /// 2 seconds.
    #[arg(long)]
    pub(crate) wait: bool,
    /// Seconds after which a service is given up that has not agreed, or is not gone.
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, value_parser = interval)]
    pub(crate) limit: f64,
    #[command(flatten)]
    pub(crate) client: ClientArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct AdminArgs {
    /// Address of the service, as `margo serve` prints it.
    #[arg(value_name = "ADDRESS")]
    pub(crate) address: String,
    #[command(subcommand)]
    pub(crate) command: AdminCommand,
    /// Prints JSON.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Seconds that requests in hand get by `stop` and `drain`, and after which the service is
    /// given up.
    #[arg(long, global = true, value_name = "SECONDS", default_value_t = 10.0,
          value_parser = interval)]
    pub(crate) limit: f64,
    #[command(flatten)]
    pub(crate) client: ClientArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum AdminCommand {
    /// Lists providers, pools, execution streams, and the number of shards.
    List,
    /// Prints the configuration in effect.
    Config,
    /// Changes a setting: margo.log_level, margo.metrics.remote, margo.progress_when_needed,
    /// margo.remote_shutdown, or statistics.
    Set {
        /// The setting.
        key: String,
        /// The value, such as `true` or `debug`.
        value: String,
    },
    /// Starts a provider, and prints its name.
    Start {
        /// An entry of `margo.providers`: JSON, a file that has it, or `-` for standard input.
        provider: String,
    },
    /// Stops a provider, when the requests in hand are answered.
    Stop {
        /// Name of the provider.
        name: String,
        /// Also if others work with it; they find the next one that is started with its name and
        /// type.
        #[arg(long)]
        needed: bool,
    },
    /// Has a provider take no more requests, and waits for those in hand.
    Drain {
        /// Name of the provider.
        name: String,
    },
    /// Has a provider's requests handled in another pool.
    Move {
        /// Name of the provider.
        name: String,
        /// Name of the pool.
        pool: String,
    },
    /// Has a provider write what it holds to a new folder on its host.
    Snapshot {
        /// Name of the provider.
        name: String,
        /// The folder.
        to: PathBuf,
    },
    /// Has a provider, which is empty, take over what a snapshot has.
    Restore {
        /// Name of the provider.
        name: String,
        /// The folder, on the host of the service.
        from: PathBuf,
    },
    /// Adds a pool, and prints its name.
    AddPool {
        /// An entry of `argobots.pools`: JSON, a file that has it, or `-` for standard input.
        pool: String,
    },
    /// Removes a pool that nothing uses.
    RemovePool {
        /// Name of the pool.
        name: String,
    },
    /// Adds an execution stream, and prints its name.
    AddXstream {
        /// An entry of `argobots.xstreams`: JSON, a file that has it, or `-` for standard input.
        xstream: String,
    },
    /// Removes an execution stream.
    RemoveXstream {
        /// Name of the execution stream.
        name: String,
    },
    /// Adds a shard, and prints its number.
    AddShard,
    /// Removes a shard.
    RemoveShard {
        /// Number of the shard.
        shard: usize,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct PingArgs {
    /// Address of the service, as `margo serve` prints it.
    #[arg(value_name = "ADDRESS")]
    pub(crate) address: String,
    /// Ends after so many calls.
    #[arg(short, long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// Seconds from the beginning of a call to that of the next, 0.001 to 86400; a call that takes
    /// longer delays the next.
    #[arg(short, long, value_name = "SECONDS", default_value_t = 1.0, value_parser = ping_interval)]
    pub(crate) interval: f64,
    /// Bytes that are sent and come back, up to 65536.
    #[arg(short, long, value_name = "BYTES", default_value_t = 56,
          value_parser = clap::value_parser!(u32).range(..=64 << 10))]
    pub(crate) size: u32,
    /// Seconds after which a call without an answer is lost.
    #[arg(short = 'W', long, value_name = "SECONDS", default_value_t = 5.0,
          value_parser = interval)]
    pub(crate) limit: f64,
    #[command(flatten)]
    pub(crate) client: ClientArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TopArgs {
    /// Addresses of the services, as `margo serve` prints them; shown one below the other.
    #[arg(required = true, value_name = "ADDRESS")]
    pub(crate) addresses: Vec<String>,
    /// Seconds between two looks.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = interval)]
    pub(crate) interval: f64,
    /// Looks once; rates are averages since the service started.
    #[arg(long)]
    pub(crate) once: bool,
    /// Each look as one line of JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) client: ClientArgs,
}

fn interval(text: &str) -> Result<f64, String> {
    seconds_from(0.05, text)
}

fn ping_interval(text: &str) -> Result<f64, String> {
    seconds_from(0.001, text)
}

fn seconds_from(least: f64, text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (least..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => Err(format!("from {least} to 86400 seconds")),
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct DemoArgs {
    /// Files and folders; folders with everything in them.
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Explains a document: which xstream runs what, what could wait for long, what it costs, and
    /// the complete configuration that it comes to; or all that is wrong with it.
    ///
    /// The explanation is a comment, so what is printed is a document again. Status 0: valid; 1:
    /// valid with warnings, under --strict; 2: not valid, as is what no machine could start. What
    /// this machine lacks is a warning.
    Check(ConfigCheckArgs),
    /// Shows who runs what on this machine: the execution streams and pools of a document.
    Layout {
        /// The document; `-` is standard input.
        file: PathBuf,
        /// As a drawing in SVG, for browsers and documents.
        #[arg(long)]
        svg: bool,
    },
    /// Prints the JSON Schema of the document for editors, with the settings of the providers that
    /// `margo serve` has.
    Schema,
    /// Prints commented sample documents, all of them or one.
    Samples {
        /// Which one, for example `quickstart`.
        name: Option<String>,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum TraceCommand {
    /// Makes one file of those of several processes, for ui.perfetto.dev and chrome://tracing.
    ///
    /// Files of one host fit to the nanosecond, those of several hosts as well as the hosts' clocks
    /// do. A file whose process was killed is taken as far as it goes, with a warning; so are calls
    /// of which only one half was recorded.
    Join {
        /// The file to write; one that is there is replaced, unless a process has recorded it.
        #[arg(value_name = "OUT")]
        out: PathBuf,
        /// Files that the instances wrote: PREFIX.HOST.PID.trace.json.
        #[arg(required = true, value_name = "IN")]
        files: Vec<PathBuf>,
    },
    /// Hands the calls of several processes to a collector of OpenTelemetry, or writes them into a
    /// file, as OTLP in its JSON form.
    ///
    /// A call is a span, the request that it sends is one below it, until its handler ends. A
    /// service is called as the prefix of its file is.
    #[cfg(feature = "otlp")]
    Export {
        /// Where to: a URL such as http://localhost:4318/v1/traces, or a file, which has one
        /// request to a collector in each line.
        #[arg(value_name = "URL or FILE")]
        to: String,
        /// Files that the instances wrote: PREFIX.HOST.PID.trace.json.
        #[arg(required = true, value_name = "IN")]
        files: Vec<PathBuf>,
    },
    /// Shows a trace as a tree, with the time that each part took; without an id the longest
    /// traces of the file.
    Show {
        /// A joined file, or that of one process.
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// The id of the trace, or as much of its beginning as it takes.
        #[arg(value_name = "TRACE_ID")]
        trace_id: Option<String>,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum StreamCommand {
    /// Starts every group of a document, `PROGRAM --group NAME FILE` for each, and waits for the
    /// end of all. Each line that they print begins with the name of the group.
    ///
    /// When a group fails, the others are ended. Ctrl-C, SIGTERM and the end of the terminal end
    /// all of them; the second time at once, without waiting. Status 0: all have ended well; 1: one
    /// has failed, which standard error says; 2: wrong usage; 128 and the number of the signal that
    /// has ended it.
    Run(StreamRunArgs),
    /// Shows the stages of a program's graph, and which group of the document runs what, or all
    /// that is wrong with them. Nothing is run: it calls `PROGRAM --plan FILE`.
    Plan(StreamPlanArgs),
    /// Becomes another program, which ends with the process that has asked for it.
    #[command(hide = true)]
    Exec {
        #[arg(long)]
        parent: i32,
        #[arg(last = true, required = true)]
        words: Vec<String>,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct StreamRunArgs {
    #[command(flatten)]
    pub(crate) graph: StreamGraphArgs,
    /// Words before the command of groups for which the document has no launcher, such as
    /// `srun -n1 -w {host}` or `ssh {host}`.
    #[arg(long, value_name = "WORDS")]
    pub(crate) launcher: Option<String>,
    /// Shows the figures of all edges again and again, also where standard error is no terminal.
    #[arg(long)]
    pub(crate) table: bool,
    /// Seconds between two looks at the figures.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = interval)]
    pub(crate) interval: f64,
}

#[derive(Debug, clap::Args)]
pub(crate) struct StreamPlanArgs {
    #[command(flatten)]
    pub(crate) graph: StreamGraphArgs,
    /// File for a drawing of the same.
    #[arg(long, value_name = "OUT")]
    pub(crate) svg: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct StreamGraphArgs {
    /// The document, also one of FastFlow's.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// The program and its own arguments, in place of the document's `program`.
    #[arg(last = true, value_name = "PROGRAM")]
    pub(crate) program: Vec<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ConfigCheckArgs {
    #[command(flatten)]
    pub(crate) check: CheckArgs,
    /// Types of providers that the program has for which the document is, with commas in between.
    /// Types that nobody names are notes, or warnings where one of `margo serve`'s own seems to be
    /// meant.
    #[arg(long, value_name = "TYPES", value_delimiter = ',')]
    pub(crate) types: Vec<String>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn what_the_readme_shows_is_accepted() {
        for line in [
            "demo README.md src",
            "serve FILE",
            "serve - --address na+tcp://127.0.0.1:0 --address-file F",
            "config check -",
            "config check FILE --json --names --strict",
            "config check FILE --strict --types yokan,warabi",
            "config layout FILE",
            "config layout - --svg",
            "config schema",
            "config samples",
            "config samples quickstart",
            "info",
            "info FILE",
            "info na+tcp://127.0.0.1:0",
            "info --json",
            "info na+tcp://127.0.0.1:0 --config FILE",
            "trace join OUT IN",
            "trace join OUT IN IN",
            "trace show FILE",
            "trace show FILE 4bf92f35",
            "ping ADDRESS",
            "ping ADDRESS -c 3 -i 0.001 -s 0 -W 2",
            "ping ADDRESS --count 3 --interval 2 --size 4096 --limit 1",
            "ping ADDRESS --config FILE",
            "top ADDRESS --config -",
            "shutdown ADDRESS --config FILE",
            "stream run FILE",
            "stream run FILE --table --interval 0.5 --launcher ssh -- ./program --own FILE",
            "stream plan FILE --svg OUT -- ./program",
            "completions zsh",
            "man DIR",
            "top na+tcp://127.0.0.1:7000",
            "top ADDRESS --interval 0.5 --json",
            "top ADDRESS --once",
            "top ADDRESS ADDRESS",
            "shutdown ADDRESS",
            "shutdown ADDRESS ADDRESS --wait --limit 60",
            "shutdown --address-file F --address-file F",
            "shutdown ADDRESS --address-file F",
            "describe ADDRESS",
            "describe ADDRESS --json --limit 60 --config FILE",
            "new kv --margo DIR",
            "call ADDRESS kv.get --json {\"key\":\"a\"}",
            "call ADDRESS kv.get --json - --provider 3 --limit 60 --config FILE",
        ] {
            Args::try_parse_from(["margo"].into_iter().chain(line.split(' '))).unwrap();
        }
    }

    #[test]
    fn wrong_usage_is_refused() {
        for line in [
            "",
            "demo",
            "serve",
            "config",
            "config check",
            "config layout",
            "info x y",
            "serve a b",
            "trace join OUT",
            "completions",
            "completions cmd.exe",
            "man",
            "ping",
            "ping a b",
            "ping a -c 0",
            "ping a -i 0",
            "ping a -s 65537",
            "ping a -W 0",
            "top",
            "top a --interval 0",
            "stream",
            "stream run",
            "stream run FILE ./program",
            "stream plan --svg OUT",
            "shutdown",
            "shutdown --wait",
            "describe",
            "call ADDRESS",
            "call ADDRESS kv.get --provider 70000",
            "shutdown a --limit 0",
            "shutdown --address-file",
        ] {
            let words = line.split(' ').filter(|word| !word.is_empty());
            let error = Args::try_parse_from(["margo"].into_iter().chain(words)).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{line}");
        }
    }
}
