//! The files of `contrib/`, tried as far as a machine can that has no systemd, Docker, Kubernetes,
//! Slurm, Spack, Prometheus and Grafana.

mod containers;
mod dashboards;
mod slurm;
mod spack;
mod systemd;

use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// The text of a file of the repository.
fn text(path: &str) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The path of a program, if there is one of that name.
fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// Writes an executable.
fn script(path: &Path, text: &str) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// Runs a program to its end; its output, of both streams.
fn output(command: &mut Command) -> (bool, String) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let both = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&both).into_owned())
}

/// The oldest compiler that builds the workspace, as `Cargo.toml` says.
fn rust_version() -> String {
    let manifest = text("Cargo.toml");
    let line = manifest.lines().find_map(|line| line.strip_prefix("rust-version = "));
    line.unwrap().trim_matches('"').to_owned()
}
