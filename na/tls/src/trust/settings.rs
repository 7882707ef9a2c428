//! The security of an endpoint as rustls wants it, read from its files and again when they change.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use na_core::base::secret::{self, Readers, Stamp};
use na_core::{Certificates, Error, Principal, TcpSecurity};
use prim::sync::{Mutex, lock};
use rustls::client::{ResolvesClientCert, Resumption};
use rustls::crypto::{CryptoProvider, ring as provider};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{
    CertificateDer, CertificateRevocationListDer, PrivateKeyDer, ServerName, UnixTime,
};
use rustls::server::{
    AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage, ResolvesServerCert,
};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::TLS13;
use rustls::{ClientConfig, ServerConfig, client};
use webpki::{CertRevocationList, EndEntityCert, KeyUsage, OwnedCertRevocationList};

use crate::trust::certificates::{Authorities, name_of};
use crate::trust::cluster::ClusterKeys;
use crate::trust::shown::not_after;
use crate::trust::verifier::{Believes, Verifier};

/// The rest of a certificate's time from which on the log warns.
const EXPIRES_SOON: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// The protocol that is spoken inside, so that no other one that trusts the same authority can be
/// led here.
const PROTOCOL: &[u8] = b"margo";

/// The security of an endpoint.
#[derive(Debug)]
pub struct Settings {
    wanted: TcpSecurity,
    loaded: Mutex<Loaded>,
}

#[derive(Debug)]
struct Loaded {
    sides: Sides,
    /// The end of the own certificate, if it is one.
    expires: Option<SystemTime>,
    stamps: Vec<Stamp>,
}

/// Both sides of handshakes to come.
#[derive(Debug, Clone)]
pub(crate) struct Sides {
    pub(crate) dialer: Arc<ClientConfig>,
    pub(crate) acceptor: Arc<ServerConfig>,
    proves: Proves,
}

/// The kind of proof that a peer gives by its part of the handshake.
#[derive(Debug, Clone, Copy)]
enum Proves {
    Name,
    Membership,
}

impl Sides {
    /// The peer that has shown these certificates, at this address.
    pub(crate) fn principal(
        &self,
        shown: Option<&[CertificateDer<'_>]>,
        address: Option<IpAddr>,
    ) -> Principal {
        let name = |certificate: &CertificateDer<'_>| name_of(certificate).map(Principal::Name);
        let proven = match self.proves {
            Proves::Name => shown.and_then(<[_]>::first).and_then(name),
            Proves::Membership => address.map(Principal::member_at),
        };
        proven.unwrap_or(Principal::Unknown)
    }
}

impl Settings {
    /// Reads the files of `wanted`; `None`: it asks for none of this.
    ///
    /// # Errors
    ///
    /// [`Error::BadOption`]: a file cannot be read, is open to others, or means nothing.
    pub fn load(wanted: &TcpSecurity) -> Result<Option<Self>, Error> {
        if *wanted == TcpSecurity::None {
            return Ok(None);
        }
        let bad = |reason| Error::BadOption { option: "tcp.security", reason };
        let loaded = Mutex::new(load(wanted).map_err(bad)?);
        Ok(Some(Self { wanted: wanted.clone(), loaded }))
    }

    /// Both sides of the next handshake. Files that have changed are read again; if that
    /// fails, the log says so, and what was read before stays.
    pub(crate) fn sides(&self) -> Sides {
        let mut loaded = lock(&self.loaded);
        // It takes a microsecond or two, and a handshake some hundreds.
        self.look(&mut loaded);
        loaded.sides.clone()
    }

    /// The end of the own certificate, seconds since 1970, if it is one.
    pub(crate) fn certificate_expires(&self) -> Option<u64> {
        let mut loaded = lock(&self.loaded);
        self.look(&mut loaded);
        let since = loaded.expires?.duration_since(SystemTime::UNIX_EPOCH).ok()?;
        Some(since.as_secs())
    }

    pub(crate) fn look_at_files(&self) {
        self.look(&mut lock(&self.loaded));
    }

