//! A random program over a random network, by seed: messages, transfers, cancels, partitions,
//! slow nodes, crashes and restarts, in an order that only the seed knows. It checks what must hold
//! of every run.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::Receiver;
use std::time::Duration;

use na::sim::{LinkOptions, Network, Trace};
use na::{Addr, LocalMem, Memory, OpId};

use super::support::{Node, Random, builder, pattern, revoke};

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// The trouble that a run may make for its network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trouble {
    /// Only to packets: then everything arrives.
    Packets,
    /// Also cancels.
    Cancels,
    /// Also partitions, crashes and closes.
    All,
}

/// A node with what is known of its operations.
struct Actor {
    node: Node,
    /// Unique in the run, to tell successors apart.
    life: u64,
    receives: Vec<OpId>,
    transfers: Vec<Moving>,
    others: Vec<OpId>,
    dead: bool,
}

/// A transfer and the bytes that it is to move.
struct Moving {
    op: OpId,
    put: bool,
    local: LocalMem,
    remote: LocalMem,
    bytes: Vec<u8>,
}

struct Program {
    random: Random,
    network: Network,
    trouble: Trouble,
    actors: Vec<Actor>,
    /// Those that have crashed or were closed.
    former: Vec<Actor>,
    lives: u64,
    /// Number of the next message, by sender's life and destination's name.
    sent: BTreeMap<(u64, usize), u64>,
    memories: Vec<Receiver<Memory>>,
}

/// Runs the program of `seed`; panics with its trace if a rule is broken.
pub(crate) fn run(seed: u64) -> Trace {
    let mut random = Random::new(seed);
    let trouble =
        [Trouble::Packets, Trouble::Cancels, Trouble::All, Trouble::All][seed as usize % 4];
    let network = builder(seed)
        .link(LinkOptions::unreliable(random.below(30) as f64 / 100.0))
        .window_bytes([1, 10_000, 100_000, 500_000][random.below(4)])
        .packet_bytes_max([100, 1000, 64_000][random.below(3)])
        .peer_limit(Duration::from_millis(match trouble {
            Trouble::All => 5,
            _ => 1_000_000,
        }))
        .operation_cost(Duration::from_nanos([0, 0, 500][random.below(3)]))
        .build()
        .unwrap();
    let _explain = network.trace_on_panic(80);
    let mut program = Program {
        random,
        network,
        trouble,
        actors: Vec::new(),
        former: Vec::new(),
        lives: 0,
        sent: BTreeMap::new(),
        memories: Vec::new(),
    };
    let count = 2 + program.random.below(3);
    for at in 0..count {
        let actor = program.open(at);
        program.actors.push(actor);
    }
    for _ in 0..20 + program.random.below(120) {
        program.act();
    }
    program.end();
    program.network.trace()
}

impl Program {
    fn open(&mut self, at: usize) -> Actor {
        self.lives += 1;
        let node = Node::open(&self.network, NAMES[at]);
        let (receives, transfers, others) = (Vec::new(), Vec::new(), Vec::new());
        Actor { node, life: self.lives, receives, transfers, others, dead: false }
    }

    fn act(&mut self) {
        let me = self.random.below(self.actors.len());
        // Sometimes oneself.
        let other = self.random.below(self.actors.len());
        match self.random.below(100) {
            0..35 => self.send(me, other),
            35..55 => {
                let op = self.actors[me].node.recv();
                self.actors[me].receives.push(op);
            }
            55..65 => self.transfer(me, other),
            65..70 => self.expected(me, other),
            70..78 if self.trouble != Trouble::Packets => self.cancel(me),
            78..84 if self.trouble == Trouble::All => self.harm(me, other),
            _ => {
                for _ in 0..self.random.below(60) {
                    self.network.step();
                    self.poll();
                }
            }
        }
    }

    fn poll(&self) {
        self.actors.iter().for_each(|actor| drop(actor.node.try_poll()));
    }

    /// A message that says whose it is and the how many-th.
    fn send(&mut self, me: usize, other: usize) {
        let life = self.actors[me].life;
        let number = self.sent.entry((life, other)).or_default();
        let mut bytes = [life.to_le_bytes(), number.to_le_bytes()].concat();
        let tag = *number as u32;
        *number += 1;
        bytes.extend(pattern(life << 32 | u64::from(tag), self.random.below(4000)));
        let actor = &mut self.actors[me];
        let op = actor.node.send(&address(actor, other), tag, &bytes);
        actor.others.push(op);
    }

    /// An expected message; its receive is posted before or after, or never.
    fn expected(&mut self, me: usize, other: usize) {
        let receiver = &mut self.actors[other];
        if self.random.below(3) > 0 {
            let op = receiver.node.recv_expected(&address(receiver, me), 1);
            receiver.others.push(op);
        }
        let sender = &mut self.actors[me];
        let op = sender.node.send_expected(&address(sender, other), 1, b"expected");
        sender.others.push(op);
    }

