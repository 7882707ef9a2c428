//! Groups of an instance's methods that are not for every day.

use std::fmt;

use crate::Instance;
use crate::instance::inner::Inner;
use prim::sync::Arc;

/// Defines a group, and how an instance gives it. The type has an example besides the text of both.
macro_rules! groups {
    ($($(#[$about:meta])* $accessor:ident: $(#[$example:meta])* $group:ident;)*) => {
        $(
            $(#[$about])*
            $(#[$example])*
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
    layout:
    ///
    /// ```
    /// let instance = margo::Instance::builder("na+sm://").start()?;
    /// let layout = instance.layout();
    /// layout.add_pool_from_json(r#"{ "name": "work" }"#)?;
    /// layout.add_xstream_from_json(r#"{ "scheduler": { "pools": ["work"] } }"#)?;
    /// let pool = layout.pool("work").expect("it was added");
    /// assert_eq!(pool.spawn(|| 6 * 7)?.join()?, 42);
    /// # instance.finalize_and_wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    InstanceLayout;
    /// Counters, statistics, traces, profiles, dumps and the log.
    monitoring:
    ///
    /// ```
    /// let instance = margo::Instance::builder("na+sm://").start()?;
    /// let monitoring = instance.monitoring();
    /// monitoring.start_statistics(1);
    /// // … calls …
    /// println!("{} calls sent", monitoring.stats().requests_sent);
    /// println!("{} call paths", monitoring.statistics().origin.len());
    /// # instance.finalize_and_wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    InstanceMonitoring;
    /// Other processes, and the ways to them: identities of providers, metrics of peers, remote
    /// shutdown.
    network:
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let instance = margo::Instance::builder("na+sm://").start()?;
    /// let network = instance.network();
    /// assert!(network.is_listening());
    /// network.ping(&instance.self_addr(), b"1234", Duration::from_secs(10))?;
    /// # instance.finalize_and_wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    InstanceNetwork;
    /// Memory for bulk transfers beyond [`expose`](Instance::expose) and
    /// [`alloc`](Instance::alloc): scopes, segments, pools, binding.
    memory:
    ///
    /// ```
    /// let instance = margo::Instance::builder("na+sm://").start()?;
    /// let field = [1, 2, 3];
    /// // Peers may read it until the closure returns.
    /// let len = instance.memory().expose_ref(&field, |bulk| bulk.len())?;
    /// assert_eq!(len, 3);
    /// # instance.finalize_and_wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    InstanceMemory;
}