    fn look(&self, loaded: &mut Loaded) {
        if !loaded.stamps.iter().any(Stamp::has_changed) {
            return;
        }
        match load(&self.wanted) {
            Ok(new) => {
                tracing::info!("the files of `tcp.security` were read again");
                *loaded = new;
            }
            Err(reason) => {
                // Said once for each change.
                loaded.stamps = stamps(&self.wanted);
                tracing::error!(reason, "files of `tcp.security` changed and cannot be used");
            }
        }
    }
}

fn paths(wanted: &TcpSecurity) -> Vec<&Path> {
    match wanted {
        TcpSecurity::MutualTls(files) => {
            let all = [Some(&files.certificate), Some(&files.key), Some(&files.trust)];
            all.into_iter().chain([files.revoked.as_ref()]).flatten().map(|path| &**path).collect()
        }
        TcpSecurity::ClusterSecret(path) => vec![path],
        _ => Vec::new(),
    }
}

fn stamps(wanted: &TcpSecurity) -> Vec<Stamp> {
    paths(wanted).into_iter().map(Stamp::of).collect()
}

fn load(wanted: &TcpSecurity) -> Result<Loaded, String> {
    // Before the files, or a change in between would be missed.
    let stamps = stamps(wanted);
    let (sides, expires) = match wanted {
        TcpSecurity::MutualTls(files) => mutual_tls(files)?,
        TcpSecurity::ClusterSecret(path) => (cluster(path)?, None),
        other => return Err(format!("{other:?} is nothing that this version knows")),
    };
    Ok(Loaded { sides, expires, stamps })
}

/// The ciphers and key exchanges of both sides.
fn crypto() -> Arc<CryptoProvider> {
    let mut crypto = provider::default_provider();
    if !has_aes() {
        crypto.cipher_suites.sort_by_key(|suite| {
            suite.suite() != rustls::CipherSuite::TLS13_CHACHA20_POLY1305_SHA256
        });
    }
    Arc::new(crypto)
}

/// Returns whether the processor does AES and the products of GCM itself. Without, ChaCha20 is
/// faster by far.
fn has_aes() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("aes") && is_x86_feature_detected!("pclmulqdq");
    #[cfg(target_arch = "aarch64")]
    return std::arch::is_aarch64_feature_detected!("aes")
        && std::arch::is_aarch64_feature_detected!("pmull");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    return false;
}

/// Both sides: those that show `own` and believe the same peers.
fn sides(
    crypto: Arc<CryptoProvider>,
    believes: Believes,
    own: (Arc<dyn ResolvesClientCert>, Arc<dyn ResolvesServerCert>),
    proves: Proves,
) -> Result<Sides, String> {
    let algorithms = crypto.signature_verification_algorithms;
    let verifier = Arc::new(Verifier { believes, algorithms });
    let mut dialer = ClientConfig::builder_with_provider(crypto.clone())
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| error.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(verifier.clone())
        .with_client_cert_resolver(own.0);
    dialer.alpn_protocols = vec![PROTOCOL.to_vec()];
    dialer.resumption = Resumption::disabled();
    dialer.enable_sni = false;
    dialer.enable_secret_extraction = true;
    let mut acceptor = ServerConfig::builder_with_provider(crypto)
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| error.to_string())?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(own.1);
    acceptor.alpn_protocols = vec![PROTOCOL.to_vec()];
    acceptor.session_storage = Arc::new(NoServerSessionStorage {});
    acceptor.send_tls13_tickets = 0;
    acceptor.enable_secret_extraction = true;
    Ok(Sides { dialer: Arc::new(dialer), acceptor: Arc::new(acceptor), proves })
}

fn cluster(path: &Path) -> Result<Sides, String> {
    let text = secret::read(path, Readers::Nobody)?;
    of_secret(&text).map_err(|reason| format!("{}: {reason}", path.display()))
}

/// Both sides of those that know the secrets in a text.
pub(crate) fn of_secret(text: &[u8]) -> Result<Sides, String> {
    let ClusterKeys { own, accepted } = ClusterKeys::of(text)?;
    let dialer = Arc::new(client::AlwaysResolvesClientRawPublicKeys::new(own.clone()));
    let acceptor = Arc::new(AlwaysResolvesServerRawPublicKeys::new(own));
    let (believes, crypto) = (Believes::Members(accepted), crypto());
    sides(crypto, believes, (dialer, acceptor), Proves::Membership)
}

