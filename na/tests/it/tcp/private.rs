//! Connections that are private (TLS): the conformance suite, who is let in, and what somebody on
//! the way can do.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use na::conformance::{Opener, PATIENCE};
use na::{
    Addr, Certificates, Completion, Endpoint, Error, OpId, OpenOptions, PeerName, Principal, Tag,
    TcpSecurity,
};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose,
    RevokedCertParams, SanType, SerialNumber, date_time_ymd,
};

use crate::tcp::faults::may_have_descriptors;

const SECRET: &str = "a secret of the tests, and long enough";
const OTHER: &str = "another secret, and long enough as well";

/// Files that live as long as the test; nobody else may read them.
struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        use std::os::unix::fs::OpenOptionsExt;
        let path = self.0.path().join(name);
        // Whatever the umask is. It replaces the file, as tools do that write keys.
        let beside = self.0.path().join(format!("{name}.new"));
        let mut options = std::fs::OpenOptions::new();
        let mut file =
            options.write(true).create(true).truncate(true).mode(0o600).open(&beside).unwrap();
        file.write_all(text.as_bytes()).unwrap();
        std::fs::rename(beside, &path).unwrap();
        path
    }

    fn secret(&self, secrets: &[&str]) -> TcpSecurity {
        TcpSecurity::ClusterSecret(self.write("secret", &secrets.join("\n")))
    }
}

mod conformance {
    use super::*;

    /// A cluster whose members know a secret.
    struct Cluster;

    impl Opener<Cluster> for Cluster {
        const HEEDS_OPTIONS: bool = true;

        fn spares(&self, case: &str) -> Option<String> {
            let by_uri = ["a_peer_restarts_under_its_address", "a_call_at_once_ends_with_its_peer"];
            if by_uri.contains(&case) {
                return Some("its second target would not be private".to_owned());
            }
            let waits = case.starts_with("a_stopped_peer") || case.starts_with("memory_comes_back");
            waits.then(|| "it takes seconds, and records make no difference".to_owned())
        }

        fn open(&self, options: &OpenOptions) -> Arc<dyn Endpoint> {
            let files = Files::new();
            let mut options = options.clone();
            options.tcp.security = files.secret(&[SECRET]);
            na::open("na+tcp://127.0.0.1:0", &options).unwrap()
        }
    }

    na::conformance! { Cluster; all }
}

fn open(listen: bool, security: &TcpSecurity) -> Arc<dyn Endpoint> {
    try_open(listen, security).unwrap()
}

fn try_open(listen: bool, security: &TcpSecurity) -> Result<Arc<dyn Endpoint>, Error> {
    let mut options = OpenOptions::listening(listen);
    options.tcp.security = security.clone();
    options.connect_timeout = Duration::from_secs(20);
    na::open("na+tcp://127.0.0.1:0", &options)
}

/// Sends a message from `origin` to `to`, which leads to `target`, and returns whom that says the
/// message is from.
fn say(
    origin: &Arc<dyn Endpoint>,
    target: &Arc<dyn Endpoint>,
    to: &Addr,
    text: &[u8],
) -> Result<Addr, Error> {
    let mut message = origin.alloc_msg();
    assert!(message.try_extend(text));
    target.recv_unexpected(OpId(1), target.alloc_msg()).unwrap();
    origin.send_unexpected(OpId(2), to, Tag(1), message).unwrap();
    let (mut sent, mut came) = (None, None);
    let deadline = Instant::now() + PATIENCE;
    while came.is_none() {
        assert!(Instant::now() < deadline, "{sent:?}");
        let mut at_origin = |completion| {
            if let Completion::Send { result, .. } = completion {
                sent = Some(result);
            }
        };
        origin.poll(64, &mut at_origin).unwrap();
        if let Some(Err(error)) = sent {
            target.cancel(OpId(1));
            target.poll(64, &mut |_| ()).unwrap();
            return Err(error);
        }
        let mut at_target = |completion| {
            if let Completion::Recv { result: Ok(message), buf, .. } = completion {
                assert_eq!(buf.as_slice(), text);
                came = Some(message.from);
            }
        };
        target.poll(64, &mut at_target).unwrap();
    }
    Ok(came.unwrap())
}

