//! The definition that both sides of a stream share: [`Stream`].

use std::fmt;
use std::marker::PhantomData;

/// A stream: its name, and the type of its items.
///
/// Define it once, as a constant in a crate that both sides use, and the compiler keeps them in
/// agreement. Two programs that define it apart are told when they connect, if the shapes of their
/// types differ.
///
/// ```
/// use margo_stream::Stream;
///
/// pub const WORDS: Stream<(String, u64)> = Stream::new("words");
/// assert_eq!(WORDS.name(), "words");
/// ```
pub struct Stream<T> {
    name: &'static str,
    items: PhantomData<fn(T) -> T>,
}

impl<T> Stream<T> {
    /// Names a stream. A name that is made at run time is leaked for that, once, where the stream
    /// is defined, as that of an [`Rpc`](margo::Rpc::new).
    pub const fn new(name: &'static str) -> Self {
        Self { name, items: PhantomData }
    }

    /// The name.
    pub const fn name(&self) -> &'static str {
        self.name
    }
}

impl<T> Clone for Stream<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Stream<T> {}

impl<T> fmt::Debug for Stream<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Stream").field(&self.name).finish()
    }
}
