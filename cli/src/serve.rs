//! `margo serve`: runs the providers of a configuration.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use margo::{Component, Instance};
use margo_config::Config;
use margo_provider_blob::BlobComponent;
use margo_provider_echo::EchoComponent;
use rustix::process::{Pid, Signal};

use crate::args::ServeArgs;
use crate::failure::Failure;
use crate::signals::{Asked, Caught};
use crate::{config, output, pool_stats};

/// What can stand in `type` of a provider.
const COMPONENTS: [&dyn Component; 2] = [&BlobComponent, &EchoComponent];

/// How the line begins that says that the service is up.
pub(crate) const LISTENING_ON: &str = "listening on ";

/// How the line begins that says where Prometheus finds it, if it does.
const METRICS_AT: &str = "metrics at ";

pub(crate) fn run(args: &ServeArgs) -> Result<(), Failure> {
    if let Some(parent) = args.die_with {
        die_with(parent)?;
    }
    let (signals, asked) = (Caught::new()?, Asked::new()?);
    let config = read_config(args)?;
    let instance = Instance::from_config(&config)
        .map_err(|error| Failure::new(config::called(&args.file), error))?;
    pool_stats::register(&instance)
        .map_err(|error| Failure::new("cannot serve pool statistics", error))?;
    let providers = instance
        .start_providers(&COMPONENTS)
        .map_err(|error| Failure::new(config::called(&args.file), error))?;

    let address = instance.self_addr().uri().to_owned();
    let address_file = args
        .address_file
        .clone()
        .or_else(|| config.margo.address_file.as_ref().map(PathBuf::from))
        .map(|path| AddressFile::write(path, &address))
        .transpose()?;
    signals.handle(
        {
            let instance = instance.clone();
            move || instance.finalize()
        },
        {
            let file = address_file.as_ref().map(|file| (file.path.clone(), address.clone()));
            move || {
                if let Some((path, address)) = file {
                    drop(AddressFile { path, address });
                }
            }
        },
    )?;
    asked.handle({
        let instance = instance.clone();
        move || output::plain_note(instance.state_dump_with_stacks())
    })?;
    // A service does its work whether or not anybody reads its output.
    if let Err(failure) = output::line(format_args!("{LISTENING_ON}{address}")) {
        tracing::warn!("cannot tell the address {address}: {failure}");
    }

    if let Some(metrics) = instance.metrics_addr() {
        let _ = output::line(format_args!("{METRICS_AT}http://{metrics}/metrics"));
    }

    let ended = instance.wait_for_finalize();
    drop(address_file);
    drop(providers);
    ended.map_err(|error| Failure::Failed(error.to_string()))
}

fn read_config(args: &ServeArgs) -> Result<Config, Failure> {
    let invalid = |errors: margo_config::Errors| {
        Failure::Usage(format!("{} is not valid:\n{errors}", config::called(&args.file)))
    };
    let mut config = Config::from_json(&config::read(&args.file)?).map_err(invalid)?;
    if let Some(address) = &args.address {
        config.margo.address.clone_from(address);
    }
    if !config.margo.listen {
        let file = config::called(&args.file);
        return Err(Failure::Usage(format!(
            "{file}: `margo.listen` is false, so nobody could call the providers"
        )));
    }
    Ok(config)
}

/// Makes this process end when its parent does, however that ends.
pub(crate) fn die_with(parent: i32) -> Result<(), Failure> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|errno| Failure::new("cannot follow the parent process", errno))?;
    // It started us as `/proc/self/exe`, which is no name to show in a process list.
    let _ = rustix::thread::set_name(c"margo");
    // It may have ended before that.
    if rustix::process::getppid().map(Pid::as_raw_pid) == Some(parent) {
        Ok(())
    } else {
        Err(Failure::Failed(format!("the parent process {parent} is gone")))
    }
}

/// A file that holds the address while the service runs.
#[derive(Debug)]
struct AddressFile {
    path: PathBuf,
    address: String,
}

impl AddressFile {
    /// Writes it in one step, so that nobody reads half an address.
    fn write(path: PathBuf, address: &str) -> Result<Self, Failure> {
        let folder = match path.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        let written = (|| {
            let mut file = tempfile::Builder::new()
                .prefix(".margo-address-")
                .permissions(std::fs::Permissions::from_mode(0o644))
                .tempfile_in(folder)?;
            writeln!(file, "{address}")?;
            file.persist(&path).map_err(|error| error.error)
        })();
        match written {
            Ok(_) => Ok(Self { path, address: address.to_owned() }),
            Err(error) => {
                let what = format!("cannot write the address file {}", path.display());
                Err(Failure::new(what, error))
            }
        }
    }
}

impl Drop for AddressFile {
    /// Removes it, unless another service has put its own address there.
    fn drop(&mut self) {
        if std::fs::read_to_string(&self.path).is_ok_and(|text| text.trim_end() == self.address) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_file_is_removed_by_its_owner_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("address");
        let first = AddressFile::write(path.clone(), "na+sm://1").unwrap();
        let second = AddressFile::write(path.clone(), "na+sm://2").unwrap();
        drop(first);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "na+sm://2\n");
        drop(second);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn an_address_file_that_cannot_be_written_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("missing/address");
        let error = AddressFile::write(path.clone(), "na+sm://1").unwrap_err().to_string();
        assert!(error.contains(path.to_str().unwrap()), "{error}");
    }
}