fn greet(origin: &Arc<dyn Endpoint>, target: &Arc<dyn Endpoint>) -> Result<Addr, Error> {
    let to = origin.lookup(target.self_addr().uri())?;
    say(origin, target, &to, b"hello")
}

fn is_unreachable(said: &Result<Addr, Error>, reason: &str) -> bool {
    matches!(said, Err(Error::Unreachable { .. } | Error::Protocol { .. }))
        && said.as_ref().unwrap_err().to_string().contains(reason)
}

/// A send that has ended is on its way: its message arrives although its origin polls no more.
#[test]
fn a_send_that_has_ended_needs_no_further_poll_of_its_origin() {
    let files = Files::new();
    let security = files.secret(&[SECRET]);
    let (target, origin) = (open(true, &security), open(false, &security));
    let to = origin.lookup(target.self_addr().uri()).unwrap();
    say(&origin, &target, &to, b"hello").unwrap();
    let text = vec![7; origin.limits().unexpected_bytes_max];
    let (mut ended, mut begun) = (0, 0);
    let mut poll_origin = |begun: u64| {
        origin
            .poll(64, &mut |completion| match completion {
                Completion::Send { result: Ok(()), .. } => ended += 1,
                other => panic!("{other:?}"),
            })
            .unwrap();
        assert!(ended <= begun);
        ended
    };
    // Until nothing moves: the target does not read.
    let mut still = 0;
    while still < 100 {
        let before = poll_origin(begun);
        while begun < before + 64 {
            let mut message = origin.alloc_msg();
            assert!(message.try_extend(&text));
            origin.send_unexpected(OpId(2), &to, Tag(1), message).unwrap();
            begun += 1;
        }
        still = if poll_origin(begun) == before { still + 1 } else { 0 };
    }
    let (mut came, deadline) = (0, Instant::now() + PATIENCE);
    for _ in 0..ended {
        target.recv_unexpected(OpId(1), target.alloc_msg()).unwrap();
    }
    while came < ended {
        assert!(Instant::now() < deadline, "{came} of {ended} have come");
        target
            .poll(64, &mut |completion| match completion {
                Completion::Recv { result: Ok(_), buf, .. } => {
                    assert_eq!(buf.as_slice(), text);
                    came += 1;
                }
                other => panic!("{other:?}"),
            })
            .unwrap();
    }
}

#[test]
fn only_who_knows_the_secret_is_let_in() {
    let files = [Files::new(), Files::new()];
    let (ours, others) = (files[0].secret(&[SECRET]), files[1].secret(&[OTHER]));
    let target = open(true, &ours);
    let origin = open(false, &ours);
    let from = greet(&origin, &target).unwrap();
    let host = "127.0.0.1".parse().unwrap();
    assert_eq!(target.principal(&from), Principal::member_at(host));
    let to = origin.lookup(target.self_addr().uri()).unwrap();
    assert_eq!(origin.principal(&to), Principal::member_at(host));

    let stranger = open(false, &others);
    let said = greet(&stranger, &target);
    assert!(is_unreachable(&said, "TLS"), "{said:?}");
    let open_one = open(false, &TcpSecurity::None);
    let said = greet(&open_one, &target);
    assert!(is_unreachable(&said, "it speaks TLS, and this endpoint does not"), "{said:?}");
    let open_target = open(true, &TcpSecurity::None);
    let said = greet(&origin, &open_target);
    assert!(is_unreachable(&said, ""), "{said:?}");
    assert!(greet(&open_one, &open_target).is_ok());
}

#[test]
fn two_secrets_are_accepted_so_that_one_can_be_changed() {
    let files = [Files::new(), Files::new()];
    let (old, new) = (SECRET, OTHER);
    let both = [files[0].secret(&[old]), files[1].secret(&[old])];
    let [one, other] = [0, 1].map(|at| open(true, &both[at]));
    let first = greet(&one, &other).unwrap();
    // In each step one of the two is a step ahead, and new connections are made both ways.
    for secrets in [&[old, new][..], &[new, old], &[new]] {
        for changed in &files {
            changed.secret(secrets);
            for (at, target) in [(0, &one), (1, &other)] {
                let origin = open(false, &both[1 - at]);
                greet(&origin, target).unwrap();
            }
        }
    }
    let strangers = Files::new();
    let said = greet(&open(false, &strangers.secret(&[old])), &one);
    assert!(is_unreachable(&said, "TLS"), "{said:?}");
    // The connection from before goes on.
    assert!(say(&other, &one, &first, b"still here").is_ok());
}

