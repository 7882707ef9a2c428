//! TLS 1.3 by rustls alone over a TCP connection, as the floor of private connections: with the
//! same ciphers, and without any proof of who is who, which costs nothing once the handshake is
//! over.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, ServerConfig, ServerConnection,
    SignatureScheme, StreamOwned,
};

use crate::base::{Deadline, Doing, Result};

/// A connection, with or without TLS.
pub(crate) trait Stream: Read + Write + Send + std::fmt::Debug {}

impl<S: Read + Write + Send + std::fmt::Debug> Stream for S {}

/// A file with a secret that both processes of a row know, and everybody else may.
///
/// # Errors
///
/// When it cannot be written.
pub(crate) fn secret_file() -> Result<PathBuf> {
    let user = rustix::process::geteuid().as_raw();
    let path = std::env::temp_dir().join(format!("margo-bench-{user}.secret"));
    if !path.exists() {
        // Beside it, so that nobody reads half of it; its mode is 600.
        let mut file = tempfile::NamedTempFile::new_in(std::env::temp_dir())?;
        file.write_all(b"a secret of benchmarks, which is none")?;
        file.persist(&path).doing("keeping the file with a secret")?;
    }
    Ok(path)
}

/// Believes everybody.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _certificate: &CertificateDer<'_>,
        _others: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// The side that has dialed. Waits for the handshake as [`serve`] does.
///
/// # Errors
///
/// When it does not end until the deadline.
pub(crate) fn dial(stream: TcpStream, deadline: Deadline) -> Result<Box<dyn Stream>> {
    let crypto = Arc::new(ring::default_provider());
    let config = ClientConfig::builder_with_provider(crypto.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody(crypto)))
        .with_no_client_auth();
    let name = ServerName::try_from("localhost")?;
    let mut connection = StreamOwned::new(ClientConnection::new(Arc::new(config), name)?, stream);
    while connection.conn.is_handshaking() {
        nudge(&mut connection)?;
        std::hint::spin_loop();
        deadline.check("a handshake of TLS")?;
    }
    Ok(Box::new(connection))
}

/// The side that was dialed. Waits for the handshake without giving the core away; `idle` is called
/// between the attempts.
///
/// # Errors
///
/// When it does not end until the deadline.
pub(crate) fn serve(stream: TcpStream, deadline: Deadline, idle: fn()) -> Result<Box<dyn Stream>> {
    let own = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
    let key = PrivatePkcs8KeyDer::from(own.signing_key.serialize_der()).into();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_single_cert(vec![own.cert.into()], key)?;
    let mut connection = StreamOwned::new(ServerConnection::new(Arc::new(config))?, stream);
    while connection.conn.is_handshaking() {
        nudge(&mut connection)?;
        idle();
        deadline.check("a handshake of TLS")?;
    }
    Ok(Box::new(connection))
}

/// Goes on with what is to be sent.
fn nudge(connection: &mut impl Write) -> Result<()> {
    match connection.flush() {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
        Err(error) => Err(error).doing("making a handshake of TLS"),
    }
}
