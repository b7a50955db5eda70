//! Programs of phases, compiled to a flat list of operations with numbers instead of names.

use crate::SimError;
use crate::guest::spin_barrier::SpinStep;
use crate::guest::user_lock::UserLock;
use crate::guest::{Barrier, Queue};
use crate::text::Text;
use indexmap::IndexSet;
use microslice_model::config::{ChannelConfig, Duration, LOOP_DEPTH, Phase, VmConfig, WorkloadConfig};
use microslice_model::ids::{BarrierId, IdVec, LockId, QueueId};
use microslice_model::random::Samplers;
use std::collections::BTreeMap;

/// In place of a lock's number where none is named.
pub const NO_LOCK: u32 = u32::MAX;

/// Of a queue of which no phase says it.
const QUEUE_CAPACITY_DEFAULT: usize = 64;

/// Locks, user locks, queues and barriers are counted from the VM's first one, so that equal VMs have equal
/// operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Op {
    Compute {
        duration: u32,
    },
    Kernel {
        duration: u32,
        symbol: u16,
    },
    /// An RCU read section.
    ReadRcu {
        duration: u32,
        symbol: u16,
    },
    /// A grace period that begins from now on is wanted.
    WantGracePeriod,
    UserLock {
        lock: u32,
    },
    UserUnlock,
    /// Says by a system call, which is in `symbol`, for how long its vCPU isn't to be preempted.
    Say {
        ns: u32,
        symbol: u16,
    },
    AwaitGracePeriod,
    Lock {
        first: u32,
        instances: u32,
        hold: u32,
    },
    /// Holds a sleeping lock for reading.
    Read {
        lock: u32,
        hold: u32,
    },
    ReadingShootdown {
        prepare: u32,
        under: u32,
    },
    /// `under`: a sleeping lock, or `NO_LOCK`.
    Shootdown {
        prepare: u32,
        under: u32,
    },
    /// `under`: a spinning lock, the first of so many, of which each passage has the next; or `NO_LOCK`.
    Barrier {
        barrier: u32,
        under: u32,
        instances: u32,
    },
    /// Gives up the mutex of a barrier: who was requeued to it first is woken.
    UnlockBarrier {
        barrier: u32,
        under: u32,
    },
    /// `barrier`: the arrival gate, behind which the departure gate follows.
    SpinBarrier {
        step: SpinStep,
        barrier: u32,
        under: u32,
        spin_ns: u32,
    },
    Sleep {
        duration: u32,
    },
    Send {
        queue: u32,
    },
    Receive {
        queue: u32,
    },
    /// Of a channel, by its number.
    SendOut {
        channel: u32,
    },
    ReceiveIn {
        channel: u32,
    },
    NetworkReceive,
    Spawn,
    Progress {
        units: u64,
    },
    RepeatBegin {
        slot: u8,
    },
    /// Jumps back to `body` until it was executed `count` times.
    RepeatEnd {
        slot: u8,
        count: u32,
        body: u32,
    },
    /// Skips to `end` unless the die falls under `ppm`.
    Sometimes {
        ppm: u32,
        end: u32,
    },
    YieldThread,
    /// The end of a program: it goes on at its beginning.
    Again {
        start: u32,
    },
}

/// The programs of all workloads, one after another. Equal ones, as equal VMs have, are kept once: on a host
/// of many VMs they would compete for the fastest cache.
#[derive(Default)]
pub struct Programs {
    ops: Vec<Op>,
    starts: BTreeMap<Vec<Op>, u32>,
}

impl Programs {
    /// Adds a program, whose jumps are counted from its beginning. Returns where it begins.
    fn add(&mut self, program: Vec<Op>) -> u32 {
        if let Some(&start) = self.starts.get(&program) {
            return start;
        }
        let start = self.ops.len() as u32;
        self.ops.extend(program.iter().map(|&op| match op {
            Op::RepeatEnd { slot, count, body } => Op::RepeatEnd { slot, count, body: start + body },
            Op::Sometimes { ppm, end } => Op::Sometimes { ppm, end: start + end },
            op => op,
        }));
        self.ops.push(Op::Again { start });
        self.starts.insert(program, start);
        start
    }

