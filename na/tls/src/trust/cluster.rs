//! The secret of a cluster: keys that are derived from it, so that both ends of a connection prove
//! with TLS's own signatures that they know it.
//!
//! Every process derives the same key pair (Ed25519) from a secret, shows its public key (RFC 7250)
//! and accepts no other. The secret is never sent. Whoever connects sees the public key and may try
//! out secrets against it, so a secret must be random, and not a password.

use std::sync::Arc;

use ring::hkdf;
use ring::signature::{Ed25519KeyPair, KeyPair};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{
    CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer,
    UnixTime,
};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, PeerMisbehaved,
    SignatureScheme,
};
use zeroize::Zeroizing;

/// Fewest characters of a secret.
const SECRET_CHARS_MIN: usize = 32;

/// Most secrets in a file: the one that we prove, and one that is accepted besides.
const SECRETS_MAX: usize = 2;

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

/// Verifies that a peer knows a secret.
#[derive(Debug)]
pub(crate) struct Accepted {
    keys: Vec<Vec<u8>>,
    algorithms: WebPkiSupportedAlgorithms,
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
    pub(crate) fn of(text: &[u8], algorithms: WebPkiSupportedAlgorithms) -> Result<Self, String> {
        let lines = text.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
        let secrets: Vec<_> = lines.filter(|line| !line.is_empty()).collect();
        if secrets.is_empty() || secrets.len() > SECRETS_MAX {
            let count = secrets.len();
            return Err(format!(
                "it has {count} secrets, one a line: 1 or {SECRETS_MAX} are needed"
            ));
        }
        let (mut own, mut keys) = (None, Vec::new());
        for secret in secrets {
            if secret.len() < SECRET_CHARS_MIN {
                return Err(format!(
                    "a secret has {} characters: at least {SECRET_CHARS_MIN} are needed",
                    secret.len()
                ));
            }
            let failed = |error: &dyn std::fmt::Display| format!("no key follows from it: {error}");
            let seed = seed(secret);
            let pair = Ed25519KeyPair::from_seed_unchecked(&*seed).map_err(|e| failed(&e))?;
            let public = [&PUBLIC_HEAD[..], pair.public_key().as_ref()].concat();
            if own.is_none() {
                let private = Zeroizing::new([&PRIVATE_HEAD[..], &*seed].concat());
                let der = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(&private[..]));
                let signing = rustls::crypto::ring::sign::any_eddsa_type(match &der {
                    PrivateKeyDer::Pkcs8(der) => der,
                    _ => return Err("no key follows from it".to_owned()),
                });
                let certificate = CertificateDer::from(public.clone());
                let signing = signing.map_err(|error| failed(&error))?;
                own = Some(Arc::new(CertifiedKey::new(vec![certificate], signing)));
            }
            keys.push(public);
        }
        let own = own.ok_or("it has no secret")?;
        Ok(Self { own, accepted: Accepted { keys, algorithms } })
    }
}

impl Accepted {
    fn check(&self, key: &CertificateDer<'_>, others: &[CertificateDer<'_>]) -> Result<(), Error> {
        // Public keys: how long a comparison takes tells nothing that is secret.
        match others.is_empty() && self.keys.iter().any(|known| known == key.as_ref()) {
            true => Ok(()),
            false => Err(CertificateError::ApplicationVerificationFailure.into()),
        }
    }

    fn check_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = SubjectPublicKeyInfoDer::from(key.as_ref());
        verify_tls13_signature_with_raw_key(message, &key, signature, &self.algorithms)
    }
}

/// Nobody is asked to speak TLS 1.2.
pub(crate) fn no_tls12() -> Result<HandshakeSignatureValid, Error> {
    Err(PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme.into())
}

impl ServerCertVerifier for Accepted {
    fn verify_server_cert(
        &self,
        key: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(key, others).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _key: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        no_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check_signature(message, key, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for Accepted {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        key: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(key, others).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _key: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        no_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check_signature(message, key, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}
