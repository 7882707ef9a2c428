//! The servers that a client shares out keys among, and how it learns of others.
//!
//! A client has been told its servers, or has asked them for their members
//! ([`Membership`]). A server that is asked for a key of another one says that it is moved; then
//! the client asks it for the members that it knows of, and makes the call again. While keys change
//! hands, the client remembers which sources have done so.
//!
//! Calls to all servers, such as a list, need all keys, and each of them once. Servers
//! refuse whoever does not know of the members that there are, or follow. While they change, the
//! client looks at the end whether all servers stand as they did before ([`Cluster::told`]).

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use margo::encoding::Bytes;
use margo::{Instance, ProviderHandle, ProviderId, Rpc};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::bad_answer;
use super::member::{Clock, Member, answer, answers, of_database};
use crate::members::{KvMember, Membership, Told, serve_all_once, shard_of_key};
use crate::model::SHARDS_MAX;
use crate::rpc::{KvStat, MEMBERS, STAT};
use crate::{ClientError, KvError};

/// How often a call is made again because its key has moved. The pauses in between grow.
const TRIES: u32 = 256;

/// The longest pause between two tries.
const PAUSE_MAX: Duration = Duration::from_millis(64);

/// The servers that a client knows of.
#[derive(Debug, Clone)]
pub(super) struct Cluster {
    /// The members; of epoch 0, those that the client was told.
    now: Membership,
    /// The members that follow, if a change has begun.
    to: Option<Membership>,
    /// The ids of members whose keys are with their new owners.
    given: Vec<u64>,
    /// All of both, in the order of their ids and shards.
    pub(super) members: Vec<Member>,
    /// The id of each database, the place of its first shard, and how many it has.
    databases: Vec<(u64, usize, usize)>,
    /// The answers of all servers when they were asked last, in the same order.
    told: Vec<Told>,
}

impl Cluster {
    /// A provider that was not asked for anything.
    pub(super) fn of_one(alone: Member) -> Self {
        let Member { id, .. } = alone;
        Self::of(Membership { epoch: 0, members: vec![stranger(id, 1)] }, None, vec![alone])
    }

    fn of(now: Membership, to: Option<Membership>, mut members: Vec<Member>) -> Self {
        members.sort_by_key(|member| (member.id, member.shard));
        let mut first = 0;
        let databases = members.chunk_by(|one, next| one.id == next.id).map(|shards| {
            first += shards.len();
            (shards[0].id, first - shards.len(), shards.len())
        });
        let databases = databases.collect();
        Self { now, to, given: Vec::new(), members, databases, told: Vec::new() }
    }

    /// The epoch of the members that it knows of.
    pub(super) fn epoch(&self) -> u64 {
        self.to.as_ref().unwrap_or(&self.now).epoch
    }

    pub(super) fn now(&self) -> &Membership {
        &self.now
    }

    /// The members by database.
    pub(super) fn databases(&self) -> impl Iterator<Item = &[Member]> {
        self.databases.iter().map(|(_, first, count)| &self.members[*first..*first + *count])
    }

    /// Returns which member has a key.
    pub(super) fn owner(&self, key: &[u8]) -> usize {
        if self.members.len() == 1 {
            return 0;
        }
        let mut owner = self.now.owner(key);
        if let Some(to) = self.to.as_ref().filter(|_| self.given.contains(&owner.id)) {
            owner = to.owner(key);
        }
        let found = self.databases.binary_search_by_key(&owner.id, |(id, ..)| *id);
        // All of them are there.
        let (_, first, shards) = self.databases[found.unwrap_or(0)];
        first + shard_of_key(key, shards)
    }

    pub(super) fn member(&self, key: &[u8]) -> &Member {
        &self.members[self.owner(key)]
    }

