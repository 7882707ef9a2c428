//! The secret of a cluster: keys that are derived from it, so that both ends of a connection prove
//! with TLS's own signatures that they know it.
//!
//! Every process derives the same key pair (Ed25519) from a secret, shows its public key (RFC 7250)
//! and accepts no other. The secret is never sent. Whoever connects sees the public key and may try
//! out secrets against it, so a secret must be random, and not a password.

use std::sync::Arc;

use na_core::base::secret;
use ring::hkdf;
use ring::signature::{Ed25519KeyPair, KeyPair};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;
use rustls::{CertificateError, Error};
use zeroize::Zeroizing;

/// An Ed25519 key in front of its 32 bytes (RFC 8410, PKCS#8), and a public one (RFC 5280).
const PRIVATE_HEAD: [u8; 16] =
    [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];
const PUBLIC_HEAD: [u8; 12] = [0x30, 0x2a, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 3, 0x21, 0];

/// The keys of a file of secrets.
pub(crate) struct ClusterKeys {
    /// The key that we show.
    pub(crate) own: Arc<CertifiedKey>,
    pub(crate) accepted: Accepted,
}

/// The public keys of those that know a secret.
#[derive(Debug)]
pub(crate) struct Accepted {
    keys: Vec<Vec<u8>>,
}

/// The 32 bytes of the key that follow from a secret.
fn seed(secret: &[u8]) -> Zeroizing<[u8; 32]> {
    struct Len;
    impl hkdf::KeyType for Len {
        fn len(&self) -> usize {
            32
        }
    }
    let key = hkdf::Salt::new(hkdf::HKDF_SHA256, b"margo cluster secret").extract(secret);
    let mut seed = Zeroizing::new([0; 32]);
    let filled = key.expand(&[b"ed25519 1"], Len).and_then(|out| out.fill(&mut *seed));
    debug_assert!(filled.is_ok(), "it may have 255 times as many bytes");
    seed
}

impl ClusterKeys {
    /// The keys of the secrets in the text of a file, one a line.
    pub(crate) fn of(text: &[u8]) -> Result<Self, String> {
        let (mut own, mut keys) = (None, Vec::new());
        for secret in secret::secrets(text)? {
            let failed = |error: &dyn std::fmt::Display| format!("no key follows from it: {error}");
            let seed = seed(secret);
            let pair = Ed25519KeyPair::from_seed_unchecked(&*seed).map_err(|e| failed(&e))?;
            let public = [&PUBLIC_HEAD[..], pair.public_key().as_ref()].concat();
            if own.is_none() {
                let private = Zeroizing::new([&PRIVATE_HEAD[..], &*seed].concat());
                let der = PrivatePkcs8KeyDer::from(&private[..]);
                let signing = rustls::crypto::ring::sign::any_eddsa_type(&der);
                let certificate = CertificateDer::from(public.clone());
                let signing = signing.map_err(|error| failed(&error))?;
                own = Some(Arc::new(CertifiedKey::new(vec![certificate], signing)));
            }
            keys.push(public);
        }
        let own = own.ok_or("it has no secret")?;
        Ok(Self { own, accepted: Accepted { keys } })
    }
}

impl Accepted {
    /// Checks that a peer has shown one of the keys, and nothing else.
    pub(crate) fn check(&self, shown: &[u8], others: usize) -> Result<(), Error> {
        // Public keys: how long a comparison takes tells nothing that is secret.
        match others == 0 && self.keys.iter().any(|known| known == shown) {
            true => Ok(()),
            false => Err(CertificateError::ApplicationVerificationFailure.into()),
        }
    }
}
