//! The spans of one trace, as a tree: calls, what their handlers did, and the calls of these.

use std::collections::{HashMap, HashSet};

use super::read::{Kind, Slice};

/// A call, a request, or a transfer.
#[derive(Debug)]
pub(super) enum Span {
    Call(Slice),
    /// Waiting, and then in its handler, if it got there.
    Request {
        queue: Slice,
        handler: Option<Slice>,
    },
    Bulk(Slice),
}

impl Span {
    pub(super) fn begin(&self) -> &Slice {
        match self {
            Self::Call(slice) | Self::Bulk(slice) => slice,
            Self::Request { queue, .. } => queue,
        }
    }

    pub(super) fn end_ns(&self) -> u64 {
        match self {
            Self::Call(slice) | Self::Bulk(slice) => slice.end_ns,
            Self::Request { queue, handler } => {
                handler.as_ref().map_or(queue.end_ns, |slice| slice.end_ns)
            }
        }
    }
}

/// All that a file has of a trace.
#[derive(Debug, Default)]
pub(super) struct Tree {
    spans: Vec<Span>,
    children: HashMap<u64, Vec<usize>>,
}

impl Tree {
    pub(super) fn new(slices: Vec<Slice>) -> Self {
        let mut handlers = HashMap::new();
        let mut spans = Vec::new();
        let (of_handlers, others): (Vec<_>, Vec<_>) =
            slices.into_iter().partition(|slice| slice.kind == Kind::Handler);
        for slice in of_handlers {
            handlers.insert(slice.span, slice);
        }
        for slice in others {
            spans.push(match slice.kind {
                Kind::Call => Span::Call(slice),
                Kind::Bulk => Span::Bulk(slice),
                Kind::Queue | Kind::Handler => {
                    let handler = handlers.remove(&slice.span);
                    Span::Request { queue: slice, handler }
                }
            });
        }
        // The line before was cut off, or lost: it waited for no time that we know of.
        for handler in handlers.into_values() {
            let queue = Slice { end_ns: handler.begin_ns, ..handler.clone() };
            spans.push(Span::Request { queue, handler: Some(handler) });
        }
        spans.sort_by_key(|span| span.begin().begin_ns);
        let mut children: HashMap<u64, Vec<usize>> = HashMap::new();
        for (index, span) in spans.iter().enumerate() {
            if let Some(parent) = span.begin().parent {
                children.entry(parent).or_default().push(index);
            }
        }
        Self { spans, children }
    }

    pub(super) fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// The spans that have `span` as their parent, in the order of time.
    pub(super) fn children(&self, span: u64) -> &[usize] {
        self.children.get(&span).map_or(&[], Vec::as_slice)
    }

    /// Where the tree begins: spans whose parent is not there. If a file is damaged there may be
    /// circles, which nothing leads to; the first of each is among these.
    pub(super) fn roots(&self) -> Vec<usize> {
        let known: HashSet<u64> = self.spans.iter().map(|span| span.begin().span).collect();
        let is_root = |span: &Span| span.begin().parent.is_none_or(|id| !known.contains(&id));
        let mut roots: Vec<_> =
            (0..self.spans.len()).filter(|index| is_root(&self.spans[*index])).collect();
        let mut seen = HashSet::new();
        roots.iter().for_each(|root| self.visit(*root, &mut seen));
        for index in 0..self.spans.len() {
            if !seen.contains(&index) {
                roots.push(index);
                self.visit(index, &mut seen);
            }
        }
        roots
    }

    fn visit(&self, from: usize, seen: &mut HashSet<usize>) {
        let mut todo = vec![from];
        while let Some(index) = todo.pop() {
            if seen.insert(index) {
                todo.extend(self.children(self.spans[index].begin().span));
            }
        }
    }

    /// Returns the time of the first begin and of the last end. If a file is damaged, a handler may
    /// end before its request began; time does not go back even then.
    pub(super) fn times(&self) -> (u64, u64) {
        let begin = self.spans.iter().map(|span| span.begin().begin_ns).min().unwrap_or(0);
        let end = self.spans.iter().map(Span::end_ns).max().unwrap_or(0);
        (begin, end.max(begin))
    }
}

#[cfg(test)]
mod tests {
    use super::super::read::Event;
    use super::*;

    fn slice(kind: Kind, begin_ns: u64, end_ns: u64) -> Slice {
        let (name, args) = ("x".to_owned(), Event::new());
        Slice { kind, name, pid: 1, begin_ns, end_ns, trace: 7, span: 1, parent: None, args }
    }

    #[test]
    fn a_handler_that_ends_before_its_request_began_takes_no_time() {
        let tree = Tree::new(vec![slice(Kind::Queue, 100, 101), slice(Kind::Handler, 0, 1)]);
        assert_eq!(tree.times(), (100, 100));
        let tree = Tree::new(vec![slice(Kind::Queue, 100, 101), slice(Kind::Handler, 101, 103)]);
        assert_eq!(tree.times(), (100, 103));
    }
}