    /// Asks all databases, at the same time.
    pub(super) fn ask_all<A: Serialize, R: DeserializeOwned>(
        &self,
        rpc: Rpc<A, Result<R, KvError>>,
        args: &A,
        limit: Duration,
    ) -> Result<Vec<R>, ClientError> {
        let started = self.databases().map(|shards| shards[0].start(rpc, args, limit));
        // All of them end before the first error is told.
        let answers: Vec<_> = answers(started.collect()).collect();
        answers.into_iter().collect()
    }
}

/// A member of which nothing else is known.
fn stranger(id: u64, shards: u8) -> KvMember {
    KvMember { id, seed: id, address: String::new(), provider: 0, shards }
}

/// The state that the clones of a client share.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) instance: Instance,
    cluster: RwLock<Arc<Cluster>>,
}

/// The tries of a call whose keys move.
pub(super) struct Tries {
    pub(super) clock: Clock,
    count: u32,
}

impl Tries {
    pub(super) fn of(limit: Duration) -> Self {
        Self { clock: Clock::of(limit), count: 0 }
    }

    /// Waits a little, but for the first time. Returns whether there is time for another try.
    pub(super) fn again(&mut self) -> bool {
        self.count += 1;
        if self.count > 1 {
            let pause = Duration::from_millis(1 << (self.count - 2).min(6)).min(PAUSE_MAX);
            if pause >= self.clock.left() {
                return false;
            }
            margo::ult::sleep(pause);
        }
        self.count <= TRIES && !self.clock.left().is_zero()
    }
}

/// The places of some keys, and the answer about them.
pub(super) type Answer<R> = (Vec<usize>, Result<Vec<R>, ClientError>);

impl Known {
    pub(super) fn new(instance: &Instance, cluster: Cluster) -> Self {
        Self { instance: instance.clone(), cluster: RwLock::new(Arc::new(cluster)) }
    }

    /// Asks servers who they are, and for their members.
    pub(super) fn connect(
        instance: &Instance,
        targets: impl IntoIterator<Item = ProviderHandle>,
        limit: Duration,
    ) -> Result<Self, ClientError> {
        let alone = |target| Member { instance: instance.clone(), target, id: 0, shard: None };
        let alone: Vec<_> = targets.into_iter().map(alone).collect();
        assert!(!alone.is_empty(), "a cluster has a member");
        let stats = alone.iter().map(|member| member.start(STAT, &(), limit)).collect::<Vec<_>>();
        let told = alone.iter().map(|member| member.start(MEMBERS, &(), limit)).collect();
        let told = answers(told).collect::<Vec<_>>();
        let (mut members, mut all) = (Vec::new(), Vec::new());
        for ((alone, stat), told) in alone.into_iter().zip(answers(stats)).zip(told) {
            let KvStat { id, shards, instance_shards, .. } = stat?;
            if !(1..=SHARDS_MAX).contains(&shards) || instance_shards > SHARDS_MAX {
                return Err(bad_answer(format!("{} with {shards} shards", alone.target)));
            }
            members.extend(of_database(Member { id, ..alone }, shards, instance_shards));
            all.push(Told { id, ..told? });
        }
        members.sort_by_key(|member| (member.id, member.shard));
        let is_same = |pair: &&[Member]| (pair[0].id, pair[0].shard) == (pair[1].id, pair[1].shard);
        if let Some([first, second]) = members.windows(2).find(is_same) {
            let name = |member: &Member| member.target.to_string();
            return Err(ClientError::SameDatabase { first: name(first), second: name(second) });
        }
        let strangers = all.iter().map(|told| stranger(told.id, told.shards)).collect();
        let now = Membership { epoch: 0, members: strangers };
        let known = Self::new(instance, Cluster::of(now, None, members));
        let newest = all.iter().filter_map(|told| told.standing.now.as_ref());
        if let Some(newest) = newest.max_by_key(|now| now.epoch) {
            // A member may not have heard of it yet; one that has left knows of others.
            let is_strange =
                |told: &&Told| told.standing.now.is_none() && newest.member(told.id).is_none();
            if let Some(strange) = all.iter().find(is_strange) {
                let cluster = known.cluster();
                let found = cluster.members.iter().find(|member| member.id == strange.id);
                let server = found.map_or_else(String::new, |found| found.target.to_string());
                return Err(ClientError::NoMember { server });
            }
            known.adopt(&all, false, Clock::of(limit))?;
        }
        Ok(known)
    }

