//! The words with which a group is started.

use std::collections::BTreeMap;
use std::path::Path;

use margo::daemon::Failure;
use margo_stream::graph::{GraphDocument, Launcher};

/// A command, and the variables of its environment.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct GroupCommand {
    pub(super) words: Vec<String>,
    /// Variables that the child gets; empty where the words set them, by `env`.
    pub(super) environment: BTreeMap<String, String>,
    /// Something stands between us and the program: it may not be our child.
    pub(super) is_behind: bool,
}

/// The program that is asked for, without that of single groups.
pub(super) fn program<'a>(
    document: &'a GraphDocument,
    given: &'a [String],
) -> Option<&'a [String]> {
    [given, &document.program].into_iter().find(|program| !program.is_empty())
}

/// The failure of a command that names no program.
pub(super) fn no_program(file: &Path) -> Failure {
    let file = file.display();
    Failure::Usage(format!(
        "no program is named: {file} has no \"program\": [\"./program\"], and none follows `--`"
    ))
}

/// A launcher that was given as words.
pub(super) fn launcher(words: &str) -> Launcher {
    let before = words.split_whitespace().map(str::to_owned).collect();
    Launcher { before, ..Launcher::default() }
}

/// The command of a group of the document, without a launcher of its own by `launcher`, with `more`
/// variables.
pub(super) fn command(
    document: &GraphDocument,
    (name, file): (&str, &Path),
    (given, launcher): (&[String], Option<&Launcher>),
    more: &BTreeMap<String, String>,
) -> Result<GroupCommand, Failure> {
    let group = &document.groups[name];
    let own = Some(&group.program[..]).filter(|program| !program.is_empty());
    let program = own.or(program(document, given)).ok_or_else(|| no_program(file))?;
    let mut words = program.to_vec();
    words.extend(["--group", name, &file.display().to_string()].map(str::to_owned));

    let launcher = [group.launcher.as_ref(), launcher, document.launcher.as_ref()];
    let launcher = launcher.into_iter().flatten().next().cloned().unwrap_or_default();
    let mut environment = launcher.environment;
    environment.extend(more.clone());
    let here = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let host = group.host.as_deref().unwrap_or(&here);
    if launcher.before.is_empty() {
        if ![&here, "localhost", "127.0.0.1", "::1"].contains(&host) {
            return Err(Failure::Usage(format!(
                "group `{name}` is to run on {host}, and nothing says how it is started there; add \
                 \"launcher\": {{ \"before\": [\"ssh\", \"{{host}}\"] }} to the group or the \
                 document, or --launcher \"ssh {{host}}\""
            )));
        }
        return Ok(GroupCommand { words, environment, is_behind: false });
    }
    // Not every launcher hands its own environment on.
    let variables = environment.iter().map(|(name, value)| format!("{name}={value}"));
    words.splice(..0, ["env".to_owned()].into_iter().chain(variables));
    let fill = |word: &String| word.replace("{host}", host).replace("{group}", name);
    let mut all: Vec<String> = launcher.before.iter().map(fill).collect();
    let is_ssh = launcher.before[0].rsplit('/').next() == Some("ssh");
    if launcher.shell.unwrap_or(is_ssh) {
        let folder = std::env::current_dir()
            .map_err(|error| Failure::new("cannot find the current folder", error))?;
        let folder = quoted(&folder.display().to_string());
        let words: Vec<_> = words.iter().map(|word| quoted(word)).collect();
        all.push(format!("cd {folder} && exec {}", words.join(" ")));
    } else {
        all.extend(words);
    }
    Ok(GroupCommand { words: all, environment: BTreeMap::new(), is_behind: true })
}

/// A word for a shell.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use margo_stream::graph::GroupNews;

    fn words(text: &str, name: &str, given: &[&str], more: Option<&str>) -> Result<String, String> {
        let document = GraphDocument::from_json(text).unwrap();
        let given: Vec<_> = given.iter().map(|&word| word.to_owned()).collect();
        let more = more.map(launcher);
        let (file, given) = (Path::new("f.json"), (&given[..], more.as_ref()));
        let more = BTreeMap::from([(GroupNews::VARIABLE.to_owned(), "500".to_owned())]);
        let made = command(&document, (name, file), given, &more);
        made.map(|made| made.words.join("|")).map_err(|error| error.to_string())
    }

    #[test]
    fn a_group_is_started_as_the_document_says() {
        let text = r#"{ "program": ["./p", "x y"], "groups": {
            "A": {}, "B": { "program": ["./q"] }, "C": { "host": "node7" },
            "D": { "host": "node7", "launcher": { "before": ["srun", "-w", "{host}"],
                   "environment": { "K": "V" } } },
            "E": { "host": "node'7", "launcher": { "before": ["ssh", "{host}"] } } } }"#;
        let words = |name, given: &[&str], more| words(text, name, given, more);
        assert_eq!(words("A", &[], None).unwrap(), "./p|x y|--group|A|f.json");
        assert_eq!(words("A", &["r", "1"], None).unwrap(), "r|1|--group|A|f.json");
        assert_eq!(words("B", &["r"], None).unwrap(), "./q|--group|B|f.json");
        let refused = words("C", &[], None).unwrap_err();
        assert!(refused.contains("`C` is to run on node7") && refused.contains("ssh"), "{refused}");
        let tells = "env|MARGO_STREAM_LAUNCHER=500";
        let more = Some("mpirun -host {host} --tag {group}");
        let all = format!("mpirun|-host|node7|--tag|C|{tells}|./p|x y|--group|C|f.json");
        assert_eq!(words("C", &[], more).unwrap(), all);
        let all = "srun|-w|node7|env|K=V|MARGO_STREAM_LAUNCHER=500|./p|x y|--group|D|f.json";
        assert_eq!(words("D", &[], more).unwrap(), all);
        let shell = words("E", &["it's"], None).unwrap();
        assert!(shell.starts_with("ssh|node'7|cd /"), "{shell}");
        let tells = tells.replace('|', " ");
        let end = format!(r"cli && exec {tells} 'it'\''s' --group E f.json");
        assert!(shell.ends_with(&end), "{shell}");
    }

    #[test]
    fn without_a_program_it_is_said_where_to_name_one() {
        let none = words(r#"{ "groups": { "A": {} } }"#, "A", &[], None).unwrap_err();
        assert!(none.contains("f.json has no \"program\""), "{none}");
    }
}