    /// The whole program that contains `pc`.
    pub fn of(&self, pc: u32) -> &[Op] {
        let end = (pc as usize..self.ops.len()).find(|&at| matches!(self.ops[at], Op::Again { .. }));
        match end.map(|end| (self.ops[end], end)) {
            Some((Op::Again { start }, end)) => &self.ops[start as usize..end],
            _ => &[],
        }
    }

    #[inline]
    pub fn op(&self, pc: u32) -> Op {
        self.ops[pc as usize]
    }
}

/// Which gate of a barrier: one with spinning waiters has two (`spin_barrier.rs`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Gate {
    Only,
    Arrival,
    Departure,
}

/// A named lock of a VM.
pub struct LockName {
    pub name: String,
    /// The first of its instances.
    pub first: LockId,
    pub instances: u32,
    pub sleeps: bool,
}

/// The locks of a VM, its runqueues' first.
pub type LockNames = Vec<LockName>;

/// What the programs of all VMs refer to. Durations and equal programs are shared.
pub struct Tables<'a> {
    pub samplers: &'a mut Samplers,
    pub programs: &'a mut Programs,
    pub queues: &'a mut IdVec<QueueId, Queue>,
    pub barriers: &'a mut IdVec<BarrierId, Barrier>,
    pub user_locks: &'a mut Vec<UserLock>,
    /// The first of the queues.
    pub channels: &'a [ChannelConfig],
}

/// Numbers behind the names of one VM's programs. A scenario may have tens of thousands of each kind of name,
/// so none is searched for one by one.
pub struct Compiler<'a> {
    vm: &'a VmConfig,
    text: &'a Text,
    locks: &'a LockNames,
    locks_by_name: BTreeMap<&'a str, &'a LockName>,
    tables: Tables<'a>,
    first_queue: QueueId,
    queue_names: IndexSet<String>,
    first_barrier: BarrierId,
    /// Those of earlier workloads.
    barriers_before: u32,
    barrier_names: IndexSet<(String, Gate)>,
    first_user_lock: usize,
}

impl<'a> Compiler<'a> {
    pub fn new(vm: &'a VmConfig, text: &'a Text, locks: &'a LockNames, tables: Tables<'a>) -> Self {
        let (first_queue, first_barrier) = (tables.queues.next_id(), tables.barriers.next_id());
        let first_user_lock = tables.user_locks.len();
        Self {
            vm,
            text,
            locks,
            locks_by_name: locks.iter().map(|lock| (lock.name.as_str(), lock)).collect(),
            tables,
            first_queue,
            queue_names: IndexSet::default(),
            first_barrier,
            barriers_before: 0,
            barrier_names: IndexSet::default(),
            first_user_lock,
        }
    }

    /// Returns where the workload's program begins.
    pub fn compile(&mut self, workload: &WorkloadConfig) -> Result<u32, SimError> {
        // Queues are the VM's (pipelines span workloads), barriers the workload's.
        self.barrier_names = IndexSet::default();
        self.barriers_before = self.tables.barriers.next_id().since(self.first_barrier);
        let mut ops = Vec::new();
        self.phases(workload, &workload.program, 0, &mut ops)?;
        if !workload.program.iter().any(Phase::takes_time) {
            return Err(
                self.error(workload, "the program never takes time: it would loop for ever at one instant")
            );
        }
        Ok(self.tables.programs.add(ops))
    }

    fn error(&self, workload: &WorkloadConfig, cause: impl Into<String>) -> SimError {
        SimError::Config {
            place: format!("vm {}, workload {}", self.vm.name, workload.name),
            cause: cause.into(),
        }
    }

    fn duration(&mut self, duration: Duration) -> u32 {
        self.tables.samplers.number(duration)
    }

