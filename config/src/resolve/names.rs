//! Names: C identifiers, unique, and found when somebody refers to them.

use std::collections::HashMap;

use super::Findings;
use crate::report::suggest::choices;

/// Returns true if `name` is a C identifier.
pub(super) fn is_identifier(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Reports a name that is no C identifier.
pub(super) fn check_identifier(path: &str, name: &str, found: &mut Findings) {
    if !is_identifier(name) {
        let message = format!(
            "{name:?} is no valid name: use letters, digits and underscores, no digit first"
        );
        found.error(path, message);
    }
}

/// Names in use within one list, and the entries that have them.
#[derive(Debug, Default)]
pub(super) struct Names {
    taken: HashMap<String, String>,
    /// One above the last number in a made-up name. Entries come in order, so all numbers from
    /// an entry's index up to here are taken.
    next: usize,
}

impl Names {
    /// Reserves a name that the document gives to the entry at `owner`; reports bad and repeated
    /// ones.
    pub(super) fn claim(&mut self, owner: &str, name: &str, found: &mut Findings) {
        let path = format!("{owner}.name");
        check_identifier(&path, name, found);
        if let Some(other) = self.taken.get(name) {
            found.error(path, format!("the name {name:?} is already taken by `{other}`"));
        } else {
            self.taken.insert(name.to_owned(), owner.to_owned());
        }
    }

    /// The entry that has this name, if any.
    pub(super) fn owner(&self, name: &str) -> Option<&str> {
        self.taken.get(name).map(String::as_str)
    }

    /// Makes up a name for the entry at `index`: `__<stem>_<index>__`, or the next number that
    /// is free.
    pub(super) fn generate(&mut self, stem: &str, index: usize) -> String {
        let mut number = index.max(self.next);
        loop {
            let name = format!("__{stem}_{number}__");
            if !self.taken.contains_key(&name) {
                self.taken.insert(name.clone(), String::new());
                self.next = number + 1;
                return name;
            }
            number += 1;
        }
    }
}

/// `no pool named "nett" (have: __primary__, net); did you mean "net"?`
pub(super) fn no_such_pool(name: &str, have: &[&str]) -> String {
    format!("no pool named {name:?}{}", choices("have", name, have))
}
