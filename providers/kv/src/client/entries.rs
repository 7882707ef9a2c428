//! Lists: pages of one moment as an iterator. While keys change hands, the lists of all servers are
//! opened again until each key is in one of them; from then on their views stay as they are.

use std::time::Duration;

use super::cluster::{Cluster, is_moved};
use super::member::{Clock, Member, Started, answer};
use super::{KvClient, bad_answer};
use crate::ClientError;
use crate::rpc::{Entry, LIST, ListArgs, Page, Selection};

/// Keys to ask for in one page; the target has its own limit.
const PAGE_ENTRIES: u32 = 4096;

/// The keys of a selection, page by page; from [`KvClient::entries`] and [`KvClient::keys`]. An
/// error is the last item of a server: to go on behind it, begin a new list behind the last key. In
/// a cluster, the keys of the others follow.
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
    /// Only the owner of this key is asked.
    only: Option<Vec<u8>>,
    /// None: they are not opened yet.
    lists: Option<Vec<List>>,
}

/// The list of one member.
#[derive(Debug)]
struct List {
    member: Member,
    args: ListArgs,
    limit: Duration,
    /// The next page, if it is under way.
    asked: Option<Started<Page>>,
    page: std::vec::IntoIter<Entry>,
    is_over: bool,
    /// Told when the list is looked at next.
    error: Option<ClientError>,
}

impl Entries {
    pub(super) fn new(
        client: &KvClient,
        only: Option<Vec<u8>>,
        selection: Selection,
        values: bool,
        limit: Duration,
    ) -> Self {
        let (max, epoch) = (PAGE_ENTRIES, 0);
        let args = ListArgs { selection, values, max, token: None, shard: None, epoch };
        Self { client: client.clone(), args, limit, only, lists: None }
    }

    /// Has the first page of each list, or its error.
    fn open(&self) -> Result<Vec<List>, ClientError> {
        self.client.known.steadily(self.limit, |cluster, clock| {
            let mut lists = self.lists_of(cluster, clock.left());
            lists.iter_mut().for_each(List::ask);
            for list in &mut lists {
                let filled = list.fill();
                if is_moved(&filled) {
                    filled?;
                } else {
                    list.error = filled.err();
                }
                list.limit = self.limit;
            }
            Ok(lists)
        })
    }

    fn lists_of(&self, cluster: &Cluster, limit: Duration) -> Vec<List> {
        let list = |member: &Member| List {
            member: member.clone(),
            args: ListArgs { shard: member.shard, epoch: cluster.epoch(), ..self.args.clone() },
            limit,
            asked: None,
            page: Vec::new().into_iter(),
            is_over: false,
            error: None,
        };
        match &self.only {
            Some(key) => vec![list(cluster.member(key))],
            None => cluster.members.iter().map(list).collect(),
        }
    }
}

impl Iterator for Entries {
    type Item = Result<Entry, ClientError>;

    fn next(&mut self) -> Option<Self::Item> {
        let is_backwards = self.args.selection.is_backwards;
        if self.lists.is_none() {
            match self.open() {
                Ok(lists) => self.lists = Some(lists),
                Err(error) => {
                    self.lists = Some(Vec::new());
                    return Some(Err(error));
                }
            }
        }
        let lists = self.lists.as_mut()?;
        // The pages that are needed are asked for before the first of them is waited for.
        lists.iter_mut().for_each(List::ask);
        for list in &mut *lists {
            if let Err(error) = list.fill() {
                return Some(Err(error));
            }
        }
        let heads = lists.iter().enumerate();
        let heads = heads.filter_map(|(at, list)| Some((&list.page.as_slice().first()?.key.0, at)));
        let (_, next) = if is_backwards { heads.max() } else { heads.min() }?;
        lists[next].page.next().map(Ok)
    }
}

impl List {
    /// Returns whether an entry is here, or none is to come.
    fn is_filled(&self) -> bool {
        self.is_over || !self.page.as_slice().is_empty()
    }

    /// Asks for the next page if it is needed.
    fn ask(&mut self) {
        if !self.is_filled() && self.asked.is_none() {
            self.asked = Some(self.member.start(LIST, &self.args, self.limit));
        }
    }

    /// Waits until an entry is here, or none is to come. After an error there is none.
    fn fill(&mut self) -> Result<(), ClientError> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        while !self.is_filled() {
            let next = self.next_page();
            self.is_over |= next.is_err();
            next?;
        }
        Ok(())
    }

    fn next_page(&mut self) -> Result<(), ClientError> {
        let clock = Clock::of(self.limit);
        self.ask();
        let Some(asked) = self.asked.take() else { return Ok(()) };
        let Page { mut entries, next } = answer(asked)?;
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
            let found = self.member.fetch(&entry.key, view, entry.len, clock)?;
            Ok(Entry { value: Some(found.value), ..entry })
        };
        entries.into_iter().map(each).collect()
    }
}
