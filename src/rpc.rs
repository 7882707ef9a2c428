//! The definitions that both sides of a call share: the RPC and the name of a provider.

use std::any::TypeId;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::sync::OnceLock;

use hg::{ProviderId, RpcId};

use crate::Addr;

/// An RPC: its name, and the types of its arguments and result.
///
/// Define it once, as a constant in a crate that both sides use, and the compiler keeps them in
/// agreement:
///
/// ```
/// use margo::Rpc;
///
/// pub const SUM: Rpc<(i64, i64), i64> = Rpc::new("sum");
/// ```
///
/// On the wire an RPC is a 64-bit number made of a hash of its name and of the provider id, the
/// same as in C Margo; the argument types are not sent.
///
/// An error that belongs to the application is part of the result: `Rpc<Key, Result<Value, E>>`.
///
/// Bytes in arguments and results are of the type [`Bytes`](crate::encoding::Bytes), or of
/// `serde_bytes`: one copy each way. A `Vec<u8>` has the same encoding, but goes byte by byte, as
/// any vector does. Large data belongs into a bulk transfer
/// ([`Instance::expose`](crate::Instance::expose)).
///
/// Counterpart: `MARGO_REGISTER`, `MARGO_REGISTER_PROVIDER`.
pub struct Rpc<A, R> {
    name: &'static str,
    /// The hash of the name, where provider 0 would have its id: computed when the constant is.
    base: RpcId,
    types: PhantomData<fn(A) -> R>,
}

impl<A, R> Rpc<A, R> {
    /// Names an RPC.
    ///
    /// The name is for as long as the program runs, as a definition is. One that is made at run
    /// time is leaked for that, once, where the definition is made and not where it is used; the
    /// value is `Copy`:
    ///
    /// ```
    /// use margo::Rpc;
    ///
    /// struct Table {
    ///     get: Rpc<u64, String>,
    /// }
    ///
    /// impl Table {
    ///     fn of(name: &str) -> Self {
    ///         Self { get: Rpc::new(format!("{name}_get").leak()) }
    ///     }
    /// }
    ///
    /// assert_eq!(Table::of("users").get.name(), "users_get");
    /// ```
    ///
    /// So do not make names of data that peers send; the subject of a call belongs into its
    /// arguments.
    pub const fn new(name: &'static str) -> Self {
        Self { name, base: RpcId::margo(name, ProviderId::new(0)), types: PhantomData }
    }

    /// The name.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Returns this RPC for callers who want no response: for
    /// [`Instance::send`](crate::Instance::send). Each call chooses. The target's handler runs as
    /// for any call, and its answer is dropped there; a handler for which that is worth something
    /// asks [`Handle::wants_response`](crate::Handle::wants_response).
    ///
    /// ```
    /// use margo::{Instance, ProviderHandle, Rpc};
    ///
    /// const APPEND: Rpc<String, u64> = Rpc::new("append");
    ///
    /// let service = Instance::builder("na+sm://").start()?;
    /// service.serve(APPEND).function(|line| line.len() as u64)?;
    /// let log = ProviderHandle::from(service.self_addr());
    /// assert_eq!(service.forward(APPEND, &log, &"a line".to_owned())?, 6);
    /// service.send(APPEND.without_response(), &log, &"another".to_owned())?;
    /// # service.finalize_and_wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// The way back does not exist: what is defined as [`OneWay`] has no answer to give.
    ///
    /// Counterpart: `margo_registered_disable_response`, which switches all calls of a process, and
    /// of which the two sides have to agree.
    pub const fn without_response(self) -> OneWay<A> {
        Rpc { name: self.name, base: self.base, types: PhantomData }
    }

    /// Returns this RPC for an origin that sends `B` where the target decodes `A`: a borrowed form,
    /// which spares the origin a copy that is made only to be encoded.
    ///
    /// ```
    /// use margo::{Instance, ProviderHandle, Rpc};
    /// use serde::{Deserialize, Serialize};
    ///
    /// /// `T`: owned at the target; an origin may send a `&str`.
    /// #[derive(Serialize, Deserialize)]
    /// struct Put<T = String> {
    ///     key: T,
    ///     value: u64,
    /// }
    ///
    /// const LEN: Rpc<String, u64> = Rpc::new("len");
    /// const PUT: Rpc<Put, u64> = Rpc::new("put");
    ///
    /// let service = Instance::builder("na+sm://").start()?;
    /// service.serve(LEN).function(|text| text.len() as u64)?;
    /// service.serve(PUT).function(|put| put.key.len() as u64 + put.value)?;
    /// let target = ProviderHandle::from(service.self_addr());
    ///
    /// let text = "five.";
    /// assert_eq!(service.forward(LEN.sending(), &target, &text)?, 5);
    /// assert_eq!(service.forward(PUT.sending(), &target, &Put { key: text, value: 2 })?, 7);
    /// # service.finalize_and_wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// The two have to **encode alike**: `&str` and `String`, `&[T]` and `Vec<T>`, `&T` and `T` do,
    /// and so do structs, enums and tuples with the same fields of such types in the same order.
    /// One struct with a parameter, as above, is the definition of both. Otherwise the effect is
    /// that of a peer which defines the RPC differently: the target refuses bytes that it cannot
    /// decode ([`ForwardError::BadArguments`](crate::ForwardError::BadArguments)), and misreads
    /// bytes that it can.
    pub const fn sending<B>(self) -> Rpc<B, R> {
        Rpc { name: self.name, base: self.base, types: PhantomData }
    }

