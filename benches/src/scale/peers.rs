//! Other software for the same: tokio, tarpc and tonic. Feature `peers`.

use std::convert::Infallible;
use std::future::{Future, Ready, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use tarpc::client::{Config, NewClient};
use tarpc::server::{BaseChannel, Channel as _};
use tarpc::tokio_util::codec::{Framed, LengthDelimitedCodec};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio_serde::formats::MessagePack;
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::{Service, http};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Server};
use tonic::{Request, Response, Status};

use super::meter::Meter;
use super::server::{Place, Stack, Work};
use super::units::{FIB, fib as serial, work};
use crate::base::{Doing, Failure, Result, pin};
use crate::process::child::{send, wait_for_finish, wait_for_word};

/// Each of its threads is pinned to a core of its own.
fn runtime(cores: &[usize]) -> Result<Runtime> {
    let (own, next) = (cores.to_vec(), AtomicUsize::new(0));
    let start = move || {
        let place = next.fetch_add(1, Ordering::Relaxed) % own.len();
        // A thread that cannot be pinned runs on one of the same cores anyway.
        let _ = pin(&own[place..=place]);
    };
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(cores.len()).enable_all().on_thread_start(start);
    builder.build().doing("starting tokio")
}

type Tree = Pin<Box<dyn Future<Output = u64> + Send>>;

fn tree(n: u32) -> Tree {
    Box::pin(async move {
        if n <= FIB.1 {
            return serial(n);
        }
        let half = tokio::spawn(tree(n - 1));
        let other = tree(n - 2).await;
        half.await.unwrap_or_default() + other
    })
}

/// `fib(32)` by tasks.
///
/// # Errors
///
/// When tokio does not start.
pub(crate) fn fib(cores: &[usize]) -> Result<impl FnMut() -> Result<u64>> {
    let runtime = runtime(cores)?;
    Ok(move || {
        let root = runtime.spawn(tree(FIB.0));
        runtime.block_on(root).doing("a task")
    })
}

/// A loop of `count` tasks, which are all made by one and then awaited.
///
/// # Errors
///
/// When tokio does not start.
pub(crate) fn units(cores: &[usize], count: u64) -> Result<impl FnMut() -> Result<()>> {
    let runtime = runtime(cores)?;
    Ok(move || {
        let root = runtime.spawn(async move {
            let tasks = (0..count).map(|unit| tokio::spawn(async move { work(unit) }));
            for task in tasks.collect::<Vec<_>>() {
                task.await?;
            }
            Ok::<_, tokio::task::JoinError>(())
        });
        runtime.block_on(root).doing("a task")?.doing("a task")
    })
}

/// The service of tarpc.
#[tarpc::service]
trait Null {
    async fn call();
}

/// The service of both.
#[derive(Debug, Clone)]
struct Nothing;

impl Null for Nothing {
    async fn call(self, _: tarpc::context::Context) {}
}

/// Messages without content.
#[derive(Debug, Default)]
struct NoBytes;

impl Encoder for NoBytes {
    type Item = ();
    type Error = Status;

    fn encode(&mut self, (): (), _: &mut EncodeBuf<'_>) -> Result<(), Status> {
        Ok(())
    }
}

impl Decoder for NoBytes {
    type Item = ();
    type Error = Status;

    fn decode(&mut self, _: &mut DecodeBuf<'_>) -> Result<Option<()>, Status> {
        Ok(Some(()))
    }
}

impl Codec for NoBytes {
    type Encode = ();
    type Decode = ();
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl tonic::server::NamedService for Nothing {
    const NAME: &'static str = "scale.Null";
}

impl tonic::server::UnaryService<()> for Nothing {
    type Response = ();
    type Future = Ready<Result<Response<()>, Status>>;

    fn call(&mut self, _: Request<()>) -> Self::Future {
        ready(Ok(Response::new(())))
    }
}

impl Service<http::Request<Body>> for Nothing {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(async { Ok(tonic::server::Grpc::new(NoBytes).unary(Nothing, request).await) })
    }
}

