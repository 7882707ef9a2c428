//! Certificates: whether we believe one, and the name that it proves.

use std::sync::Arc;

use na_core::PeerName;
use prim::glob;
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{CertificateDer, ServerName, TrustAnchor, UnixTime};
use rustls::{CertificateError, DistinguishedName, Error, OtherError};
use webpki::{CertRevocationList, EndEntityCert, KeyUsage, RevocationOptionsBuilder};

/// The authorities whose certificates are believed.
#[derive(Debug)]
pub(crate) struct Authorities {
    pub(crate) anchors: Vec<TrustAnchor<'static>>,
    pub(crate) subjects: Vec<DistinguishedName>,
    pub(crate) revoked: Vec<CertRevocationList<'static>>,
    /// Patterns of names, of which a peer must have one; empty: see
    /// [`Certificates::names`](na_core::Certificates::names).
    pub(crate) names: Vec<String>,
    pub(crate) algorithms: WebPkiSupportedAlgorithms,
}

/// Most bytes of a name; longer ones are none.
const NAME_BYTES_MAX: usize = 1024;

/// The names in a certificate, those first that say more.
fn names<'a>(certificate: &'a EndEntityCert<'a>) -> impl Iterator<Item = &'a str> {
    let all = certificate.valid_uri_names().chain(certificate.valid_dns_names());
    all.filter(|name| name.len() <= NAME_BYTES_MAX)
}

/// The name that a certificate proves, once it is believed.
pub(crate) fn name_of(certificate: &CertificateDer<'_>) -> Option<PeerName> {
    let parsed = EndEntityCert::try_from(certificate).ok()?;
    if let Some(name) = names(&parsed).next() {
        return Some(PeerName::new(name));
    }
    let key = parsed.subject_public_key_info();
    let digest = ring::digest::digest(&ring::digest::SHA256, &key);
    let hex: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    Some(PeerName::new(&format!("key:{hex}")))
}

fn refused(error: webpki::Error) -> Error {
    use webpki::Error::{
        CertExpired, CertNotValidForName, CertNotValidYet, CertRevoked, UnknownIssuer,
    };
    let error = match error {
        CertExpired { .. } => CertificateError::Expired,
        CertNotValidYet { .. } => CertificateError::NotValidYet,
        CertRevoked => CertificateError::Revoked,
        UnknownIssuer => CertificateError::UnknownIssuer,
        CertNotValidForName(_) => CertificateError::NotValidForName,
        other => CertificateError::Other(OtherError(Arc::new(other))),
    };
    error.into()
}

impl Authorities {
    /// Checks a certificate for `usage`; without patterns also that it is for `dialed`.
    pub(crate) fn check(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        now: UnixTime,
        usage: KeyUsage,
        dialed: Option<&ServerName<'_>>,
    ) -> Result<(), Error> {
        let parsed = EndEntityCert::try_from(certificate).map_err(refused)?;
        let lists: Vec<_> = self.revoked.iter().collect();
        let revocation = match lists.is_empty() {
            true => None,
            false => {
                let options = RevocationOptionsBuilder::new(&lists)
                    .map_err(|_| Error::General("no list of revoked certificates".to_owned()))?;
                let enforce = webpki::ExpirationPolicy::Enforce;
                Some(options.with_expiration_policy(enforce).build())
            }
        };
        let algorithms = self.algorithms.all;
        parsed
            .verify_for_usage(algorithms, &self.anchors, others, now, usage, revocation, None)
            .map_err(refused)?;
        if !self.names.is_empty() {
            let is_meant = |name: &str| self.names.iter().any(|glob| glob::matches(glob, name));
            return match names(&parsed).any(is_meant) {
                true => Ok(()),
                false => Err(CertificateError::NotValidForName.into()),
            };
        }
        match dialed {
            Some(dialed) => parsed.verify_is_valid_for_subject_name(dialed).map_err(refused),
            None => Ok(()),
        }
    }
}
