//! `margo security new-ca` and `issue`: an authority in a folder.
//!
//! The authority has one name, so its key is all that issuing needs.

use std::net::IpAddr;
use std::path::Path;
use std::time::SystemTime;

use margo::daemon::Failure;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SanType,
};

use super::{DAY, PUBLIC, SECRET, write_new};
use crate::support::output;

const CERTIFICATE: &str = "ca.pem";
const KEY: &str = "ca.key";

fn params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.distinguished_name = named("margo authority");
    params
}

fn named(name: &str) -> DistinguishedName {
    let mut all = DistinguishedName::new();
    all.push(DnType::CommonName, name);
    all
}

/// Days from an hour ago on: the clocks of hosts differ.
fn good_for(params: &mut CertificateParams, days: u32) {
    let now = SystemTime::now();
    params.not_before = (now - DAY / 24).into();
    params.not_after = (now + DAY * days).into();
}

fn cannot(what: &str) -> impl Fn(rcgen::Error) -> Failure {
    move |error| Failure::new(format_args!("cannot make {what}"), error)
}

pub(super) fn make(dir: &Path, days: u32) -> Result<(), Failure> {
    let failed = |error| Failure::new(format_args!("cannot make {}", dir.display()), error);
    std::fs::create_dir_all(dir).map_err(failed)?;
    let key = KeyPair::generate().map_err(cannot("a key"))?;
    let mut params = params();
    good_for(&mut params, days);
    let certificate = params.self_signed(&key).map_err(cannot("a certificate"))?;
    write_new(&dir.join(KEY), SECRET, &key.serialize_pem())?;
    write_new(&dir.join(CERTIFICATE), PUBLIC, &certificate.pem())?;
    let dir = dir.display();
    output::line(format_args!("{dir}/{CERTIFICATE}: an authority; copy it to all hosts"))?;
    output::line(format_args!("{dir}/{KEY}: its key, for `margo security issue` alone"))
}

pub(super) fn issue(
    name: &str,
    dir: &Path,
    addresses: &[IpAddr],
    days: u32,
) -> Result<(), Failure> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    if name.is_empty() || !name.bytes().all(is_plain) || name.starts_with('.') {
        return Err(Failure::Usage(format!(
            "{name:?} is no name: letters, digits, `-`, `_` and `.` are"
        )));
    }
    let of_authority = dir.join(KEY);
    let text = std::fs::read_to_string(&of_authority).map_err(|error| {
        Failure::new(format_args!("cannot read {}", of_authority.display()), error)
    })?;
    let of_authority = KeyPair::from_pem(&text).map_err(cannot("anything of that key"))?;
    let issuer = Issuer::new(params(), of_authority);
    let mut params = CertificateParams::new([name.to_owned()]).map_err(|error| {
        Failure::Usage(format!("{name:?} is no name that a certificate can have: {error}"))
    })?;
    params.subject_alt_names.extend(addresses.iter().copied().map(SanType::IpAddress));
    params.distinguished_name = named(name);
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.use_authority_key_identifier_extension = true;
    good_for(&mut params, days);
    let key = KeyPair::generate().map_err(cannot("a key"))?;
    let certificate = params.signed_by(&key, &issuer).map_err(cannot("a certificate"))?;
    let [of_certificate, of_key] = ["pem", "key"].map(|end| dir.join(format!("{name}.{end}")));
    write_new(&of_key, SECRET, &key.serialize_pem())?;
    write_new(&of_certificate, PUBLIC, &certificate.pem())?;
    output::line(format_args!(
        "{} and {}: a certificate and its key, good for {}",
        of_certificate.display(),
        of_key.display(),
        output::count(days.into(), "day")
    ))
}
