//! The proof of a peer, as rustls asks for it: the same for peers that call and that are called.

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{
    WebPkiSupportedAlgorithms, verify_tls13_signature, verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, PeerMisbehaved, SignatureScheme};
use webpki::KeyUsage;

use crate::trust::certificates::Authorities;
use crate::trust::cluster::Accepted;

type Signed = Result<HandshakeSignatureValid, Error>;

/// Verifies what peers show.
#[derive(Debug)]
pub(crate) struct Verifier {
    pub(crate) believes: Believes,
    pub(crate) algorithms: WebPkiSupportedAlgorithms,
}

/// The peers that are believed.
#[derive(Debug)]
pub(crate) enum Believes {
    Members(Accepted),
    Certificates(Authorities),
}

impl Verifier {
    fn check(
        &self,
        (shown, others): (&CertificateDer<'_>, &[CertificateDer<'_>]),
        now: UnixTime,
        usage: KeyUsage,
        dialed: Option<&ServerName<'_>>,
    ) -> Result<(), Error> {
        match &self.believes {
            Believes::Members(accepted) => accepted.check(shown, others.len()),
            Believes::Certificates(authorities) => {
                authorities.check(shown, others, now, usage, dialed)
            }
        }
    }

    fn check_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Signed {
        match self.is_raw() {
            true => {
                let key = SubjectPublicKeyInfoDer::from(shown.as_ref());
                verify_tls13_signature_with_raw_key(message, &key, signature, &self.algorithms)
            }
            false => verify_tls13_signature(message, shown, signature, &self.algorithms),
        }
    }

    fn is_raw(&self) -> bool {
        matches!(self.believes, Believes::Members(_))
    }

    fn schemes(&self) -> Vec<SignatureScheme> {
        match self.is_raw() {
            true => vec![SignatureScheme::ED25519],
            false => self.algorithms.supported_schemes(),
        }
    }
}

/// Nobody is asked to speak TLS 1.2.
fn no_tls12() -> Signed {
    Err(PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme.into())
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        dialed: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check((shown, others), now, KeyUsage::server_auth(), Some(dialed))
            .map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Signed {
        no_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Signed {
        self.check_signature(message, shown, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        self.is_raw()
    }
}

impl ClientCertVerifier for Verifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        match &self.believes {
            Believes::Members(_) => &[],
            Believes::Certificates(authorities) => &authorities.subjects,
        }
    }

    fn verify_client_cert(
        &self,
        shown: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check((shown, others), now, KeyUsage::client_auth(), None)
            .map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Signed {
        no_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Signed {
        self.check_signature(message, shown, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        self.is_raw()
    }
}