#[test]
fn files_that_others_may_write_or_read_are_refused() {
    use std::os::unix::fs::PermissionsExt;
    let files = Files::new();
    let security = files.secret(&[SECRET]);
    let TcpSecurity::ClusterSecret(path) = &security else { unreachable!() };
    let refused = |reason: &str| {
        let error = try_open(true, &security).map(|_| ()).unwrap_err().to_string();
        let names_it =
            error.contains("tcp.security") && error.contains(&path.display().to_string());
        assert!(names_it && error.contains(reason), "{error}");
        assert!(!error.contains(SECRET), "{error}");
    };
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o604)).unwrap();
    refused("mode 604: others must not be able to read it (chmod 600)");
    for (text, reason) in [
        ("", "it has 0 secrets"),
        ("too short", "a secret has 9 characters: at least 32"),
        (&[SECRET; 3].join("\n"), "it has 3 secrets"),
    ] {
        files.write("secret", text);
        refused(reason);
    }
    std::fs::remove_file(path).unwrap();
    refused("No such file");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    refused("is no file");
}

/// An authority, its files and those that it has issued.
struct Authority {
    files: Files,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.distinguished_name.push(DnType::CommonName, "an authority of tests");
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let files = Files::new();
        files.write("ca.pem", &issuer.pem());
        Self { files, issuer }
    }

    /// A certificate for a name, changed by `change`; in it is also the address of the tests.
    fn issue(&self, name: &str, change: impl FnOnce(&mut CertificateParams)) -> Certificates {
        let mut params = CertificateParams::new([name.to_owned(), "127.0.0.1".to_owned()]).unwrap();
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        self.keep(name, &certificate.pem(), &key)
    }

    fn keep(&self, name: &str, certificate: &str, key: &KeyPair) -> Certificates {
        let write = |ending: &str, text: &str| self.files.write(&format!("{name}.{ending}"), text);
        let (certificate, key) = (write("pem", certificate), write("key", &key.serialize_pem()));
        Certificates::new(certificate, key, self.path("ca.pem"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.files.0.path().join(name)
    }
}

fn changed(files: &Certificates, change: impl FnOnce(&mut Certificates)) -> Certificates {
    let mut files = files.clone();
    change(&mut files);
    files
}

fn mutual(files: &Certificates) -> TcpSecurity {
    TcpSecurity::MutualTls(files.clone())
}

fn name(text: &str) -> Principal {
    Principal::Name(PeerName::new(text))
}

#[test]
fn both_ends_know_the_name_in_the_certificate_of_the_other() {
    let authority = Authority::new();
    let target = open(true, &mutual(&authority.issue("store.example", |_| ())));
    let origin = authority.issue("client.example", |params| {
        let uri = "spiffe://example/client".try_into().unwrap();
        params.subject_alt_names.push(SanType::URI(uri));
    });
    let origin = open(false, &mutual(&origin));
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let expires = target.stats().certificate_expires;
    assert!(expires.is_some_and(|at| at > now + 24 * 60 * 60), "{expires:?}");
    let from = greet(&origin, &target).unwrap();
    assert_eq!(target.principal(&from), name("spiffe://example/client"));
    let to = origin.lookup(target.self_addr().uri()).unwrap();
    assert_eq!(origin.principal(&to), name("store.example"));
    // One without a name is known by its key.
    let nameless = authority.issue("nameless", |params| {
        params.subject_alt_names.retain(|name| matches!(name, SanType::IpAddress(_)));
    });
    let from = greet(&open(false, &mutual(&nameless)), &target).unwrap();
    let shown = target.principal(&from).to_string();
    assert!(shown.starts_with("name key:") && shown.len() == "name key:".len() + 64, "{shown}");
}

#[test]
fn certificates_that_prove_nothing_are_refused_by_callers_and_targets() {
    let (authority, strange) = (Authority::new(), Authority::new());
    let good = authority.issue("good.example", |_| ());
    let expired = authority.issue("expired.example", |params| {
        params.not_before = date_time_ymd(2001, 1, 1);
        params.not_after = date_time_ymd(2002, 1, 1);
    });
    let early = authority.issue("early.example", |params| {
        params.not_before = date_time_ymd(3001, 1, 1);
        params.not_after = date_time_ymd(3002, 1, 1);
    });
    let others =
        changed(&strange.issue("x", |_| ()), |files| files.trust = authority.path("ca.pem"));
    let key = KeyPair::generate().unwrap();
    let own = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let own = authority.keep("own", &own.self_signed(&key).unwrap().pem(), &key);
    for bad in [&expired, &early, &others, &own] {
        let target = open(true, &mutual(&good));
        let said = greet(&open(false, &mutual(bad)), &target);
        assert!(is_unreachable(&said, ""), "{bad:?}: {said:?}");
        let said = greet(&open(false, &mutual(&good)), &open(true, &mutual(bad)));
        assert!(is_unreachable(&said, "invalid peer certificate"), "{bad:?}: {said:?}");
    }
    // One that is good for one side only.
    for usage in [ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth] {
        let may_call = usage == ExtendedKeyUsagePurpose::ClientAuth;
        let half = authority.issue("half.example", |params| {
            params.extended_key_usages = vec![usage];
        });
        let [good, half] = [&good, &half].map(mutual);
        assert_eq!(greet(&open(false, &half), &open(true, &good)).is_ok(), may_call);
        assert_eq!(greet(&open(false, &good), &open(true, &half)).is_ok(), !may_call);
    }
    // One for another address than that which was dialed.
    let elsewhere = authority.issue("elsewhere.example", |params| {
        params.subject_alt_names.retain(|name| !matches!(name, SanType::IpAddress(_)));
    });
    let target = open(true, &mutual(&elsewhere));
    let said = greet(&open(false, &mutual(&good)), &target);
    assert!(is_unreachable(&said, "NotValidForName"), "{said:?}");
    // But those that are called may be known by name.
    let named = changed(&good, |files| files.names = vec!["else*.example".into()]);
    assert!(greet(&open(false, &mutual(&named)), &target).is_ok());
    let named = changed(&good, |files| files.names = vec!["other.example".into()]);
    assert!(greet(&open(false, &mutual(&named)), &target).is_err());
    let picky = open(true, &mutual(&named));
    let said = greet(&open(false, &mutual(&good)), &picky);
    assert!(is_unreachable(&said, ""), "{said:?}");
    // A key that is not that of the certificate.
    let mixed = changed(&good, |files| files.key = authority.path("half.example.key"));
    let error = try_open(true, &mutual(&mixed)).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("half.example.key is not the key of"), "{error}");
}

