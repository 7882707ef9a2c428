//! Entry points: text to [`Config`], and the whole check at once.

use serde::Deserialize;
use serde::de::{self, DeserializeOwned, Visitor};

use crate::document::config::{Argobots, Config, Pool, Scheduler, Xstream};
use crate::document::margo::{MargoOptions, Provider};
use crate::document::mercury::Mercury;
use crate::read::clean::is_blank;
use crate::read::decode::{decode, decode_value};
use crate::read::lacks::Lacks;
use crate::read::tree::Tree;
use crate::report::error::{Error, Errors, REPORTED_MAX, Warning};
use crate::resolve::ConfigFlags;
use crate::resolve::Resolved;

impl Config {
    /// Reads a document, strictly except for comments, trailing commas and a byte order mark.
    ///
    /// The result is known to resolve (environment variables apart). An empty string is the
    /// default configuration, as in C Margo, and so is one of blanks and comments.
    ///
    /// # Errors
    ///
    /// A syntax error; or all wrong types, unknown and repeated keys, and all semantic errors
    /// ([`Config::resolve`]) that would be left without these. Each with its path, line and column.
    ///
    /// Counterpart: the `json_config` of `margo_init_ext` (Margo).
    pub fn from_json(text: &str) -> Result<Self, Errors> {
        let mut read = Read::of(text)?;
        let found = read.config.as_ref().map(|config| config.look(&|_| None, &read.lacks).errors);
        read.end(found.unwrap_or_default())
    }

    /// Reads a document; `check` says what is wrong with it, without positions.
    pub(crate) fn read_checked(
        text: &str,
        check: impl FnOnce(&Self) -> Result<(), Errors>,
    ) -> Result<Self, Errors> {
        let mut read = Read::of(text)?;
        let found = read.config.as_ref().map(check).and_then(Result::err);
        read.end(found.into_iter().flatten().collect())
    }

    /// Reads and resolves a document; returns the complete configuration that would be in effect
    /// and what looks suspicious about it.
    ///
    /// `env` looks up an environment variable, [`process_env`] outside of tests.
    ///
    /// # Errors
    ///
    /// As [`Config::from_json`] and [`Config::resolve`].
    pub fn check(
        text: &str,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<(Self, Vec<Warning>), Errors> {
        Self::check_as(text, env, ConfigFlags::default())
    }

    /// As [`Config::check`], printed as the flags say.
    ///
    /// # Errors
    ///
    /// As [`Config::check`].
    pub fn check_as(
        text: &str,
        env: &dyn Fn(&str) -> Option<String>,
        flags: ConfigFlags,
    ) -> Result<(Self, Vec<Warning>), Errors> {
        Self::check_with(text, env, flags, |_| Ok(()))
    }

    /// As [`Config::check_as`], and refuses what `more` refuses: what a layer above knows to be
    /// wrong, by path. This adds the positions.
    ///
    /// `more` also sees a document in which errors were found, so that all are told at once:
    /// without what is wrong in it, and with the type `""` for a provider that is no whole one.
    ///
    /// # Errors
    ///
    /// As [`Config::check`], and those of `more`.
    pub fn check_with(
        text: &str,
        env: &dyn Fn(&str) -> Option<String>,
        flags: ConfigFlags,
        more: impl FnOnce(&Resolved) -> Result<(), Errors>,
    ) -> Result<(Self, Vec<Warning>), Errors> {
        let mut read = Read::of(text)?;
        let looked = read.config.as_ref().map(|config| config.look(env, &read.lacks));
        let (resolved, mut found) =
            looked.map_or((None, Vec::new()), |looked| (looked.resolved, looked.errors));
        found.extend(resolved.as_ref().map(more).and_then(Result::err).into_iter().flatten());
        read.end(found)?;
        // What has no error resolves.
        let Some(resolved) = resolved else { return Err(Error::new("", "no document").into()) };
        let effective = resolved.effective_as(flags);
        let warnings = resolved.warnings.into_iter();
        let warnings = warnings.map(|warning| match read.place(&warning.path) {
            Some(position) => warning.at(position),
            None => warning,
        });
        Ok((effective, warnings.collect()))
    }

    /// The configuration as indented JSON. Parsing it gives an equal configuration.
    #[expect(clippy::missing_panics_doc, reason = "all keys are strings, all numbers finite")]
    pub fn to_json_pretty(&self) -> String {
        serde_json::to_string_pretty(self).expect("plain structs serialise")
    }

    /// The configuration as JSON in one line.
    #[expect(clippy::missing_panics_doc, reason = "all keys are strings, all numbers finite")]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("plain structs serialise")
    }
}

