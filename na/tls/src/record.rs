//! Records of TLS 1.3 that carry data: sealed from scattered memory, opened in place.
//!
//! The handshake leaves two keys behind, one for each direction, and a [`Renewal`] by which both
//! directions get their next ones. A [`Sealer`] belongs to whoever sends, an [`Opener`] to whoever
//! reads, so neither waits for the other.
//!
//! A record is `17 03 03`, its length in two bytes, and then, sealed, the data, one byte `17`, and
//! sixteen bytes that prove all of it (RFC 8446, 5.2). Its number is part of the proof and not
//! sent, so a record that is left out, repeated or moved ends the connection.

use std::cell::Cell;
use std::io;
use std::os::fd::AsFd;

use prim::sync::atomic::{AtomicBool, Ordering};
use prim::sync::{Arc, Mutex, lock};
use ring::aead::{
    AES_128_GCM, AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce,
    UnboundKey,
};
use rustls::ConnectionTrafficSecrets;
use rustls::client::ClientConnectionData;
use rustls::kernel::KernelConnection;
use rustls::server::ServerConnectionData;

/// Bytes in front of what is sealed.
pub const HEADER_BYTES: usize = 5;

/// Most bytes of data in one record.
pub const DATA_BYTES_MAX: usize = 1 << 14;

/// Bytes that prove the rest of a record.
const TAG_BYTES: usize = 16;

/// Most bytes of one record of a peer, header included (RFC 8446, 5.2).
pub const RECORD_BYTES_MAX: usize = HEADER_BYTES + DATA_BYTES_MAX + 256;

/// Bytes of data that are sealed before they are sent.
const SEAL_BYTES_MAX: usize = 8 * DATA_BYTES_MAX;

/// Records after which the keys are changed: half of what AES-GCM is good for (RFC 8446, 5.5).
const RECORDS_MAX: u64 = 1 << 23;

/// Records without data that may come one after the other: our own come once in 2^23.
const EMPTY_MAX: u32 = 32;

const CHANGE_CIPHER_SPEC: u8 = 20;
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
pub(crate) const APPLICATION_DATA: u8 = 23;

const KEY_UPDATE: u8 = 24;
const NEW_SESSION_TICKET: u8 = 4;
const CLOSE_NOTIFY: u8 = 0;

/// A key of one direction, and the number of the next record.
struct Keys {
    key: LessSafeKey,
    iv: [u8; NONCE_LEN],
    number: u64,
}

impl Keys {
    fn new((number, secrets): (u64, ConnectionTrafficSecrets)) -> Result<Self, rustls::Error> {
        let new = |algorithm: &'static Algorithm, key: &[u8], iv: &[u8]| {
            let (key, iv) = UnboundKey::new(algorithm, key).ok().zip(iv.try_into().ok())?;
            Some(Self { key: LessSafeKey::new(key), iv, number })
        };
        let keys = match &secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => {
                new(&AES_128_GCM, key.as_ref(), iv.as_ref())
            }
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => {
                new(&AES_256_GCM, key.as_ref(), iv.as_ref())
            }
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => {
                new(&CHACHA20_POLY1305, key.as_ref(), iv.as_ref())
            }
            _ => None,
        };
        keys.ok_or_else(|| rustls::Error::General("a cipher that nobody asked for".into()))
    }

    /// The nonce of the next record.
    fn next(&mut self) -> Nonce {
        let mut nonce = self.iv;
        for (byte, number) in nonce[NONCE_LEN - 8..].iter_mut().zip(self.number.to_be_bytes()) {
            *byte ^= number;
        }
        self.number += 1;
        Nonce::assume_unique_for_key(nonce)
    }
}

/// The rest of a handshake: it makes the keys that follow the first ones.
pub(crate) enum Kernel {
    Dialer(KernelConnection<ClientConnectionData>),
    Acceptor(KernelConnection<ServerConnectionData>),
}

/// The means by which both directions change their keys.
struct Renewal {
    kernel: Mutex<Kernel>,
    /// The peer asks for other keys of ours. Relaxed: it says all.
    is_asked: AtomicBool,
}

