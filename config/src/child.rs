//! Documents of instances that run in pools and xstreams which are there already: those of another
//! instance, their parent, or of a runtime that the program made.
//!
//! Such a document has no layout of its own: its pool references mean pools that are there. A
//! reference by index means the index that the pool has in the running parent. Once pools have been
//! removed, that index differs from the pool's place in the parent's document; this module
//! translates one into the other.

use std::borrow::Cow;

use crate::document::config::{Argobots, Config, Pool};
use crate::document::margo::MargoOptions;
use crate::document::pool_ref::PoolRef;
use crate::document::shards::Shards;
use crate::report::error::{Error, Errors};

const NOT_ITS_OWN: &str =
    "the instance runs in pools and xstreams that its parent, or the program, has made";

impl Config {
    /// Reads the document of an instance with a parent, whose effective configuration is `parent`.
    /// As [`Config::from_json`], but under the rules of [`with_layout_of`](Self::with_layout_of).
    /// Pass the value that the instance gives: a copy that was read from text knows no indices but
    /// places.
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
    /// `rpc_pool` default to those of `parent`. Pools that are referred to by index are those that
    /// have this index there ([`Pool::index`](crate::Pool::index)); in the outcome they are
    /// referred to by place.
    ///
    /// # Errors
    ///
    /// The document must not contain `argobots`, `use_progress_thread` and `rpc_thread_count`, nor
    /// ask for several shards without naming their pools, nor refer to an index that no pool has.
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
        let help = "list pools that are there in margo.shards";
        match &self.margo.shards {
            Some(Shards::Pools(_)) | Some(Shards::Count(1)) => {}
            Some(_) => wrong.push(Error::new("margo.shards", NOT_ITS_OWN).with_help(help)),
            None if self.mercury.max_contexts > 1 => {
                wrong.push(Error::new("mercury.max_contexts", NOT_ITS_OWN).with_help(help));
            }
            None => {}
        }
        let mut config = self.clone();
        config.renumber(|path, index| {
            let place = parent.argobots.place_of(index);
            if place.is_none() {
                let have = parent.argobots.pools_by_index();
                let message = format!("there is no pool {index} (have: {have})");
                wrong.push(Error::new(path, message));
            }
            place
        });
        if !wrong.is_empty() {
            return Err(Errors::new(wrong));
        }
        config.argobots = parent.argobots.clone();
        if !matches!(config.margo.shards, Some(Shards::Pools(_))) {
            config.progress_pool = config.progress_pool.or_else(|| parent.progress_pool.clone());
        }
        config.rpc_pool = config.rpc_pool.or_else(|| parent.rpc_pool.clone());
        Ok(config)
    }

    /// Returns the instance's own part of a document that has the layout of a parent or of the
    /// program. Pools that are referred to by place are referred to by index then.
    #[must_use]
    pub fn without_layout(mut self) -> Self {
        let layout = std::mem::take(&mut self.argobots);
        self.renumber(|_, place| layout.index_at(place));
        self
    }

    /// A document for an instance with a layout of its own, whose indices are the places.
    pub fn with_places_as_indices(&self) -> Cow<'_, Self> {
        let Argobots { pools, xstreams, .. } = &self.argobots;
        let pools = pools.iter().any(|pool| pool.index.is_some());
        if !pools && !xstreams.iter().any(|xstream| xstream.index.is_some()) {
            return Cow::Borrowed(self);
        }
        let mut config = self.clone();
        config.argobots.pools.iter_mut().for_each(|pool| pool.index = None);
        config.argobots.xstreams.iter_mut().for_each(|xstream| xstream.index = None);
        Cow::Owned(config)
    }

    /// Gives each reference by number outside of `argobots` the number that `new` says, if it says
    /// one. `new` is told the path.
    fn renumber(&mut self, mut new: impl FnMut(String, usize) -> Option<usize>) {
        let MargoOptions { bulk, shards, admission, providers, .. } = &mut self.margo;
        let roles = [
            ("progress_pool", &mut self.progress_pool),
            ("rpc_pool", &mut self.rpc_pool),
            ("margo.bulk.copy_pool", &mut bulk.copy_pool),
        ];
        let roles = roles.into_iter().map(|(path, role)| (path.to_owned(), role.as_mut()));
        let of_shards = match shards {
            Some(Shards::Pools(pools)) => pools.as_mut_slice(),
            _ => &mut [],
        };
        let of_shards = of_shards.iter_mut().enumerate();
        let of_shards = of_shards.map(|(at, pool)| (format!("margo.shards[{at}]"), Some(pool)));
        let bounds = admission.pools.iter_mut().enumerate();
        let bounds = bounds
            .map(|(at, one)| (format!("margo.admission.pools[{at}].pool"), one.pool.as_mut()));
        let providers = providers.iter_mut().enumerate();
        let providers =
            providers.map(|(at, one)| (format!("margo.providers[{at}].pool"), one.pool.as_mut()));
        for (path, reference) in roles.chain(of_shards).chain(bounds).chain(providers) {
            if let Some(PoolRef::Index(number)) = reference
                && let Some(to) = new(path, *number)
            {
                *number = to;
            }
        }
    }
}

