//! Documents of instances that run in pools and xstreams which are there already: those of another
//! instance, their parent, or of a runtime that the program made.
//!
//! Such a document has no layout of its own: its pool references mean pools that are there.

use crate::config::{Argobots, Config};
use crate::error::{Error, Errors};

const NOT_ITS_OWN: &str =
    "the instance runs in pools and xstreams that its parent, or the program, has made";

impl Config {
    /// Reads the document of an instance with a parent, whose effective configuration is `parent`.
    /// As [`Config::from_json`], but under the rules of [`with_layout_of`](Self::with_layout_of).
    ///
    /// # Errors
    ///
    /// As `from_json` and `with_layout_of`, with line and column.
    pub fn from_json_with_parent(text: &str, parent: &Self) -> Result<Self, Errors> {
        Self::read_checked(text, |config| {
            config.with_layout_of(parent)?.resolve(&|_| None).map(drop)
        })
    }

    /// The document of an instance that runs in what is there already, completed with the layout
    /// and roles of `parent`: the effective configuration of its parent instance, or a document
    /// that describes the program's runtime ([`Argobots::external`]). `progress_pool` and
    /// `rpc_pool` default to those of `parent`.
    ///
    /// # Errors
    ///
    /// The document must not contain `argobots`, `use_progress_thread` and `rpc_thread_count`, nor
    /// ask for contexts without naming their pools.
    ///
    /// Counterpart: the JSON of `margo_init_ext` with a `parent_mid`, or after `ABT_init` (Margo).
    pub fn with_layout_of(&self, parent: &Self) -> Result<Self, Errors> {
        let given = [
            ("argobots", self.argobots != Argobots::default()),
            ("use_progress_thread", self.use_progress_thread),
            ("rpc_thread_count", self.rpc_thread_count != 0),
        ];
        let mut wrong: Vec<_> = given
            .into_iter()
            .filter(|(_, is_given)| *is_given)
            .map(|(path, _)| Error::new(path, NOT_ITS_OWN).with_help("leave this key out"))
            .collect();
        if self.mercury.max_contexts > 1 && self.margo.more_progress_pools.is_empty() {
            let help = "name pools that are there in margo.more_progress_pools";
            wrong.push(Error::new("mercury.max_contexts", NOT_ITS_OWN).with_help(help));
        }
        if !wrong.is_empty() {
            return Err(Errors::new(wrong));
        }
        let mut config = self.clone();
        config.argobots = parent.argobots.clone();
        config.progress_pool = config.progress_pool.or_else(|| parent.progress_pool.clone());
        config.rpc_pool = config.rpc_pool.or_else(|| parent.rpc_pool.clone());
        Ok(config)
    }

    /// What is the instance's own of a document that has the layout of a parent or of the program.
    #[must_use]
    pub fn without_layout(mut self) -> Self {
        self.argobots = Argobots::default();
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parent() -> Config {
        let document = r#"{ "argobots": {
            "pools": [{ "name": "__primary__" }, { "name": "work" }],
            "xstreams": [{ "name": "__primary__", "scheduler": { "pools": [0, "work"] } }] },
            "rpc_pool": "work" }"#;
        Config::from_json(document).unwrap().resolve(&|_| None).unwrap().effective()
    }

    #[test]
    fn pools_are_those_of_the_parent() {
        let parent = parent();
        let resolved = |document: &str| {
            let config = Config::from_json_with_parent(document, &parent).unwrap();
            config.with_layout_of(&parent).unwrap().resolve(&|_| None).unwrap()
        };
        let roles = |document: &str| {
            let resolved = resolved(document);
            (resolved.progress_pool, resolved.rpc_pool)
        };
        assert_eq!(roles(""), (0, 1), "as the parent's");
        assert_eq!(roles(r#"{ "rpc_pool": "__primary__", "progress_pool": 1 }"#), (1, 0));
        assert_eq!(resolved("{}").pools, parent.resolve(&|_| None).unwrap().pools);
        let effective = resolved("{}").effective().without_layout();
        assert_eq!(effective.with_layout_of(&parent).unwrap(), resolved("{}").effective());
    }

    #[test]
    fn nothing_is_added_to_what_the_program_made() {
        let pool = |name: &str| crate::Pool { name: Some(name.to_owned()), ..Default::default() };
        let xstream = |pools: Vec<crate::PoolRef>| crate::Xstream {
            name: Some("es".to_owned()),
            scheduler: Some(crate::Scheduler { pools, ..Default::default() }),
            ..Default::default()
        };
        let mut program = Config::default();
        program.argobots.external = true;
        program.argobots.pools = vec![pool("rest"), pool("first"), pool("nobody")];
        let of = |program: &Config, document: &str| {
            let config = Config::from_json(document).unwrap().with_layout_of(program).unwrap();
            config.resolve(&|_| None).map_err(|errors| errors.to_string())
        };
        let errors = of(&program, "{}").unwrap_err();
        assert_eq!(
            errors,
            "argobots.xstreams: the runtime has no xstream that runs: add one first"
        );
        program.argobots.xstreams = vec![xstream(vec!["first".into(), "rest".into()])];
        let resolved = of(&program, "{}").unwrap();
        assert_eq!((resolved.progress_pool, resolved.rpc_pool), (1, 1));
        assert_eq!((resolved.pools.len(), resolved.xstreams.len()), (3, 1));
        assert!(resolved.pools.iter().all(|pool| pool.external));
        assert!(resolved.xstreams.iter().all(|xstream| xstream.external));
        // Resolving what is in effect adds nothing either.
        assert_eq!(resolved.effective().resolve(&|_| None).unwrap(), resolved);
        // Its names are the program's, also of the pools of an xstream `__primary__`.
        let mut primary = program.clone();
        primary.argobots.xstreams[0].name = Some(crate::resolve::PRIMARY.to_owned());
        let resolved = of(&primary, "{}").unwrap();
        assert_eq!((resolved.progress_pool, resolved.rpc_pool), (1, 1));
        assert_eq!(resolved.effective().resolve(&|_| None).unwrap(), resolved);
        let child = Config::from_json_with_parent("{}", &resolved.effective()).unwrap();
        let child = child.with_layout_of(&resolved.effective()).unwrap();
        assert_eq!(child.resolve(&|_| None).unwrap().pools, resolved.pools);
        let named = Config { rpc_pool: Some("nobody".into()), ..Config::default() };
        let errors = named.with_layout_of(&program).unwrap().resolve(&|_| None).unwrap_err();
        assert_eq!(
            errors.to_string(),
            "rpc_pool: pool \"nobody\" is attached to no xstream: no handler would ever run"
        );
    }

    #[test]
    fn a_layout_of_its_own_is_refused_where_it_stands() {
        let parent = parent();
        for (document, expected) in [
            (
                r#"{ "argobots": { "pools": [{ "name": "mine" }] } }"#,
                "argobots: the instance runs in pools and xstreams that its parent, or the \
                 program, has made at line 1 column 15 (leave this key out)",
            ),
            (r#"{ "use_progress_thread": true }"#, "use_progress_thread: the instance runs in"),
            (r#"{ "rpc_thread_count": 1 }"#, "rpc_thread_count: the instance runs in"),
            (
                r#"{ "mercury": { "max_contexts": 2 } }"#,
                "mercury.max_contexts: the instance runs in",
            ),
            (r#"{ "rpc_pool": "wrok" }"#, "rpc_pool: no pool named \"wrok\""),
        ] {
            let error = Config::from_json_with_parent(document, &parent).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{document}: {error}");
        }
    }
}
