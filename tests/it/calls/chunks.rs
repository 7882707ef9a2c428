//! Results of services in chunks: their order, what is under way, and how they end.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::common::process::{Service, client_for, serve_if_asked};
use crate::common::{Pair, TRANSPORTS, bounded};
use margo::service::RequestContext;
use margo::{CallError, ForwardError, ProviderHandle, ProviderId, encoding::Bytes};
use ult::Eventual;

/// Longer than a message.
const LONG: usize = 300_000;

#[margo::service]
trait Source {
    /// Bytes of a value that has `count` chunks.
    #[margo(chunks)]
    fn read(&self, fill: &str, count: u64, at: u64) -> Result<Option<(Bytes, u64)>, String>;

    /// Numbers from `from` on, without an end.
    #[margo(chunks)]
    fn numbers(&self, from: u64) -> Option<(Vec<u64>, u64)>;

    /// The first chunk, and then none before the caller gives up.
    #[margo(chunks)]
    fn stuck(&self, request: &RequestContext, at: u64) -> Option<(u64, u64)>;

    /// As `stuck`, with a limit of its own.
    #[margo(chunks, deadline = "50ms")]
    fn late(&self, request: &RequestContext, at: u64) -> Option<(u64, u64)>;

    /// One chunk, and a panic.
    #[margo(chunks)]
    fn panics(&self, at: u64) -> Option<(u64, u64)>;
}

#[derive(Default)]
struct Own {
    calls: AtomicU64,
    entered: Eventual<()>,
    canceled: Eventual<()>,
}

impl Source for Arc<Own> {
    fn read(&self, fill: &str, count: u64, at: u64) -> Result<Option<(Bytes, u64)>, String> {
        let fill = *fill.as_bytes().first().ok_or("nothing to fill it with")?;
        if at > count {
            return Err(format!("{at} is behind the end"));
        }
        let len = LONG + usize::try_from(at).map_err(|error| error.to_string())?;
        Ok((at < count).then(|| (Bytes(vec![fill; len]), at + 1)))
    }

    fn numbers(&self, from: u64) -> Option<(Vec<u64>, u64)> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        Some(((from..from + 10).collect(), from + 10))
    }

    fn stuck(&self, request: &RequestContext, at: u64) -> Option<(u64, u64)> {
        if at > 0 {
            let _ = self.entered.set(());
            request.cancel_token().wait();
            let _ = self.canceled.set(());
        }
        Some((at, at + 1))
    }

    fn late(&self, request: &RequestContext, at: u64) -> Option<(u64, u64)> {
        self.stuck(request, at)
    }

    fn panics(&self, at: u64) -> Option<(u64, u64)> {
        assert_eq!(at, 0, "no more");
        Some((at, at + 1))
    }
}

fn serve(pair: &Pair) -> (Arc<Own>, margo::Provider<Arc<Own>>, SourceClient) {
    let own = Arc::<Own>::default();
    let provider = SourceService::serve(&pair.service, ProviderId::new(3), own.clone()).unwrap();
    let target = ProviderHandle::new(pair.target().addr().clone(), ProviderId::new(3));
    (own, provider, SourceClient::new(&pair.client, target))
}

fn on_each(body: fn(&Arc<Own>, &SourceClient)) {
    for transport in TRANSPORTS {
        bounded("chunks", move || {
            let pair = Pair::new(transport);
            let (own, provider, client) = serve(&pair);
            body(&own, &client);
            drop((provider, client));
            pair.end();
        });
    }
}

#[test]
fn chunks_come_in_order_from_a_position_on_until_there_are_no_more() {
    on_each(|_, client| {
        let lengths = |from| -> Vec<usize> {
            let chunks = client.read_chunks("x", 5, from).map(Result::unwrap);
            chunks
                .inspect(|chunk| assert!(chunk.iter().all(|byte| *byte == b'x')))
                .map(|c| c.len())
                .collect()
        };
        assert_eq!(lengths(0), [LONG, LONG + 1, LONG + 2, LONG + 3, LONG + 4]);
        assert_eq!(lengths(3), [LONG + 3, LONG + 4]);
        assert_eq!(lengths(5), [0; 0]);
        // It is over for good.
        let mut chunks = client.read_chunks("x", 1, 0);
        assert!(chunks.next().unwrap().is_ok() && chunks.next().is_none());
        assert!(chunks.next().is_none());
        assert_eq!(*chunks.position(), 1);
    });
}

