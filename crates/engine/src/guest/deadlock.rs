//! Threads that nothing will ever wake: a mistake of the workload, reported with what each waits for.

use crate::SimError;
use crate::guest::program::Op;
use crate::guest::{ThreadState, WaitsFor, pending};
use crate::simulation::{Simulation, Vm};
use microslice_model::config::MS;
use microslice_model::ids::{LockId, QueueId, ThreadId, WorkloadId};
use microslice_model::machine::VcpuState;
use std::collections::{BTreeMap, BTreeSet};

/// Threads that a report names; the others are counted.
const SHOWN: usize = 20;
/// How often a VM of which a part still runs is searched, in ms; the last time in a run's last one. Not more
/// often, so that a thread that isn't stuck yet, but will be, is in the report, too.
const SEARCH_MS: u64 = 100;

/// Which workloads use a queue, from both sides.
#[derive(Default)]
struct QueueUsers {
    senders: BTreeSet<WorkloadId>,
    receivers: BTreeSet<WorkloadId>,
}

impl Simulation<'_> {
    /// Called every simulated millisecond.
    pub(crate) fn find_deadlock(&self) -> Result<(), SimError> {
        let (now_ns, end_ns) = (self.machine.now_ns, self.config.warmup_ns + self.config.duration_ns);
        let searches = (now_ns / MS).is_multiple_of(SEARCH_MS) || now_ns + MS > end_ns;
        for vm in &self.vms {
            let stuck = if self.is_dead(vm) {
                vm.first_thread.span(vm.threads).collect()
            } else if searches {
                self.stuck_threads(vm)
            } else {
                BTreeSet::new()
            };
            if !stuck.is_empty() {
                return Err(self.deadlock_of(vm, &stuck));
            }
        }
        Ok(())
    }

    fn deadlock_of(&self, vm: &Vm, stuck: &BTreeSet<ThreadId>) -> SimError {
        let users = self.queue_users(vm);
        let mut chain: Vec<_> = stuck.iter().take(SHOWN).map(|&thread| self.waits(thread, &users)).collect();
        if stuck.len() > SHOWN {
            chain.push(format!("and {} more", stuck.len() - SHOWN));
        }
        SimError::Deadlock { time_ns: self.machine.now_ns, chain: chain.join("; ") }
    }

    /// None of its vCPUs will ever run again, though it has threads.
    fn is_dead(&self, vm: &Vm) -> bool {
        let asleep = vm.first_vcpu.span(vm.vcpus).all(|vcpu| {
            self.machine.vcpus[vcpu].state == VcpuState::Blocked
                && !self.cpu_limits.rests(vcpu)
                && self.guest[vcpu].pending & !pending::TICK == 0
        });
        let mut threads = vm.first_thread.span(vm.threads);
        asleep
            && vm.threads > 0
            && vm.nic.is_none()
            && !threads
                .any(|thread| self.timeline.is_set(self.slots.thread(thread)) || self.waits_outside(thread))
    }

    /// Whether a thread waits for what comes from outside its VM.
    fn waits_outside(&self, thread: ThreadId) -> bool {
        let thread = &self.threads[thread];
        thread.state == ThreadState::Blocked && thread.waits_for == WaitsFor::Network
    }

    /// Threads that wait for each other only. Those that another thread could wake are taken away from all
    /// that wait, again and again. (Another one of the right workload; whether its program will ever come to
    /// that is not asked.)
    fn stuck_threads(&self, vm: &Vm) -> BTreeSet<ThreadId> {
        let mut stuck = self.waiting_threads(vm);
        if stuck.is_empty() {
            return stuck;
        }
        let users = self.queue_users(vm);
        loop {
            let mut free = self.threads_by_workload(vm);
            for &thread in &stuck {
                *free.entry(self.threads[thread].workload).or_default() -= 1;
            }
            let remaining: BTreeSet<ThreadId> = stuck
                .iter()
                .copied()
                .filter(|&thread| !self.is_wakeable(thread, &stuck, &free, &users))
                .collect();
            if remaining.len() == stuck.len() {
                return remaining;
            }
            stuck = remaining;
        }
    }

    /// Threads in some line of waiters. A thread that was taken out of it is about to run.
    fn waiting_threads(&self, vm: &Vm) -> BTreeSet<ThreadId> {
        let (mut waiting, mut barriers, mut queues) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for thread in vm.first_thread.span(vm.threads) {
            let state = &self.threads[thread];
            if state.state != ThreadState::Blocked {
                continue;
            }
            match state.waits_for {
                WaitsFor::Lock(_) if state.granted == LockId::NONE => drop(waiting.insert(thread)),
                WaitsFor::Barrier(barrier) => drop(barriers.insert(barrier)),
                WaitsFor::Item(queue) | WaitsFor::Room(queue) => drop(queues.insert(queue)),
                _ => {}
            }
        }
        for barrier in barriers {
            let barrier = &self.barriers[barrier];
            // Whoever waited for a passage that is over is woken as soon as the waker has the lock.
            let is_over =
                |thread: ThreadId| barrier.passages != 0 && self.threads[thread].passage != barrier.passages;
            waiting.extend(barrier.waiting.iter().copied().filter(|&thread| !is_over(thread)));
        }
        for queue in queues {
            let queue = &self.queues[queue];
            waiting.extend(queue.receivers.iter().chain(&queue.senders));
        }
        waiting
    }

    fn threads_by_workload(&self, vm: &Vm) -> BTreeMap<WorkloadId, usize> {
        let mut counts = BTreeMap::new();
        for thread in vm.first_thread.span(vm.threads) {
            *counts.entry(self.threads[thread].workload).or_default() += 1;
        }
        counts
    }

    /// `free`: how many threads of each workload aren't stuck.
    fn is_wakeable(
        &self,
        thread: ThreadId,
        stuck: &BTreeSet<ThreadId>,
        free: &BTreeMap<WorkloadId, usize>,
        users: &BTreeMap<QueueId, QueueUsers>,
    ) -> bool {
        let state = &self.threads[thread];
        let any_free =
            |workloads: &BTreeSet<WorkloadId>| workloads.iter().any(|w| free.get(w).is_some_and(|n| *n > 0));
        match state.waits_for {
            WaitsFor::Lock(lock) => !stuck.contains(&self.locks[lock].owner.as_thread()),
            WaitsFor::Barrier(barrier) => {
                let barrier = &self.barriers[barrier];
                // Whoever waits behind a departure gate has left already.
                let there = if barrier.is_departure { barrier.arrived } else { barrier.waiting.len() };
                let missing = barrier.count.saturating_sub(there);
                free.get(&state.workload).is_some_and(|free| *free >= missing)
            }
            WaitsFor::Item(queue) => users.get(&queue).is_some_and(|users| any_free(&users.senders)),
            WaitsFor::Room(queue) => users.get(&queue).is_some_and(|users| any_free(&users.receivers)),
            WaitsFor::Nothing | WaitsFor::Network | WaitsFor::Timer | WaitsFor::GracePeriod => true,
        }
    }

    /// The threads that send to, and receive from, each queue of a VM.
    fn queue_users(&self, vm: &Vm) -> BTreeMap<QueueId, QueueUsers> {
        let mut users: BTreeMap<QueueId, QueueUsers> = BTreeMap::new();
        let mut seen = BTreeSet::new();
        for thread in vm.first_thread.span(vm.threads) {
            let state = &self.threads[thread];
            if !seen.insert(state.workload) {
                continue;
            }
            for op in self.programs.of(state.pc) {
                match *op {
                    Op::Send { queue } => {
                        let users = users.entry(vm.first_queue.plus(queue)).or_default();
                        users.senders.insert(state.workload);
                    }
                    Op::Receive { queue } => {
                        let users = users.entry(vm.first_queue.plus(queue)).or_default();
                        users.receivers.insert(state.workload);
                    }
                    _ => {}
                }
            }
        }
        users
    }

    /// `vm/workload`, of several with commas.
    fn workload_names(&self, workloads: Option<&BTreeSet<WorkloadId>>) -> String {
        let name = |&workload: &WorkloadId| {
            let thread = self.threads.ids().find(|&thread| self.threads[thread].workload == workload);
            let name = thread.map_or("", |thread| self.names.threads[thread].as_str());
            name.split('#').next().unwrap_or(name).to_owned()
        };
        workloads.into_iter().flatten().map(name).collect::<Vec<_>>().join(", ")
    }

    fn waits(&self, thread: ThreadId, users: &BTreeMap<QueueId, QueueUsers>) -> String {
        let state = &self.threads[thread];
        let name = &self.names.threads[thread];
        match state.waits_for {
            WaitsFor::Nothing => {
                let guest = &self.guest[state.vcpu];
                match guest.frames[0].lock {
                    LockId::NONE => format!("{name} could run"),
                    lock => format!("{name} waits for lock {}", self.names.locks[lock]),
                }
            }
            WaitsFor::Lock(lock) => {
                let owner = self.locks[lock].owner;
                let owner = self.names.threads.get(owner.as_thread()).map_or("nobody", String::as_str);
                format!("{name} waits for lock {} held by {owner}", self.names.locks[lock])
            }
            WaitsFor::Barrier(barrier) => {
                let state = &self.barriers[barrier];
                format!(
                    "{name} waits at barrier {} ({} of {} arrived)",
                    state.name,
                    state.waiting.len(),
                    state.count
                )
            }
            WaitsFor::Item(queue) => {
                let senders = self.workload_names(users.get(&queue).map(|users| &users.senders));
                let queue = &self.queues[queue].name;
                format!("{name} waits for an item in queue {queue}, to which {senders} sends")
            }
            WaitsFor::Room(queue) => {
                let receivers = self.workload_names(users.get(&queue).map(|users| &users.receivers));
                let state = &self.queues[queue];
                format!(
                    "{name} waits for room in queue {} ({} items), from which {receivers} receives",
                    state.name, state.items
                )
            }
            WaitsFor::Network => format!("{name} waits for the network"),
            WaitsFor::Timer => format!("{name} sleeps"),
            WaitsFor::GracePeriod => format!("{name} waits for a grace period"),
        }
    }
}
