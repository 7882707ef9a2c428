//! The track on which a slice is drawn.
//!
//! Viewers want the slices of a track to lie side by side or inside each other. ULTs of an xstream
//! take turns in the middle of their work, so each xstream has as many tracks, its *lanes*, as it
//! had handlers and calls at a time. A slice comes when it is over: it takes the first lane on
//! which nothing lies that ended after its begin. Slices of operations that a handler's ULT waits
//! for lie inside the handler's slice, and come before it: the first of them keeps a lane for the
//! handler, from the handler's begin on, until the handler's slice comes.

use std::collections::HashMap;

use super::context::SpanId;

/// Lanes of a group; what comes beyond is drawn over the last one.
const LANES_MAX: usize = 4096;

/// Handlers for which a lane is kept; beyond, some of those whose end was lost are among them.
const KEPT_MAX: usize = 1 << 16;

/// The group that a lane belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Group {
    /// OS threads that are no xstreams.
    Threads,
    /// An xstream, by index: a rank goes to another one in time.
    Xstream(usize),
    /// Units that wait in a pool, by name.
    Pool(String),
}

/// One lane. Its number is that of its track, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lane {
    pub(super) track: u32,
    /// Nothing was drawn on it before.
    pub(super) is_new: bool,
    /// Which one of its group.
    pub(super) number: usize,
}

#[derive(Debug, Default)]
struct LanesState {
    /// When the last slice on it ends.
    free_at: u64,
    is_kept: bool,
}

#[derive(Debug, Default)]
pub(super) struct TraceLanes {
    groups: HashMap<Group, (u32, Vec<LanesState>)>,
    /// By the span of the handler.
    kept: HashMap<SpanId, (Group, usize)>,
}

impl TraceLanes {
    /// For a slice that is no part of another one.
    pub(super) fn place(&mut self, group: &Group, begin: u64, end: u64) -> Lane {
        self.find(group, begin, |state| state.free_at = state.free_at.max(end))
    }

    /// For a slice until `end` inside that of the handler `of`, which began at `begin` in `group`.
    pub(super) fn place_inside(&mut self, of: SpanId, group: &Group, begin: u64, end: u64) -> Lane {
        if let Some((group, number)) = self.kept.get(&of).cloned() {
            if let Some((_, states)) = self.groups.get_mut(&group) {
                states[number].free_at = states[number].free_at.max(end);
            }
            return self.lane(&group, number, false);
        }
        if self.kept.len() >= KEPT_MAX {
            self.forget_kept();
        }
        let lane = self.find(group, begin, |state| {
            (state.is_kept, state.free_at) = (true, state.free_at.max(end));
        });
        self.kept.insert(of, (group.clone(), lane.number));
        lane
    }

    /// For the slice of the handler `span` itself.
    pub(super) fn place_handler(
        &mut self,
        span: SpanId,
        group: &Group,
        begin: u64,
        end: u64,
    ) -> Lane {
        let Some((group, number)) = self.kept.remove(&span) else {
            return self.place(group, begin, end);
        };
        if let Some((_, states)) = self.groups.get_mut(&group) {
            let state = &mut states[number];
            (state.is_kept, state.free_at) = (false, state.free_at.max(end));
        }
        self.lane(&group, number, false)
    }

    /// Slices were lost, perhaps those for which lanes are kept. Slices that lie on these already
    /// stay there; handlers that come after all take another lane.
    pub(super) fn forget_kept(&mut self) {
        for (group, number) in std::mem::take(&mut self.kept).into_values() {
            if let Some((_, states)) = self.groups.get_mut(&group) {
                states[number].is_kept = false;
            }
        }
    }

    fn find(&mut self, group: &Group, begin: u64, take: impl FnOnce(&mut LanesState)) -> Lane {
        let index = u32::try_from(self.groups.len()).unwrap_or(u32::MAX);
        let (_, states) = self.groups.entry(group.clone()).or_insert_with(|| (index, Vec::new()));
        let found = states.iter().position(|state| !state.is_kept && state.free_at <= begin);
        let is_new = found.is_none() && states.len() < LANES_MAX;
        if is_new {
            states.push(LanesState::default());
        }
        let number = found.unwrap_or(states.len() - 1);
        take(&mut states[number]);
        self.lane(group, number, is_new)
    }

    fn lane(&self, group: &Group, number: usize, is_new: bool) -> Lane {
        let index = self.groups.get(group).map_or(0, |(index, _)| *index);
        let of_group = u32::try_from(number).unwrap_or(u32::MAX);
        let track = index.saturating_mul(LANES_MAX as u32).saturating_add(of_group + 1);
        Lane { track, is_new, number }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(id: u64) -> SpanId {
        SpanId::new(id).unwrap()
    }

    #[test]
    fn slices_that_overlap_have_lanes_of_their_own() {
        let mut lanes = TraceLanes::default();
        let x = Group::Xstream(0);
        let first = lanes.place(&x, 10, 20);
        assert!(first.is_new);
        assert_eq!(lanes.place(&x, 20, 30), Lane { is_new: false, ..first });
        let second = lanes.place(&x, 25, 40);
        assert!(second.is_new && second.track != first.track);
        assert_eq!(lanes.place(&x, 30, 50).track, first.track);
        assert!(lanes.place(&Group::Pool("p".into()), 60, 70).is_new, "of another group");
        assert_ne!(lanes.place(&Group::Threads, 60, 70).track, first.track);
    }

    #[test]
    fn what_a_handler_waits_for_lies_inside_it() {
        let mut lanes = TraceLanes::default();
        let x = Group::Xstream(3);
        lanes.place(&x, 0, 15);
        // The handler began at 10, when the first lane was taken; it ends last.
        let inner = lanes.place_inside(span(1), &x, 10, 12);
        assert_eq!(inner.number, 1);
        assert_eq!(lanes.place_inside(span(1), &x, 10, 12).track, inner.track);
        // Others keep off it although nothing on it has ended yet.
        assert_eq!(lanes.place(&x, 16, 30).number, 0);
        assert_eq!(lanes.place(&x, 20, 25).number, 2);
        assert_eq!(lanes.place_handler(span(1), &x, 10, 40).track, inner.track);
        assert_eq!(lanes.place(&x, 40, 41).number, 0);
        assert_eq!(lanes.place(&x, 40, 42).number, 1, "free again");
        // One without anything inside.
        assert_eq!(lanes.place_handler(span(2), &x, 50, 60).number, 0);
    }

    #[test]
    fn a_handler_whose_end_was_lost_keeps_nothing_for_ever() {
        let mut lanes = TraceLanes::default();
        let x = Group::Xstream(0);
        for id in 1..=(KEPT_MAX as u64 + 10) {
            lanes.place_inside(span(id), &x, id, id + 1);
        }
        assert!(lanes.kept.len() <= KEPT_MAX);
        assert!(lanes.groups[&x].1.len() <= LANES_MAX);
    }
}
