//! Groups of an instance's methods that are not for every day.

use std::fmt;

use crate::Instance;
use crate::instance::inner::Inner;
use prim::sync::Arc;

/// Defines a group, and how an instance gives it.
macro_rules! groups {
    ($($(#[$about:meta])* $accessor:ident: $group:ident;)*) => {
        $(
            $(#[$about])*
            #[derive(Clone, Copy)]
            pub struct $group<'a> {
                pub(crate) instance: &'a Instance,
            }

            impl<'a> $group<'a> {
                pub(crate) fn inner(&self) -> &'a Arc<Inner> {
                    self.instance.inner()
                }
            }

            impl fmt::Debug for $group<'_> {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.debug_tuple(stringify!($group)).field(self.instance).finish()
                }
            }

            impl Instance {
                $(#[$about])*
                #[must_use]
                pub fn $accessor(&self) -> $group<'_> {
                    $group { instance: self }
                }
            }
        )*
    };
}

groups! {
    /// Pools, execution streams and shards: to find, to hold, to add, to remove; and where handlers
    /// and progress run.
    layout: InstanceLayout;
    /// Counters, statistics, traces, profiles, dumps and the log.
    monitoring: InstanceMonitoring;
    /// Other processes, and the ways to them: identities of providers, metrics of peers, remote
    /// shutdown.
    network: InstanceNetwork;
    /// Memory for bulk transfers beyond [`expose`](Instance::expose) and
    /// [`alloc`](Instance::alloc): scopes, segments, pools, binding.
    memory: InstanceMemory;
}
