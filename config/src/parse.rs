//! Entry points: text to [`Config`], and the whole check at once.

use serde::Deserialize;
use serde::de::{self, DeserializeOwned, Visitor};

use crate::clean::is_blank;
use crate::config::{Argobots, Config, Pool, Scheduler, Xstream};
use crate::decode::decode;
use crate::effective::ConfigFlags;
use crate::error::{Error, Errors, Warning};
use crate::margo::{MargoOptions, Provider};
use crate::mercury::Mercury;
use crate::resolve::Resolved;
use crate::tree::Tree;

impl Config {
    /// Reads a document, strictly except for comments, trailing commas and a byte order mark.
    ///
    /// The result is known to resolve (environment variables apart). An empty string is the
    /// default configuration, as in C Margo, and so is one of blanks and comments.
    ///
    /// # Errors
    ///
    /// A syntax error; or all wrong types, unknown and repeated keys; or, when there are none of
    /// these, all semantic errors ([`Config::resolve`]). Each with its path, line and column.
    ///
    /// Counterpart: the `json_config` of `margo_init_ext` (Margo).
    pub fn from_json(text: &str) -> Result<Self, Errors> {
        Self::read_checked(text, |config| config.resolve(&|_| None).map(drop))
    }

    /// Reads a document; `check` says what is wrong with it, without positions.
    pub(crate) fn read_checked(
        text: &str,
        check: impl FnOnce(&Self) -> Result<(), Errors>,
    ) -> Result<Self, Errors> {
        let (config, tree) = read(text)?;
        check(&config).map_err(|errors| locate(errors, tree.as_ref()))?;
        Ok(config)
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
    /// # Errors
    ///
    /// As [`Config::check`], or else those of `more`.
    pub fn check_with(
        text: &str,
        env: &dyn Fn(&str) -> Option<String>,
        flags: ConfigFlags,
        more: impl FnOnce(&Resolved) -> Result<(), Errors>,
    ) -> Result<(Self, Vec<Warning>), Errors> {
        let (config, tree) = read(text)?;
        let resolved = config
            .resolve(env)
            .and_then(|resolved| more(&resolved).map(|()| resolved))
            .map_err(|errors| locate(errors, tree.as_ref()))?;
        let effective = resolved.effective_as(flags);
        let mut warnings = resolved.warnings;
        if let Some(tree) = &tree {
            let place = |warning: Warning| match is_of_environment(&warning.path) {
                true => warning,
                false => {
                    let position = tree.locate(&warning.path);
                    warning.at(position)
                }
            };
            warnings = warnings.into_iter().map(place).collect();
        }
        Ok((effective, warnings))
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
        if is_blank(text) { Ok(Self::default()) } else { read_one(text).map(|(pool, _)| pool) }
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
        read_one(text).map(|(xstream, _)| xstream)
    }
}

/// Looks up a variable of this process; one that is not Unicode counts as absent.
pub fn process_env(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn read(text: &str) -> Result<(Config, Option<Tree<'_>>), Errors> {
    if is_blank(text) {
        return Ok((Config::default(), None));
    }
    read_one(text).map(|(config, tree)| (config, Some(tree)))
}

fn read_one<T: DeserializeOwned>(text: &str) -> Result<(T, Tree<'_>), Errors> {
    let tree = Tree::parse(text).map_err(|error| Errors::new(vec![error]))?;
    let mut errors: Vec<Error> = tree
        .duplicates
        .iter()
        .map(|(path, offset, first)| {
            let (line, column) = tree.position(*first);
            let first = format!("the first one is at line {line} column {column}: leave one out");
            Error::new(path, "key given twice").with_help(first).at(tree.position(*offset))
        })
        .collect();
    let config = decode(&tree, advice).map_err(|found| errors.extend(found)).ok();
    match config {
        Some(config) if errors.is_empty() => Ok((config, tree)),
        _ => Err(Errors::new(errors)),
    }
}

/// Whether it is about a variable, which has no place in the document.
fn is_of_environment(path: &str) -> bool {
    path.starts_with("environment ")
}

/// Adds positions to semantic errors. Those about the environment have none.
fn locate(errors: Errors, tree: Option<&Tree<'_>>) -> Errors {
    let Some(tree) = tree else { return errors };
    let place = |error: Error| match is_of_environment(&error.path) {
        true => error,
        false => {
            let position = tree.locate(&error.path);
            error.at(position)
        }
    };
    Errors::new(errors.into_iter().map(place).collect())
}

/// What to do about an unknown key beyond correcting its spelling.
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
