//! Errors and warnings about a configuration, with their places.

use std::fmt;

/// One thing that makes a configuration unusable.
///
/// Prints as `path: message at line L column C (help)`; parts that are absent are left out.
///
/// ```
/// use margo_config::Config;
///
/// let text = "{\n  \"margo\": { \"lissten\": true }\n}";
/// let errors = Config::from_json(text).unwrap_err();
/// let error = &errors.as_slice()[0];
/// assert_eq!(error.path, "margo.lissten");
/// assert_eq!((error.line, error.column), (Some(2), Some(14)));
/// assert!(error.message.contains("did you mean \"listen\"?"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Error {
    /// JSON path of the value, such as `argobots.xstreams[1].scheduler.pools[0]`; the name of an
    /// environment variable as `environment NAME`; empty for the document as a whole.
    pub path: String,
    /// Line, counted from 1. `None` when the configuration was not read from text.
    pub line: Option<usize>,
    /// Column in characters, counted from 1. `None` when `line` is.
    pub column: Option<usize>,
    /// Says what is wrong, with the allowed values and a "did you mean" where there are such.
    pub message: String,
    /// Advice on what to do, when the message does not give it already.
    pub help: Option<String>,
}

impl Error {
    /// An error about the value at `path`, without a position: for what a layer above knows to be
    /// wrong; see [`Config::check_with`](crate::Config::check_with).
    pub fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { path: path.into(), line: None, column: None, message: message.into(), help: None }
    }

    pub(crate) fn with_help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    pub(crate) fn at(mut self, (line, column): (usize, usize)) -> Self {
        (self.line, self.column) = (Some(line), Some(column));
        self
    }

    /// The error as one about a part of the document at `outer`, whose text nobody has written.
    pub(crate) fn below(self, outer: &str) -> Self {
        let path = match self.path.as_str() {
            "" => outer.to_owned(),
            path => format!("{outer}.{path}"),
        };
        Self { path, line: None, column: None, ..self }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_located(f, &self.path, &self.message, self.line, self.column)?;
        match &self.help {
            Some(help) => write!(f, " ({help})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {}

/// How many errors, and how many warnings, are looked for in one run. Enough for any person; a
/// hostile document costs little.
pub(crate) const REPORTED_MAX: usize = 100;

/// Everything that is wrong with a configuration, in document order. Never empty; about the first
/// hundred errors when there are more.
///
/// Prints one [`Error`] per line, and whether there may be more.
///
/// ```
/// use margo_config::Config;
///
/// let text = r#"{ "rpc_pool": "work", "margo": { "listen": "yes" } }"#;
/// let errors = Config::from_json(text).unwrap_err();
/// for error in &errors {
///     eprintln!("{error}");
/// }
/// let paths: Vec<_> = errors.iter().map(|error| error.path.as_str()).collect();
/// assert_eq!(paths, ["rpc_pool", "margo.listen"], "all of them, in their order");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Errors(Vec<Error>);

impl Errors {
    /// Sorts by position; errors without one (programmatic configurations) keep their order.
    pub(crate) fn new(mut list: Vec<Error>) -> Self {
        debug_assert!(!list.is_empty(), "an empty error list is a success");
        list.sort_by_key(|error| (error.line, error.column));
        Self(list)
    }

    /// All that a layer above has found, for [`Config::check_with`](crate::Config::check_with):
    /// the first hundred, as everywhere. Nothing, if it has found none.
    ///
    /// # Errors
    ///
    /// Those, if there are some.
    pub fn none_of(found: impl IntoIterator<Item = Error>) -> Result<(), Self> {
        let found: Vec<_> = found.into_iter().take(REPORTED_MAX).collect();
        if found.is_empty() { Ok(()) } else { Err(Self::new(found)) }
    }

    /// The errors, in document order.
    pub fn iter(&self) -> std::slice::Iter<'_, Error> {
        self.0.iter()
    }

    /// Returns these errors as errors about a part of the document: with paths that begin below
    /// `prefix`, such as `argobots.pools[3]`. Errors about other parts keep their paths.
    #[must_use]
    pub fn below(mut self, prefix: &str) -> Self {
        for error in &mut self.0 {
            if let Some(rest) = error.path.strip_prefix(prefix)
                && (rest.is_empty() || rest.starts_with('.'))
            {
                error.path = rest.trim_start_matches('.').to_owned();
            }
        }
        self
    }

    /// The errors, in document order.
    pub fn as_slice(&self) -> &[Error] {
        &self.0
    }
}

impl From<Error> for Errors {
    fn from(error: Error) -> Self {
        Self::new(vec![error])
    }
}

impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            write!(f, "{error}")?;
        }
        if self.0.len() >= REPORTED_MAX {
            write!(f, "\nthere may be more: only the first {REPORTED_MAX} errors are looked for")?;
        }
        Ok(())
    }
}

impl std::error::Error for Errors {}

impl IntoIterator for Errors {
    type Item = Error;
    type IntoIter = std::vec::IntoIter<Error>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'a> IntoIterator for &'a Errors {
    type Item = &'a Error;
    type IntoIter = std::slice::Iter<'a, Error>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

/// Something that is allowed but probably not meant: a setting that loses against another one,
/// or a layout in which some pool may wait for long.
///
/// Prints as `path: message at line L column C`.
///
/// ```
/// use margo_config::Config;
///
/// let text = r#"{
///     "argobots": { "pools": [{ "name": "__primary__" }] },
///     "rpc_pool": "__primary__", "rpc_thread_count": 4,
/// }"#;
/// let (_, warnings) = Config::check(text, &|_| None)?;
/// assert_eq!((warnings[0].path.as_str(), warnings[0].line), ("rpc_thread_count", Some(3)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Warning {
    /// JSON path of the value the warning is about.
    pub path: String,
    /// Line, counted from 1. `None` when the configuration was not read from text.
    pub line: Option<usize>,
    /// Column in characters, counted from 1. `None` when `line` is.
    pub column: Option<usize>,
    /// Says what is suspicious and what it may lead to.
    pub message: String,
}

impl Warning {
    pub(crate) fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { path: path.into(), line: None, column: None, message: message.into() }
    }

    pub(crate) fn at(mut self, (line, column): (usize, usize)) -> Self {
        (self.line, self.column) = (Some(line), Some(column));
        self
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_located(f, &self.path, &self.message, self.line, self.column)
    }
}

fn write_located(
    f: &mut fmt::Formatter<'_>,
    path: &str,
    message: &str,
    line: Option<usize>,
    column: Option<usize>,
) -> fmt::Result {
    if !path.is_empty() {
        write!(f, "{path}: ")?;
    }
    f.write_str(message)?;
    match (line, column) {
        (Some(line), Some(column)) => write!(f, " at line {line} column {column}"),
        _ => Ok(()),
    }
}
