//! Handlers of a stream's RPCs at one endpoint: senders say by them what `wire.rs` lists.
//!
//! | RPC | runs as | waits for |
//! |---|---|---|
//! | `open` | ULT | the `hold` of the same connection |
//! | `hold` | ULT | the end of the session, or of its connection, and then for a sender that comes back |
//! | `batch` | tasklet | nothing |
//! | `pull` | ULT | the transfer |

use std::sync::Arc;
use std::time::{Duration, Instant};

use margo::encoding::Raw;
use margo::{Handle, Instance, Provider, ProviderId, RegisterError};
use ult::Selectable;

use crate::base::schema;
use crate::error::StreamError;
use crate::receiver::table::{Opener, Payload, SenderConnection, Session, Table};
use crate::wire::{
    Head, NAME_BYTES_MAX, Open, Opened, Pulled, Refusal, SessionId, StreamRpcs, Taken, VERSION,
};

/// The time in which a sender that opens a session has to hold its connection.
const HELD_WITHIN: Duration = Duration::from_secs(10);

/// The longest time for fetching a batch. A sender that is stopped in the midst is then taken for
/// one whose connection is gone.
const PULLED_WITHIN: Duration = Duration::from_secs(30);

/// One place where a stream is served.
struct Endpoint {
    table: Arc<Table>,
    at: usize,
}

/// Serves a stream at one instance.
pub(super) fn register(
    instance: &Instance,
    rpcs: StreamRpcs,
    table: &Arc<Table>,
    at: usize,
) -> Result<Provider, RegisterError> {
    let pool = instance.layout().rpc_pool();
    let provider = instance.provider(ProviderId::DEFAULT, &pool);
    let endpoint = Arc::new(Endpoint { table: table.clone(), at });
    let own = endpoint.clone();
    provider.serve(rpcs.open).handler(move |handle| own.open(handle))?;
    let own = endpoint.clone();
    provider.serve(rpcs.hold).handler(move |handle| own.hold(handle))?;
    let own = endpoint.clone();
    provider.serve(rpcs.batch).tasklet().handler(move |handle| own.batch(handle))?;
    provider.serve(rpcs.pull).handler(move |handle| endpoint.pull(handle))?;
    Ok(provider)
}

impl Endpoint {
    fn open(&self, handle: Handle<Open, Result<Opened, Refusal>>) {
        let _ = handle.respond(&self.opened(&handle));
    }

    fn opened(&self, handle: &Handle<Open, Result<Opened, Refusal>>) -> Result<Opened, Refusal> {
        let open = handle.args();
        if open.version != VERSION {
            let other = open.version;
            return Err(Refusal::Open(format!("it speaks version {other}, here is {VERSION}")));
        }
        if open.sender.len() > NAME_BYTES_MAX {
            return Err(Refusal::Open(format!("its name has over {NAME_BYTES_MAX} bytes")));
        }
        if !schema::fits(open.schema, self.table.schema) {
            return Err(Refusal::Open(
                "its items have another shape: the two sides define the type differently".into(),
            ));
        }
        // The sender holds the connection first, so that its end is seen whenever that comes.
        let connection = self.table.connection(open.session).ok_or(Refusal::InUse)?;
        let until = Instant::now() + HELD_WITHIN;
        let token = handle.cancel_token();
        let ends: [&dyn Selectable; 3] = [&connection.held, token.event(), handle.closing()];
        if ult::wait_any(&ends, Some(until)) != Some(0) {
            self.table.forget(&connection);
            return Err(Refusal::NoSession);
        }
        let opener = Opener {
            name: open.sender.clone(),
            life: open.life,
            resumes: open.resumes,
            from: open.from,
            endpoint: self.at,
            address: handle.origin().to_string(),
        };
        let (opened, session) = self.table.open(opener, &connection)?;
        if !connection.bind(&session) {
            // It has ended meanwhile. What follows of that may take its time.
            let (table, why) = (self.table.clone(), "its connection is gone");
            let follow = move || gone(&table, &session, &connection, why);
            let pool = handle.instance().layout().rpc_pool();
            if pool.ult().name("margo_stream.gone").spawn_detached(follow).is_err() {
                tracing::warn!("no ULT waits for a sender of a stream that is gone");
            }
            return Err(Refusal::NoSession);
        }
        Ok(Opened {
            next: opened.next,
            acknowledged: opened.acknowledged,
            credit: self.table.spec.credit_bytes,
        })
    }