    /// Returns the number of a queue that isn't the VM's own.
    fn channel(&self, name: &str) -> Option<u32> {
        self.tables.channels.iter().position(|channel| channel.name == name).map(|at| at as u32)
    }

    /// `capacity`: 0 if another phase says it.
    fn send(&mut self, queue: &str, capacity: usize) -> Op {
        if let Some(channel) = self.channel(queue) {
            return Op::SendOut { channel };
        }
        let queue = self.queue(queue);
        if capacity > 0 {
            self.tables.queues[self.first_queue.plus(queue)].capacity = capacity;
        }
        Op::Send { queue }
    }

    fn queue(&mut self, name: &str) -> u32 {
        let (queue, new) = self.queue_names.insert_full(name.into());
        if new {
            let capacity = QUEUE_CAPACITY_DEFAULT;
            self.tables.queues.push(Queue { capacity, name: name.into(), ..Queue::default() });
        }
        queue as u32
    }

    fn barrier(&mut self, name: &str, gate: Gate, count: usize, requeues: bool) -> u32 {
        let (barrier, new) = self.barrier_names.insert_full((name.into(), gate));
        if new {
            let is_departure = gate == Gate::Departure;
            self.tables.barriers.push(Barrier {
                count,
                is_departure,
                requeues,
                name: name.into(),
                ..Barrier::default()
            });
        }
        self.barriers_before + barrier as u32
    }

    /// Both gates, one behind the other, and what a thread does there.
    fn spin_barrier(
        &mut self,
        workload: &WorkloadConfig,
        name: &str,
        count: usize,
        (under, requeues): (u32, bool),
        spin_ns: u64,
    ) -> Result<Vec<Op>, SimError> {
        let Ok(spin_ns) = u32::try_from(spin_ns) else {
            return Err(self.error(workload, format!("barrier {name:?}: {spin_ns} ns is too long to spin")));
        };
        if under == NO_LOCK {
            return Err(self.error(workload, format!("barrier {name:?}: a spinner sleeps under a lock then")));
        }
        let barrier = self.barrier(name, Gate::Arrival, count, requeues);
        let departure = self.barrier(name, Gate::Departure, count, requeues);
        debug_assert_eq!(departure, barrier + 1, "they are numbered together");
        let steps = SpinStep::ALL.into_iter().flat_map(|step| {
            let unlocks = requeues && matches!(step, SpinStep::SettleOrSleep | SpinStep::Leave);
            [Op::SpinBarrier { step, barrier, under, spin_ns }]
                .into_iter()
                .chain(unlocks.then_some(Op::UnlockBarrier { barrier, under }))
        });
        Ok(steps.collect())
    }

