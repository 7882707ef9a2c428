//! Results that come in chunks: [`ResultChunks`].

use crate::{CallError, ForwardError, ForwardRequest};
use serde::de::DeserializeOwned;

/// The chunks of a result that is too long for one answer, or has no end yet, in order: what the
/// client of a service returns for a method with `#[margo(chunks)]`.
///
/// Each chunk is a call of its own, from the position on that came with the one before. While the
/// caller works on a chunk, the next call is under way, and no further one: at most two chunks are
/// in memory here, and one at the target, which keeps nothing between calls. The deadline of the
/// method, or of the client, holds for each call.
///
/// The iterator ends behind the last chunk, or with the first error: the service's own, or that
/// there is no answer, because the target is gone for instance. Then [`position`](Self::position)
/// says where to go on. Dropping it cancels the call that is under way.
///
/// ```
/// use margo::{Instance, ProviderHandle, ProviderId, encoding::Bytes};
///
/// #[margo::service]
/// trait Log {
///     /// The lines from number `from` on: some of them, and the number of the next one.
///     #[margo(chunks)]
///     fn lines(&self, name: &str, from: u64) -> Result<Option<(Vec<String>, u64)>, String>;
/// }
///
/// struct Lines(Vec<String>);
///
/// impl Log for Lines {
///     fn lines(&self, name: &str, from: u64) -> Result<Option<(Vec<String>, u64)>, String> {
///         if name != "today" {
///             return Err(format!("there is no log {name}"));
///         }
///         let some: Vec<_> = self.0.iter().skip(from as usize).take(100).cloned().collect();
///         let next = from + some.len() as u64;
///         Ok((!some.is_empty()).then_some((some, next)))
///     }
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let service = Instance::builder("na+sm://").start()?;
/// let lines = Lines((0..250).map(|number| format!("line {number}")).collect());
/// let provider = LogService::serve(&service, ProviderId::new(1), lines)?;
///
/// let client = Instance::builder("na+sm://").listen(false).start()?;
/// let target = client.lookup(service.self_addr().uri())?;
/// let log = LogClient::new(&client, ProviderHandle::new(target, ProviderId::new(1)));
/// let mut count = 0;
/// for lines in log.lines_chunks("today", 0) {
///     count += lines.map_err(|error| error.to_string())?.len();
/// }
/// assert_eq!(count, 250);
/// # client.finalize_and_wait()?;
/// # drop(provider);
/// # service.finalize_and_wait()?;
/// # Ok(())
/// # }
/// ```
#[must_use = "nothing is called before the first chunk is asked for"]
pub struct ResultChunks<'a, T, P, E> {
    start: Box<dyn FnMut(P) -> Ahead<'a, T, P, E> + Send + 'a>,
    /// The call that is under way.
    ahead: Option<Ahead<'a, T, P, E>>,
    position: P,
    is_over: bool,
}

/// A chunk and the position of the next one; none behind the last one.
type Chunk<T, P> = Option<(T, P)>;

/// The next item of the iterator, with the position behind it.
type Next<T, P, E> = Result<Chunk<T, P>, E>;

/// A call that has begun.
type Started<R> = Result<ForwardRequest<R>, ForwardError>;

/// Waits for a call. Dropping it cancels the call.
type Ahead<'a, T, P, E> = Box<dyn FnOnce() -> Next<T, P, E> + Send + 'a>;

impl<'a, T: 'a, P: Clone + 'a, E: From<ForwardError> + 'a> ResultChunks<'a, T, P, E> {
    fn new<R: DeserializeOwned + 'a>(
        position: P,
        mut start: impl FnMut(P) -> Started<R> + Send + 'a,
        answer: fn(Result<R, ForwardError>) -> Next<T, P, E>,
    ) -> Self {
        let start = move |at: P| -> Ahead<'a, T, P, E> {
            match start(at) {
                Ok(request) => Box::new(move || answer(request.wait())),
                Err(error) => Box::new(move || Err(error.into())),
            }
        };
        Self { start: Box::new(start), ahead: None, position, is_over: false }
    }

    /// The position of the chunk that comes next: with it another call goes on where this one has
    /// failed.
    pub fn position(&self) -> &P {
        &self.position
    }
}

impl<'a, T, P, E> ResultChunks<'a, T, P, CallError<E>>
where
    T: DeserializeOwned + 'a,
    P: DeserializeOwned + Clone + 'a,
    E: DeserializeOwned + 'a,
{
    /// For methods that return a `Result`.
    #[doc(hidden)]
    pub fn of_results(
        position: P,
        start: impl FnMut(P) -> Started<Result<Chunk<T, P>, E>> + Send + 'a,
    ) -> Self {
        Self::new(position, start, CallError::flatten)
    }
}

impl<'a, T, P> ResultChunks<'a, T, P, ForwardError>
where
    T: DeserializeOwned + 'a,
    P: DeserializeOwned + Clone + 'a,
{
    /// For methods that return chunks without a `Result`.
    #[doc(hidden)]
    pub fn of_values(
        position: P,
        start: impl FnMut(P) -> Started<Chunk<T, P>> + Send + 'a,
    ) -> Self {
        Self::new(position, start, |answer| answer)
    }
}

impl<T, P: Clone, E> Iterator for ResultChunks<'_, T, P, E> {
    type Item = Result<T, E>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_over {
            return None;
        }
        let ahead = self.ahead.take();
        let ahead = ahead.unwrap_or_else(|| (self.start)(self.position.clone()));
        match ahead() {
            Ok(Some((chunk, next))) => {
                self.ahead = Some((self.start)(next.clone()));
                self.position = next;
                Some(Ok(chunk))
            }
            end => {
                self.is_over = true;
                end.err().map(Err)
            }
        }
    }
}

impl<T, P: Clone, E> std::iter::FusedIterator for ResultChunks<'_, T, P, E> {}

impl<T, P: std::fmt::Debug, E> std::fmt::Debug for ResultChunks<'_, T, P, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut all = f.debug_struct("ResultChunks");
        all.field("position", &self.position).field("is_over", &self.is_over);
        all.finish_non_exhaustive()
    }
}