    pub(super) fn cluster(&self) -> Arc<Cluster> {
        self.cluster.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Asks a server for the members that it knows of.
    pub(super) fn learn(&self, member: &Member, clock: Clock) -> Result<(), ClientError> {
        let told = member.call(MEMBERS, &(), clock.left())?;
        self.adopt(&[told], false, clock)
    }

    /// Asks the servers for the members that they know of, and these, if there are others. One
    /// answer is enough.
    pub(super) fn learn_from_any(&self, limit: Duration) -> Result<(), ClientError> {
        let clock = Clock::of(limit);
        loop {
            let epoch = self.cluster().now.epoch;
            self.learn_from_these(clock)?;
            if self.cluster().now.epoch <= epoch {
                return Ok(());
            }
        }
    }

    fn learn_from_these(&self, clock: Clock) -> Result<(), ClientError> {
        let (cluster, limit) = (self.cluster(), clock.left());
        let started = cluster.databases().map(|shards| shards[0].start(MEMBERS, &(), limit));
        let (told, mut errors): (Vec<_>, Vec<_>) =
            answers(started.collect()).partition(Result::is_ok);
        let told: Vec<Told> = told.into_iter().flatten().collect();
        match errors.pop().filter(|_| told.is_empty()) {
            Some(Err(error)) => Err(error),
            _ => self.adopt(&told, false, clock),
        }
    }

    /// Takes over what servers have said; `all`: those are all of them.
    fn adopt(&self, told: &[Told], all: bool, clock: Clock) -> Result<(), ClientError> {
        let before = self.cluster();
        let epoch = |told: &Told| told.standing.now.as_ref().map_or(0, |now| now.epoch);
        let Some(newest) = told.iter().max_by_key(|told| epoch(told)) else { return Ok(()) };
        let is_newer = epoch(newest) > before.now.epoch;
        let now = newest.standing.now.as_ref().filter(|_| is_newer).unwrap_or(&before.now);
        let mut to = before.to.as_ref().filter(|to| !all && to.epoch > now.epoch);
        let changes = || {
            let same = told.iter().filter(|told| epoch(told) == now.epoch);
            same.filter_map(|told| Some((told.id, told.standing.change.as_ref()?)))
        };
        for (_, change) in changes() {
            if to.is_none_or(|to| to.epoch < change.to.epoch) {
                to = Some(&change.to);
            }
        }
        let is_old = to.map(|to| to.epoch) == before.to.as_ref().map(|to| to.epoch);
        let mut given = if is_old && !is_newer { before.given.clone() } else { Vec::new() };
        for (id, change) in changes().filter(|(_, it)| Some(it.to.epoch) == to.map(|to| to.epoch)) {
            given.extend(change.is_closed.then_some(id).into_iter().chain(change.opened.clone()));
        }
        given.sort_unstable();
        given.dedup();
        for members in [Some(now), to].into_iter().flatten().filter(|members| members.epoch > 0) {
            members.check().map_err(|error| bad_answer(error.to_string()))?;
        }
        let wanted = now.members.iter().chain(to.into_iter().flat_map(|to| &to.members));
        let members = match now.epoch {
            0 => before.members.clone(),
            _ => self.reach(&before, wanted, clock)?,
        };
        let mut cluster = Cluster::of(now.clone(), to.cloned(), members);
        cluster.given = given;
        if all {
            cluster.told = told.to_vec();
        }
        let mut place = self.cluster.write().unwrap_or_else(PoisonError::into_inner);
        // Others learn, too.
        if place.epoch() <= cluster.epoch() || all {
            *place = Arc::new(cluster);
        }
        Ok(())
    }

    /// The members of which only addresses are known, and the others.
    fn reach<'m>(
        &self,
        before: &Cluster,
        wanted: impl Iterator<Item = &'m KvMember>,
        clock: Clock,
    ) -> Result<Vec<Member>, ClientError> {
        let (mut members, mut new): (Vec<Member>, Vec<(Member, u8)>) = (Vec::new(), Vec::new());
        for KvMember { id, address, provider, shards, .. } in wanted {
            let is_there = members.iter().chain(new.iter().map(|(new, _)| new));
            if is_there.clone().any(|member| member.id == *id) {
                continue;
            }
            let known = before.members.iter().filter(|member| member.id == *id);
            if known.clone().next().is_some() {
                members.extend(known.cloned());
                continue;
            }
            let found = self.instance.lookup(address);
            let found = found.map_err(|error| bad_answer(format!("a member: {error}")))?;
            let target = ProviderHandle::new(found, ProviderId::new(*provider));
            let alone = Member { instance: self.instance.clone(), target, id: *id, shard: None };
            new.push((alone, *shards));
        }
        // One that does not answer is called through whichever shard of its instance.
        let limit = clock.left() / 2;
        let stats: Vec<_> = new.iter().map(|(new, _)| new.start(STAT, &(), limit)).collect();
        for ((alone, shards), stat) in new.into_iter().zip(stats) {
            let told =
                answer(stat).ok().filter(|stat| (stat.id, stat.shards) == (alone.id, shards));
            let instance_shards = told.map_or(1, |stat| stat.instance_shards.min(SHARDS_MAX));
            members.extend(of_database(alone, shards, instance_shards));
        }
        Ok(members)
    }

