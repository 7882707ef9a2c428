//! Suppresses errors that arise only because a wrong value was left out of the document.
//!
//! A value of a wrong type or out of range is left out, so that all else can be checked at the same
//! time. The checks may then miss something that the document has, and must not report it as
//! missing. A check that resolves a reference asks first whether the list that it searches is
//! complete ([`Lacks::layout`], [`Lacks::providers`]). Errors of other checks about a value that
//! was left out, or about the object that holds it, are dropped at the end ([`Lacks::explain`]).

use crate::report::error::Error;
use crate::report::suggest::nearest;

/// Keys that describe the layout and the roles in it.
const LAYOUT: [&str; 7] = [
    "argobots",
    "progress_pool",
    "rpc_pool",
    "use_progress_thread",
    "rpc_thread_count",
    "mercury.max_contexts",
    "margo.shards",
];

/// The values of a document that were left out.
#[derive(Debug, Default)]
pub(crate) struct Lacks {
    left_out: Vec<Left>,
}

/// A value that was left out.
#[derive(Debug)]
struct Left {
    path: String,
    /// The object or list that has it, without its place there if that is a list.
    parent: String,
    /// The key; `None`: it is an element of a list.
    key: Option<String>,
}

impl Left {
    fn new(path: &str) -> Self {
        let (parent, key) = match (path.rfind('.'), path.rfind('[')) {
            (dot, Some(bracket)) if dot.is_none_or(|dot| dot < bracket) => (&path[..bracket], None),
            (Some(dot), _) => (&path[..dot], Some(&path[dot + 1..])),
            (None, _) => ("", Some(path)),
        };
        Self { path: path.to_owned(), parent: parent.to_owned(), key: key.map(str::to_owned) }
    }

    /// Returns true if `error` may come of it that this is not there.
    fn explains(&self, error: &Error) -> bool {
        if is_at_or_below(&error.path, &self.path)
            || error.message.contains(&format!("`{}`", self.path))
        {
            return true;
        }
        match &self.key {
            // The others have another place now.
            None => is_at_or_below(&error.path, &self.parent),
            Some(_) if self.parent.ends_with("].dependencies") => error.path == self.parent,
            // It may have been spelt in another way.
            Some(key) => {
                let missing = error.message.strip_prefix("missing key `");
                let missing = missing.and_then(|rest| rest.split('`').next());
                error.path == self.parent
                    && missing.is_some_and(|missing| nearest(key, &[missing]).is_some())
            }
        }
    }
}

/// Returns true if `path` is the value at `outer`, or a part of that.
fn is_at_or_below(path: &str, outer: &str) -> bool {
    let rest = path.strip_prefix(outer);
    rest.is_some_and(|rest| rest.is_empty() || outer.is_empty() || rest.starts_with(['.', '[']))
}

impl Lacks {
    pub(crate) fn new(errors: &[Error]) -> Self {
        Self { left_out: errors.iter().map(|error| Left::new(&error.path)).collect() }
    }

    /// Returns true if pools and xstreams may not be all, or not those, that the document means.
    pub(crate) fn layout(&self) -> bool {
        let concerns = |left: &Left| {
            // An unknown key of the document itself may stand for any of them.
            left.parent.is_empty() || LAYOUT.iter().any(|part| is_at_or_below(&left.path, part))
        };
        self.left_out.iter().any(concerns)
    }

    /// Returns true if a provider may be called, or be, something else than the document means. One
    /// without an id is known as such.
    pub(crate) fn providers(&self) -> bool {
        let concerns = |left: &Left| {
            is_at_or_below(&left.path, "margo.providers")
                && !is_key_of_provider(&left.path, &["provider_id", "pool", "priority"])
                && !left.path.contains("].config")
                && !left.path.contains("].dependencies")
        };
        self.left_out.iter().any(concerns)
    }

    /// Returns true if that value was left out.
    pub(crate) fn has(&self, path: &str) -> bool {
        self.left_out.iter().any(|left| left.path == path)
    }

    /// Returns true if `error` may be none, when what was left out is right.
    pub(crate) fn explain(&self, error: &Error) -> bool {
        self.left_out.iter().any(|left| left.explains(error))
    }
}

fn is_key_of_provider(path: &str, keys: &[&str]) -> bool {
    keys.iter().any(|key| path.strip_suffix(key).is_some_and(|rest| rest.ends_with("].")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_of_a_gap_is_told_from_what_does_not() {
        let error = |path: &str, message: &str| Error::new(path, message);
        for (left, path, message, explained) in [
            (
                "margo.providers[0].provider_id",
                "margo.providers[0]",
                "missing key `provider_id`",
                true,
            ),
            (
                "margo.providers[0].provider_ids",
                "margo.providers[0]",
                "missing key `provider_id`",
                true,
            ),
            ("margo.providers[0].pool", "margo.providers[0]", "missing key `provider_id`", false),
            ("margo.providers[0].provider_id", "margo.providers[0].pool", "no pool", false),
            (
                "margo.providers[0].provider_id",
                "margo.providers[1]",
                "missing key `provider_id`",
                false,
            ),
            ("margo.providers[1]", "margo.providers[2].pool", "no pool", true),
            (
                "margo.requests_max",
                "mercury.request_post_init",
                "at most `margo.requests_max`",
                true,
            ),
            ("margo.trace", "margo.trace.buffer", "x", true),
            ("margo.trace", "margo.traces", "x", false),
            ("margo.providers[0].dependencies.x", "margo.providers[0].dependencies", "y", true),
            ("nonsense", "margo.address", "x", false),
        ] {
            let lacks = Lacks::new(&[error(left, "")]);
            assert_eq!(lacks.explain(&error(path, message)), explained, "{left} {path}");
        }
        assert!(!Lacks::default().explain(&error("", "x")));
        for (left, layout, providers) in [
            ("progres_pool", true, false),
            ("argobots.pools[1].name", true, false),
            ("mercury.max_contexts", true, false),
            ("mercury.stats", false, false),
            ("margo.providers[0].provider_id", false, false),
            ("margo.providers[0].config", false, false),
            ("margo.providers[0].name", false, true),
            ("margo.providers[3]", false, true),
        ] {
            let lacks = Lacks::new(&[error(left, "")]);
            assert_eq!((lacks.layout(), lacks.providers()), (layout, providers), "{left}");
        }
    }
}
