//! Which keys this server serves, and the steps of a change of the members: those of a destination,
//! and those that only note where the change is. The steps of a source are in `hand_over.rs`.
//!
//! | state | who writes | who reads |
//! |---|---|---|
//! | [`Members::served`] | a step, with the lock of `steps` | every request |
//! | the same in the databases | a step, in its turn among the changes | the changes |
//! | [`Members::steps`] | one step at a time | – |
//! | [`Members::outgoing`] | the step that hands over | – |
//!
//! A step ends after a second, so that its caller hears how far it is; the same call goes on.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::ops::{Bound, ControlFlow};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use margo::Handle;
use margo::ult::Mutex;

use super::hand_over::Pass;
use super::service::{Service, failed, invalid, zeroed};
use super::waiters::Wake;
use crate::KvError;
use crate::engine::{Database, Order, TakenRecord, Written};
use crate::members::{Served, Standing, Told, check_version, shard_of_key};
use crate::steps::{MembersArgs, Step, TakeArgs};

/// How long a step goes on.
const STEP_TIME: Duration = Duration::from_secs(1);

/// Keys that are erased in one commit.
const ERASE_KEYS: usize = 16_384;

/// Records that are looked at before others have their turn.
const LOOK: usize = 1024;

/// The members that a provider knows of, and what it does for a change of them.
pub(super) struct Members {
    served: RwLock<Arc<Served>>,
    /// There are no others, so that all keys are served. Relaxed: what changes keys looks at
    /// `served` in its turn, and no key has another owner at the moment at which there are some.
    is_alone: AtomicBool,
    steps: Mutex<Streams>,
    pub(super) outgoing: Mutex<Option<Pass>>,
}

/// Keys that come here.
#[derive(Default)]
pub(super) struct Streams {
    /// By source: the stream, and the number of the last part that came.
    open: HashMap<u64, (u64, u64)>,
}

/// The time that a step has.
#[derive(Clone, Copy)]
pub(super) struct StepTime(Instant);

impl StepTime {
    pub(super) fn is_over(self) -> bool {
        Instant::now() >= self.0
    }
}

impl Members {
    pub(super) fn new(databases: &[Database]) -> Result<Self, KvError> {
        let members = Self {
            served: RwLock::default(),
            is_alone: AtomicBool::new(true),
            steps: Mutex::new(Streams::default()),
            outgoing: Mutex::new(None),
        };
        members.reload(databases)?;
        Ok(members)
    }

    /// Takes over what the databases know of members.
    pub(super) fn reload(&self, databases: &[Database]) -> Result<(), KvError> {
        let standing = match databases[0].note() {
            None => Standing::default(),
            Some(note) => serde_json::from_slice(&note)
                .map_err(|error| KvError::Corrupted(format!("what it knows of others: {error}")))?,
        };
        let me = databases[0].stats().id;
        let served = Served { me, standing, ..Served::default() };
        self.serve(databases, served, None, false)
    }

    pub(super) fn served(&self) -> Arc<Served> {
        self.served.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns whether a key may be read here.
    pub(super) fn reads(&self, key: &[u8]) -> Result<(), KvError> {
        match self.is_alone.load(Ordering::Relaxed) {
            true => Ok(()),
            false => self.served().reads(key),
        }
    }

    /// Reads a range of keys, again if others are served at the end than at the beginning.
    pub(super) fn steadily<T>(
        &self,
        epoch: u64,
        read: impl Fn(&Arc<Served>) -> Result<T, KvError>,
    ) -> Result<T, KvError> {
        loop {
            let served = self.served();
            served.knows(epoch)?;
            let found = read(&served)?;
            if Arc::ptr_eq(&served, &self.served()) {
                return Ok(found);
            }
        }
    }

    /// Serves other keys. Changes have higher versions than `least`; `is_kept`: the standing is on
    /// the disk before.
    fn serve(
        &self,
        databases: &[Database],
        served: Served,
        least: Option<u64>,
        is_kept: bool,
    ) -> Result<(), KvError> {
        let served = Arc::new(served);
        let note = is_kept.then(|| serde_json::to_vec(&served.standing)).transpose();
        let note = note.map_err(|error| KvError::Failed(error.to_string()))?;
        // The first one keeps the note, when all others have done their part.
        let made = databases.iter().enumerate().rev().try_for_each(|(shard, database)| {
            let note = note.clone().filter(|_| shard == 0);
            let (served, least) = (served.clone(), least.unwrap_or(0));
            database.order(Order::Serve { served, note, least }, None)
        });
        let is_closed =
            |served: &Served| served.standing.change.as_ref().is_some_and(|it| it.is_closed);
        if made.is_err() && !is_closed(&served) {
            let before = self.served();
            for database in databases {
                let (served, note) = (before.clone(), None);
                // It fails where that did, and nothing was changed there.
                let _ = database.order(Order::Serve { served, note, least: 0 }, None);
            }
            return made;
        }
        // What may be known as closed on the disk is not served, whatever the error.
        self.is_alone.store(served.standing.now.is_none(), Ordering::Relaxed);
        *self.served.write().unwrap_or_else(PoisonError::into_inner) = served;
        made
    }
}

impl Service {
    pub(super) fn tell_members(&self) -> Told {
        let Served { me, standing, .. } = &*self.members.served();
        Told { id: *me, shards: self.databases.len() as u8, standing: standing.clone() }
    }