#[test]
fn a_certificate_that_was_revoked_is_refused() {
    let authority = Authority::new();
    let serial = SerialNumber::from(7);
    let gone = authority.issue("gone.example", |params| {
        params.serial_number = Some(serial.clone());
    });
    let good = authority.issue("good.example", |params| {
        params.serial_number = Some(SerialNumber::from(8));
    });
    let list = |until| {
        let revoked = RevokedCertParams {
            serial_number: serial.clone(),
            revocation_time: date_time_ymd(2024, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2024, 1, 1),
            next_update: until,
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: vec![revoked],
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let issuer: &Issuer<'_, KeyPair> = &authority.issuer;
        authority.files.write("revoked.pem", &list.signed_by(issuer).unwrap().pem().unwrap())
    };
    let revoked = Some(list(date_time_ymd(3000, 1, 1)));
    let with_list = changed(&good, |files| files.revoked = revoked);
    let target = open(true, &mutual(&with_list));
    assert!(greet(&open(false, &mutual(&good)), &target).is_ok());
    let said = greet(&open(false, &mutual(&gone)), &target);
    assert!(is_unreachable(&said, ""), "{said:?}");
    // A list that is too old says nothing of anybody.
    list(date_time_ymd(2025, 1, 1));
    let target = open(true, &mutual(&with_list));
    assert!(greet(&open(false, &mutual(&good)), &target).is_err());
}

#[test]
fn an_authority_is_changed_without_a_connection_that_fails() {
    let authorities = [Authority::new(), Authority::new()];
    let issued = authorities.each_ref().map(|one| one.issue("member.example", |_| ()));
    let read = |path: &Path| std::fs::read_to_string(path).unwrap();
    let [old, new] = issued.each_ref().map(|one| [read(&one.certificate), read(&one.key)]);
    let [old_trust, new_trust] = authorities.each_ref().map(|one| read(&one.path("ca.pem")));
    let sides = [Files::new(), Files::new()];
    let security = sides.each_ref().map(|side| {
        let [certificate, key] = &old;
        let [certificate, key, trust] = [("pem", certificate), ("key", key), ("trust", &old_trust)]
            .map(|(name, text)| side.write(name, text));
        mutual(&Certificates::new(certificate, key, trust))
    });
    let targets = security.each_ref().map(|one| open(true, one));
    let greet_target = |at: usize| {
        greet(&open(false, &security[1 - at]), &targets[at]).unwrap();
    };
    let greet_both = || (0..2).for_each(greet_target);
    for side in &sides {
        side.write("trust", &[&*old_trust, &new_trust].concat());
        greet_both();
    }
    for (at, side) in sides.iter().enumerate() {
        side.write("pem", &new[0]);
        // The key is not that of the certificate yet, so those of before stay.
        greet_target(at);
        side.write("key", &new[1]);
        greet_both();
    }
    for side in &sides {
        side.write("trust", &new_trust);
        greet_both();
    }
    let said = greet(&open(false, &mutual(&issued[0])), &targets[0]);
    assert!(is_unreachable(&said, ""), "{said:?}");
}

/// `weak/` has an authority, a key, and two certificates for it: what the authority has signed is
/// the SHA-1 of one, and the SHA-256 of the other.
#[test]
fn a_certificate_with_a_weak_signature_is_refused() {
    let files = Files::new();
    let key = files.write("key", include_str!("weak/leaf.key"));
    let trust = files.write("trust", include_str!("weak/ca.pem"));
    let with = |name: &str, text: &str| {
        let certificate = files.write(name, text);
        mutual(&Certificates::new(certificate, key.clone(), trust.clone()))
    };
    let strong = with("strong", include_str!("weak/sha256.pem"));
    let weak = with("weak", include_str!("weak/sha1.pem"));
    assert!(greet(&open(false, &strong), &open(true, &strong)).is_ok());
    let said = greet(&open(false, &weak), &open(true, &strong));
    assert!(is_unreachable(&said, ""), "{said:?}");
    let said = greet(&open(false, &strong), &open(true, &weak));
    assert!(is_unreachable(&said, "invalid peer certificate"), "{said:?}");
}

/// The way of a record that somebody between origin and target has in hand.
#[derive(Debug, Clone, Copy)]
enum Attack {
    /// Has the second in place of the first, wherever it stands.
    Rewrite(&'static [u8], &'static [u8]),
    Change(usize),
    Drop,
    Repeat,
    Swap,
    Cut(usize),
}

/// Records that were rewritten, by all of them.
static REWRITTEN: AtomicUsize = AtomicUsize::new(0);

/// Passes records from an origin on to a target, the other way as it comes, and does what is asked
/// to the next record. Returns its address.
fn somebody_between(target: &str) -> (SocketAddr, std::sync::mpsc::Sender<Attack>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, target) = (listener.local_addr().unwrap(), target.to_owned());
    let (ask, asked) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let (mut origin, _) = listener.accept().unwrap();
        let mut onward = TcpStream::connect(target).unwrap();
        let (mut back, mut to) = (onward.try_clone().unwrap(), origin.try_clone().unwrap());
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut back, &mut to);
            let _ = to.shutdown(std::net::Shutdown::Both);
        });
        let mut held = Vec::new();
        let mut relay = || -> std::io::Result<()> {
            loop {
                let mut record = vec![0; 5];
                origin.read_exact(&mut record)?;
                let len = usize::from(u16::from_be_bytes([record[3], record[4]]));
                record.resize(5 + len, 0);
                origin.read_exact(&mut record[5..])?;
                match asked.try_recv() {
                    Err(_) => onward.write_all(&record)?,
                    Ok(Attack::Change(at)) => {
                        let at = at.min(record.len() - 1);
                        record[at] ^= 1;
                        onward.write_all(&record)?;
                    }
                    Ok(Attack::Rewrite(from, to)) => {
                        let at = record.windows(from.len()).position(|bytes| bytes == from);
                        let at = at.expect("it stands there");
                        record[at..at + from.len()].copy_from_slice(to);
                        REWRITTEN.fetch_add(1, Ordering::Relaxed);
                        onward.write_all(&record)?;
                    }
                    Ok(Attack::Drop) => {}
                    Ok(Attack::Repeat) => onward.write_all(&[&record[..], &record].concat())?,
                    Ok(Attack::Swap) => {
                        held = record;
                        continue;
                    }
                    Ok(Attack::Cut(at)) => {
                        onward.write_all(&record[..at.min(record.len())])?;
                        return Ok(());
                    }
                }
                onward.write_all(&std::mem::take(&mut held))?;
            }
        };
        let _ = relay();
        let _ = onward.shutdown(std::net::Shutdown::Both);
        let _ = origin.shutdown(std::net::Shutdown::Both);
    });
    (address, ask)
}