    /// Makes a call of the member that has a key, wherever that moves. The call is told the time
    /// that it has.
    pub(super) fn follow<R>(
        &self,
        key: &[u8],
        limit: Duration,
        mut call: impl FnMut(&Cluster, &Member, Duration, Clock) -> Result<R, ClientError>,
    ) -> Result<R, ClientError> {
        // Of the first one without a look at the clock.
        let (mut tries, mut left) = (Tries::of(limit), limit);
        loop {
            let cluster = self.cluster();
            let member = cluster.member(key);
            let answered = call(&cluster, member, left, tries.clock);
            if !is_moved(&answered) || !self.try_again(member, &mut tries) {
                return answered;
            }
            left = tries.clock.left();
        }
    }

    /// Learns where keys are that are not at a member. Returns whether to try again.
    pub(super) fn try_again(&self, member: &Member, tries: &mut Tries) -> bool {
        tries.again() && self.learn(member, tries.clock).is_ok() && !tries.clock.left().is_zero()
    }

    /// Returns whether all keys were served by the members of `cluster`, and each by one, since
    /// they were asked last. Otherwise asks all of them how they stand.
    pub(super) fn was_steady(&self, cluster: &Cluster, clock: Clock) -> Result<bool, ClientError> {
        let Some(to) = &cluster.to else { return Ok(true) };
        let limit = clock.left();
        if limit.is_zero() {
            // Nobody can say.
            return Ok(false);
        }
        let started = cluster.databases().map(|shards| shards[0].start(MEMBERS, &(), limit));
        let (told, errors): (Vec<_>, Vec<_>) = answers(started.collect()).partition(Result::is_ok);
        let told: Vec<Told> = told.into_iter().flatten().collect();
        if let Some(Err(error)) = errors.into_iter().next() {
            let stands = |member: &KvMember| {
                let own = told.iter().find(|told| told.id == member.id);
                own.is_some_and(|own| own.standing.change.is_none())
            };
            // One that would have joined needs no answer when the change was taken back.
            return match cluster.now.members.iter().all(stands) {
                true => self.adopt(&told, true, clock).map(|()| false),
                false => Err(error),
            };
        }
        let is_steady = told == cluster.told && serve_all_once(&cluster.now, to, &told);
        if !is_steady {
            self.adopt(&told, true, clock)?;
        }
        Ok(is_steady)
    }

