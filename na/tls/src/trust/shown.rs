//! Files of certificates and secrets in words, for those who look at them.

use std::path::Path;
use std::time::{Duration, SystemTime};

use na_core::base::secret::{self, Readers};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, UnixTime};
use webpki::{EndEntityCert, KeyUsage};

/// The contents of a file, without anything that is secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shown {
    /// Certificates, in their order.
    Certificates(Vec<ShownCertificate>),
    /// A private key.
    Key,
    /// So many secrets of a cluster.
    Secrets(usize),
}

/// A certificate in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShownCertificate {
    /// The name by which rules know it, as [`PeerName`](na_core::PeerName), and its other ones.
    pub names: Vec<String>,
    /// Until when it is good.
    pub not_after: Option<SystemTime>,
}

/// Says what is in a file, which must be as safe as if it were used.
///
/// # Errors
///
/// The text for people: it cannot be read, or others can.
pub fn show(path: &Path) -> Result<Shown, String> {
    let bytes = secret::read(path, Readers::Nobody).or_else(|refusal| {
        // A certificate is for everybody.
        secret::read(path, Readers::Anybody)
            .ok()
            .filter(|bytes| !holds_secrets(bytes))
            .ok_or(refusal)
    })?;
    let all: Result<Vec<CertificateDer<'_>>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    match all {
        Ok(all) if !all.is_empty() => Ok(Shown::Certificates(all.iter().map(in_words).collect())),
        _ if text(&bytes).contains("PRIVATE KEY-----") => Ok(Shown::Key),
        _ => {
            Ok(Shown::Secrets(text(&bytes).lines().filter(|line| !line.trim().is_empty()).count()))
        }
    }
}

fn text(bytes: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

fn holds_secrets(bytes: &[u8]) -> bool {
    let text = text(bytes);
    !text.contains("-----BEGIN") || text.contains("PRIVATE KEY-----")
}

fn in_words(certificate: &CertificateDer<'_>) -> ShownCertificate {
    let Ok(parsed) = EndEntityCert::try_from(certificate) else {
        return ShownCertificate { names: Vec::new(), not_after: None };
    };
    let names = parsed.valid_uri_names().chain(parsed.valid_dns_names());
    let names = names.map(str::to_owned).collect();
    ShownCertificate { names, not_after: not_after(&parsed) }
}

/// Until when a certificate is good.
pub(crate) fn not_after(certificate: &EndEntityCert<'_>) -> Option<SystemTime> {
    // It says so where it is refused for that: in the year 9999.
    let late = UnixTime::since_unix_epoch(Duration::from_secs(253_370_764_800));
    let algorithms = rustls::crypto::ring::default_provider().signature_verification_algorithms;
    let refused = certificate.verify_for_usage(
        algorithms.all,
        &[],
        &[],
        late,
        KeyUsage::client_auth(),
        None,
        None,
    );
    match refused.err()? {
        webpki::Error::CertExpired { not_after, .. } => {
            Some(SystemTime::UNIX_EPOCH + Duration::from_secs(not_after.as_secs()))
        }
        _ => None,
    }
}
