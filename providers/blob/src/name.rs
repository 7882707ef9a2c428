//! Names of blobs: relative paths that cannot mean anything but a place below the directory.
//!
//! The check here is about form. That a well-formed name does not leave the directory through a
//! symbolic link is the business of `store/files/confine.rs`.

use std::fmt;

use margo::config::text::steers;

use crate::BlobError;

/// How the names of the store's own files begin. No component of a blob's name may begin so.
pub const RESERVED_PREFIX: &str = ".margo-tmp-";

/// Longest name, bytes.
pub const NAME_BYTES_MAX: usize = 1024;

/// Longest component of a name, bytes; what file systems allow.
pub const COMPONENT_BYTES_MAX: usize = 255;

/// A well-formed name: components of 1 to 255 bytes, separated by `/`.
///
/// Refused are: an empty name or component (so also a leading, trailing or doubled `/`), `.` and
/// `..`, `\`, control characters (NUL among them) and those that turn the direction of text or end
/// a line, components that begin with [`RESERVED_PREFIX`], and more than [`NAME_BYTES_MAX`] bytes.
///
/// ```
/// use margo_provider_blob::BlobName;
///
/// assert_eq!(BlobName::new("runs/7/result.h5")?.folder(), Some("runs/7"));
/// assert!(BlobName::new("../etc/passwd").is_err());
/// # Ok::<(), margo_provider_blob::BlobError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlobName(String);

impl BlobName {
    /// Checks `text`.
    ///
    /// # Errors
    ///
    /// [`BlobError::BadName`], which says what is wrong with it.
    pub fn new(text: &str) -> Result<Self, BlobError> {
        match fault(text) {
            None => Ok(Self(text.to_owned())),
            Some(reason) => {
                Err(BlobError::BadName { name: for_people(text), reason: reason.to_owned() })
            }
        }
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Everything before the last `/`, if there is one.
    pub fn folder(&self) -> Option<&str> {
        folder_and_leaf(&self.0).0
    }

    /// The last component.
    pub fn leaf(&self) -> &str {
        folder_and_leaf(&self.0).1
    }
}

impl fmt::Display for BlobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The part before the last `/`, if there is one, and the rest.
pub(crate) fn folder_and_leaf(path: &str) -> (Option<&str>, &str) {
    path.rsplit_once('/').map_or((None, path), |(folder, leaf)| (Some(folder), leaf))
}

/// Returns true if a file of that name, found in the directory, could be a component of a blob's
/// name.
pub(crate) fn is_component(text: &str) -> bool {
    component_fault(text).is_none()
}

fn fault(text: &str) -> Option<&'static str> {
    if text.is_empty() {
        return Some("it is empty");
    }
    if text.len() > NAME_BYTES_MAX {
        return Some("it is longer than 1024 bytes");
    }
    if text.starts_with('/') {
        return Some("it begins with `/`; names are relative to the store");
    }
    text.split('/').find_map(component_fault)
}

fn component_fault(component: &str) -> Option<&'static str> {
    if component.is_empty() {
        return Some("a component is empty (`//` or a trailing `/`)");
    }
    if component == "." || component == ".." {
        return Some("`.` and `..` are no components of names");
    }
    if component.len() > COMPONENT_BYTES_MAX {
        return Some("a component is longer than 255 bytes");
    }
    if component.contains('\\') {
        return Some("it contains `\\`; components are separated by `/`");
    }
    if component.chars().any(steers) {
        return Some("it contains a control character, or one that turns the direction of text");
    }
    if component.starts_with(RESERVED_PREFIX) {
        return Some("components that begin with `.margo-tmp-` are reserved for the store");
    }
    None
}

/// A refused name for an error message: escaped, and cut where it is absurd.
fn for_people(text: &str) -> String {
    const CHARS_MAX: usize = 80;
    let mut shown: String = text.chars().take(CHARS_MAX).flat_map(char::escape_debug).collect();
    if text.chars().nth(CHARS_MAX).is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn takes_relative_paths() {
        let long = "x".repeat(255);
        let longest = [long.as_str(); 4].join("/");
        for (text, folder, leaf) in [
            ("a", None, "a"),
            ("a/b", Some("a"), "b"),
            ("runs/7/out put.h5", Some("runs/7"), "out put.h5"),
            ("...", None, "..."),
            (".hidden", None, ".hidden"),
            ("a..b/..c", Some("a..b"), "..c"),
            (".margo-tmp", None, ".margo-tmp"),
            ("x.margo-tmp-1", None, "x.margo-tmp-1"),
            ("größe/日本", Some("größe"), "日本"),
            ("~", None, "~"),
            ("-rf", None, "-rf"),
            (&longest, Some(&longest[..767]), &long),
        ] {
            let name = BlobName::new(text).unwrap();
            assert_eq!((name.as_str(), name.folder(), name.leaf()), (text, folder, leaf));
        }
    }

    #[test]
    fn refuses_everything_else_and_says_why() {
        let component = "x".repeat(256);
        let name = "x/".repeat(512) + "x";
        for (text, reason) in [
            ("", "it is empty"),
            ("/", "begins with `/`"),
            ("/etc/passwd", "begins with `/`"),
            ("a/", "a component is empty"),
            ("a//b", "a component is empty"),
            (".", "`.` and `..`"),
            ("..", "`.` and `..`"),
            ("../x", "`.` and `..`"),
            ("a/../../x", "`.` and `..`"),
            ("a/.", "`.` and `..`"),
            ("a\0b", "control character"),
            ("a\nb", "control character"),
            ("\u{7f}", "control character"),
            ("a\u{9b}2J", "control character"),
            ("x\u{202e}gpj.exe", "turns the direction"),
            ("\u{2066}x/y", "turns the direction"),
            ("x\u{2028}y", "control character"),
            ("..\\x", "contains `\\`"),
            ("a\\", "contains `\\`"),
            (".margo-tmp-", "reserved"),
            (".margo-tmp-1/x", "reserved"),
            ("x/.margo-tmp-1", "reserved"),
            (&component, "longer than 255 bytes"),
            (&name, "longer than 1024 bytes"),
        ] {
            let error = BlobName::new(text).unwrap_err().to_string();
            assert!(error.contains(reason), "{text:?}: {error}");
            assert!(error.chars().count() < 300, "{text:?}: {error}");
        }
    }

    proptest! {
        /// A name that passes has only components that stay where they are put.
        #[test]
        fn what_passes_is_tame(text in r"[a./\\~\x00-\x1f-]{0,12}|\PC{0,40}") {
            if let Ok(name) = BlobName::new(&text) {
                let path = std::path::Path::new(name.as_str());
                let tame = |c| matches!(c, std::path::Component::Normal(_));
                prop_assert!(path.components().all(tame));
                prop_assert_eq!(path.components().count(), name.as_str().split('/').count());
                prop_assert!(!name.as_str().contains(['\0', '\\']));
                prop_assert!(!name.as_str().split('/').any(|c| c.starts_with(RESERVED_PREFIX)));
            }
        }

        #[test]
        fn folder_and_leaf_make_the_name(text in "[a-z]{1,3}(/[a-z]{1,3}){0,3}") {
            let name = BlobName::new(&text).unwrap();
            let again = match name.folder() {
                Some(folder) => format!("{folder}/{}", name.leaf()),
                None => name.leaf().to_owned(),
            };
            prop_assert_eq!(again, text);
        }
    }
}
