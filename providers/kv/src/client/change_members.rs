//! The administrator of several servers: has them begin a change of their members, has each source
//! hand over its keys, and ends the change. What each step does is said in `members.rs`.
//!
//! Nothing is kept here: how far a change is, the servers know. So whoever asks for one first ends
//! what another one has begun.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use margo::{ForwardError, ProviderHandle, ProviderId};

use super::member::Member;
use super::{KvClient, bad_answer};
use crate::members::{KvMember, Membership, Standing, Told};
use crate::rpc::MEMBERS;
use crate::steps::{CHANGE_MEMBERS, MembersArgs, Step};
use crate::{ClientError, KvError};

/// The pause before a server that is busy is asked again.
const PAUSE: Duration = Duration::from_millis(20);

/// How the members of a cluster change, for [`KvClient::change_members`]. Without anything else it
/// ends the change that was begun before.
///
/// ```
/// # use margo::{Instance, ProviderHandle, ProviderId};
/// # use margo_provider_kv::*;
/// # let limit = std::time::Duration::from_secs(10);
/// # let service = Instance::builder("na+sm://").start()?;
/// # let config = KvConfig::new(StoreConfig::memory(MemoryOrder::Ordered));
/// # let start = |id| {
/// #     let provider = service.provider(ProviderId::new(id), &service.layout().rpc_pool());
/// #     KvProvider::start(provider, &config)
/// # };
/// # let running = [start(1)?, start(2)?];
/// # let target = |id| ProviderHandle::new(service.self_addr(), ProviderId::new(id));
/// # let [old, new] = [1, 2].map(target);
/// use margo_provider_kv::MemberChange;
///
/// let kv = KvClient::connect(&service, old.clone(), limit)?;
/// kv.put(b"apple", b"red", limit)?;
/// // The whole database moves to another provider, and its clients follow.
/// let change = MemberChange::new().with(new.clone()).without(old);
/// kv.change_members(change, limit, |_| {})?;
/// assert_eq!(&*kv.get(b"apple", limit)?.value, b"red");
/// assert_eq!(kv.owner(b"apple"), new);
/// # drop(running);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default)]
#[must_use = "nothing changes before `KvClient::change_members`"]
pub struct MemberChange {
    add: Vec<ProviderHandle>,
    remove: Vec<ProviderHandle>,
    is_back: bool,
}

impl MemberChange {
    /// No change.
    pub fn new() -> Self {
        Self::default()
    }

    /// A server more. Its database is empty.
    pub fn with(mut self, target: ProviderHandle) -> Self {
        self.add.push(target);
        self
    }

    /// A server less. Where as many are added, each of these gets all keys of one that is removed;
    /// otherwise they go to all that are left.
    pub fn without(mut self, target: ProviderHandle) -> Self {
        self.remove.push(target);
        self
    }

    /// First takes back a change that was begun, if no keys have changed hands yet.
    pub fn take_back(mut self) -> Self {
        self.is_back = true;
        self
    }
}

/// How far a change of the members is.
///
/// ```
/// # use margo::{Instance, ProviderHandle, ProviderId};
/// # use margo_provider_kv::*;
/// # let limit = std::time::Duration::from_secs(10);
/// # let service = Instance::builder("na+sm://").start()?;
/// # let config = KvConfig::new(StoreConfig::memory(MemoryOrder::Ordered));
/// # let start = |id| {
/// #     let provider = service.provider(ProviderId::new(id), &service.layout().rpc_pool());
/// #     KvProvider::start(provider, &config)
/// # };
/// # let running = [start(1)?, start(2)?];
/// # let target = |id| ProviderHandle::new(service.self_addr(), ProviderId::new(id));
/// # let [one, two] = [1, 2].map(target);
/// use margo_provider_kv::{MemberChange, MemberProgress};
///
/// let kv = KvClient::connect(&service, one, limit)?;
/// let show = |MemberProgress { server, keys, .. }: &MemberProgress| println!("{server}: {keys}");
/// kv.change_members(MemberChange::new().with(two), limit, show)?;
/// # drop(running);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemberProgress {
    /// The server that does something.
    pub server: ProviderHandle,
    /// It erases copies of keys that it has handed over; otherwise it hands them over.
    pub is_erasing: bool,
    /// The keys that it has handed over so far, some of them more than once, or erased.
    pub keys: u64,
}

/// A server, and how it stands.
struct Server {
    member: Member,
    told: Told,
}

