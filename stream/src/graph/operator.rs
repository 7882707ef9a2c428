//! Operators, and how those of a stage are fused: [`Operator`], [`Next`].
//!
//! The operators of a stage are one type, a nest of [`Then`], through which each item goes by calls
//! that the compiler sees through. Nothing is boxed and nothing is stored between them.

use std::time::Instant;

use super::stop::{BoxError, Stop};

/// A place where an operator puts what it makes: the next operator, or the edge behind the last.
///
/// ```
/// use margo_stream::graph::{Next, Operator, Pass, Stop};
///
/// /// Keeps what an operator makes, for a test of that operator alone.
/// #[derive(Default)]
/// struct Made(Vec<u32>);
///
/// impl Next<u32> for Made {
///     fn item(&mut self, item: u32) -> Result<(), Stop> {
///         self.0.push(item);
///         Ok(())
///     }
///
///     fn watermark(&mut self, _: u64) -> Result<(), Stop> {
///         Ok(())
///     }
/// }
///
/// let mut made = Made::default();
/// assert!(Pass.item(7, &mut made).is_ok());
/// assert_eq!(made.0, [7]);
/// ```
pub trait Next<T> {
    /// Takes an item.
    ///
    /// # Errors
    ///
    /// [`Stop`], which is handed on.
    fn item(&mut self, item: T) -> Result<(), Stop>;

    /// Takes a watermark: no item that follows is of an earlier time.
    ///
    /// # Errors
    ///
    /// [`Stop`], which is handed on.
    fn watermark(&mut self, time: u64) -> Result<(), Stop>;
}

/// A step that items go through within a stage. Each replica of the stage has a clone.
///
/// The methods of [`Flow`](super::Flow) make operators; others are applied with
/// [`Flow::apply`](super::Flow::apply).
///
/// ```
/// use margo_stream::graph::{Graph, Next, Operator, Stop};
///
/// /// Leaves out what is equal to the item before it.
/// #[derive(Clone, Default)]
/// struct Changes(Option<u32>);
///
/// impl Operator<u32> for Changes {
///     type Out = u32;
///
///     fn item(&mut self, item: u32, next: &mut impl Next<u32>) -> Result<(), Stop> {
///         if self.0.replace(item) == Some(item) { Ok(()) } else { next.item(item) }
///     }
/// }
///
/// let graph = Graph::new();
/// let changes = graph.source("levels", [3, 3, 4, 4, 4, 3]).apply(Changes::default()).collect();
/// graph.run()?;
/// assert_eq!(changes.take(), [3, 4, 3]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Operator<I>: Clone + Send + 'static {
    /// The type of what it makes.
    type Out: Send + 'static;

    /// Takes an item, and gives the next operator what it makes of it.
    ///
    /// # Errors
    ///
    /// [`Stop`]: that of `next`, or a failure of its own.
    fn item(&mut self, item: I, next: &mut impl Next<Self::Out>) -> Result<(), Stop>;

    /// Takes a watermark, and hands it on. Default: nothing else.
    ///
    /// # Errors
    ///
    /// As [`item`](Self::item).
    fn watermark(&mut self, time: u64, next: &mut impl Next<Self::Out>) -> Result<(), Stop> {
        next.watermark(time)
    }

    /// Lets nothing wait that is to go on without further items: there are none now. Default:
    /// nothing.
    ///
    /// # Errors
    ///
    /// As [`item`](Self::item).
    fn idle(&mut self, next: &mut impl Next<Self::Out>) -> Result<(), Stop> {
        let _ = next;
        Ok(())
    }

    /// Gives on what it has kept: the input has ended. Default: nothing.
    ///
    /// # Errors
    ///
    /// As [`item`](Self::item).
    fn end(&mut self, next: &mut impl Next<Self::Out>) -> Result<(), Stop> {
        let _ = next;
        Ok(())
    }

    /// The time at which [`tick`](Self::tick) is to be called if no item comes. Default: none.
    fn due(&self) -> Option<Instant> {
        None
    }

    /// Does what is due. Default: nothing.
    ///
    /// # Errors
    ///
    /// As [`item`](Self::item).
    fn tick(&mut self, now: Instant, next: &mut impl Next<Self::Out>) -> Result<(), Stop> {
        let _ = (now, next);
        Ok(())
    }
}

/// No operator yet: items go through as they are. A stage begins with it.
///
/// ```
/// use margo_stream::graph::{Flow, Graph, Pass};
///
/// /// Stages of several graphs.
/// fn evens(numbers: Flow<u32, Pass>) {
///     numbers.filter(|n| n % 2 == 0).for_each(drop);
/// }
///
/// let graph = Graph::new();
/// evens(graph.source("numbers", 0..10));
/// graph.run()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Pass;

impl<T: Send + 'static> Operator<T> for Pass {
    type Out = T;

    #[inline]
    fn item(&mut self, item: T, next: &mut impl Next<T>) -> Result<(), Stop> {
        next.item(item)
    }
}

/// An operator, and the one behind it.
#[derive(Clone, Debug)]
pub(crate) struct Then<A, B>(pub(crate) A, pub(crate) B);

/// An operator with what is behind it, as the one before it sees them.
struct Behind<'a, B, N> {
    operator: &'a mut B,
    next: &'a mut N,
}

