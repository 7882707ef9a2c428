//! The steps of a source: copies the keys that leave, then what was changed of them meanwhile, and
//! at last closes them and has their new owners serve them.
//!
//! A pass begins with nothing at the destinations, and goes over all keys in their order; in
//! between it sends those that were changed since it began. What has failed to be sent counts as
//! changed. If too many were changed, or a destination knows nothing of the pass any more, another
//! one begins. All of it is in memory: a source that is started again begins again, also one that
//! has closed its keys, which then are served by nobody until they have been copied.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use margo::encoding::Bytes;
use margo::{Handle, Instance, ProviderHandle, ProviderId};

use super::members::StepTime;
use super::service::{Service, invalid};
use super::waiters::Wake;
use crate::KvError;
use crate::members::{Dirty, KvMember, Served};
use crate::rpc::Meta;
use crate::steps::{CHANGE_MEMBERS, MembersArgs, Step, TakeArgs};

/// Keys that are looked for at a time, and bytes of them.
const PAGE_KEYS: usize = 16_384;
const PAGE_KEY_BYTES: usize = 4 << 20;

/// Keys that are sent at a time, and bytes of keys and values, if it is more than one key.
const SENT_KEYS: usize = 1024;
const SENT_BYTES: usize = 1 << 20;

/// So few keys are sent while they cannot be changed.
const FEW: usize = 256;

/// How often what was changed is sent before that is so; then it is done however many they are.
const ROUNDS: u32 = 16;

/// How long one answer of a destination is waited for, if the caller waits longer.
const ANSWER_TIME: Duration = Duration::from_secs(30);

/// A pass over the keys that leave.
pub(super) struct Pass {
    epoch: u64,
    dirty: Arc<Dirty>,
    receivers: Vec<Receiver>,
    /// The shard, and the key in it, that were looked at last. No shard: all are copied.
    shard: Option<usize>,
    after: Option<Vec<u8>>,
    /// How often what was changed has been sent since then.
    rounds: u32,
}

/// A destination.
struct Receiver {
    id: u64,
    target: ProviderHandle,
    /// The stream, once it has begun.
    stream: Option<u64>,
    /// The number of what was sent last.
    number: u64,
}

/// Keys on their way to a destination.
#[derive(Default)]
struct Parcel {
    keys: Vec<(Bytes, Option<Meta>)>,
    values: Vec<u8>,
}

/// A call of a source, on behalf of the one that it handles.
struct Asking<'a> {
    instance: Instance,
    /// Time that is left.
    left: &'a dyn Fn() -> Option<Duration>,
}

impl Asking<'_> {
    fn target(&self, member: &KvMember) -> Result<ProviderHandle, KvError> {
        let KvMember { address, provider, .. } = member;
        let found = self.instance.lookup(address);
        let found = found.map_err(|error| KvError::Failed(format!("{address}: {error}")))?;
        Ok(ProviderHandle::new(found, ProviderId::new(*provider)))
    }

    fn ask(&self, target: &ProviderHandle, args: &MembersArgs) -> Result<Step, KvError> {
        let limit = (self.left)().map_or(ANSWER_TIME, |left| left.min(ANSWER_TIME));
        let told = self.instance.forward_timed(CHANGE_MEMBERS, target, args, limit);
        let of = |why: &dyn ToString| format!("{}: {}", target.addr(), why.to_string());
        match told {
            Err(error) => Err(KvError::Unanswered(of(&error))),
            Ok(Err(KvError::Full(why))) => Err(KvError::Full(of(&why))),
            Ok(Err(KvError::Invalid(why))) => Err(KvError::Invalid(of(&why))),
            Ok(Err(KvError::Failed(why))) => Err(KvError::Failed(of(&why))),
            Ok(told) => told,
        }
    }
}

impl Service {
    /// Hands keys over for a while. Done: all are where they belong.
    pub(super) fn hand_over<R>(
        &self,
        epoch: u64,
        request: &Handle<MembersArgs, R>,
        time: StepTime,
    ) -> Result<Step, KvError> {
        let Some(mut outgoing) = self.members.outgoing.try_lock() else {
            return Err(KvError::Busy);
        };
        let left = || request.remaining();
        let caller = Asking { instance: request.instance().clone(), left: &left };
        let served = self.members.served();
        let is_over = served.standing.now.as_ref().is_some_and(|now| now.epoch == epoch);
        let receivers = served.receivers();
        if is_over || served.standing.change(epoch)?.is_given || receivers.is_empty() {
            return Ok(Step::Done);
        }
        if served.is_held {
            self.hold(epoch, false)?;
        }
        let is_closed = served.standing.change(epoch)?.is_closed;
        if is_closed {
            // Again, since the first time may not have got to the disk.
            self.keep_closed(epoch)?;
        }
        let mut keys = 0;
        let mut missing = if is_closed { Vec::new() } else { receivers.clone() };
        outgoing.take_if(|pass| pass.epoch != epoch);
        loop {
            if !missing.is_empty() {
                outgoing.take_if(|pass| !pass.is_to(&missing, &caller));
                let pass = match &mut *outgoing {
                    Some(pass) => pass,
                    None => outgoing.insert(self.begin_pass(epoch, &missing, &caller)?),
                };
                match self.go_on(pass, &caller, time, &mut keys) {
                    Ok(true) => {}
                    Ok(false) => return Ok(Step::More { keys }),
                    Err(KvError::Gone) => {
                        // The next pass begins anew.
                        *outgoing = None;
                        return Ok(Step::More { keys });
                    }
                    Err(error) => return Err(error),
                }
            }
            missing = self.give(epoch, &receivers, outgoing.as_ref(), &caller)?;
            // Done, or somebody has begun anew, or erased copies, since they were sent.
            *outgoing = None;
            if missing.is_empty() {
                return Ok(Step::Done);
            }
        }
    }