type Secrets = Result<(u64, ConnectionTrafficSecrets), rustls::Error>;

impl Renewal {
    fn sending(&self) -> Secrets {
        match &mut *lock(&self.kernel) {
            Kernel::Dialer(kernel) => kernel.update_tx_secret(),
            Kernel::Acceptor(kernel) => kernel.update_tx_secret(),
        }
    }

    fn receiving(&self) -> Secrets {
        match &mut *lock(&self.kernel) {
            Kernel::Dialer(kernel) => kernel.update_rx_secret(),
            Kernel::Acceptor(kernel) => kernel.update_rx_secret(),
        }
    }
}

/// Both directions of a connection.
pub(crate) fn directions(
    secrets: rustls::ExtractedSecrets,
    kernel: Kernel,
) -> Result<(Sealer, Opener), rustls::Error> {
    let renewal =
        Arc::new(Renewal { kernel: Mutex::new(kernel), is_asked: AtomicBool::new(false) });
    let sealer = Sealer {
        keys: Keys::new(secrets.tx)?,
        renewal: renewal.clone(),
        records_max: RECORDS_MAX,
        sealed: Vec::new(),
        sent: 0,
    };
    Ok((sealer, Opener { keys: Keys::new(secrets.rx)?, renewal, empty: 0 }))
}

/// Memory that is to be sent: pieces one behind the other.
///
/// # Safety
///
/// [`copy_to`](Self::copy_to) must write as many bytes as it says.
pub unsafe trait Plaintext {
    /// How many bytes are left.
    fn left(&self) -> usize;

    /// Moves the next bytes to `to`, which lies elsewhere and has room for `len` of at most as many
    /// as are left.
    ///
    /// # Errors
    ///
    /// They cannot be read any more.
    ///
    /// # Safety
    ///
    /// `to` must be valid for writes of `len` bytes.
    unsafe fn copy_to(&mut self, to: *mut u8, len: usize) -> io::Result<()>;
}

/// The sending direction: seals data into records and hands them to the kernel.
pub struct Sealer {
    keys: Keys,
    renewal: Arc<Renewal>,
    records_max: u64,
    /// Records that the kernel has not taken, and how many bytes of them it has.
    sealed: Vec<u8>,
    sent: usize,
}

impl std::fmt::Debug for Sealer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sealer").field("waiting", &self.waiting()).finish_non_exhaustive()
    }
}