    fn hold(&self, handle: Handle<SessionId, Taken>) {
        let Some(connection) = self.table.connection(*handle.args()) else {
            let _ = handle.respond(&Err(Refusal::NoSession));
            return;
        };
        if connection.held.set(()).is_err() {
            let _ = handle.respond(&Err(Refusal::Breach("a connection is held twice".into())));
            return;
        }
        let token = handle.cancel_token();
        let ends: [&dyn Selectable; 3] = [&connection.over, handle.closing(), token.event()];
        let end = ult::wait_any(&ends, None);
        self.table.forget(&connection);
        let session = connection.leave();
        if end == Some(1) {
            // Also for those that have opened no session.
            let _ = connection.over.set(Err(Refusal::Closed));
            self.table.end(Err(StreamError::Closed { stream: self.table.stream }));
        }
        if end != Some(2) {
            let _ = handle.respond(connection.over.wait());
            return;
        }
        let why = token.reason().map_or_else(String::new, |reason| reason.to_string());
        drop(handle);
        if let Some(session) = session {
            gone(&self.table, &session, &connection, &why);
        }
    }

    fn batch(&self, handle: Handle<(Head, Raw), Taken>) {
        let ((head, Raw(bytes)), owed) = handle.take_args();
        let len = bytes.len() as u64;
        let reserved = self.reserve(&head, len);
        match reserved {
            Ok((session, connection)) => {
                let payload = Payload::Items(bytes);
                self.table.arrive(&session, head, (connection, len), payload, owed);
            }
            Err(refusal) => {
                let _ = owed.respond(&Err(refusal));
            }
        }
    }

    fn reserve(&self, head: &Head, bytes: u64) -> Result<(Arc<Session>, u32), Refusal> {
        let session = self.table.session(head.session).ok_or(Refusal::NoSession)?;
        let connection = self.table.reserve(&session, head, bytes)?;
        Ok((session, connection))
    }

    fn pull(&self, handle: Handle<(Head, Pulled), Taken>) {
        let ((head, pulled), owed) = handle.take_args();
        // The data's credit is for all that is held of the item.
        let item = pulled.item.as_ref().map_or(0, |item| item.len() as u64);
        let bytes = pulled.len.saturating_add(item);
        let (session, connection) = match self.reserve(&head, bytes) {
            Ok(reserved) => reserved,
            Err(refusal) => {
                let _ = owed.respond(&Err(refusal));
                return;
            }
        };
        match self.fetch(&owed, pulled) {
            Ok(payload) => self.table.arrive(&session, head, (connection, bytes), payload, owed),
            Err(error) => {
                self.table.unreserve(&session, connection, bytes);
                tracing::warn!(sender = session.name, error, "a batch was not fetched");
                let _ = owed.respond(&Err(Refusal::NoSession));
            }
        }
    }

    fn fetch(&self, owed: &Handle<(), Taken>, pulled: Pulled) -> Result<Payload, String> {
        let len = usize::try_from(pulled.len).map_err(|error| error.to_string())?;
        let buffers = &self.table.buffers;
        let taken = buffers.take(self.at, owed.instance(), len);
        let mut buffer = taken.map_err(|error| error.to_string())?;
        if len > 0 {
            let transfer = owed.bulk(&pulled.bulk).timeout(PULLED_WITHIN);
            transfer.pull(0, &mut buffer, 0..len).map_err(|error| error.to_string())?;
        }
        Ok(match pulled.item {
            None => Payload::Fetched(buffer, len),
            Some(Raw(item)) => Payload::Data(item, buffer, len),
        })
    }
}

/// A connection is gone: what follows of it, and, if the sender may come back, the wait for that.
fn gone(table: &Table, session: &Session, connection: &SenderConnection, why: &str) {
    let Some(time) = table.connection_lost(session, connection.id, why) else { return };
    let until = Instant::now().checked_add(time);
    if ult::wait_any(&[&connection.over, table.over()], until).is_none() {
        table.not_come_back(session, connection.id, why);
    }
}