/// The servers that have to do with a change.
#[derive(Default)]
struct Servers {
    /// By the ids of their databases.
    all: BTreeMap<u64, Server>,
    /// The id of the database behind each target.
    asked: Vec<(ProviderHandle, u64)>,
}

impl KvClient {
    /// Changes the servers that share out the keys, while they are in use: each key that has
    /// another owner then is handed over, with its version, and clients follow it. Returns the
    /// members then. `limit` is for each call, of which there are as many as it takes; `progress`
    /// hears of each.
    ///
    /// Providers that stand alone, and were named for a client of several (or of one), become
    /// members by their first change. Its address is that by which the others and all clients will
    /// reach a server; that of a member which has moved with its files is the one that this client
    /// was given. All have to answer.
    ///
    /// It may end at any moment, as may the servers. The same call, or one for no change, goes on.
    /// Until the first source has handed over all of its keys, the change can be taken back
    /// ([`MemberChange::take_back`]); when a destination refuses keys, that is done by itself.
    ///
    /// Where there are rules (`margo.security.allow`), a caller may do so whom one allows that
    /// names the RPC `__admin_kv_members__`; so may the servers, who call each other.
    ///
    /// # Errors
    ///
    /// [`ClientError`]: the first call that failed. [`KvError::Invalid`] for a database that joins
    /// and has keys, or other members.
    pub fn change_members(
        &self,
        change: MemberChange,
        limit: Duration,
        mut progress: impl FnMut(&MemberProgress),
    ) -> Result<Membership, ClientError> {
        let admin = Admin { kv: self, limit, progress: &mut progress };
        admin.change(&change)
    }
}

struct Admin<'a> {
    kv: &'a KvClient,
    limit: Duration,
    progress: &'a mut dyn FnMut(&MemberProgress),
}