thread_local! {
    /// Memory for records that are sealed and sent at once, as nearly all are.
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

impl Sealer {
    /// Bytes of records that the kernel has not taken.
    pub fn waiting(&self) -> usize {
        self.sealed.len() - self.sent
    }

    /// Seals and sends as much of `data` as suits, and returns how many bytes were sealed: they are
    /// on their way, also if the kernel has not taken all of them yet ([`waiting`](Self::waiting)).
    ///
    /// # Errors
    ///
    /// `WouldBlock`: earlier records are still waiting, and the kernel takes nothing. Otherwise the
    /// error of the kernel, or of memory that cannot be read.
    pub fn send(&mut self, socket: impl AsFd, data: &mut impl Plaintext) -> io::Result<usize> {
        self.push(&socket)?;
        let whole = data.left();
        let most = whole.min(SEAL_BYTES_MAX);
        let mut sealed = 0;
        while sealed < most {
            let len = (most - sealed).min(DATA_BYTES_MAX);
            if let Err(error) = self.seal(data, len) {
                if sealed == 0 {
                    return Err(error);
                }
                break;
            }
            sealed += len;
        }
        match self.push(socket) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            Ok(()) | Err(_) => Ok(sealed),
        }
    }

    /// Hands the kernel what is waiting.
    ///
    /// # Errors
    ///
    /// `WouldBlock`: some of it still is. Otherwise the error of the kernel.
    pub fn push(&mut self, socket: impl AsFd) -> io::Result<()> {
        let flags = rustix::net::SendFlags::NOSIGNAL | rustix::net::SendFlags::DONTWAIT;
        while self.sent < self.sealed.len() {
            match rustix::net::send(&socket, &self.sealed[self.sent..], flags) {
                Ok(sent) => self.sent += sent,
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        if self.sealed.capacity() > 0 {
            self.sealed.clear();
            self.sent = 0;
            SPARE.set(std::mem::take(&mut self.sealed));
        }
        Ok(())
    }

    fn seal(&mut self, data: &mut impl Plaintext, len: usize) -> io::Result<()> {
        if self.keys.number >= self.records_max || self.renewal.is_asked.load(Ordering::Relaxed) {
            self.renew()?;
        }
        let start = self.begin(len);
        // SAFETY: `begin` has reserved room for a record with so much data.
        let to = unsafe { self.sealed.as_mut_ptr().add(start + HEADER_BYTES) };
        // SAFETY: as above; nobody else has a pointer to memory that this buffer alone owns.
        if let Err(error) = unsafe { data.copy_to(to, len) } {
            self.sealed.truncate(start);
            return Err(error);
        }
        // SAFETY: the header was appended and so much data was written behind it, in the buffer.
        unsafe { self.sealed.set_len(start + HEADER_BYTES + len) };
        self.end(start, APPLICATION_DATA)
    }

    /// Reserves room for a record. Returns where it starts.
    fn begin(&mut self, len: usize) -> usize {
        if self.sealed.capacity() == 0 {
            self.sealed = SPARE.take();
        }
        let start = self.sealed.len();
        self.sealed.reserve(HEADER_BYTES + len + 1 + TAG_BYTES);
        let body = (len + 1 + TAG_BYTES) as u16;
        let [high, low] = body.to_be_bytes();
        self.sealed.extend_from_slice(&[APPLICATION_DATA, 3, 3, high, low]);
        start
    }

    /// Seals the record whose header and data are there.
    fn end(&mut self, start: usize, kind: u8) -> io::Result<()> {
        self.sealed.push(kind);
        let nonce = self.keys.next();
        let (header, body) = self.sealed[start..].split_at_mut(HEADER_BYTES);
        let tag = self
            .keys
            .key
            .seal_in_place_separate_tag(nonce, Aad::from(&*header), body)
            .map_err(|_| io::Error::other("a record cannot be sealed"))?;
        self.sealed.extend_from_slice(tag.as_ref());
        Ok(())
    }

    /// Announces other keys, and uses them from the next record on.
    #[cold]
    fn renew(&mut self) -> io::Result<()> {
        self.renewal.is_asked.store(false, Ordering::Relaxed);
        // Nothing is asked of the peer: it counts its own records.
        let message = [KEY_UPDATE, 0, 0, 1, 0];
        let start = self.begin(message.len());
        self.sealed.extend_from_slice(&message);
        self.end(start, HANDSHAKE)?;
        let next = self.renewal.sending().and_then(Keys::new);
        self.keys = next.map_err(io::Error::other)?;
        Ok(())
    }

    /// Sends a record of another kind than data.
    #[cfg(test)]
    pub(crate) fn say_of_kind(&mut self, kind: u8, text: &[u8], socket: impl AsFd) {
        let start = self.begin(text.len());
        self.sealed.extend_from_slice(text);
        self.end(start, kind).and_then(|()| self.push(socket)).expect("a record");
    }

    /// Changes the keys after so many records.
    #[cfg(test)]
    pub(crate) fn renew_after(&mut self, records: u64) {
        self.records_max = records;
    }
}

/// Why the records of a peer cannot be read on: texts for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unreadable {
    /// The peer says that it does not go on.
    Alert(String),
    /// It is not what the peer has sealed next.
    Broken(String),
}

impl From<&str> for Unreadable {
    fn from(reason: &str) -> Self {
        Self::Broken(reason.to_owned())
    }
}

impl From<String> for Unreadable {
    fn from(reason: String) -> Self {
        Self::Broken(reason)
    }
}

impl From<Unreadable> for io::Error {
    fn from(reason: Unreadable) -> Self {
        match reason {
            Unreadable::Alert(reason) => Self::new(io::ErrorKind::PermissionDenied, reason),
            Unreadable::Broken(reason) => Self::new(io::ErrorKind::InvalidData, reason),
        }
    }
}

/// The contents of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opened {
    /// So many bytes of data.
    Data(usize),
    /// The peer sends nothing more.
    End,
}

