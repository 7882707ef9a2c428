//! The secret of a cluster, as members prove over fabrics that they know it: keys that follow from
//! it, and the codes that are made with them.
//!
//! `core/members.rs` says who proves what to whom. Keys and codes are keyed BLAKE3; a code is its
//! first 16 bytes.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use na::SessionObserver;
use na::secret::{self, KEY_BYTES, Readers, Secret, SecretKey, Stamp};
use prim::sync::lock;
use zeroize::Zeroize;

use crate::base::log::{Log, log};

/// The purpose of a key that follows from a secret, so that it is not the key of anything else.
const CONTEXT: &str = "margo 2026-12 membership";

/// A number that was drawn for one use.
pub(crate) type Nonce = [u8; 16];

/// A code by which a message proves that its sender has a key.
pub(crate) type Code = [u8; 16];

/// How long a target accepts proofs of one session at least, and at most twice.
const EPOCH: Duration = Duration::from_secs(300);

/// How long the file of the secret is not looked at again: strangers can have us look at it.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The secret of a cluster, which a [`Core`](crate::Core) proves and has proven over transports
/// that do not tell who a peer is ([`na::Endpoint::knows_principals`]).
///
/// ```no_run
/// use std::path::Path;
///
/// use hg::{HgOptions, Membership};
///
/// let mut options = HgOptions::default();
/// options.membership = Some(Membership::load(Path::new("/etc/margo/secret"))?);
/// # Ok::<(), String>(())
/// ```
#[derive(Clone)]
pub struct Membership {
    file: Arc<SecretFile>,
    /// Peers that prove nothing may be called.
    pub(crate) calls_strangers: bool,
    pub(crate) epoch: Duration,
    look_every: Duration,
    pub(crate) observer: Option<SessionObserver>,
}

struct SecretFile {
    path: PathBuf,
    loaded: Mutex<Loaded>,
}

/// The keys of a file, and the file as it was when it was read, and when it was looked at last.
struct Loaded {
    keys: Arc<Keys>,
    stamp: Stamp,
    looked: Instant,
}

/// The keys that follow from the secrets of a file.
pub(crate) struct Keys(Secret);

/// A key that two members share for one session.
#[derive(Debug)]
pub(crate) struct SessionKey(SecretKey);

impl Membership {
    /// Reads the file, which is looked at again when a session begins, ten times in a second at
    /// most: one secret a line, of at least 32 characters, and at most two. The first one is proven
    /// to others, and both are accepted. Peers that prove nothing are not called.
    ///
    /// # Errors
    ///
    /// The text for people: the file cannot be read, is open to others, or has no such secrets.
    pub fn load(path: &Path) -> Result<Self, String> {
        let (stamp, looked) = (Stamp::of(path), Instant::now());
        let loaded = Loaded { keys: Arc::new(Keys::read(path)?), stamp, looked };
        let file = Arc::new(SecretFile { path: path.to_owned(), loaded: Mutex::new(loaded) });
        let (epoch, look_every) = (EPOCH, LOOK_EVERY);
        Ok(Self { file, calls_strangers: false, epoch, look_every, observer: None })
    }

    /// Sets whether peers that prove nothing may be called: those of C, and those of ours without a
    /// secret. One that pretends to know ours never is. Whether they are served is for who serves:
    /// [`RawRequest::principal`](crate::RawRequest::principal).
    #[must_use]
    pub fn calling_strangers(self, on: bool) -> Self {
        Self { calls_strangers: on, ..self }
    }

    /// Sets who is told of peers that have proven that they are members, or have tried to.
    #[must_use]
    pub fn observed_by(self, observer: Option<SessionObserver>) -> Self {
        Self { observer, ..self }
    }

    /// Sets how long proofs of a session are accepted, at least; for tests.
    #[doc(hidden)]
    #[must_use]
    pub fn with_epoch(self, epoch: Duration) -> Self {
        Self { epoch, ..self }
    }

    /// Sets how long the file is not looked at again; for tests.
    #[cfg(test)]
    pub(crate) fn looking_every(self, look_every: Duration) -> Self {
        Self { look_every, ..self }
    }