impl Admin<'_> {
    fn change(mut self, change: &MemberChange) -> Result<Membership, ClientError> {
        let mut servers = self.find(change)?;
        let begun = servers.begun();
        if begun.len() > 1 && !change.is_back {
            let epochs: Vec<_> = begun.iter().map(|(_, to)| to.epoch.to_string()).collect();
            let text = format!("several changes have begun, to epochs {}", epochs.join(", "));
            return Err(KvError::Invalid(text).into());
        }
        for (from, to) in &begun {
            match change.is_back {
                true => self.take_back(&servers, from, to)?,
                false => self.drive(&servers, from, to)?,
            }
            servers = self.find(change)?;
        }
        let now = self.now(&servers)?;
        if let Some(to) = servers.wanted(&now, change) {
            self.drive(&servers, &now, &to)?;
            servers = self.find(change)?;
        }
        let members = servers.all.values().filter(|server| server.told.standing.now.is_some());
        for server in members {
            self.repeat(server, true, &MembersArgs::Clean)?;
        }
        let known = self.kv.membership(self.limit)?;
        Ok(known.unwrap_or(Membership { epoch: 0, ..now }))
    }

    /// Asks the servers that are named, and those that they know of.
    fn find(&self, change: &MemberChange) -> Result<Servers, ClientError> {
        let cluster = self.kv.known.cluster();
        let named = cluster.databases().map(|shards| shards[0].target.clone());
        let named = named.chain(change.add.clone()).chain(change.remove.clone());
        let mut left: Vec<_> = named.collect();
        let mut servers = Servers::default();
        while !left.is_empty() {
            for target in left.drain(..) {
                let instance = self.kv.known.instance.clone();
                let member = Member { instance, target, id: 0, shard: None };
                let told = member.call(MEMBERS, &(), self.limit)?;
                servers.asked.push((member.target.clone(), told.id));
                servers.all.insert(told.id, Server { member, told });
            }
            // Those that were named are known by their ids, wherever they were before.
            for other in servers.others() {
                let target = self.target(&other)?;
                if !servers.asked.iter().any(|(asked, _)| *asked == target) {
                    left.push(target);
                }
            }
        }
        Ok(servers)
    }

    fn target(&self, member: &KvMember) -> Result<ProviderHandle, ClientError> {
        let found = self.kv.known.instance.lookup(&member.address);
        let found = found.map_err(|error| bad_answer(format!("a member: {error}")))?;
        Ok(ProviderHandle::new(found, ProviderId::new(member.provider)))
    }

    /// The members now, where they are: of servers that stand alone, those that the client names.
    fn now(&self, servers: &Servers) -> Result<Membership, ClientError> {
        let cluster = self.kv.known.cluster();
        let named: Vec<_> = cluster.databases().map(|shards| shards[0].target.clone()).collect();
        let ids = servers.ids(&named);
        let now = match servers.newest() {
            Some(now) => {
                let is_strange = |(id, _): &(&u64, &ProviderHandle)| {
                    let stands_alone = servers.all[id].told.standing.now.is_none();
                    stands_alone && now.member(**id).is_none()
                };
                if let Some((_, strange)) = ids.iter().zip(&named).find(is_strange) {
                    return Err(ClientError::NoMember { server: strange.to_string() });
                }
                now.clone()
            }
            None => {
                let members = ids.iter().map(|id| servers.all[id].as_member(*id));
                Membership { epoch: servers.newest_epoch() + 1, members: members.collect() }
            }
        };
        located(now, servers)
    }

    fn call(&self, server: &Server, args: &MembersArgs) -> Result<Step, ClientError> {
        server.member.call(CHANGE_MEMBERS, args, self.limit)
    }

    /// Makes the same call until all is done.
    fn repeat(
        &mut self,
        server: &Server,
        is_erasing: bool,
        args: &MembersArgs,
    ) -> Result<(), ClientError> {
        let mut sum = 0;
        loop {
            match self.call(server, args) {
                Ok(Step::More { keys }) => {
                    sum += keys;
                    let server = server.member.target.clone();
                    (self.progress)(&MemberProgress { server, is_erasing, keys: sum });
                }
                Ok(_) => return Ok(()),
                Err(ClientError::Kv(KvError::Busy)) => margo::ult::sleep(PAUSE),
                Err(error) => return Err(error),
            }
        }
    }

    /// Goes from these members to those, wherever the servers are in it.
    fn drive(
        &mut self,
        servers: &Servers,
        from: &Membership,
        to: &Membership,
    ) -> Result<(), ClientError> {
        let (from, to) = (located(from.clone(), servers)?, located(to.clone(), servers)?);
        let epoch = to.epoch;
        let done = self.hand_over(servers, &from, &to);
        if let Err(error) = done {
            // Nobody can say what happens to a call without an answer: it is made again.
            let is_refused = match &error {
                ClientError::Forward(error) => matches!(error, ForwardError::Permission { .. }),
                ClientError::Kv(KvError::Unanswered(_) | KvError::Deadline) => false,
                _ => true,
            };
            let has_moved = |server: &Server| {
                let told = server.member.call(MEMBERS, &(), self.limit);
                told.map_or(true, |told| {
                    let change = told.standing.change;
                    change.is_some_and(|it| it.is_closed || !it.opened.is_empty())
                })
            };
            if is_refused && !members(servers, &from, &to).any(has_moved) {
                self.take_back(servers, &from, &to)?;
            }
            return Err(error);
        }
        for server in members(servers, &from, &to) {
            self.call(server, &MembersArgs::Finish { epoch })?;
        }
        Ok(())
    }

    fn hand_over(
        &mut self,
        servers: &Servers,
        from: &Membership,
        to: &Membership,
    ) -> Result<(), ClientError> {
        for server in members(servers, from, to) {
            let (from, to) = (from.clone(), to.clone());
            self.call(server, &MembersArgs::Begin { from, to })?;
        }
        let epoch = to.epoch;
        for member in &from.members {
            self.repeat(&servers.all[&member.id], false, &MembersArgs::HandOver { epoch })?;
        }
        Ok(())
    }

    /// Goes back to the members of before. The sources first: whoever has given keys away refuses.
    fn take_back(
        &mut self,
        servers: &Servers,
        from: &Membership,
        to: &Membership,
    ) -> Result<(), ClientError> {
        let abort = MembersArgs::Abort { epoch: to.epoch };
        let has_begun = |server: &&Server| {
            let told = server.member.call(MEMBERS, &(), self.limit);
            told.is_ok_and(|told| told.standing.change.is_some_and(|it| it.to.is_same(to)))
        };
        let begun: Vec<_> = members(servers, from, to).filter(has_begun).collect();
        let (sources, joining): (Vec<_>, Vec<_>) =
            begun.into_iter().partition(|server| from.member(server.told.id).is_some());
        for server in &sources {
            self.call(server, &abort)?;
        }
        for server in sources.iter().chain(&joining) {
            self.repeat(server, true, &MembersArgs::Clean)?;
        }
        joining.iter().try_for_each(|server| self.call(server, &abort).map(drop))
    }
}

impl Server {
    /// The server as a member that has no place yet.
    fn as_member(&self, seed: u64) -> KvMember {
        let Self { member, told } = self;
        let (address, provider) = (member.target.addr().uri().to_owned(), member.target.id().get());
        KvMember { id: told.id, seed, address, provider, shards: told.shards }
    }
}