/// The receiving direction: opens records where they lie.
pub struct Opener {
    keys: Keys,
    renewal: Arc<Renewal>,
    /// Records without data since the last one with some.
    empty: u32,
}

impl std::fmt::Debug for Opener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Opener").finish_non_exhaustive()
    }
}

/// Returns how long the record at the front of `bytes` is, header included; `None`: too little of
/// it is there to say.
///
/// # Errors
///
/// The text for the log: it is no record.
pub fn record_bytes(bytes: &[u8]) -> Result<Option<usize>, String> {
    let Some([kind, major, minor, high, low]) = bytes.first_chunk() else { return Ok(None) };
    let len = HEADER_BYTES + usize::from(u16::from_be_bytes([*high, *low]));
    if !(CHANGE_CIPHER_SPEC..=APPLICATION_DATA).contains(kind) || *major != 3 || *minor > 4 {
        return Err("it does not speak TLS".into());
    }
    if len > RECORD_BYTES_MAX {
        return Err(format!("a record of {len} bytes, of at most {RECORD_BYTES_MAX}"));
    }
    Ok(Some(len))
}

impl Opener {
    /// Opens the record that fills `room` from `at` on, and moves its data to the front of `room`.
    ///
    /// # Errors
    ///
    /// [`Unreadable`]; also for many records in a row without data, with which a peer could keep a
    /// reader busy that looks for some.
    pub fn open(&mut self, room: &mut [u8], at: usize) -> Result<Opened, Unreadable> {
        let opened = self.open_any(room, at)?;
        self.empty = if opened == Opened::Data(0) { self.empty + 1 } else { 0 };
        match self.empty > EMPTY_MAX {
            true => Err("too many records without data".into()),
            false => Ok(opened),
        }
    }

    fn open_any(&mut self, room: &mut [u8], at: usize) -> Result<Opened, Unreadable> {
        let header = *room[at..].first_chunk::<HEADER_BYTES>().ok_or("a record without header")?;
        if header[0] != APPLICATION_DATA {
            return Err(format!("a record of kind {} after the handshake", header[0]).into());
        }
        let body = at + HEADER_BYTES;
        let nonce = self.keys.next();
        let opened = self
            .keys
            .key
            .open_within(nonce, Aad::from(header), room, body..)
            .map_err(|_| "a record was changed, repeated or left out on the way")?;
        // What follows the kind is padding.
        let end = opened.iter().rposition(|byte| *byte != 0).ok_or("a record without a kind")?;
        let kind = opened[end];
        let content = &opened[..end];
        match (kind, content) {
            (APPLICATION_DATA, _) => Ok(Opened::Data(end)),
            (ALERT, [_, CLOSE_NOTIFY]) => Ok(Opened::End),
            (ALERT, [_, alert]) => {
                let alert = rustls::AlertDescription::from(*alert);
                Err(Unreadable::Alert(format!("it ends the session with the alert {alert:?}")))
            }
            (HANDSHAKE, [KEY_UPDATE, 0, 0, 1, asks @ (0 | 1)]) => {
                let is_asked = *asks == 1;
                let next = self.renewal.receiving().and_then(Keys::new);
                self.keys = next.map_err(|error| error.to_string())?;
                if is_asked {
                    self.renewal.is_asked.store(true, Ordering::Relaxed);
                }
                Ok(Opened::Data(0))
            }
            // Sessions are not resumed.
            (HANDSHAKE, [NEW_SESSION_TICKET, ..]) => Ok(Opened::Data(0)),
            _ => Err(format!("a record of kind {kind} that means nothing here").into()),
        }
    }
}