impl Pool {
    /// Reads the description of one pool, as it stands in `argobots.pools`. An empty string, or one
    /// of blanks and comments, is the default pool.
    ///
    /// # Errors
    ///
    /// Syntax errors, wrong types, unknown and repeated keys, with positions in `text`.
    ///
    /// Counterpart: the argument of `margo_add_pool_from_json` (Margo).
    pub fn from_json(text: &str) -> Result<Self, Errors> {
        if is_blank(text) { Ok(Self::default()) } else { read_one(text) }
    }
}

impl Xstream {
    /// Reads the description of one xstream, as it stands in `argobots.xstreams`.
    ///
    /// # Errors
    ///
    /// Syntax errors, wrong types, unknown and repeated keys, with positions in `text`.
    ///
    /// Counterpart: the argument of `margo_add_xstream_from_json` (Margo).
    pub fn from_json(text: &str) -> Result<Self, Errors> {
        read_one(text)
    }
}

/// Looks up a variable of this process; one that is not Unicode counts as absent.
pub fn process_env(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Reads the `config` object of a provider, as strictly as the rest of the document: `null` counts
/// as "not given", and unknown keys are errors. For components, which get it as JSON.
///
/// ```
/// use margo_config::provider_config;
///
/// #[derive(serde::Deserialize)]
/// #[serde(default)]
/// struct Settings { depth: u32, name: String }
/// # impl Default for Settings {
/// #     fn default() -> Self { Self { depth: 1, name: String::new() } }
/// # }
///
/// let given = serde_json::json!({ "depth": -1, "nmae": "x" });
/// let errors = provider_config::<Settings>(&given).err().unwrap();
/// let paths: Vec<_> = errors.iter().map(|error| error.path.as_str()).collect();
/// assert_eq!(paths, ["config.depth", "config.nmae"]);
/// ```
///
/// # Errors
///
/// All wrong types, values out of range and unknown keys, with paths that begin with `config`, as a
/// component returns them: the caller that has the document adds the positions.
pub fn provider_config<T: DeserializeOwned>(value: &serde_json::Value) -> Result<T, Errors> {
    decode_value(value, "config").map_err(Errors::new)
}

/// Reads a document of another kind, as strictly as a configuration: comments and trailing commas
/// are allowed, `null` counts as "not given", and all that is wrong is told at once. For what is
/// built on margo.
///
/// ```
/// #[derive(serde::Deserialize, Default)]
/// #[serde(default)]
/// struct Job { ranks: u32 }
///
/// let job: Job = margo_config::document_from_json("{ \"ranks\": 4, /* all */ }")?;
/// assert_eq!(job.ranks, 4);
/// let errors = margo_config::document_from_json::<Job>("{ \"rank\": 4 }").err().unwrap();
/// assert!(errors.to_string().contains("did you mean \"ranks\"?"));
/// # Ok::<(), margo_config::Errors>(())
/// ```
///
/// # Errors
///
/// Syntax errors, wrong types, unknown and repeated keys, with positions in `text`.
pub fn document_from_json<T: DeserializeOwned>(text: &str) -> Result<T, Errors> {
    read_one(text)
}

/// A document as it was read.
struct Read<'t> {
    /// The configuration without its wrong values. `None`: there is no such configuration.
    config: Option<Config>,
    tree: Option<Tree<'t>>,
    errors: Vec<Error>,
    lacks: Lacks,
}

impl<'t> Read<'t> {
    fn of(text: &'t str) -> Result<Self, Errors> {
        if is_blank(text) {
            let (config, errors) = (Some(Config::default()), Vec::new());
            return Ok(Self { config, tree: None, errors, lacks: Lacks::default() });
        }
        let tree = Tree::parse(text).map_err(|error| Errors::new(vec![error]))?;
        let (config, mut errors) = decode(&tree, advice);
        let lacks = Lacks::new(&errors);
        errors.extend(twice(&tree));
        Ok(Self { config, tree: Some(tree), errors, lacks })
    }

    /// Where in the text a path is, if it is about something there.
    fn place(&self, path: &str) -> Option<(usize, usize)> {
        self.tree.as_ref().filter(|_| !is_of_environment(path)).map(|tree| tree.locate(path))
    }

