//! Threads that nobody will ever wake: a mistake of the workload, reported with who waits for whom.

use crate::SimError;
use crate::config::MS;
use crate::engine::{Simulation, Vm};
use crate::guest::program::Op;
use crate::guest::{ThreadState, WaitsFor, pending};
use crate::machine::{NONE, VcpuState};
use std::collections::{BTreeMap, BTreeSet};

/// Threads that a report names; the others are counted.
const SHOWN: usize = 20;
/// How often a VM of which a part still runs is searched, in ms; the last time in a run's last one. Not more often, so that
/// who isn't stuck yet, but will be, is in the report, too.
const SEARCH_MS: u64 = 100;

/// Which workloads use a queue, from both sides.
#[derive(Default)]
struct QueueUsers {
    senders: BTreeSet<u32>,
    receivers: BTreeSet<u32>,
}

impl Simulation<'_> {
    /// Called every simulated millisecond.
    pub(crate) fn find_deadlock(&self) -> Result<(), SimError> {
        let (now_ns, end_ns) = (self.machine.now_ns, self.config.warmup_ns + self.config.duration_ns);
        let searches = (now_ns / MS).is_multiple_of(SEARCH_MS) || now_ns + MS > end_ns;
        for vm in &self.vms {
            let stuck = if self.is_dead(vm) {
                (vm.first_thread..vm.first_thread + vm.threads).collect()
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

    fn deadlock_of(&self, vm: &Vm, stuck: &BTreeSet<u32>) -> SimError {
        let users = self.queue_users(vm);
        let mut chain: Vec<_> = stuck.iter().take(SHOWN).map(|&thread| self.waits(thread, &users)).collect();
        if stuck.len() > SHOWN {
            chain.push(format!("and {} more", stuck.len() - SHOWN));
        }
        SimError::Deadlock { time_ns: self.machine.now_ns, chain: chain.join("; ") }
    }

    /// None of its vCPUs will ever run again, though it has threads.
    fn is_dead(&self, vm: &Vm) -> bool {
        let asleep = (vm.first_vcpu..vm.first_vcpu + vm.vcpus).all(|vcpu| {
            self.machine.vcpus[vcpu as usize].state == VcpuState::Blocked
                && self.guest[vcpu as usize].pending & !pending::TICK == 0
        });
        let mut threads = vm.first_thread..vm.first_thread + vm.threads;
        asleep
            && vm.threads > 0
            && vm.nic.is_none()
            && !threads.any(|thread| self.timeline.is_set(self.slots.threads + thread))
    }

    /// Threads that wait for each other only: from all that wait, those are taken away, again and again, that somebody else
    /// could wake. (Somebody of the right workload; whether its program will ever come to that is not asked.)
    fn stuck_threads(&self, vm: &Vm) -> BTreeSet<u32> {
        let mut stuck = self.waiting_threads(vm);
        if stuck.is_empty() {
            return stuck;
        }
        let users = self.queue_users(vm);
        loop {
            let mut free = self.threads_by_workload(vm);
            for &thread in &stuck {
                *free.entry(self.threads[thread as usize].workload).or_default() -= 1;
            }
            let remaining: BTreeSet<u32> = stuck
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

    /// Threads in some line of waiters. Who was taken out of it is about to run.
    fn waiting_threads(&self, vm: &Vm) -> BTreeSet<u32> {
        let (mut waiting, mut barriers, mut queues) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for thread in vm.first_thread..vm.first_thread + vm.threads {
            let state = &self.threads[thread as usize];
            if state.state != ThreadState::Blocked {
                continue;
            }
            match state.waits_for {
                WaitsFor::Lock(_) if state.granted == NONE => drop(waiting.insert(thread)),
                WaitsFor::Barrier(barrier) => drop(barriers.insert(barrier)),
                WaitsFor::Item(queue) | WaitsFor::Room(queue) => drop(queues.insert(queue)),
                _ => {}
            }
        }
        waiting.extend(barriers.iter().flat_map(|&barrier| &self.barriers[barrier as usize].waiting));
        for queue in queues {
            let queue = &self.queues[queue as usize];
            waiting.extend(queue.receivers.iter().chain(&queue.senders));
        }
        waiting
    }

    fn threads_by_workload(&self, vm: &Vm) -> BTreeMap<u32, usize> {
        let mut counts = BTreeMap::new();
        for thread in vm.first_thread..vm.first_thread + vm.threads {
            *counts.entry(self.threads[thread as usize].workload).or_default() += 1;
        }
        counts
    }

    /// `free`: how many threads of each workload aren't stuck.
    fn is_wakeable(
        &self,
        thread: u32,
        stuck: &BTreeSet<u32>,
        free: &BTreeMap<u32, usize>,
        users: &BTreeMap<u32, QueueUsers>,
    ) -> bool {
        let state = &self.threads[thread as usize];
        let any_free =
            |workloads: &BTreeSet<u32>| workloads.iter().any(|w| free.get(w).is_some_and(|n| *n > 0));
        match state.waits_for {
            WaitsFor::Lock(lock) => !stuck.contains(&self.locks[lock as usize].owner),
            WaitsFor::Barrier(barrier) => {
                let barrier = &self.barriers[barrier as usize];
                let missing = barrier.count.saturating_sub(barrier.waiting.len());
                free.get(&state.workload).is_some_and(|free| *free >= missing)
            }
            WaitsFor::Item(queue) => users.get(&queue).is_some_and(|users| any_free(&users.senders)),
            WaitsFor::Room(queue) => users.get(&queue).is_some_and(|users| any_free(&users.receivers)),
            WaitsFor::Nothing | WaitsFor::Network | WaitsFor::Timer => true,
        }
    }

    /// Who sends to and receives from each queue of a VM.
    fn queue_users(&self, vm: &Vm) -> BTreeMap<u32, QueueUsers> {
        let mut users: BTreeMap<u32, QueueUsers> = BTreeMap::new();
        let mut seen = BTreeSet::new();
        for thread in vm.first_thread..vm.first_thread + vm.threads {
            let state = &self.threads[thread as usize];
            if !seen.insert(state.workload) {
                continue;
            }
            for op in self.programs.of(state.pc) {
                match *op {
                    Op::Send { queue } => {
                        let users = users.entry(vm.first_queue + queue).or_default();
                        users.senders.insert(state.workload);
                    }
                    Op::Receive { queue } => {
                        let users = users.entry(vm.first_queue + queue).or_default();
                        users.receivers.insert(state.workload);
                    }
                    _ => {}
                }
            }
        }
        users
    }

    /// `vm/workload`, of several with commas.
    fn workload_names(&self, workloads: Option<&BTreeSet<u32>>) -> String {
        let name = |&workload: &u32| {
            let thread = self.threads.iter().position(|thread| thread.workload == workload);
            let name = thread.map_or("", |thread| self.names.threads[thread].as_str());
            name.split('#').next().unwrap_or(name).to_owned()
        };
        workloads.into_iter().flatten().map(name).collect::<Vec<_>>().join(", ")
    }

    fn waits(&self, thread: u32, users: &BTreeMap<u32, QueueUsers>) -> String {
        let state = &self.threads[thread as usize];
        let name = &self.names.threads[thread as usize];
        match state.waits_for {
            WaitsFor::Nothing => {
                let guest = &self.guest[state.vcpu as usize];
                match guest.frames[0].lock {
                    NONE => format!("{name} could run"),
                    lock => format!("{name} waits for lock {}", self.names.locks[lock as usize]),
                }
            }
            WaitsFor::Lock(lock) => {
                let owner = self.locks[lock as usize].owner;
                let owner = self.names.threads.get(owner as usize).map_or("nobody", String::as_str);
                format!("{name} waits for lock {} held by {owner}", self.names.locks[lock as usize])
            }
            WaitsFor::Barrier(barrier) => {
                let state = &self.barriers[barrier as usize];
                format!(
                    "{name} waits at barrier {} ({} of {} arrived)",
                    state.name,
                    state.waiting.len(),
                    state.count
                )
            }
            WaitsFor::Item(queue) => {
                let senders = self.workload_names(users.get(&queue).map(|users| &users.senders));
                let queue = &self.queues[queue as usize].name;
                format!("{name} waits for an item in queue {queue}, to which {senders} sends")
            }
            WaitsFor::Room(queue) => {
                let receivers = self.workload_names(users.get(&queue).map(|users| &users.receivers));
                let state = &self.queues[queue as usize];
                format!(
                    "{name} waits for room in queue {} ({} items), from which {receivers} receives",
                    state.name, state.items
                )
            }
            WaitsFor::Network => format!("{name} waits for the network"),
            WaitsFor::Timer => format!("{name} sleeps"),
        }
    }
}