impl<T, B: Operator<T>, N: Next<B::Out>> Next<T> for Behind<'_, B, N> {
    #[inline]
    fn item(&mut self, item: T) -> Result<(), Stop> {
        self.operator.item(item, self.next)
    }

    #[inline]
    fn watermark(&mut self, time: u64) -> Result<(), Stop> {
        self.operator.watermark(time, self.next)
    }
}

impl<I, A: Operator<I>, B: Operator<A::Out>> Operator<I> for Then<A, B> {
    type Out = B::Out;

    #[inline]
    fn item(&mut self, item: I, next: &mut impl Next<B::Out>) -> Result<(), Stop> {
        self.0.item(item, &mut Behind { operator: &mut self.1, next })
    }

    fn watermark(&mut self, time: u64, next: &mut impl Next<B::Out>) -> Result<(), Stop> {
        self.0.watermark(time, &mut Behind { operator: &mut self.1, next })
    }

    fn idle(&mut self, next: &mut impl Next<B::Out>) -> Result<(), Stop> {
        self.0.idle(&mut Behind { operator: &mut self.1, next })?;
        self.1.idle(next)
    }

    fn end(&mut self, next: &mut impl Next<B::Out>) -> Result<(), Stop> {
        self.0.end(&mut Behind { operator: &mut self.1, next })?;
        self.1.end(next)
    }

    fn due(&self) -> Option<Instant> {
        self.0.due().into_iter().chain(self.1.due()).min()
    }

    fn tick(&mut self, now: Instant, next: &mut impl Next<B::Out>) -> Result<(), Stop> {
        self.0.tick(now, &mut Behind { operator: &mut self.1, next })?;
        self.1.tick(now, next)
    }
}

/// See [`Flow::map`](super::Flow::map).
#[derive(Clone, Debug)]
pub(crate) struct Map<F>(pub(crate) F);

impl<T, U, F> Operator<T> for Map<F>
where
    U: Send + 'static,
    F: FnMut(T) -> U + Clone + Send + 'static,
{
    type Out = U;

    #[inline]
    fn item(&mut self, item: T, next: &mut impl Next<U>) -> Result<(), Stop> {
        next.item((self.0)(item))
    }
}

/// See [`Flow::try_map`](super::Flow::try_map).
#[derive(Clone, Debug)]
pub(crate) struct TryMap<F>(pub(crate) F);

impl<T, U, E, F> Operator<T> for TryMap<F>
where
    U: Send + 'static,
    E: Into<BoxError>,
    F: FnMut(T) -> Result<U, E> + Clone + Send + 'static,
{
    type Out = U;

    #[inline]
    fn item(&mut self, item: T, next: &mut impl Next<U>) -> Result<(), Stop> {
        next.item((self.0)(item).map_err(Stop::failed)?)
    }
}

/// See [`Flow::flat_map`](super::Flow::flat_map).
#[derive(Clone, Debug)]
pub(crate) struct FlatMap<F>(pub(crate) F);

impl<T, U, F> Operator<T> for FlatMap<F>
where
    U: IntoIterator<Item: Send + 'static>,
    F: FnMut(T) -> U + Clone + Send + 'static,
{
    type Out = U::Item;

    #[inline]
    fn item(&mut self, item: T, next: &mut impl Next<U::Item>) -> Result<(), Stop> {
        (self.0)(item).into_iter().try_for_each(|made| next.item(made))
    }
}

/// See [`Flow::expand`](super::Flow::expand).
pub(crate) struct Expand<U, F> {
    pub(crate) expand: F,
    pub(crate) made: Vec<U>,
}

impl<U, F: Clone> Clone for Expand<U, F> {
    fn clone(&self) -> Self {
        Self { expand: self.expand.clone(), made: Vec::new() }
    }
}

impl<T, U, F> Operator<T> for Expand<U, F>
where
    U: Send + 'static,
    F: FnMut(T, &mut Vec<U>) + Clone + Send + 'static,
{
    type Out = U;

    #[inline]
    fn item(&mut self, item: T, next: &mut impl Next<U>) -> Result<(), Stop> {
        (self.expand)(item, &mut self.made);
        self.made.drain(..).try_for_each(|made| next.item(made))
    }
}

/// See [`Flow::filter`](super::Flow::filter).
#[derive(Clone, Debug)]
pub(crate) struct Filter<F>(pub(crate) F);

impl<T, F> Operator<T> for Filter<F>
where
    T: Send + 'static,
    F: FnMut(&T) -> bool + Clone + Send + 'static,
{
    type Out = T;

    #[inline]
    fn item(&mut self, item: T, next: &mut impl Next<T>) -> Result<(), Stop> {
        if (self.0)(&item) { next.item(item) } else { Ok(()) }
    }
}

/// See [`Flow::fold`](super::Flow::fold).
#[derive(Clone, Debug)]
pub(crate) struct Fold<A, F> {
    pub(crate) value: Option<A>,
    pub(crate) fold: F,
}

impl<T, A, F> Operator<T> for Fold<A, F>
where
    A: Clone + Send + 'static,
    F: FnMut(&mut A, T) + Clone + Send + 'static,
{
    type Out = A;

    #[inline]
    fn item(&mut self, item: T, _: &mut impl Next<A>) -> Result<(), Stop> {
        if let Some(value) = &mut self.value {
            (self.fold)(value, item);
        }
        Ok(())
    }

    fn end(&mut self, next: &mut impl Next<A>) -> Result<(), Stop> {
        self.value.take().map_or(Ok(()), |value| next.item(value))
    }
}