    /// The keys of the file as it was a moment ago. If it has changed and cannot be used, the log
    /// says so, and the keys stay that there were.
    pub(crate) fn keys(&self, log: &Log) -> Arc<Keys> {
        let mut loaded = lock(&self.file.loaded);
        if loaded.looked.elapsed() >= self.look_every {
            loaded.look(&self.file.path, log);
        }
        loaded.keys.clone()
    }

    /// Looks at the file at once.
    pub(crate) fn look(&self, log: &Log) {
        lock(&self.file.loaded).look(&self.file.path, log);
    }
}

impl Loaded {
    fn look(&mut self, path: &Path, log: &Log) {
        self.looked = Instant::now();
        if !self.stamp.has_changed() {
            return;
        }
        // Before the file is read, or a change in between would be missed.
        self.stamp = Stamp::of(path);
        match Keys::read(path) {
            Ok(new) => {
                self.keys = Arc::new(new);
                log!(log, INFO, "the secret of `fabrics` was read again");
            }
            Err(reason) => log!(log, ERROR, reason, "the secret of `fabrics` cannot be used"),
        }
    }
}

impl PartialEq for Membership {
    fn eq(&self, other: &Self) -> bool {
        self.file.path == other.file.path
            && self.calls_strangers == other.calls_strangers
            && self.epoch == other.epoch
            && self.look_every == other.look_every
            && self.observer == other.observer
    }
}

impl Eq for Membership {}

impl fmt::Debug for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, calls_strangers, .. } = self;
        let mut shown = f.debug_struct("Membership");
        shown.field("file", &file.path).field("calls_strangers", calls_strangers);
        shown.finish_non_exhaustive()
    }
}

impl Keys {
    fn read(path: &Path) -> Result<Self, String> {
        let text = secret::read(path, Readers::Nobody)?;
        let failed = |reason: String| format!("{}: {reason}", path.display());
        let secrets = secret::secrets(&text).map_err(failed)?;
        let memory = Secret::zeroed(secrets.len() * KEY_BYTES);
        let mut keys = memory.map_err(|error| failed(error.to_string()))?;
        for (key, secret) in keys.chunks_exact_mut(KEY_BYTES).zip(secrets) {
            let mut derived = blake3::derive_key(CONTEXT, secret);
            key.copy_from_slice(&derived);
            derived.zeroize();
        }
        Ok(Self(keys))
    }

    /// The key of the secret that we prove.
    pub(crate) fn own(&self) -> &[u8; KEY_BYTES] {
        // A file without a secret is none.
        self.all().next().expect("there is a first key")
    }

    /// The keys of all secrets that we accept.
    pub(crate) fn all(&self) -> impl Iterator<Item = &[u8; KEY_BYTES]> {
        self.0.as_chunks().0.iter()
    }
}

impl SessionKey {
    /// The key of the session that a nonce of the origin and a challenge of the target name.
    pub(crate) fn new(key: &[u8; KEY_BYTES], nonce: &Nonce, challenge: &Code) -> Self {
        Self(SecretKey::new(hash(key, "session", &[nonce, challenge]).as_bytes()))
    }

    /// The code of a message in three parts, of which the one in the middle is left out: the code.
    pub(crate) fn code_of(&self, before: &[u8], behind: &[u8]) -> Code {
        short(hash(&self.0, "request", &[before, behind]))
    }
}

/// The code of some parts under a key. No `label` begins with another one, and all parts but the
/// last have a length that the label tells.
pub(crate) fn code(key: &[u8; KEY_BYTES], label: &str, parts: &[&[u8]]) -> Code {
    short(hash(key, label, parts))
}

fn hash(key: &[u8; KEY_BYTES], label: &str, parts: &[&[u8]]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new_keyed(key);
    hasher.update(label.as_bytes());
    for part in parts {
        hasher.update(part);
    }
    hasher.finalize()
}

fn short(hash: blake3::Hash) -> Code {
    let [code @ .., _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _] = *hash.as_bytes();
    code
}