impl Argobots {
    fn index_at(&self, place: usize) -> Option<usize> {
        self.pools.get(place).map(|pool| pool.index.unwrap_or(place))
    }

    fn place_of(&self, index: usize) -> Option<usize> {
        (0..self.pools.len()).find(|place| self.index_at(*place) == Some(index))
    }

    /// `0 a, 3 b`
    fn pools_by_index(&self) -> String {
        let one = |(place, pool): (usize, &Pool)| {
            let index = pool.index.unwrap_or(place);
            format!("{index} {}", pool.name.as_deref().unwrap_or("without a name"))
        };
        self.pools.iter().enumerate().map(one).collect::<Vec<_>>().join(", ")
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
    fn an_index_is_that_of_the_parent_and_not_the_place() {
        let mut parent = parent();
        for (pool, index) in parent.argobots.pools.iter_mut().zip([2, 5]) {
            pool.index = Some(index);
        }
        let document = r#"{ "progress_pool": 2, "rpc_pool": 5, "margo": {
            "shards": [2, 5], "bulk": { "copy_pool": "work" },
            "admission": { "pools": [{ "pool": 5, "handlers_max": 1 }] },
            "providers": [{ "type": "t", "provider_id": 1, "pool": 5 }] } }"#;
        let child = Config::from_json_with_parent(document, &parent).unwrap();
        let resolved = child.with_layout_of(&parent).unwrap().resolve(&|_| None).unwrap();
        assert_eq!((resolved.progress_pool, resolved.rpc_pool), (0, 1));
        assert_eq!((&*resolved.more_progress_pools, resolved.copy_pool), (&[1][..], Some(1)));
        assert_eq!((resolved.admission.pools[0].0, resolved.providers[0].pool), (1, 1));
        let indices = resolved.pools.iter().map(|pool| pool.index);
        assert_eq!(indices.collect::<Vec<_>>(), [2, 5]);
        // What is printed means the same again.
        let printed = resolved.effective().without_layout();
        assert_eq!(printed.rpc_pool, Some(PoolRef::Index(5)));
        assert_eq!(printed.margo.bulk.copy_pool, Some(PoolRef::Index(5)));
        let again = printed.with_layout_of(&parent).unwrap().resolve(&|_| None).unwrap();
        assert_eq!(again.effective(), resolved.effective());
        for place in [0, 1] {
            let wrong = Config { rpc_pool: Some(place.into()), ..Config::default() };
            let error = wrong.with_layout_of(&parent).unwrap_err().to_string();
            let have = "(have: 2 __primary__, 5 work)";
            assert_eq!(error, format!("rpc_pool: there is no pool {place} {have}"));
        }
        // For itself, places are indices.
        let own = parent.with_places_as_indices().resolve(&|_| None).unwrap();
        assert_eq!(own.pools.iter().map(|pool| pool.index).collect::<Vec<_>>(), [0, 1]);
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
