//! The handler and the trace that a call belongs to.

use hg::{RpcId, TraceParent, margo};

use super::monitoring::Monitoring;
use crate::observe::trace::{self, SpanOfTrace};

/// The place of a call in its trace, as its target is told of it and as it is recorded.
#[derive(Debug)]
pub(crate) struct OfCall {
    /// For the target.
    pub(crate) said: Option<TraceParent>,
    /// For the file.
    pub(crate) span: Option<SpanOfTrace>,
}

impl Monitoring {
    /// On whose behalf a call is made, and what it is part of. Boxed, because most calls are
    /// part of nothing, and would carry the room for it around.
    #[inline]
    pub(crate) fn of_call(&self) -> (RpcId, Option<Box<OfCall>>) {
        let inherited = ult::integration::inherited();
        let parent = match inherited.word {
            0 => margo::NO_PARENT,
            word => RpcId(word),
        };
        // One branch for both.
        let trace = if inherited.has_values | self.is_tracing() {
            self.find(inherited.word == 0)
        } else {
            None
        };
        (parent, trace)
    }

    #[cold]
    fn find(&self, is_outside: bool) -> Option<Box<OfCall>> {
        let span = match (trace::current(), self.recorder()) {
            (Some(context), Some(_)) => SpanOfTrace::part_of(context),
            (Some(context), None) => {
                let said = Some(trace::to_wire(context));
                return Some(Box::new(OfCall { said, span: None }));
            }
            // What is done on behalf of a request that is not sampled is not sampled either.
            (None, Some(tracer)) if is_outside => match tracer.sample_call() {
                Some(context) => SpanOfTrace::root(context),
                None => return None,
            },
            (None, _) => return None,
        };
        Some(Box::new(OfCall { said: Some(trace::to_wire(span.context)), span: Some(span) }))
    }
}