#[test]
fn one_call_is_ahead_of_the_caller_and_none_before_the_first() {
    on_each(|own, client| {
        let calls = || own.calls.load(Ordering::SeqCst);
        let mut chunks = client.numbers_chunks(7);
        assert_eq!(calls(), 0);
        for (taken, first) in [(1, 7), (2, 17), (3, 27)] {
            assert_eq!(chunks.next().unwrap().unwrap()[0], first);
            // The next one comes by itself.
            while calls() < taken + 1 {
                std::thread::yield_now();
            }
        }
        // Time for more, if there were any.
        let other = client.numbers(0).unwrap();
        assert_eq!((other.unwrap().1, calls()), (10, 5));
    });
}

#[test]
fn an_error_ends_the_chunks_and_the_position_says_where() {
    on_each(|_, client| {
        let mut chunks = client.read_chunks("", 5, 0);
        let error = chunks.next().unwrap().unwrap_err();
        assert!(matches!(&error, CallError::Service(text) if text.starts_with("nothing")));
        assert!(chunks.next().is_none());
        assert_eq!(*chunks.position(), 0);

        let mut chunks = client.panics_chunks(0);
        assert_eq!(chunks.next().unwrap().unwrap(), 0);
        let error = chunks.next().unwrap().unwrap_err();
        assert!(matches!(error, ForwardError::Panicked { .. }), "{error}");
        assert!(chunks.next().is_none());
        assert_eq!(*chunks.position(), 1);
    });
}

#[test]
fn a_deadline_holds_for_each_chunk() {
    on_each(|_, client| {
        // Of the method, and of the client.
        let limited = client.clone().with_timeout(Duration::from_millis(50));
        for mut chunks in [client.late_chunks(0), limited.stuck_chunks(0)] {
            // On a loaded machine the first one may be late, too.
            let end = chunks.by_ref().find_map(Result::err).unwrap();
            assert!(matches!(end, ForwardError::TimedOut { .. }), "{end}");
            assert!(chunks.next().is_none());
            assert!(*chunks.position() <= 1);
        }
    });
}

#[test]
fn a_caller_that_wants_no_more_cancels_what_is_under_way() {
    on_each(|own, client| {
        let mut chunks = client.stuck_chunks(0);
        assert_eq!(chunks.next().unwrap().unwrap(), 0);
        // A call that is canceled on its way has no handler.
        own.entered.wait();
        drop(chunks);
        own.canceled.wait();
    });
}

/// Not a test of its own: the service process of the next one, which runs this program again.
#[test]
fn service_process() {
    serve_if_asked(|service| {
        let own = Arc::<Own>::default();
        let provider = SourceService::serve(service, ProviderId::new(3), own).unwrap();
        println!("serves");
        std::io::stdout().flush().unwrap();
        // Until the process is killed.
        std::mem::forget(provider);
    });
}

#[test]
fn a_target_that_dies_ends_the_chunks_with_an_error() {
    for transport in TRANSPORTS {
        bounded("chunks of a killed service", move || {
            let mut service = Service::start(module_path!(), transport);
            let client = client_for(transport);
            let address = client.lookup(&service.address).unwrap();
            let target = ProviderHandle::new(address, ProviderId::new(3));
            let source = SourceClient::new(&client, target);
            // One has a call in the handler then, one has chunks that are not taken.
            let (mut stuck, mut numbers) = (source.stuck_chunks(0), source.numbers_chunks(0));
            assert_eq!(stuck.next().unwrap().unwrap(), 0);
            assert_eq!(numbers.next().unwrap().unwrap().len(), 10);
            service.kill();
            let error = stuck.next().unwrap().unwrap_err();
            assert!(matches!(error, ForwardError::Network { .. }), "{error}");
            assert!(stuck.next().is_none());
            // The chunk that was here may still be taken, but none after it.
            let rest: Vec<_> = numbers.by_ref().collect();
            let error = rest.last().unwrap().as_ref().unwrap_err();
            assert!(rest.len() <= 2 && matches!(error, ForwardError::Network { .. }), "{error}");
            drop((stuck, numbers));
            client.finalize_and_wait().unwrap();
        });
    }
}