    fn begin_pass(
        &self,
        epoch: u64,
        receivers: &[KvMember],
        caller: &Asking<'_>,
    ) -> Result<Pass, KvError> {
        let receivers = receivers.iter().map(|member| {
            let target = caller.target(member)?;
            Ok(Receiver { id: member.id, target, stream: None, number: 0 })
        });
        let receivers = receivers.collect::<Result<_, KvError>>()?;
        let dirty = Arc::new(Dirty::default());
        // From here on changes are remembered, before any key is looked at.
        self.step(None, false, |served| {
            served.standing.change(epoch)?;
            (served.dirty, served.is_held) = (Some(dirty.clone()), false);
            Ok(())
        })?;
        Ok(Pass { epoch, dirty, receivers, shard: Some(0), after: None, rounds: 0 })
    }

    /// Goes on with a pass. Returns whether the keys are closed.
    fn go_on(
        &self,
        pass: &mut Pass,
        caller: &Asking<'_>,
        time: StepTime,
        sent: &mut u64,
    ) -> Result<bool, KvError> {
        let (epoch, source) = (pass.epoch, self.members.served().me);
        for receiver in &mut pass.receivers {
            while receiver.stream.is_none() {
                match caller.ask(&receiver.target, &MembersArgs::Start { epoch, source })? {
                    Step::Started { stream } => receiver.stream = Some(stream),
                    _ if time.is_over() => return Ok(false),
                    _ => {}
                }
            }
        }
        loop {
            let changed = pass.dirty.take().ok_or(KvError::Gone)?;
            let count = changed.len();
            *sent += self.send(pass, caller, changed)?;
            if pass.shard.is_some() {
                if time.is_over() {
                    return Ok(false);
                }
                let keys = self.next_keys(pass)?;
                *sent += self.send(pass, caller, keys)?;
            } else if count <= FEW || pass.rounds >= ROUNDS {
                self.close(pass, caller)?;
                return Ok(true);
            } else {
                pass.rounds += 1;
            }
        }
    }

    /// The keys that leave, behind those that were looked at.
    fn next_keys(&self, pass: &mut Pass) -> Result<Vec<Vec<u8>>, KvError> {
        let Some(shard) = pass.shard else { return Ok(Vec::new()) };
        let served = self.members.served();
        let (mut keys, mut bytes, mut last) = (Vec::new(), 0, None);
        self.look(&self.databases[shard], pass.after.as_deref(), &mut |key| {
            if served.leaves(key).is_none() {
                return ControlFlow::Continue(());
            }
            bytes += key.len();
            keys.push(key.to_vec());
            if keys.len() < PAGE_KEYS && bytes < PAGE_KEY_BYTES {
                return ControlFlow::Continue(());
            }
            last = Some(key.to_vec());
            ControlFlow::Break(())
        })?;
        if last.is_none() {
            pass.shard = Some(shard + 1).filter(|next| *next < self.databases.len());
        }
        pass.after = last;
        Ok(keys)
    }

    /// Sends keys as they are now. Returns how many.
    fn send(
        &self,
        pass: &mut Pass,
        caller: &Asking<'_>,
        keys: Vec<Vec<u8>>,
    ) -> Result<u64, KvError> {
        let (served, mut at) = (self.members.served(), 0);
        while at < keys.len() {
            let end = self.send_some(pass, caller, &served, &keys[at..]);
            match end {
                Ok(count) => at += count,
                Err(error) => {
                    pass.dirty.add(keys.into_iter().skip(at));
                    return Err(error);
                }
            }
        }
        Ok(at as u64)
    }