#[test]
fn who_is_on_the_way_can_end_a_connection_and_nothing_else() {
    let files = Files::new();
    let security = files.secret(&[SECRET]);
    let of_bytes = [3, 4, 5, 21, usize::MAX].map(Attack::Change);
    let cuts = [0, 3, 5, 22].map(Attack::Cut);
    let others = [Attack::Drop, Attack::Repeat, Attack::Swap];
    for attack in of_bytes.into_iter().chain(cuts).chain(others) {
        let (target, origin) = (open(true, &security), open(false, &security));
        let listening = target.self_addr().uri().strip_prefix("na+tcp://").unwrap().to_owned();
        let (between, ask) = somebody_between(&listening);
        let to = origin.lookup(&format!("na+tcp://{between}")).unwrap();
        say(&origin, &target, &to, b"before").unwrap();
        origin.recv_expected(OpId(7), &to, Tag(1), origin.alloc_msg()).unwrap();
        ask.send(attack).unwrap();
        let (mut came, mut sent, mut ended) = (Vec::new(), 0, false);
        let deadline = Instant::now() + PATIENCE;
        target.recv_unexpected(OpId(20), target.alloc_msg()).unwrap();
        while !ended {
            assert!(Instant::now() < deadline, "{attack:?}: {came:?}");
            let mut waits = true;
            origin
                .poll(64, &mut |completion| match completion {
                    Completion::Recv { op: OpId(7), result, .. } => {
                        assert!(result.is_err(), "{attack:?}: {result:?}");
                        ended = true;
                    }
                    Completion::Send { .. } => waits = false,
                    other => panic!("{other:?}"),
                })
                .unwrap();
            if !ended && (sent == 0 || !waits) && sent < 100 {
                let mut message = origin.alloc_msg();
                assert!(message.try_extend(&[sent]));
                origin.send_unexpected(OpId(8), &to, Tag(1), message).unwrap();
                sent += 1;
            }
            target
                .poll(64, &mut |completion| {
                    if let Completion::Recv { result: Ok(_), buf, .. } = completion {
                        came.extend_from_slice(buf.as_slice());
                    }
                })
                .unwrap();
            if came.len() == usize::from(sent) {
                // It has not met that record yet.
                target.recv_unexpected(OpId(20), target.alloc_msg()).unwrap_or(());
            }
        }
        // What came is what was sent, from the first on.
        assert!(came.iter().copied().eq(0..came.len() as u8), "{attack:?}: {came:?}");
    }
}