/// All items of one kind in a PEM file.
fn items<T: PemObject>(path: &Path, bytes: &[u8], what: &str) -> Result<Vec<T>, String> {
    let shown = path.display();
    let all: Result<Vec<_>, _> = T::pem_slice_iter(bytes).collect();
    match all {
        Ok(all) if !all.is_empty() => Ok(all),
        Ok(_) => Err(format!("{shown} holds no {what} in PEM")),
        Err(error) => Err(format!("{shown} is no PEM: {error}")),
    }
}

fn mutual_tls(wanted: &Certificates) -> Result<(Sides, Option<SystemTime>), String> {
    let crypto = crypto();
    let read = |path: &Path, what: &str| -> Result<Vec<CertificateDer<'static>>, String> {
        items(path, &secret::read(path, Readers::Anybody)?, what)
    };
    let chain = read(&wanted.certificate, "certificate")?;
    let trust = read(&wanted.trust, "certificate")?;
    let shown = wanted.trust.display();
    let mut anchors = Vec::new();
    let mut subjects = Vec::new();
    for certificate in &trust {
        let anchor = webpki::anchor_from_trusted_cert(certificate)
            .map_err(|error| format!("{shown} holds a certificate of no authority: {error}"))?;
        subjects.push(rustls::DistinguishedName::in_sequence(&anchor.subject));
        anchors.push(anchor.to_owned());
    }
    let mut revoked = Vec::new();
    if let Some(path) = &wanted.revoked {
        let bytes = secret::read(path, Readers::Anybody)?;
        for list in items::<CertificateRevocationListDer<'_>>(path, &bytes, "X509 CRL")? {
            let list = OwnedCertRevocationList::from_der(&list)
                .map_err(|error| format!("{}: {error}", path.display()))?;
            revoked.push(CertRevocationList::Owned(list));
        }
    }
    let key = secret::read(&wanted.key, Readers::Nobody)?;
    let shown = wanted.key.display();
    let key = PrivateKeyDer::from_pem_slice(&key)
        .map_err(|error| format!("{shown} holds no private key in PEM: {error}"))?;
    let own = CertifiedKey::from_der(chain, key, &crypto).map_err(|error| {
        format!("{shown} is not the key of {}: {error}", wanted.certificate.display())
    })?;
    let authorities = Authorities {
        anchors,
        subjects,
        revoked,
        names: wanted.names.clone(),
        algorithms: crypto.signature_verification_algorithms,
    };
    let expires = warn_of_own(wanted, &own, &authorities);
    let own = Arc::new(SingleCertAndKey::from(own));
    let believes = Believes::Certificates(authorities);
    Ok((sides(crypto, believes, (own.clone(), own), Proves::Name)?, expires))
}

/// Says in the log what our own peers will hold against us, if they trust the same authorities.
/// Returns the end of our certificate.
fn warn_of_own(
    wanted: &Certificates,
    own: &CertifiedKey,
    authorities: &Authorities,
) -> Option<SystemTime> {
    let (certificate, others) = own.cert.split_first()?;
    let until = EndEntityCert::try_from(certificate).ok().and_then(|parsed| not_after(&parsed));
    let left = until.and_then(|until| until.duration_since(SystemTime::now()).ok());
    if let Some(left) = left.filter(|left| *left < EXPIRES_SOON) {
        let days = left.as_secs() / (24 * 60 * 60);
        let certificate = wanted.certificate.display();
        tracing::warn!(%certificate, days, "our certificate expires soon: replace the files");
    }
    for (usage, does) in
        [(KeyUsage::client_auth(), "calls"), (KeyUsage::server_auth(), "is called")]
    {
        if let Err(error) = authorities.check(certificate, others, UnixTime::now(), usage, None) {
            tracing::warn!(
                certificate = %wanted.certificate.display(),
                "peers that trust what we do will refuse our certificate where this process \
                 {does}: {error}"
            );
        }
    }
    until
}

/// The name under which rustls knows the address that is dialed.
pub(crate) fn server_name(address: IpAddr) -> ServerName<'static> {
    ServerName::IpAddress(address.to_canonical().into())
}