    /// Returns whether no response is waited for: the type says so.
    pub(crate) fn is_one_way(&self) -> bool
    where
        R: 'static,
    {
        TypeId::of::<R>() == TypeId::of::<NoResponse>()
    }

    /// The number that stands for this RPC at that provider on the wire.
    pub const fn id(&self, provider: ProviderId) -> RpcId {
        self.base.at(provider)
    }
}

/// The result of an RPC that has none: see [`OneWay`]. Has no value.
///
/// ```
/// use margo::{NoResponse, OneWay, Rpc};
///
/// const LOG: OneWay<String> = OneWay::new("log");
///
/// /// Takes only RPCs without a response.
/// fn describe<A>(rpc: Rpc<A, NoResponse>) -> String {
///     format!("`{}` has no response", rpc.name())
/// }
/// assert_eq!(describe(LOG), "`log` has no response");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoResponse {}

/// An RPC whose callers get no response: [`Instance::send`](crate::Instance::send) returns when the
/// request is sent, and its handlers cannot answer.
///
/// ```
/// use margo::{Instance, OneWay, ProviderHandle};
///
/// pub const LOG: OneWay<String> = OneWay::new("log");
///
/// let service = Instance::builder("na+sm://").start()?;
/// service.register(LOG, |request| println!("{}", request.args()))?;
/// service.send(LOG, &ProviderHandle::from(service.self_addr()), &"a line".to_owned())?;
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// No call of such an RPC gets a response: a target refuses calls that expect one
/// ([`ForwardError::Failed`](crate::ForwardError::Failed) with `HG_OPNOTSUPPORTED`), instead of
/// letting them wait. Where callers may choose, define an RPC with a result, and send it
/// [`without_response`](Rpc::without_response).
///
/// Counterpart: an RPC with `margo_registered_disable_response` on both sides.
pub type OneWay<A> = Rpc<A, NoResponse>;

impl<A, R> Clone for Rpc<A, R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A, R> Copy for Rpc<A, R> {}

impl<A, R> fmt::Debug for Rpc<A, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rpc({})", self.name)
    }
}

/// A provider at a peer: the destination of calls. Cheap to clone.
///
/// ```
/// use margo::{Instance, ProviderHandle, ProviderId, Rpc};
///
/// const GET: Rpc<(), u32> = Rpc::new("get");
///
/// let service = Instance::builder("na+sm://").start()?;
/// let provider = service.provider(ProviderId::new(3), &service.layout().rpc_pool());
/// provider.serve(GET).function(|()| 42)?;
///
/// let target = ProviderHandle::new(service.self_addr(), ProviderId::new(3));
/// assert_eq!(service.forward(GET, &target, &())?, 42);
///
/// // An address alone stands for the default provider there.
/// assert_eq!(ProviderHandle::from(service.self_addr()).id(), ProviderId::DEFAULT);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Counterpart: Thallium's `provider_handle`; the (address, provider id) pair of
/// `margo_provider_forward`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ProviderHandle {
    addr: Addr,
    id: ProviderId,
    shard: Option<u8>,
    pub(crate) route: Route,
}

/// The address of the peer at the shard that was the first to call it through this handle, where
/// that is another one than the handle has. No property of the handle.
#[derive(Clone, Default)]
pub(crate) struct Route(pub(crate) OnceLock<Addr>);

impl PartialEq for Route {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Route {}

impl Hash for Route {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Route")
    }
}

impl ProviderHandle {
    /// The provider `id` at `addr`. Does not contact it.
    pub fn new(addr: Addr, id: ProviderId) -> Self {
        Self { addr, id, shard: None, route: Route::default() }
    }

    /// Returns this provider, called through that shard of the peer, below 128: calls go over a
    /// connection with that shard, whose progress ULT takes the request and makes the handler. It
    /// is a wish: a peer that has no such shard takes the request where it arrives. How many shards
    /// a peer has is a matter of its configuration (`margo.shards`). A C program takes it for the
    /// number of one of its contexts.
    ///
    /// Counterpart: `HG_Set_target_id`.
    #[must_use]
    pub fn in_shard(self, shard: u8) -> Self {
        Self { shard: Some(shard), route: Route::default(), ..self }
    }

    /// The shard that is asked for. Default: none in particular; then calls go over the connection
    /// that the caller's own shard has with the peer.
    pub fn shard(&self) -> Option<u8> {
        self.shard
    }

    /// Returns the peer's address.
    pub fn addr(&self) -> &Addr {
        &self.addr
    }

    /// Returns the id of the provider at that peer.
    pub fn id(&self) -> ProviderId {
        self.id
    }
}

impl From<Addr> for ProviderHandle {
    /// The default provider ([`ProviderId::DEFAULT`]) at `addr`.
    fn from(addr: Addr) -> Self {
        Self::new(addr, ProviderId::DEFAULT)
    }
}

impl fmt::Display for ProviderHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.id == ProviderId::DEFAULT {
            write!(f, "{}", self.addr)
        } else {
            write!(f, "provider {} at {}", self.id, self.addr)
        }
    }
}