    pub(super) fn change_members<R>(
        &self,
        request: &Handle<MembersArgs, R>,
    ) -> Result<Step, KvError> {
        let time = request.remaining().map_or(STEP_TIME, |left| STEP_TIME.min(left / 2));
        let time = StepTime(Instant::now() + time);
        match request.args() {
            MembersArgs::HandOver { epoch } => self.hand_over(*epoch, request, time),
            MembersArgs::Begin { from, to } => {
                let mut steps = self.members.steps.lock();
                let Served { me, standing, .. } = &*self.members.served();
                let next = standing.begin(*me, from.clone(), to.clone())?;
                if standing.now.is_none() {
                    self.check_strangers(*me, &next)?;
                }
                self.note(&mut steps, next).map(|()| Step::Done)
            }
            MembersArgs::Finish { epoch } => {
                let mut steps = self.members.steps.lock();
                let Served { me, standing, .. } = &*self.members.served();
                self.note(&mut steps, standing.finish(*me, *epoch)?).map(|()| Step::Done)
            }
            MembersArgs::Abort { epoch } => {
                let mut steps = self.members.steps.lock();
                steps.open.clear();
                let Served { me, standing, .. } = &*self.members.served();
                self.note(&mut steps, standing.abort(*me, *epoch)?).map(|()| Step::Done)
            }
            MembersArgs::Clean => {
                let mut steps = self.members.steps.lock();
                steps.open.clear();
                let served = self.members.served();
                let (keys, is_done) = self.erase(|key| served.is_useless(key), time)?;
                Ok(if is_done { Step::Done } else { Step::More { keys } })
            }
            MembersArgs::Start { epoch, source } => self.start_stream(*epoch, *source, time),
            MembersArgs::Take(args) => self.take(args, request),
            MembersArgs::Open { epoch, source, version, stream, number } => {
                check_version(*version)?;
                let stream = (*stream, *number);
                self.open((*epoch, *source), stream, *version).map(|()| Step::Done)
            }
        }
    }

    /// Changes what is served, by what it is then.
    pub(super) fn step(
        &self,
        least: Option<u64>,
        is_kept: bool,
        change: impl FnOnce(&mut Served) -> Result<(), KvError>,
    ) -> Result<(), KvError> {
        let _steps = self.members.steps.lock();
        let mut served = Served::clone(&self.members.served());
        change(&mut served)?;
        self.members.serve(&self.databases, served, least, is_kept)
    }

    /// Stands so from now on, also if it is started again.
    fn note(&self, _steps: &mut Streams, standing: Standing) -> Result<(), KvError> {
        let before = self.members.served();
        if before.standing == standing {
            return Ok(());
        }
        let of_change = |standing: &Standing| standing.change.as_ref().map(|it| it.to.epoch);
        let served = match of_change(&before.standing) == of_change(&standing) {
            true => Served { standing, ..Served::clone(&before) },
            false => Served { me: before.me, standing, ..Served::default() },
        };
        self.members.serve(&self.databases, served, None, true)?;
        self.waiters.wake(Wake::All);
        Ok(())
    }

    /// Checks that a database that stood alone has no keys of others: of one that joins, any.
    fn check_strangers(&self, me: u64, next: &Standing) -> Result<(), KvError> {
        let Some(now) = &next.now else { return Ok(()) };
        let mut stranger = None;
        for database in &self.databases {
            self.look(database, None, &mut |key| {
                stranger = (now.owner(key).id != me).then(|| key.escape_ascii().to_string());
                if stranger.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })?;
        }
        let Some(key) = stranger else { return Ok(()) };
        Err(invalid(&match now.member(me) {
            Some(_) => format!("it has keys of other servers that are named, such as {key:?}"),
            None => format!("it has keys of its own, such as {key:?}: who joins is empty"),
        }))
    }

    /// Shows the keys behind `after`, and gives other requests their turn.
    pub(super) fn look(
        &self,
        database: &Database,
        after: Option<&[u8]>,
        visit: &mut dyn FnMut(&[u8]) -> ControlFlow<()>,
    ) -> Result<(), KvError> {
        let (from, mut seen) = (after.map_or(Bound::Unbounded, Bound::Excluded), 0_usize);
        database.view()?.scan((from, Bound::Unbounded), false, &mut |key, _| {
            seen += 1;
            if seen.is_multiple_of(LOOK) {
                margo::ult::yield_now();
            }
            visit(key)
        })
    }