#[test]
fn who_is_on_the_way_cannot_talk_two_into_less() {
    let files = Files::new();
    let security = files.secret(&[SECRET]);
    // What the first record offers: versions, of which TLS 1.3 is the only one, and ciphers.
    let versions = |listed: &'static [u8]| Attack::Rewrite(&[0, 0x2b, 0, 3, 2, 3, 4], listed);
    let attacks = [
        versions(&[0, 0x2b, 0, 3, 2, 3, 3]),
        versions(&[0, 0x2b, 0, 3, 2, 3, 1]),
        versions(&[0, 0xff, 0, 3, 2, 3, 4]),
        Attack::Rewrite(&[0x13, 0x02], &[0x00, 0x2f]),
        Attack::Rewrite(&[0x13, 0x01], &[0x13, 0x03]),
    ];
    for (attack, count) in attacks.into_iter().zip(1..) {
        let (target, origin) = (open(true, &security), open(false, &security));
        let listening = target.self_addr().uri().strip_prefix("na+tcp://").unwrap().to_owned();
        let (between, ask) = somebody_between(&listening);
        ask.send(attack).unwrap();
        let to = origin.lookup(&format!("na+tcp://{between}")).unwrap();
        let said = say(&origin, &target, &to, b"in the open");
        assert!(is_unreachable(&said, ""), "{attack:?}: {said:?}");
        assert_eq!(REWRITTEN.load(Ordering::Relaxed), count, "{attack:?}");
    }
    // Nor by speaking for the one with the other, without TLS.
    let (open_one, open_target) = (open(false, &TcpSecurity::None), open(true, &TcpSecurity::None));
    let (target, origin) = (open(true, &security), open(false, &security));
    let said = greet(&origin, &open_target);
    assert!(is_unreachable(&said, ""), "{said:?}");
    let said = greet(&open_one, &target);
    assert!(is_unreachable(&said, "it speaks TLS"), "{said:?}");
}

