//! The daemon: `template-name-daemon serve template-name.json`.

fn main() -> std::process::ExitCode {
    margo::daemon::main([template_name::component()])
}
