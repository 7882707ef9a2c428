//! The `margo` command.
//!
//! `args.rs` is what can be typed; each command has a module of that name; `support` is for all of
//! them. All of them end with a
//! [`Failure`] or without one, which [`main`] turns into an exit status:
//!
//! | status | meaning |
//! |---|---|
//! | 0 | done |
//! | 1 | it did not work; standard error says why |
//! | 2 | wrong usage: arguments, or a configuration that is not valid |
//! | 130 | interrupted by Ctrl-C or SIGTERM |
//! | 129, 143 | `margo stream run`: ended by SIGHUP, SIGTERM |
//! | 141 | standard output was closed before the end, as by `| head` |
#![forbid(unsafe_code)]

mod args;
mod config;
mod control;
mod demo;
mod info;
mod kv;
mod new;
mod ping;
mod security;
mod serve;
mod services;
mod stream;
mod support;
mod svg;
mod top;
mod trace;
mod usage;

use std::process::ExitCode;

use clap::Parser;

use margo::daemon::Failure;

use self::args::{Args, Command, ConfigCommand, StreamCommand, TraceCommand};

fn main() -> ExitCode {
    let args = Args::parse();
    margo::daemon::support::run(|| run(args.command))
}

fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Demo(args) => demo::run(&args.paths),
        Command::Info { file, json, config } => info::run(file.as_deref(), json, config.as_deref()),
        Command::Answer { address, parent } => info::second::answer(&address, parent),
        Command::Config(ConfigCommand::Check(args)) => config::check(&args),
        Command::Config(ConfigCommand::Layout { file, svg }) => config::layout(&file, svg),
        Command::Config(ConfigCommand::Schema) => config::schema(),
        Command::Config(ConfigCommand::Samples { name }) => config::samples(name.as_deref()),
        Command::Trace(TraceCommand::Join { out, files }) => trace::join(&out, &files),
        #[cfg(feature = "otlp")]
        Command::Trace(TraceCommand::Export { to, files }) => trace::export(&to, &files),
        Command::Trace(TraceCommand::Show { file, trace_id }) => {
            trace::show(&file, trace_id.as_deref())
        }
        Command::New(args) => new::run(&args),
        Command::Serve(args) => serve::daemon().serve(&args),
        Command::Admin(args) => control::admin(&args),
        Command::Security(command) => security::run(&command),
        Command::Kv(command) => kv::run(&command),
        Command::Completions { shell } => usage::completions(shell),
        Command::Man { dir } => usage::man(&dir),
        Command::Ping(args) => ping::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Stream(StreamCommand::Run(args)) => stream::run(&args),
        Command::Stream(StreamCommand::Plan(args)) => stream::plan(&args),
        Command::Stream(StreamCommand::Exec { parent, words }) => stream::exec(parent, &words),
        Command::Shutdown(args) => control::shutdown(&args),
        Command::Describe(args) => services::describe(&args),
        Command::Call(args) => services::call(&args),
    }
}