/// Begins connections that nobody waits for, half of them with the beginning of a handshake.
fn half_open(target: &Arc<dyn Endpoint>, count: usize) -> Vec<TcpStream> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};
    let listening = target.self_addr().uri().strip_prefix("na+tcp://").unwrap().to_owned();
    let listening: SocketAddr = listening.parse().unwrap();
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let begin = |_| {
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap();
        // It goes on by itself.
        let _ = connect(&socket, &listening);
        target.poll(64, &mut |_| ()).unwrap();
        TcpStream::from(socket)
    };
    let mut silent: Vec<_> = (0..count).map(begin).collect();
    for stream in silent.iter_mut().step_by(2) {
        // It does not go on. One that is not connected yet says nothing.
        let _ = stream.write_all(&[22, 3, 1, 1, 0, 1]);
    }
    silent
}

// Slow: handshakes that do not go on have their place for a second at least, 256 at a time.
#[test]
fn those_that_say_nothing_keep_nobody_out() {
    for count in [400, 10_000] {
        if !may_have_descriptors(count + 1000) {
            return println!("SKIPPED: too few file descriptors are allowed");
        }
        let files = Files::new();
        let security = files.secret(&[SECRET]);
        let target = open(true, &security);
        let silent = half_open(&target, count as usize);
        let mut options = OpenOptions::listening(false);
        options.tcp.security = security;
        options.connect_timeout = PATIENCE;
        let origin = na::open("na+tcp://127.0.0.1:0", &options).unwrap();
        let greeted = greet(&origin, &target);
        assert!(greeted.is_ok(), "{count}: {greeted:?}");
        drop(silent);
    }
}

#[test]
fn what_is_no_tls_ends_without_harm() {
    let files = Files::new();
    let security = files.secret(&[SECRET]);
    let target = open(true, &security);
    let listening = target.self_addr().uri().strip_prefix("na+tcp://").unwrap().to_owned();
    for text in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[22; 5], &[22, 3, 1, 0xff, 0xff], &[0; 64]] {
        let mut stream = TcpStream::connect(&listening).unwrap();
        stream.set_nonblocking(true).unwrap();
        stream.write_all(text).unwrap();
        let deadline = Instant::now() + PATIENCE;
        let mut byte = [0; 64];
        // An alert may come first.
        while !matches!(stream.read(&mut byte), Ok(0)) {
            let is_over = matches!(stream.read(&mut byte), Err(e)
                if e.kind() == std::io::ErrorKind::ConnectionReset);
            if is_over {
                break;
            }
            assert!(Instant::now() < deadline, "{text:?}");
            target.poll(64, &mut |_| ()).unwrap();
        }
    }
    assert!(greet(&open(false, &security), &target).is_ok());
}