    /// Asks all servers for something about a range of keys, again while these change hands.
    pub(super) fn steadily<R>(
        &self,
        limit: Duration,
        mut ask: impl FnMut(&Cluster, Clock) -> Result<R, ClientError>,
    ) -> Result<R, ClientError> {
        let mut tries = Tries::of(limit);
        loop {
            let cluster = self.cluster();
            let asked = ask(&cluster, tries.clock);
            if is_moved(&asked) && self.learn_from_all(&mut tries) {
                continue;
            }
            let asked = asked?;
            if self.was_steady(&cluster, tries.clock)? {
                return Ok(asked);
            }
            if !tries.again() {
                return Err(KvError::Deadline.into());
            }
        }
    }

    /// Learns from the servers which others there are. Returns whether to try again.
    pub(super) fn learn_from_all(&self, tries: &mut Tries) -> bool {
        tries.again()
            && self.learn_from_any(tries.clock.left()).is_ok()
            && !tries.clock.left().is_zero()
    }

    /// Asks the owners of keys, all at the same time, and those that have moved again. Returns the
    /// answers, of which each has a result for each of its keys.
    pub(super) fn ask_owners<'k, A: Serialize, R: DeserializeOwned>(
        &self,
        rpc: Rpc<A, Result<Vec<R>, KvError>>,
        keys: &[&'k [u8]],
        args: impl Fn(Vec<Bytes<&'k [u8]>>) -> A,
        is_moved: impl Fn(&R) -> bool,
        limit: Duration,
    ) -> Vec<Answer<R>> {
        let (mut tries, mut done) = (Tries::of(limit), Vec::new());
        let mut left: Vec<usize> = (0..keys.len()).collect();
        loop {
            let cluster = self.cluster();
            let mut places = vec![Vec::new(); cluster.members.len()];
            for place in left.drain(..) {
                places[cluster.owner(keys[place])].push(place);
            }
            let shares = places.into_iter().zip(&cluster.members);
            let started =
                shares.filter(|(places, _)| !places.is_empty()).map(|(places, member)| {
                    let args = args(places.iter().map(|place| Bytes(keys[*place])).collect());
                    (member, places, member.start(rpc, &args, tries.clock.left()))
                });
            // All of them are under way before the first one is waited for.
            let started: Vec<_> = started.collect();
            let mut by = None;
            for (member, places, started) in started {
                let count = places.len();
                match answer(started) {
                    Err(ClientError::Kv(KvError::Moved { .. })) => {
                        by = Some(member);
                        left.extend(places);
                    }
                    Ok(found) if found.len() != count => {
                        let text = format!("{} results for {count} keys", found.len());
                        done.push((places, Err(bad_answer(text))));
                    }
                    Ok(found) if found.iter().any(&is_moved) => {
                        by = Some(member);
                        let (out, here): (Vec<_>, Vec<_>) =
                            places.into_iter().zip(found).partition(|(_, found)| is_moved(found));
                        left.extend(out.iter().map(|(place, _)| *place));
                        let (places, found) = here.into_iter().unzip();
                        done.push((places, Ok(found)));
                    }
                    answered => done.push((places, answered)),
                }
            }
            let Some(by) = by else { return done };
            if !self.try_again(by, &mut tries) {
                let epoch = cluster.epoch();
                let (address, provider) = (by.target.addr().to_string(), by.target.id().get());
                done.push((left, Err(KvError::Moved { epoch, address, provider }.into())));
                return done;
            }
            left.sort_unstable();
        }
    }
}

/// Returns whether a call was not made, since a key is at another server.
pub(super) fn is_moved<R>(answered: &Result<R, ClientError>) -> bool {
    matches!(answered, Err(ClientError::Kv(KvError::Moved { .. })))
}
