//! Documents that are named on the command line.

use std::fmt::Display;
use std::io::Read;
use std::path::Path;

use crate::daemon::failure::Failure;

/// Reads a document; `-` is standard input.
pub fn read(file: &Path) -> Result<String, Failure> {
    let text = if file == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().lock().read_to_string(&mut text).map(|_| text)
    } else {
        std::fs::read_to_string(file)
    };
    text.map_err(|error| Failure::Usage(format!("{}: {error}", called(file))))
}

/// The name of the document in messages.
pub fn called(file: &Path) -> String {
    if file == Path::new("-") { "standard input".to_owned() } else { file.display().to_string() }
}

/// The failure of a command whose document is not valid.
pub fn invalid(file: &Path, why: impl Display) -> Failure {
    Failure::Usage(format!("{} is not valid:\n{why}", called(file)))
}
