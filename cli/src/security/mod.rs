//! `margo security`: the files by which instances know each other over `na+tcp`.

mod authority;
pub(crate) mod secret;

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use margo::daemon::Failure;
use na_tls::{Shown, ShownCertificate};

use crate::args::SecurityCommand;
use crate::support::output;

/// The mode of files that hold a secret.
const SECRET: u32 = 0o600;

/// The mode of files that everybody may read.
const PUBLIC: u32 = 0o644;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// `margo security …`.
pub(crate) fn run(command: &SecurityCommand) -> Result<(), Failure> {
    match command {
        SecurityCommand::NewSecret { file, add, promote, retire } => {
            secret::write(file, secret::Step::of(*add, *promote, *retire))
        }
        SecurityCommand::NewCa { dir, days } => authority::make(dir, *days),
        SecurityCommand::Issue { name, ca, addresses, days } => {
            authority::issue(name, ca, addresses, *days)
        }
        SecurityCommand::Show { files } => files.iter().try_for_each(|file| show(file)),
    }
}

fn failed(file: &Path) -> impl Fn(std::io::Error) -> Failure {
    move |error| Failure::new(format_args!("cannot write {}", file.display()), error)
}

/// Writes a file that is not there.
fn write_new(file: &Path, mode: u32, text: &str) -> Result<(), Failure> {
    let mut options = std::fs::OpenOptions::new();
    let opened = options.write(true).create_new(true).mode(mode).open(file);
    opened.and_then(|mut opened| opened.write_all(text.as_bytes())).map_err(failed(file))
}

/// Replaces a file at once: who reads it meanwhile finds the old contents or the new ones.
fn replace(file: &Path, mode: u32, text: &str) -> Result<(), Failure> {
    let mut beside = file.as_os_str().to_owned();
    beside.push(".new");
    let beside = PathBuf::from(beside);
    write_new(&beside, mode, text)?;
    std::fs::rename(&beside, file).map_err(failed(file))
}

fn show(file: &Path) -> Result<(), Failure> {
    let shown = na_tls::show(file).map_err(Failure::Failed)?;
    let name = file.display();
    match shown {
        Shown::Key => output::line(format_args!("{name}: a private key")),
        Shown::Secrets(1) => output::line(format_args!("{name}: a secret of a cluster")),
        Shown::Secrets(count) => output::line(format_args!(
            "{name}: {count} secrets of a cluster, of which the first one is shown to others"
        )),
        Shown::Certificates(all) => {
            all.iter().try_for_each(|one| output::line(format_args!("{name}: {}", in_words(one))))
        }
    }
}

fn in_words(certificate: &ShownCertificate) -> String {
    let names = match &certificate.names[..] {
        [] => "a certificate without names".to_owned(),
        names => format!("the certificate of {}", names.join(", ")),
    };
    let Some(until) = certificate.not_after else { return format!("{names}, not readable") };
    match until.duration_since(SystemTime::now()) {
        Ok(left) => {
            let days = left.as_secs() / DAY.as_secs();
            format!("{names}, good for {}", output::count(days, "more day"))
        }
        Err(_) => format!("{names}, expired"),
    }
}
