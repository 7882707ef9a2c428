//! Lists: pages of one moment as an iterator.

use std::time::Duration;

use super::{Clock, KvClient, bad_answer};
use crate::ClientError;
use crate::rpc::{Entry, LIST, ListArgs, Page, Selection};

/// Keys to ask for in one page; the target has its own limit.
const PAGE_ENTRIES: u32 = 4096;

/// The keys of a selection, page by page; from [`KvClient::entries`] and [`KvClient::keys`]. The
/// first error is the last item: to go on behind it, begin a new list behind the last key.
///
/// ```
/// # use margo::{Instance, ProviderHandle, ProviderId};
/// # use margo_provider_kv::*;
/// # let limit = std::time::Duration::from_secs(10);
/// # let service = Instance::builder("na+sm://").start()?;
/// # let provider = service.provider(ProviderId::new(1), &service.layout().rpc_pool());
/// # let config = KvConfig::new(StoreConfig::memory(MemoryOrder::Ordered));
/// # let running = KvProvider::start(provider, &config)?;
/// # let target = ProviderHandle::new(service.self_addr(), ProviderId::new(1));
/// # let kv = KvClient::new(&service, target);
/// use margo_provider_kv::Selection;
///
/// for key in ["run/1", "run/2", "site"] {
///     kv.put(key.as_bytes(), b"", limit)?;
/// }
/// let last = kv.keys(Selection::prefix("run/").backwards(), limit).next().expect("there are")?;
/// assert_eq!(last.key.0, b"run/2");
/// # drop(running);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "nothing is asked for before `next`"]
pub struct Entries {
    client: KvClient,
    args: ListArgs,
    limit: Duration,
    page: std::vec::IntoIter<Entry>,
    is_over: bool,
}

impl Entries {
    pub(super) fn new(
        client: &KvClient,
        selection: Selection,
        values: bool,
        limit: Duration,
    ) -> Self {
        let args = ListArgs { selection, values, max: PAGE_ENTRIES, token: None };
        let page = Vec::new().into_iter();
        Self { client: client.clone(), args, limit, page, is_over: false }
    }

    fn next_page(&mut self) -> Result<(), ClientError> {
        let clock = Clock::of(self.limit);
        let Page { mut entries, next } = self.client.call(LIST, &self.args, self.limit)?;
        let is_stuck = match (&next, &self.args.token) {
            (Some(next), Some(token)) => next.after == token.after,
            (next, _) => next.is_some() && entries.is_empty(),
        };
        if is_stuck {
            return Err(bad_answer("a page that does not advance".to_owned()));
        }
        if self.args.values {
            let view = next.as_ref().map(|next| next.view);
            entries = self.with_values(entries, view, clock)?;
        }
        self.page = entries.into_iter();
        self.is_over = next.is_none();
        self.args.token = next;
        Ok(())
    }

    /// Entries with the values that their page has left out, as they are too long for it. It has
    /// ended with them, so that its view is there to read them from.
    fn with_values(
        &self,
        entries: Vec<Entry>,
        view: Option<u64>,
        clock: Clock,
    ) -> Result<Vec<Entry>, ClientError> {
        let each = |entry: Entry| {
            if entry.value.is_some() {
                return Ok(entry);
            }
            let found = self.client.fetch(&entry.key, view, entry.len, clock)?;
            Ok(Entry { value: Some(found.value), ..entry })
        };
        entries.into_iter().map(each).collect()
    }
}

impl Iterator for Entries {
    type Item = Result<Entry, ClientError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(entry) = self.page.next() {
                return Some(Ok(entry));
            }
            if self.is_over {
                return None;
            }
            if let Err(error) = self.next_page() {
                self.is_over = true;
                return Some(Err(error));
            }
        }
    }
}