    /// The document, if nothing is wrong with it; `found` adds what is, without positions.
    fn end(&mut self, found: Vec<Error>) -> Result<Config, Errors> {
        let found = found.into_iter().filter(|error| !self.lacks.explain(error));
        let found = found.map(|error| match self.place(&error.path) {
            Some(position) => error.at(position),
            None => error,
        });
        let mut errors: Vec<_> = self.errors.iter().cloned().chain(found).collect();
        match self.config.take() {
            Some(config) if errors.is_empty() => Ok(config),
            _ => {
                errors.truncate(REPORTED_MAX);
                Err(Errors::new(errors))
            }
        }
    }
}

/// Keys that are given twice.
fn twice(tree: &Tree<'_>) -> Vec<Error> {
    let errors = tree.duplicates.iter().map(|(path, offset, first)| {
        let (line, column) = tree.position(*first);
        let first = format!("the first one is at line {line} column {column}: leave one out");
        Error::new(path, "key given twice").with_help(first).at(tree.position(*offset))
    });
    errors.collect()
}

fn read_one<T: DeserializeOwned>(text: &str) -> Result<T, Errors> {
    let tree = Tree::parse(text).map_err(|error| Errors::new(vec![error]))?;
    let (value, mut errors) = decode(&tree, advice);
    errors.extend(twice(&tree));
    match value {
        Some(value) if errors.is_empty() => Ok(value),
        _ => Err(Errors::new(errors)),
    }
}

/// Returns true if `path` is about a variable, which has no place in the document.
fn is_of_environment(path: &str) -> bool {
    path.starts_with("environment ")
}

/// Returns advice about an unknown key beyond correcting its spelling.
fn advice(path: &str) -> Option<String> {
    let key = path.rsplit('.').next().unwrap_or(path);
    let known = match path {
        "enable_profiling"
        | "enable_diagnostics"
        | "profile_sparkline_timeslice_msec"
        | "output_dir" => Some("Margo no longer has this key; see `monitoring`"),
        "plumber" => Some("choosing Slingshot NICs is not supported; name one in `margo.address`"),
        "libraries" | "ssg" | "abt_io" | "mona" | "providers" => {
            Some("a Bedrock key; margo starts what `margo.providers` lists")
        }
        _ => None,
    };
    if let Some(known) = known {
        return Some(known.to_owned());
    }
    // The sections stand from the outside in: the outermost that has the key is the likely one.
    // A key of several list entries (`name`) says nothing.
    let homes: Vec<_> = sections().into_iter().filter(|(_, keys)| keys.contains(&key)).collect();
    let (home, _) = *homes.first().filter(|first| homes.len() == 1 || !first.0.contains('['))?;
    Some(match home {
        "" => format!("`{key}` belongs to the top level of the document"),
        _ => format!("`{key}` belongs to `{home}`"),
    })
}

/// Every object of the document and its keys.
fn sections() -> [(&'static str, &'static [&'static str]); 8] {
    [
        ("", fields_of::<Config>()),
        ("argobots", fields_of::<Argobots>()),
        ("margo", fields_of::<MargoOptions>()),
        ("mercury", fields_of::<Mercury>()),
        ("argobots.pools[]", fields_of::<Pool>()),
        ("argobots.xstreams[]", fields_of::<Xstream>()),
        ("argobots.xstreams[].scheduler", fields_of::<Scheduler>()),
        ("margo.providers[]", fields_of::<Provider>()),
    ]
}

/// The keys of a serde struct, which its generated code tells any deserializer.
fn fields_of<T: DeserializeOwned>() -> &'static [&'static str] {
    struct Names<'a>(&'a mut &'static [&'static str]);

    impl<'de> de::Deserializer<'de> for Names<'_> {
        type Error = de::value::Error;

        fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
            Err(de::Error::custom("only structs have keys"))
        }

        fn deserialize_struct<V: Visitor<'de>>(
            self,
            _: &'static str,
            fields: &'static [&'static str],
            visitor: V,
        ) -> Result<V::Value, Self::Error> {
            *self.0 = fields;
            self.deserialize_any(visitor)
        }

        serde::forward_to_deserialize_any! {
            bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf
            option unit unit_struct newtype_struct seq tuple tuple_struct map enum identifier
            ignored_any
        }
    }

    let mut names: &'static [&'static str] = &[];
    // Always an error: the deserializer has keys to tell but no values.
    let _ = <T as Deserialize>::deserialize(Names(&mut names)).is_err();
    names
}