    fn lock(&self, workload: &WorkloadConfig, name: &str) -> Result<&'a LockName, SimError> {
        self.locks_by_name.get(name).copied().ok_or_else(|| {
            let known: Vec<_> = self.locks.iter().map(|lock| lock.name.as_str()).collect();
            self.error(workload, format!("unknown lock {name:?}; there are: {}", known.join(", ")))
        })
    }

    /// The number of a lock's first instance, counted from the VM's first lock.
    fn first_instance(&self, lock: &LockName) -> u32 {
        lock.first.since(self.locks[0].first)
    }

    /// Under a lock whose waiters sleep, as a shootdown may be done, or spin, as a barrier may.
    fn lock_under(&self, workload: &WorkloadConfig, name: &str, sleeps: bool) -> Result<u32, SimError> {
        let lock = self.lock(workload, name)?;
        if lock.sleeps != sleeps {
            let what = if sleeps { "a shootdown can't wait under" } else { "a barrier can't wake under" };
            let needed = if sleeps { "isn't" } else { "is" };
            return Err(self.error(workload, format!("{what} {name:?}: it {needed} a sleeping lock")));
        }
        Ok(self.first_instance(lock))
    }

    fn under(&self, workload: &WorkloadConfig, lock: Option<&str>, sleeps: bool) -> Result<u32, SimError> {
        lock.map_or(Ok(NO_LOCK), |lock| self.lock_under(workload, lock, sleeps))
    }

    fn symbol(&self, workload: &WorkloadConfig, name: &str) -> Result<u16, SimError> {
        let unknown = || format!("{:?} has no function {name:?}", self.vm.kernel.symbols);
        self.text.find(name).ok_or_else(|| self.error(workload, unknown()))
    }

    fn phases(
        &mut self,
        workload: &WorkloadConfig,
        phases: &[Phase],
        depth: usize,
        ops: &mut Vec<Op>,
    ) -> Result<(), SimError> {
        for phase in phases {
            let op = match phase {
                Phase::Compute { duration } => Op::Compute { duration: self.duration(*duration) },
                Phase::Kernel { duration, symbol } => {
                    Op::Kernel { duration: self.duration(*duration), symbol: self.symbol(workload, symbol)? }
                }
                Phase::ReadRcu { .. } | Phase::Synchronize | Phase::UserLock { .. } => {
                    self.rarer_phase(workload, phase, ops)?;
                    continue;
                }
                Phase::Lock { lock, hold } => {
                    let lock = self.lock(workload, lock)?;
                    let (first, instances) = (self.first_instance(lock), lock.instances);
                    Op::Lock { first, instances, hold: self.duration(*hold) }
                }
                Phase::Shootdown { prepare, under } => {
                    let under = self.under(workload, under.as_deref(), true)?;
                    Op::Shootdown { prepare: self.duration(*prepare), under }
                }
                Phase::Barrier { .. } => {
                    self.barrier_phase(workload, phase, ops)?;
                    continue;
                }
                Phase::Read { .. } | Phase::GuardedShootdown { .. } => {
                    ops.extend(self.guarded_phase(workload, phase)?);
                    continue;
                }
                Phase::Sleep { duration } => Op::Sleep { duration: self.duration(*duration) },
                Phase::Send { queue, capacity } => self.send(queue, *capacity),
                Phase::Receive { queue } => match self.channel(queue) {
                    Some(channel) => Op::ReceiveIn { channel },
                    None => Op::Receive { queue: self.queue(queue) },
                },
                Phase::NetworkReceive if self.vm.nic.is_none() => {
                    return Err(self.error(workload, "it receives from the network, but the VM has no NIC"));
                }
                Phase::NetworkReceive => Op::NetworkReceive,
                Phase::Spawn => Op::Spawn,
                Phase::Progress { units } => Op::Progress { units: *units },
                Phase::Repeat { count, body } => {
                    self.repeat(workload, *count, body, depth, ops)?;
                    continue;
                }
                Phase::Sometimes { ppm, body } => {
                    let at = ops.len();
                    let sometimes = |end: usize| Op::Sometimes { ppm: *ppm, end: end as u32 };
                    // Its end is known behind its body.
                    ops.push(sometimes(at));
                    self.phases(workload, body, depth, ops)?;
                    ops[at] = sometimes(ops.len());
                    continue;
                }
                Phase::YieldThread => Op::YieldThread,
            };
            ops.push(op);
        }
        Ok(())
    }

    /// Of RCU, or a lock of the program's own.
    fn rarer_phase(
        &mut self,
        workload: &WorkloadConfig,
        phase: &Phase,
        ops: &mut Vec<Op>,
    ) -> Result<(), SimError> {
        match phase {
            Phase::ReadRcu { duration, symbol } => {
                let symbol = self.symbol(workload, symbol)?;
                ops.push(Op::ReadRcu { duration: self.duration(*duration), symbol });
            }
            Phase::Synchronize => ops.extend([Op::WantGracePeriod, Op::AwaitGracePeriod]),
            Phase::UserLock { name, hold, hint_ns } => {
                self.user_lock(workload, name, *hold, *hint_ns, ops)?
            }
            _ => unreachable!("it is one of these"),
        }
        Ok(())
    }

    fn user_lock(
        &mut self,
        workload: &WorkloadConfig,
        name: &str,
        hold: Duration,
        hint_ns: u32,
        ops: &mut Vec<Op>,
    ) -> Result<(), SimError> {
        let full_name = format!("{}.{name}", workload.name);
        let own = &self.tables.user_locks[self.first_user_lock..];
        let lock = own.iter().position(|lock| lock.name == full_name).unwrap_or_else(|| {
            self.tables.user_locks.push(UserLock::new(full_name));
            self.tables.user_locks.len() - 1 - self.first_user_lock
        });
        let lock = lock as u32;
        let symbol = self.symbol(workload, "entry_SYSCALL_64")?;
        let said_ns = hint_ns.min(self.vm.kernel.user_hint_ns);
        let says = |ns| (said_ns > 0).then_some(Op::Say { ns, symbol });
        ops.push(Op::UserLock { lock });
        ops.extend(says(said_ns));
        ops.extend([Op::Compute { duration: self.duration(hold) }, Op::UserUnlock]);
        ops.extend(says(0));
        Ok(())
    }

    /// A page fault or a shootdown under a semaphore. In kernels without readers the former isn't there, and
    /// the latter is under no lock.
    fn guarded_phase(&mut self, workload: &WorkloadConfig, phase: &Phase) -> Result<Option<Op>, SimError> {
        let has_readers = self.vm.kernel.readers;
        Ok(Some(match phase {
            Phase::Read { .. } if !has_readers => return Ok(None),
            Phase::Read { lock, hold } => {
                let lock = self.lock_under(workload, lock, true)?;
                Op::Read { lock, hold: self.duration(*hold) }
            }
            Phase::GuardedShootdown { prepare, lock, reads } => {
                let under = if has_readers { self.lock_under(workload, lock, true)? } else { NO_LOCK };
                let prepare = self.duration(*prepare);
                if *reads && has_readers {
                    Op::ReadingShootdown { prepare, under }
                } else {
                    Op::Shootdown { prepare, under }
                }
            }
            _ => unreachable!("it is one of both"),
        }))
    }

    fn barrier_phase(
        &mut self,
        workload: &WorkloadConfig,
        phase: &Phase,
        ops: &mut Vec<Op>,
    ) -> Result<(), SimError> {
        let Phase::Barrier { name, count, under, spin_ns, requeues } = phase else {
            unreachable!("it is a barrier");
        };
        let count = if *count == 0 { workload.threads } else { *count };
        let buckets = under.as_deref().map(|lock| self.lock(workload, lock)).transpose()?;
        let instances = buckets.map_or(1, |lock| lock.instances);
        let under = self.under(workload, under.as_deref(), false)?;
        let requeues = *requeues && self.vm.kernel.wait_lists.is_some();
        if *spin_ns > 0 {
            ops.extend(self.spin_barrier(workload, name, count, (under, requeues), *spin_ns)?);
            return Ok(());
        }
        let barrier = self.barrier(name, Gate::Only, count, requeues);
        ops.push(Op::Barrier { barrier, under, instances });
        if requeues {
            ops.push(Op::UnlockBarrier { barrier, under });
        }
        Ok(())
    }

    fn repeat(
        &mut self,
        workload: &WorkloadConfig,
        count: u64,
        body: &[Phase],
        depth: usize,
        ops: &mut Vec<Op>,
    ) -> Result<(), SimError> {
        if depth >= LOOP_DEPTH {
            return Err(self.error(workload, format!("repeats nest deeper than {LOOP_DEPTH}")));
        }
        if count == 0 {
            return Ok(());
        }
        let Ok(count) = u32::try_from(count) else {
            return Err(
                self.error(workload, format!("it repeats {count} times; up to {} are allowed", u32::MAX))
            );
        };
        let slot = depth as u8;
        ops.push(Op::RepeatBegin { slot });
        let start = ops.len() as u32;
        self.phases(workload, body, depth + 1, ops)?;
        if ops.len() == start as usize {
            // There is nothing to repeat.
            ops.pop();
            return Ok(());
        }
        ops.push(Op::RepeatEnd { slot, count, body: start });
        Ok(())
    }
}