    /// Sends the first of these keys. Returns how many.
    fn send_some(
        &self,
        pass: &mut Pass,
        caller: &Asking<'_>,
        served: &Served,
        keys: &[Vec<u8>],
    ) -> Result<usize, KvError> {
        let mut parcels: HashMap<u64, Parcel> = HashMap::new();
        let (mut count, mut bytes) = (0, 0);
        for key in keys.iter().take(SENT_KEYS) {
            if bytes >= SENT_BYTES {
                break;
            }
            count += 1;
            bytes += key.len();
            let to = served.leaves(key);
            let to = to.filter(|to| pass.receivers.iter().any(|receiver| receiver.id == *to));
            // The others have theirs.
            let Some(to) = to else { continue };
            let Parcel { keys, values } = parcels.entry(to).or_default();
            let mut meta = None;
            self.database(key).view()?.get(key, &mut |record| {
                meta = Some(Meta { version: record.version, len: record.value.len() as u64 });
                values.extend_from_slice(record.value);
                bytes += record.value.len();
            })?;
            keys.push((Bytes(key.clone()), meta));
        }
        for (to, Parcel { keys, mut values }) in parcels {
            let receiver = pass.receivers.iter_mut().find(|receiver| receiver.id == to);
            let receiver = receiver.ok_or_else(|| invalid("a key has no new owner"))?;
            if values.is_empty() {
                // There is no memory without bytes.
                values.push(0);
            }
            receiver.number += 1;
            let (epoch, number, source) = (pass.epoch, receiver.number, served.me);
            let stream = receiver.stream.unwrap_or_default();
            let memory = caller.instance.memory();
            let told = memory.expose_ref(&values, |values| {
                let values = values.clone();
                let args = TakeArgs { epoch, source, stream, number, keys, values };
                caller.ask(&receiver.target, &MembersArgs::Take(args))
            });
            told.map_err(|error| KvError::Failed(format!("keys are not moved: {error}")))??;
        }
        Ok(count)
    }

    /// Says whether keys that leave can be changed.
    fn hold(&self, epoch: u64, is_held: bool) -> Result<(), KvError> {
        self.step(None, false, |served| {
            served.standing.change(epoch)?;
            served.is_held = is_held;
            Ok(())
        })
    }

    /// Sends what is left, and serves the keys that leave no more.
    fn close(&self, pass: &mut Pass, caller: &Asking<'_>) -> Result<(), KvError> {
        let epoch = pass.epoch;
        if self.members.served().standing.change(epoch)?.is_closed {
            return Ok(());
        }
        self.hold(epoch, true)?;
        let mut send_rest = || loop {
            let keys = pass.dirty.take().ok_or(KvError::Gone)?;
            if keys.is_empty() {
                return Ok(());
            }
            self.send(pass, caller, keys)?;
        };
        if let Err(error) = send_rest() {
            self.hold(epoch, false)?;
            return Err(error);
        }
        let closed = self.keep_closed(epoch);
        self.waiters.wake(Wake::All);
        closed
    }

    fn keep_closed(&self, epoch: u64) -> Result<(), KvError> {
        self.step(None, true, |served| {
            served.standing.change(epoch)?;
            if let Some(change) = &mut served.standing.change {
                change.is_closed = true;
            }
            served.dirty = None;
            Ok(())
        })
    }

    /// Has the new owners serve the keys, which are closed here. Returns those that lack keys.
    fn give(
        &self,
        epoch: u64,
        receivers: &[KvMember],
        pass: Option<&Pass>,
        caller: &Asking<'_>,
    ) -> Result<Vec<KvMember>, KvError> {
        let version = self.databases.iter().map(|database| database.stats().version).max();
        let (source, version) = (self.members.served().me, version.unwrap_or_default());
        let mut missing = Vec::new();
        for member in receivers {
            let receiver =
                pass.and_then(|pass| pass.receivers.iter().find(|it| it.id == member.id));
            let (stream, number) =
                receiver.map_or((0, 0), |it| (it.stream.unwrap_or(0), it.number));
            let open = MembersArgs::Open { epoch, source, version, stream, number };
            match caller.ask(&caller.target(member)?, &open) {
                Err(KvError::Gone) => missing.push(member.clone()),
                opened => _ = opened?,
            }
        }
        if missing.is_empty() {
            self.step(None, true, |served| {
                served.standing.change(epoch)?;
                if let Some(change) = &mut served.standing.change {
                    change.is_given = true;
                }
                served.is_held = false;
                Ok(())
            })?;
        }
        Ok(missing)
    }
}

impl Pass {
    /// Returns whether it is for these, where they are now.
    fn is_to(&self, receivers: &[KvMember], caller: &Asking<'_>) -> bool {
        let is_same = |(own, member): (&Receiver, &KvMember)| {
            own.id == member.id && caller.target(member).is_ok_and(|target| target == own.target)
        };
        let count = self.receivers.len();
        count == receivers.len() && self.receivers.iter().zip(receivers).all(is_same)
    }
}
