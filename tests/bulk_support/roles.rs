//! The two sides of an exchange that may be cut short at any point: the origin lends memory in a
//! call, the target pulls all of it, pushes other bytes back, and answers.

use std::sync::mpsc;

use margo::hg::{Bulk, BulkOp, HgError, HgOptions, OpRef, RequestHandle, proc};
use na::{Access, Addr, LocalMem, Memory, WeakMem};

use super::{Node, pattern};

/// Bytes that move each way, in many pieces.
pub(crate) const BYTES: usize = 4 << 20;

pub(crate) fn options() -> HgOptions {
    let mut options = HgOptions::default();
    options.request_post_init = 16;
    options.bulk_chunk_bytes = 32 << 10;
    options.bulk_window = 4;
    options
}

/// The target's side.
#[derive(Default)]
pub(crate) struct Mover {
    pub(crate) jobs: Vec<Job>,
    pub(crate) answered: usize,
    pub(crate) failed: Vec<HgError>,
    /// Memory of jobs that are over.
    used: Vec<WeakMem>,
    next: u32,
}

pub(crate) struct Job {
    token: u32,
    request: RequestHandle<u32>,
    bulk: Bulk,
    local: LocalMem,
    pub(crate) op: BulkOp,
    /// While it moves.
    name: Option<OpRef>,
}

impl Job {
    /// Returns whether at least half of the bytes have arrived.
    pub(crate) fn is_half_pulled(&self) -> bool {
        let mut byte = [0];
        assert!(self.local.read_at(self.local.len() / 2, &mut byte));
        byte != [0]
    }

    fn start(&mut self, node: &Node) -> Result<(), HgError> {
        let Self { token, request, bulk, local, op, name } = self;
        let owner = request.origin();
        let started = node.core.transfer(*op, owner, bulk, 0, local, 0, bulk.len(), *token);
        *name = Some(started.map_err(|refused| refused.0)?);
        Ok(())
    }
}

impl Mover {
    /// Does what has become possible.
    pub(crate) fn step(&mut self, node: &mut Node) {
        for request in std::mem::take(&mut node.log.requests) {
            let bulk: Bulk = proc::from_slice(request.payload()).unwrap();
            let zeros = Memory::from_vec(vec![0; bulk.len() as usize]);
            let local = node.core.endpoint().register(zeros, Access::ReadOnly).unwrap();
            self.next += 1;
            let (token, op) = (self.next, BulkOp::Pull);
            let job = Job { token, request, bulk, local, op, name: None };
            self.begin(node, job);
        }
        for (token, result) in std::mem::take(&mut node.log.bulks) {
            let at = self.jobs.iter().position(|job| job.token == token).unwrap();
            let mut job = self.jobs.remove(at);
            match (result, job.op) {
                (Err(error), _) => self.give_up(job, error),
                (Ok(_), BulkOp::Pull) => {
                    let mut bytes = vec![0; job.bulk.len() as usize];
                    assert!(job.local.read_at(0, &mut bytes));
                    assert!(bytes == lent_bytes(bytes.len()), "pulled bytes differ");
                    assert!(job.local.write_at(0, &returned_bytes(bytes.len())));
                    job.op = BulkOp::Push;
                    self.begin(node, job);
                }
                (Ok(_), BulkOp::Push) => {
                    self.used.push(job.local.downgrade());
                    match job.request.respond(|_writer| Ok(()), token) {
                        Ok(_) => self.answered += 1,
                        Err(refused) => self.failed.push(refused.0),
                    }
                }
            }
        }
        let ends = std::mem::take(&mut node.log.responded);
        self.failed.extend(ends.into_iter().filter_map(|(_, result)| result.err()));
    }

    /// Cancels all that moves.
    pub(crate) fn cancel(&self, node: &Node) {
        self.jobs.iter().filter_map(|job| job.name).for_each(|name| node.core.cancel(name));
    }

    fn begin(&mut self, node: &Node, mut job: Job) {
        match job.start(node) {
            Ok(()) => self.jobs.push(job),
            Err(error) => self.give_up(job, error),
        }
    }

    fn give_up(&mut self, job: Job, error: HgError) {
        self.used.push(job.local.downgrade());
        self.failed.push(error);
    }

    /// Returns whether nothing is under way and nobody holds the memory that was used.
    pub(crate) fn is_quiet(&self, node: &Node) -> bool {
        self.jobs.is_empty()
            && node.core.in_flight() == 0
            && self.used.iter().all(|memory| memory.upgrade().is_none())
    }
}

/// The origin's side: one call at a time.
pub(crate) struct Caller {
    pub(crate) lent: LocalMem,
}

impl Caller {
    pub(crate) fn start(node: &Node, to: &Addr, bytes: usize) -> Self {
        let lent = node.expose(vec![lent_bytes(bytes)], Access::ReadWrite);
        node.call(to, &node.core.bulk_handle(&lent), 1);
        Self { lent }
    }

    /// Returns whether the target has begun to push.
    pub(crate) fn is_pushed_to(&self) -> bool {
        let mut byte = [0];
        assert!(self.lent.read_at(0, &mut byte));
        byte[0] == returned_bytes(1)[0]
    }

    /// The outcome of the call, if it has ended.
    pub(crate) fn ended(&self, node: &mut Node) -> Option<Result<(), HgError>> {
        let (_, result) = node.log.responses.pop()?;
        Some(result.map(|_| ()))
    }

    /// Takes the memory back; it arrives when nobody holds it any more.
    pub(crate) fn take_back(self) -> mpsc::Receiver<Memory> {
        let (sender, receiver) = mpsc::channel();
        self.lent.revoke(move |memory| {
            // Who does not wait any more does not want it.
            let _ = sender.send(memory);
        });
        receiver
    }
}

/// No zeros, so that what has arrived can be told.
fn lent_bytes(len: usize) -> Vec<u8> {
    pattern(len, 0).into_iter().map(|byte| byte | 1).collect()
}

fn returned_bytes(len: usize) -> Vec<u8> {
    vec![2; len]
}