impl Servers {
    fn standings(&self) -> impl Iterator<Item = &Standing> {
        self.all.values().map(|server| &server.told.standing)
    }

    fn newest(&self) -> Option<&Membership> {
        self.standings().filter_map(|it| it.now.as_ref()).max_by_key(|now| now.epoch)
    }

    /// The highest epoch that was ever given.
    fn newest_epoch(&self) -> u64 {
        self.standings().map(|standing| standing.newest).max().unwrap_or(0)
    }

    /// The members that were not asked yet. Who has left says nothing about them.
    fn others(&self) -> Vec<KvMember> {
        let Some(newest) = self.newest() else { return Vec::new() };
        let is_new = |it: &&Standing| it.now.as_ref().is_some_and(|now| now.epoch == newest.epoch);
        let changes = self.standings().filter(is_new).filter_map(|it| it.change.as_ref());
        let all = changes.map(|change| &change.to).chain([newest]).flat_map(|it| &it.members);
        all.filter(|member| !self.all.contains_key(&member.id)).cloned().collect()
    }

    /// The changes that servers have begun and not ended.
    fn begun(&self) -> Vec<(Membership, Membership)> {
        let mut begun: Vec<(Membership, Membership)> = Vec::new();
        for Standing { now, change, .. } in self.standings() {
            if let (Some(now), Some(change)) = (now, change)
                && !begun.iter().any(|(_, to)| to.is_same(&change.to))
            {
                begun.push((now.clone(), change.to.clone()));
            }
        }
        begun
    }

    /// The ids of the databases of these targets.
    fn ids(&self, targets: &[ProviderHandle]) -> Vec<u64> {
        let id = |target| self.asked.iter().find(|(asked, _)| asked == target).map(|(_, id)| *id);
        targets.iter().filter_map(id).collect()
    }

    /// The members that follow; `None`: they are so, or nothing is wanted.
    fn wanted(&self, now: &Membership, change: &MemberChange) -> Option<Membership> {
        let (mut add, mut remove) = (self.ids(&change.add), self.ids(&change.remove));
        add.retain(|id| now.member(*id).is_none());
        remove.retain(|id| now.member(*id).is_some());
        let mut members = now.members.clone();
        let left = members.extract_if(.., |member| remove.contains(&member.id));
        let left: Vec<_> = left.map(|member| member.seed).collect();
        for (at, id) in add.iter().enumerate() {
            let is_free = |seed: &u64| members.iter().all(|member| member.seed != *seed);
            let seed = match left.get(at).filter(|_| left.len() == add.len()) {
                Some(seed) => *seed,
                None => (*id..=u64::MAX).chain(0..).find(is_free)?,
            };
            members.push(self.all.get(id)?.as_member(seed));
        }
        let is_there = |server: &Server| {
            let known = server.told.standing.now.as_ref();
            let own = known.and_then(|known| known.member(server.told.id));
            own.is_none_or(|own| is_at(&server.member.target, own))
        };
        let is_wanted = members != now.members || !self.all.values().all(is_there);
        is_wanted.then(|| Membership { epoch: self.newest_epoch().max(now.epoch) + 1, members })
    }
}

/// The servers that are members before or after.
fn members<'s>(
    servers: &'s Servers,
    from: &'s Membership,
    to: &'s Membership,
) -> impl Iterator<Item = &'s Server> {
    let is_member = |id: u64| from.member(id).or(to.member(id)).is_some();
    servers.all.iter().filter(move |(id, _)| is_member(**id)).map(|(_, server)| server)
}

/// The members with the addresses at which they were found.
fn located(mut members: Membership, servers: &Servers) -> Result<Membership, ClientError> {
    for member in &mut members.members {
        let Some(Server { member: found, .. }) = servers.all.get(&member.id) else {
            let KvMember { id, address, provider, .. } = member;
            let text = format!("the database {id}: not at provider {provider} of {address}");
            return Err(KvError::Unanswered(text).into());
        };
        member.address = found.target.addr().uri().to_owned();
        member.provider = found.target.id().get();
    }
    Ok(members)
}

fn is_at(target: &ProviderHandle, member: &KvMember) -> bool {
    (target.addr().uri(), target.id().get()) == (&*member.address, member.provider)
}

impl fmt::Display for MemberProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let done = if self.is_erasing { "erased" } else { "handed over" };
        write!(f, "{}: {} keys {done}", self.server, self.keys)
    }
}