fn framed(stream: TcpStream) -> Result<Framed<TcpStream, LengthDelimitedCodec>> {
    stream.set_nodelay(true)?;
    Ok(Framed::new(stream, LengthDelimitedCodec::new()))
}

/// Serves until the parent asks for the end.
///
/// # Errors
///
/// When it does not start, or the parent is gone.
pub(crate) fn serve(stack: Stack, cores: &[usize]) -> Result<()> {
    let runtime = runtime(cores)?;
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"))?;
    let uri = listener.local_addr()?.to_string();
    runtime.spawn(async move {
        if stack == Stack::Tonic {
            let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
            return Server::builder().add_service(Nothing).serve_with_incoming(incoming).await.ok();
        }
        loop {
            let stream = framed(listener.accept().await.ok()?.0).ok()?;
            let transport = tarpc::serde_transport::new(stream, MessagePack::default());
            let requests = BaseChannel::with_defaults(transport).execute(Nothing.serve());
            tokio::spawn(requests.for_each(|request| async move {
                tokio::spawn(request);
            }));
        }
    });
    send(&[Place { uri, provider: 0, shard: None }])?;
    wait_for_finish()?;
    runtime.shutdown_background();
    Ok(())
}

/// Calls of a caller, one after the other.
async fn run<F: Future<Output = Result<()>>>(
    meter: &Meter,
    mut call: impl FnMut() -> F,
) -> Result<()> {
    while !meter.is_over() {
        let mut begun = Instant::now();
        for _ in 0..meter.every() {
            begun = Instant::now();
            call().await.inspect_err(|_| meter.end())?;
        }
        meter.told(begun);
    }
    Ok(())
}

async fn tarpc_client(uri: &str) -> Result<NullClient> {
    let stream = framed(TcpStream::connect(uri).await?)?;
    let transport = tarpc::serde_transport::new(stream, MessagePack::default());
    let NewClient { client, dispatch } = NullClient::new(Config::default(), transport);
    tokio::spawn(dispatch);
    Ok(client)
}

async fn tonic_call(channel: Channel) -> Result<()> {
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.doing("calling")?;
    let path = http::uri::PathAndQuery::from_static("/scale.Null/call");
    client.unary(Request::new(()), path, NoBytes).await.doing("calling").map(drop)
}

/// A client, whose process is pinned to its core.
///
/// # Errors
///
/// When there is no connection, or a call fails.
pub(crate) fn call(stack: Stack, place: &Place, window: Duration) -> Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build().doing("starting tokio")?;
    let meter = Arc::new(Meter::new(8));
    let (watched, uri) = (meter.clone(), place.uri.clone());
    let measured = runtime.block_on(async move {
        let mut callers = Vec::new();
        let (tarpc, tonic) = match stack {
            Stack::Tonic => {
                let endpoint = Channel::from_shared(format!("http://{uri}"))?.tcp_nodelay(true);
                (None, Some(endpoint.connect().await?))
            }
            _ => (Some(tarpc_client(&uri).await?), None),
        };
        send(&())?;
        wait_for_word()?;
        let watch = std::thread::spawn({
            let meter = watched.clone();
            move || meter.watch(window)
        });
        for _ in 0..Work::Null.in_flight() {
            let (meter, tarpc, tonic) = (watched.clone(), tarpc.clone(), tonic.clone());
            callers.push(tokio::spawn(async move {
                if let Some(channel) = tonic {
                    return run(&meter, || tonic_call(channel.clone())).await;
                }
                let Some(client) = tarpc else { return Ok(()) };
                let call = async || client.call(tarpc::context::current()).await.doing("calling");
                run(&meter, call).await
            }));
        }
        for caller in callers {
            caller.await??;
        }
        watch.join().map_err(|_| Failure::new("the clock panicked"))
    })?;
    send(&[measured])
}