    /// Erases keys for a while. Returns how many, and whether those are all.
    fn erase(
        &self,
        is_out: impl Fn(&[u8]) -> bool,
        time: StepTime,
    ) -> Result<(u64, bool), KvError> {
        let mut count = 0;
        for database in &self.databases {
            let mut after = None;
            loop {
                let (mut keys, mut last, mut seen) = (Vec::new(), None, 0_usize);
                self.look(database, after.as_deref(), &mut |key| {
                    seen += 1;
                    if is_out(key) {
                        keys.push((key.to_vec(), None));
                    }
                    let is_over = seen.is_multiple_of(LOOK) && time.is_over();
                    if keys.len() < ERASE_KEYS && !is_over {
                        return ControlFlow::Continue(());
                    }
                    last = Some(key.to_vec());
                    ControlFlow::Break(())
                })?;
                count += keys.len() as u64;
                if !keys.is_empty() {
                    database.order(Order::Take(keys), None)?;
                }
                after = match last {
                    None => break,
                    Some(_) if time.is_over() => return Ok((count, false)),
                    last => last,
                };
            }
        }
        Ok((count, true))
    }

    /// Begins to take keys of a source, when those that have come before are erased.
    fn start_stream(&self, epoch: u64, source: u64, time: StepTime) -> Result<Step, KvError> {
        let mut steps = self.members.steps.lock();
        let served = self.members.served();
        is_coming(&served, epoch, source)?;
        steps.open.remove(&source);
        let (keys, is_done) = self.erase(|key| served.comes_from(key, source), time)?;
        if !is_done {
            return Ok(Step::More { keys });
        }
        let stream = std::hash::RandomState::new().hash_one(());
        steps.open.insert(source, (stream, 0));
        Ok(Step::Started { stream })
    }

    fn take<R>(&self, args: &TakeArgs, request: &Handle<MembersArgs, R>) -> Result<Step, KvError> {
        let TakeArgs { epoch, source, stream, number, keys, values } = args;
        let sum = keys
            .iter()
            .try_fold(0_u64, |sum, (_, meta)| sum.checked_add(meta.map_or(0, |meta| meta.len)));
        let sum = sum.filter(|sum| *sum <= values.len());
        let sum =
            sum.ok_or_else(|| invalid("values are longer than the memory that is exposed"))?;
        let most = self.budget.most();
        if sum > most {
            return Err(KvError::TooLong { what: "a value".to_owned(), len: sum, most });
        }
        let token = request.cancel_token();
        // Held until the database has the values.
        let taken = self.budget.take(request.principal(), sum, token.event());
        let _loan = taken.ok_or(KvError::Deadline)?;
        let lens = keys.iter().filter_map(|(_, meta)| meta.map(|meta| meta.len));
        let lens = lens.filter(|len| *len > 0);
        let parts = lens.map(|len| zeroed(len, len)).collect::<Result<_, _>>()?;
        let mut parts = request.instance().memory().bulk_segments(parts).map_err(failed)?;
        let all = 0..parts.len();
        if sum > 0 {
            request.pull(values, 0, &mut parts, all).map_err(failed)?;
        }
        let mut parts = parts.into_segments().into_iter();

        let mut steps = self.members.steps.lock();
        let served = self.members.served();
        is_coming(&served, *epoch, *source)?;
        let last = steps.open.get_mut(source).filter(|(own, last)| own == stream && last < number);
        let (_, last) = last.ok_or(KvError::Gone)?;
        let mut records: Vec<Vec<TakenRecord>> = vec![Vec::new(); self.databases.len()];
        for (key, meta) in keys {
            if !served.comes_from(key, *source) {
                return Err(invalid("a key that is not the source's"));
            }
            let written = meta.map(|meta| {
                let value = if meta.len > 0 { parts.next() } else { None };
                Written { version: meta.version, value: value.unwrap_or_default() }
            });
            records[shard_of_key(key, self.databases.len())].push((key.to_vec(), written));
        }
        *last = *number;
        let all = records.into_iter().zip(&self.databases);
        for (records, database) in all.filter(|(records, _)| !records.is_empty()) {
            database.order(Order::Take(records), request.deadline())?;
        }
        Ok(Step::Done)
    }

    /// Serves the keys of a source from now on, if all of them have come.
    fn open(
        &self,
        (epoch, source): (u64, u64),
        stream: (u64, u64),
        version: u64,
    ) -> Result<(), KvError> {
        let mut steps = self.members.steps.lock();
        let mut served = Served::clone(&self.members.served());
        let change = served.receives(epoch, source)?;
        if change.opened.contains(&source) {
            return Ok(());
        }
        if steps.open.get(&source) != Some(&stream) {
            return Err(KvError::Gone);
        }
        steps.open.remove(&source);
        if let Some(change) = &mut served.standing.change {
            change.opened.push(source);
        }
        self.members.serve(&self.databases, served, Some(version), true)?;
        self.waiters.wake(Wake::All);
        Ok(())
    }
}

/// Checks that keys of a source come, and are not served yet.
fn is_coming(served: &Served, epoch: u64, source: u64) -> Result<(), KvError> {
    match served.receives(epoch, source)?.opened.contains(&source) {
        false => Ok(()),
        true => Err(invalid("the keys of that source are served here already")),
    }
}
