//! `margo new`: writes a crate with a service, from the files in `templates/`.

use std::fs;
use std::io;
use std::path::Path;

use margo::daemon::Failure;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use crate::args::NewArgs;
use crate::support::output;

/// The files of the crate, by their names in it. Names in names are replaced, too.
const FILES: [(&str, &str); 6] = [
    ("Cargo.toml", include_str!("../templates/Cargo.toml.in")),
    ("README.md", include_str!("../templates/README.md.in")),
    ("template-name.json", include_str!("../templates/template-name.json")),
    ("src/lib.rs", include_str!("../templates/src/lib.rs")),
    ("src/main.rs", include_str!("../templates/src/main.rs")),
    ("tests/service.rs", include_str!("../templates/tests/service.rs")),
];

/// Names of crates that mean something else in Rust, to cargo, or in the files above.
#[rustfmt::skip]
const TAKEN: &[&str] = &[
    "abstract", "alloc", "as", "async", "await", "become", "box", "break", "bytes", "component",
    "config", "const", "continue", "core", "crate", "deserialize", "do", "drop", "dyn", "else",
    "enum", "err", "error", "errors", "extern", "false", "final", "fn", "for", "gen", "if", "impl",
    "in", "instance", "let", "loop", "macro", "margo", "match", "mod", "move", "mut", "mutex",
    "none", "ok", "option", "override", "priv", "proc_macro", "pub", "ref", "result", "return",
    "self", "send", "serde", "serde_json", "serialize", "settings", "some", "static", "std",
    "string", "struct", "super", "sync", "test", "thiserror", "trait", "true", "try", "type",
    "typeof", "ult", "union", "unsafe", "unsized", "use", "value", "vec", "virtual", "where",
    "while", "yield",
];

/// `margo new`.
pub(crate) fn run(args: &NewArgs) -> Result<(), Failure> {
    let name = Name::new(&args.name).map_err(|why| {
        Failure::Usage(format!("`{}` cannot be the name of the crate: {why}", args.name))
    })?;
    let margo = dependency(args.margo.as_deref())?;
    let target = Path::new(&args.name);
    let failed = |error: io::Error| Failure::new(format_args!("cannot write {}", args.name), error);
    if target.symlink_metadata().is_ok() {
        return Err(failed(io::ErrorKind::AlreadyExists.into()));
    }
    // Beside it, and renamed when all is there: nobody finds half a crate. Removed if it fails.
    let scratch = tempfile::Builder::new().prefix(".margo-new-").tempdir_in(".").map_err(failed)?;
    let whole = scratch.path().join(&args.name);
    for (file, template) in FILES {
        let path = whole.join(name.filled(file));
        let folder = path.parent().unwrap_or(&whole);
        let text = name.filled(template).replace("TEMPLATE_MARGO", &margo);
        fs::create_dir_all(folder).and_then(|()| fs::write(&path, text)).map_err(failed)?;
    }
    renameat_with(CWD, &whole, CWD, target, RenameFlags::NOREPLACE)
        // Some file systems do not know the flag.
        .or_else(|errno| match errno {
            Errno::INVAL => rustix::fs::rename(&whole, target),
            errno => Err(errno),
        })
        .map_err(|errno| failed(errno.into()))?;
    output::line(format_args!("{0}/ is there; `cd {0} && cargo test` tries it", args.name))
}

/// The dependency on margo, as it stands in `Cargo.toml`: on the folder that was given, or on that
/// which this program has been built from, or else on the version.
fn dependency(given: Option<&Path>) -> Result<String, Failure> {
    let is_margo = |folder: &Path| {
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap_or_default();
        manifest.lines().any(|line| line == "name = \"margo\"")
    };
    let built_from = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    let folder = match given {
        Some(folder) if is_margo(folder) => Some(folder),
        Some(folder) => {
            let folder = folder.display();
            return Err(Failure::Usage(format!("{folder} is not the folder of the crate margo")));
        }
        None => built_from.filter(|folder| is_margo(folder)),
    };
    let Some(folder) = folder else {
        return Ok(format!("{:?}", env!("CARGO_PKG_VERSION")));
    };
    let path = folder.canonicalize().map_err(|error| Failure::new(folder.display(), error))?;
    let path = path.to_str().ok_or_else(|| {
        Failure::Usage(format!("{} is not UTF-8, which Cargo.toml has to be", path.display()))
    })?;
    // Of JSON's texts all are TOML's as well.
    Ok(format!("{{ path = {} }}", serde_json::Value::from(path)))
}

/// The name of the new crate in each of its forms.
struct Name {
    /// `my-store`: as it was given.
    of_crate: String,
    /// `my_store`: of the library, of the service, of the type of providers.
    snake: String,
    /// `MyStore`: of the trait.
    camel: String,
}

impl Name {
    fn new(name: &str) -> Result<Self, &'static str> {
        let is_allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_".contains(c);
        if !name.starts_with(|c: char| c.is_ascii_lowercase()) || !name.chars().all(is_allowed) {
            return Err("it has a lower-case letter, then such letters, digits, `-` and `_`");
        }
        if name.len() > 64 {
            return Err("it has at most 64 characters");
        }
        let snake = name.replace('-', "_");
        if snake.ends_with('_') || snake.contains("__") {
            return Err("each `-` or `_` stands between two others");
        }
        if TAKEN.contains(&&*snake) {
            return Err("it means something else in Rust, to cargo, or in the code of the crate");
        }
        let words = snake.split('_').map(|word| word[..1].to_uppercase() + &word[1..]);
        Ok(Self { of_crate: name.to_owned(), camel: words.collect(), snake })
    }

    fn filled(&self, template: &str) -> String {
        template
            .replace("template-name", &self.of_crate)
            .replace("template_name", &self.snake)
            .replace("TemplateName", &self.camel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_three_forms() {
        let name = Name::new("my-kv_store2").map_err(str::to_owned).unwrap();
        let filled = name.filled("template-name template_name TemplateNameClient");
        assert_eq!(filled, "my-kv_store2 my_kv_store2 MyKvStore2Client");
    }

    #[test]
    fn what_is_no_name_of_a_crate_is_refused() {
        let long = "x".repeat(65);
        for name in ["", "Kv", "2kv", "_kv", "kv-", "k--v", "k-_v", "../kv", "k v", "kv\n", "ké"]
            .into_iter()
            .chain(["-kv", "test", "self", "serde-json", "margo", "bytes", &long])
        {
            assert!(Name::new(name).is_err(), "{name:?}");
        }
    }
}