    fn transfer(&mut self, me: usize, other: usize) {
        let len = self.random.below(30_000);
        let put = self.random.below(2) == 0;
        let bytes = pattern(self.random.next(), len);
        let empty = vec![0; len];
        let (here, there) = if put { (bytes.clone(), empty) } else { (empty, bytes.clone()) };
        let remote = self.actors[other].node.register(there);
        let (actor, owner) = (&self.actors[me].node, &self.actors[other].node);
        let local = actor.register(here);
        let to = address(&self.actors[me], other);
        let op = actor.transfer(put, &to, &local, (owner, &remote));
        self.actors[me].transfers.push(Moving { op, put, local, remote, bytes });
    }

    fn cancel(&mut self, me: usize) {
        let actor = &self.actors[me];
        let ops: Vec<OpId> = actor.ops().filter(|op| !actor.node.is_done(*op)).collect();
        if !ops.is_empty() {
            actor.node.endpoint.cancel(ops[self.random.below(ops.len())]);
        }
    }

    fn harm(&mut self, me: usize, other: usize) {
        let (name, peer) = (NAMES[me], NAMES[other]);
        match self.random.below(9) {
            0 => self.network.partition(name, peer),
            1 => self.network.partition_one_way(name, peer),
            2 => self.network.isolate(name),
            3 | 4 => self.network.heal(),
            5 => {
                let cost = Duration::from_micros(self.random.below(50) as u64);
                self.network.set_operation_cost(name, cost);
            }
            end => {
                match end {
                    6 => self.network.crash(name),
                    7 => self.network.power_off(name),
                    _ => self.actors[me].node.endpoint.close(),
                }
                self.actors[me].dead = true;
                let successor = self.open(me);
                let former = std::mem::replace(&mut self.actors[me], successor);
                self.former.push(former);
            }
        }
    }

    /// Lets everything end, and looks at what became of it.
    fn end(&mut self) {
        self.network.heal();
        self.rest();
        if self.trouble != Trouble::All {
            self.receive_everything();
        }
        for actor in &self.actors {
            actor.node.endpoint.close();
        }
        self.rest();
        for actor in self.former.iter().chain(&self.actors) {
            while !matches!(actor.node.try_poll(), Ok(0)) {}
            assert_eq!(actor.node.unfinished(), [0; 0], "life {}", actor.life);
        }
        self.check_messages();
        self.check_transfers();
        for memory in &self.memories {
            assert!(memory.try_recv().is_ok(), "memory that was not given back");
        }
    }

    fn rest(&self) {
        for _ in 0..1_000_000 {
            self.poll();
            if !self.network.step() {
                return;
            }
        }
        panic!("it never comes to rest");
    }

    /// Without harm, what was sent arrives: with receives for all, all sends end.
    fn receive_everything(&mut self) {
        for _ in 0..self.sent.values().sum::<u64>() {
            for actor in &mut self.actors {
                let op = actor.node.recv();
                actor.receives.push(op);
            }
        }
        self.rest();
        if self.trouble == Trouble::Packets {
            let arrived: usize = self.actors.iter().map(|actor| actor.messages().count()).sum();
            assert_eq!(arrived as u64, self.sent.values().sum::<u64>(), "messages that arrived");
            for actor in &self.actors {
                for moving in &actor.transfers {
                    actor.node.succeeded(moving.op);
                }
            }
        }
    }

    /// No message came twice, changed, or before one that was sent before it.
    fn check_messages(&self) {
        for actor in self.former.iter().chain(&self.actors) {
            let mut last: BTreeMap<u64, u64> = BTreeMap::new();
            let mut seen = BTreeSet::new();
            for (tag, bytes) in actor.messages() {
                let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
                let (life, number) = (word(0), word(8));
                assert!(seen.insert((life, number)), "message {number} of {life} came twice");
                assert_eq!(u64::from(tag), number);
                let body = &bytes[16..];
                assert!(body == pattern(life << 32 | number, body.len()), "bytes were changed");
                let before = last.insert(life, number);
                assert!(before < Some(number), "{number} of {life} came after {before:?}");
            }
        }
    }

    fn check_transfers(&mut self) {
        for actor in self.former.iter_mut().chain(&mut self.actors) {
            for Moving { op, put, local, remote, bytes } in actor.transfers.drain(..) {
                let moved = if put { &remote } else { &local };
                let mut got = vec![0; bytes.len()];
                assert!(moved.read_at(0, &mut got));
                let fine = actor.node.outcome(op).is_err() || got == bytes;
                assert!(fine, "a transfer that succeeded is not complete");
                self.memories.extend([local, remote].map(revoke));
            }
        }
    }
}

impl Actor {
    fn ops(&self) -> impl Iterator<Item = OpId> {
        let transfers = self.transfers.iter().map(|moving| moving.op);
        self.receives.iter().chain(&self.others).copied().chain(transfers)
    }

    /// Returns the messages that the actor has received, in the order of its receives.
    fn messages(&self) -> impl Iterator<Item = (u32, Vec<u8>)> {
        let received = |op: &&OpId| self.node.is_done(**op) && self.node.outcome(**op).is_ok();
        self.receives.iter().filter(received).map(|op| {
            let (_, tag, bytes) = self.node.received(*op);
            (tag, bytes)
        })
    }
}

fn address(actor: &Actor, other: usize) -> Addr {
    actor.node.to(NAMES[other])
}
