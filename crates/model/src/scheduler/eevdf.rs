//! Linux's EEVDF with KVM's directed yield: today's default (kernel/sched/fair.c, virt/kvm/kvm_main.c).
//!
//! Problem.   Share pCPUs by weight with bounded lag; let a spinning vCPU give way to the sibling it waits
//!            for.
//! Mechanism. Each vCPU is a task with a virtual runtime. A pCPU runs, of those eligible (not ahead of the
//!            queue's average), the one with the earliest virtual deadline (runtime + slice / weight). A
//!            waking vCPU preempts when its deadline is earlier. On a pause-loop exit KVM goes round-robin
//!            over the siblings and yields to the first that waits for a pCPU (`kvm_vcpu_on_spin`,
//!            `vcpu->ready`). It leaves out those preempted in user mode that have no interrupt to take
//!            (`kvm_arch_vcpu_preempted_in_kernel`, since 4.14). `yield_to` works only where the target
//!            waits. It makes the target the queue's next pick (buddy) if it is eligible, and puts the
//!            yielder's deadline off by a slice. vCPUs start spread over the host (fork balancing). A woken
//!            vCPU goes to an idle pCPU, and an idle pCPU pulls. Both look within the own last-level cache
//!            first, then within the node, then host-wide. At ticks load (the weights of a queue) is balanced
//!            with the next pCPU, and now and then with the busiest one (`balance.rs`).
//! Limits.    No cgroup hierarchy (`groups/` has it); weights are the VM's, per vCPU. Looking beyond the
//!            cache costs nothing.

mod balance;
mod groups;
mod other_class;
mod queue;

use self::balance::{Balance, Balances};
pub use self::groups::GroupedEevdf;
use self::other_class::Away;
pub use self::other_class::FairClass;
use self::queue::{NO_BUDDY, Queue, Task, Vm};
use super::{Pick, Scheduler, TurnEnds, YieldAnswer};
use crate::bits::Bits;
use crate::config::EevdfConfig;
use crate::events::StopReason;
use crate::ids::{IdVec, PcpuId, VcpuId, VmId};
use crate::machine::{HostVcpu, Machine, VcpuState};
use microslice_policy::YieldCause;

/// Nobody is put on a pCPU for less, unless slices are shorter.
const RUN_MIN_NS: u64 = 100_000;

pub struct Eevdf {
    config: EevdfConfig,
    /// Tasks of blocked vCPUs, by number; all others are in a queue.
    blocked: IdVec<VcpuId, Task>,
    /// Of those that another class schedules.
    away: IdVec<VcpuId, Option<Away>>,
    queues: IdVec<PcpuId, Queue>,
    vms: IdVec<VmId, Vm>,
    /// Each vCPU's: closer together than in `Machine`, and most exits need nothing else of a vCPU.
    vm_of: IdVec<VcpuId, VmId>,
    /// The pCPU in whose queue each vCPU waits, if it does: they lie closer together here than in `Machine`.
    waits_on: IdVec<VcpuId, PcpuId>,
    /// The waiter on a pCPU that was found to be the one to run when its vCPU yielded, until anything else
    /// happens.
    choice: Option<(PcpuId, usize)>,
    /// Each pCPU's.
    balance: IdVec<PcpuId, Balance>,
    waiting_total: usize,
    /// pCPUs where a vCPU waits, and those that run none.
    waited_for: Bits<PcpuId>,
    idle: Bits<PcpuId>,
}

impl Eevdf {
    pub fn new(config: EevdfConfig, machine: &mut Machine) -> Self {
        spread(machine);
        let task =
            |(vcpu, host): (VcpuId, &HostVcpu)| Task { vruntime_ns: 0, deadline_ns: 0, vcpu, vm: host.vm };
        let pcpus = machine.pcpus.len();
        Self {
            config,
            blocked: machine.vcpus.enumerate().map(task).collect(),
            away: IdVec::of(None, machine.vcpus.len()),
            queues: machine.pcpus.iter().map(|_| Queue::new()).collect(),
            choice: None,
            balance: machine.pcpus.ids().map(|pcpu| Balance::starts(machine, pcpu)).collect(),
            vms: machine.vms.iter().map(Vm::of).collect(),
            vm_of: machine.vcpus.iter().map(|host| host.vm).collect(),
            waits_on: IdVec::of(PcpuId::NONE, machine.vcpus.len()),
            waiting_total: 0,
            waited_for: Bits::new(pcpus, false),
            idle: Bits::new(pcpus, true),
        }
    }

    /// No running vCPU's answer changes by that, since none of them is promised to last.
    fn enqueue(&mut self, pcpu: PcpuId, task: Task) {
        self.choice = None;
        self.waits_on[task.vcpu] = pcpu;
        self.queues[pcpu].push(task);
        self.waiting_total += 1;
        self.waited_for.set(pcpu, true);
    }

    fn dequeue(&mut self, pcpu: PcpuId, at: usize) -> Task {
        self.choice = None;
        let queue = &mut self.queues[pcpu];
        let task = queue.remove(at);
        if queue.buddy == task.vcpu {
            queue.buddy = NO_BUDDY;
        }
        self.waiting_total -= 1;
        self.waited_for.set(pcpu, queue.waiting > 0);
        task
    }

    /// The task that runs here next, of the waiters and `ran` (or `NOBODY`). `ran` waits behind all others if
    /// it isn't picked.
    fn pick(&mut self, now_ns: u64, pcpu: PcpuId, ran: Task) -> Option<Task> {
        let queue = &mut self.queues[pcpu];
        let choice = match self.choice.take() {
            Some((of, choice)) if of == pcpu => Some(choice),
            _ => queue.earliest_eligible(&ran),
        };
        let task = match choice {
            Some(at) if ran.vcpu != VcpuId::NONE => {
                let task = queue.exchange(at, ran);
                self.waits_on[ran.vcpu] = pcpu;
                task
            }
            Some(at) => self.dequeue(pcpu, at),
            None => ran,
        };
        if task.vcpu == VcpuId::NONE {
            return None;
        }
        self.queues[pcpu].run_picked(task, now_ns);
        Some(task)
    }

    /// Moves a vCPU's clock from one queue's to another's.
    fn migrate(&self, machine: &mut Machine, task: &mut Task, to: PcpuId) {
        let from = std::mem::replace(&mut machine.vcpus[task.vcpu].pcpu, to);
        let lag = task.vruntime_ns as i64 - self.queues[from].floor_ns as i64;
        let floor_ns = self.queues[to].floor_ns as i64;
        task.vruntime_ns = (floor_ns + lag).max(0) as u64;
        task.new_deadline(&self.vms[task.vm], self.config.base_slice_ns);
    }

    /// When a task that begins to run has had its slice.
    fn slice_end_ns(&self, now_ns: u64, task: &Task) -> u64 {
        let slice_ns = self.config.base_slice_ns;
        let left_ns = self.vms[task.vm].unweighted_ns(task.deadline_ns.saturating_sub(task.vruntime_ns));
        now_ns + left_ns.clamp(RUN_MIN_NS.min(slice_ns), slice_ns)
    }

    /// Out of line: a loaded host hardly ever does.
    #[inline(never)]
    fn steal(&mut self, machine: &mut Machine, thief: PcpuId) -> Option<Task> {
        if self.waiting_total == 0 {
            return None;
        }
        let found = machine
            .near_first(&self.waited_for, thief)
            // An idle peer is about to take from its queue itself.
            .filter(|&peer| peer != thief && !machine.is_idle(peer))
            .find_map(|peer| {
                let at = self.queues[peer].waiting().position(|task| machine.allows(task.vcpu, thief))?;
                Some((peer, at))
            });
        let (peer, at) = found?;
        let mut task = self.dequeue(peer, at);
        self.migrate(machine, &mut task, thief);
        self.queues[thief].run(task, machine.now_ns);
        Some(task)
    }

    fn find_idle(&self, machine: &Machine, vcpu: VcpuId) -> Option<PcpuId> {
        let home = machine.vcpus[vcpu].pcpu;
        let pcpu = machine
            .near_first(&self.idle, home)
            .find(|&pcpu| machine.allows(vcpu, pcpu) && self.queues[pcpu].waiting == 0)?;
        debug_assert!(machine.is_idle(pcpu), "pCPU {pcpu} is thought idle");
        Some(pcpu)
    }

    /// kvm_vcpu_on_spin: the next sibling that waits and may be waited for; `yield_to` makes it its queue's
    /// next pick.
    fn directed_yield(&mut self, machine: &mut Machine, vcpu: VcpuId, on: PcpuId) -> bool {
        let vm = self.vm_of[vcpu];
        let are_alone = |machine: &Machine, sibling| {
            let pcpu = machine.vcpus[sibling].pcpu;
            let [own, other] = [on, pcpu].map(|pcpu| self.queues[pcpu].waiting);
            pcpu != on && own == 0 && other == 1 && machine.is_idle(pcpu)
        };
        let Some(sibling) = machine.yields_to(vcpu, self.vms[vm].last_boosted, are_alone) else {
            return false;
        };
        self.vms[vm].last_boosted = sibling;
        self.choice = None;
        let pcpu = self.waits_on[sibling];
        debug_assert_eq!(pcpu, machine.vcpus[sibling].pcpu);
        let queue = &mut self.queues[pcpu];
        queue.buddy = sibling;
        // A switch isn't interrupted: two waiting siblings that many spinners yield to would otherwise chase
        // each other off their pCPU for ever, before either is in its guest. The target is next, sooner or
        // later.
        if (on != pcpu) & !queue.is_switching(machine) {
            machine.request_schedule(pcpu);
        }
        true
    }
}

/// Each VM's vCPUs start on the pCPUs behind those of the VM before it: new threads go where the fewest are
/// (SD_BALANCE_FORK). If each VM started at pCPU 0, all vCPUs of a large host would wait on the first few,
/// hundreds in a queue.
fn spread(machine: &mut Machine) {
    for vcpu in machine.vcpus.ids() {
        let first = PcpuId::from_index(vcpu.index() % machine.pcpus.len());
        let start = machine.pcpus.round_from(first).find(|&pcpu| machine.allows(vcpu, pcpu));
        if let Some(pcpu) = start {
            machine.vcpus[vcpu].pcpu = pcpu;
        }
    }
}

impl Scheduler for Eevdf {
    fn wake(&mut self, machine: &mut Machine, vcpu: VcpuId) {
        let slice_ns = self.config.base_slice_ns;
        let home = machine.vcpus[vcpu].pcpu;
        debug_assert_ne!(machine.current(home), Some(vcpu), "it has left its pCPU");
        let target = self.find_idle(machine, vcpu).unwrap_or(home);
        let mut task = self.blocked[vcpu];
        if target != home {
            self.migrate(machine, &mut task, target);
        }
        // What it didn't use while asleep is not saved up beyond one slice (place_entity).
        let vm = &self.vms[task.vm];
        let oldest_ns = self.queues[target].floor_ns.saturating_sub(vm.weighted_ns(slice_ns));
        task.vruntime_ns = task.vruntime_ns.max(oldest_ns);
        task.new_deadline(vm, slice_ns);
        self.enqueue(target, task);
        let queue = &mut self.queues[target];
        queue.charge(&self.vms, machine.now_ns);
        if task.deadline_ns < queue.running.deadline_ns {
            machine.request_lazily(target);
        }
    }

    fn schedule(
        &mut self,
        machine: &mut Machine,
        pcpu: PcpuId,
        stopped: Option<(VcpuId, StopReason)>,
    ) -> Option<Pick> {
        let ran = self.stops(machine, pcpu, stopped);
        self.choose(machine, pcpu, ran)
    }

    fn yields(
        &mut self,
        machine: &mut Machine,
        vcpu: VcpuId,
        pcpu: PcpuId,
        cause: YieldCause,
    ) -> YieldAnswer {
        let goes_on = YieldAnswer::KeepSpinning { until_ns: machine.now_ns };
        if cause == YieldCause::Hlt || !self.config.directed_yield {
            return if self.waiting_total == 0 { goes_on } else { YieldAnswer::Yield };
        }
        if !self.directed_yield(machine, vcpu, pcpu) || cause == YieldCause::Ple && self.stays(machine, pcpu)
        {
            return goes_on;
        }
        YieldAnswer::Yield
    }

    fn tick_ns(&self) -> u64 {
        self.config.tick_ns
    }

    fn tick(&mut self, machine: &mut Machine, pcpu: PcpuId) {
        let queue = &mut self.queues[pcpu];
        queue.charge(&self.vms, machine.now_ns);
        if queue.is_idle() {
            if self.waiting_total > 0 {
                machine.request_schedule(pcpu);
            }
            return;
        }
        if queue.running.vruntime_ns >= queue.running.deadline_ns && queue.waiting > 0 {
            machine.request_schedule(pcpu);
        }
        self.push_to_the_next(machine, pcpu);
        self.pull_from_the_busiest(machine, pcpu);
    }
}

impl TurnEnds for Eevdf {}

impl Eevdf {
    /// The account of the task that ran on this pCPU until now; `NOBODY` if it has blocked, or there was
    /// none.
    fn stops(&mut self, machine: &Machine, pcpu: PcpuId, stopped: Option<(VcpuId, StopReason)>) -> Task {
        let queue = &mut self.queues[pcpu];
        let mut ran = queue.charged(&self.vms, machine.now_ns);
        queue.running = Task::NOBODY;
        if let Some((vcpu, reason)) = stopped {
            debug_assert_eq!(ran.vcpu, vcpu);
            if machine.vcpus[vcpu].state == VcpuState::Blocked {
                self.blocked[vcpu] = ran;
                ran = Task::NOBODY;
            } else {
                ran.stops(&self.vms[ran.vm], reason, self.config.base_slice_ns);
            }
        }
        ran
    }

    /// A pCPU chooses: of those that wait there, and `ran`, if it isn't `NOBODY`.
    fn choose(&mut self, machine: &mut Machine, pcpu: PcpuId, ran: Task) -> Option<Pick> {
        let next = self.pick(machine.now_ns, pcpu, ran).or_else(|| self.steal(machine, pcpu));
        self.idle.set(pcpu, next.is_none());
        let task = next?;
        if ran.vcpu != task.vcpu {
            self.queues[pcpu].since_ns = machine.now_ns;
        }
        Some(Pick { vcpu: task.vcpu, slice_end_ns: self.slice_end_ns(machine.now_ns, &task) })
    }

    /// A vCPU that yields on a pause-loop exit is often still the one to run. Most exits of a loaded host are
    /// that: they needn't go through the engine's switching of vCPUs.
    fn stays(&mut self, machine: &mut Machine, pcpu: PcpuId) -> bool {
        let queue = &mut self.queues[pcpu];
        let mut task = queue.charged(&self.vms, machine.now_ns);
        task.postpone(&self.vms[task.vm], self.config.base_slice_ns);
        if let Some(choice) = queue.earliest_eligible(&task) {
            self.choice = Some((pcpu, choice));
            return false;
        }
        queue.run_picked(task, machine.now_ns);
        machine.pcpus[pcpu].slice_end_ns = self.slice_end_ns(machine.now_ns, &task);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;
    use microslice_policy::GuestClass;

    /// A host with VMs of so many vCPUs, each on the pCPUs it names (none: on all).
    fn host(pcpus: usize, llc_pcpus: usize, vms: &[(u32, &[usize])]) -> (Eevdf, Machine) {
        let vm = |&(vcpus, pinned): &(u32, &[usize])| {
            let affinity = match pinned {
                [] => Vec::new(),
                _ => (0..pcpus).map(|pcpu| pinned.contains(&pcpu)).collect(),
            };
            crate::machine::HostVm::new(vcpus, 256, affinity)
        };
        let host = crate::config::HostConfig { pcpus, llc_pcpus, smt_threads: 1, ..samples::host() };
        let mut machine = Machine::new(&host, vms.iter().map(vm).collect());
        let eevdf = Eevdf::new(samples::eevdf_flat(), &mut machine);
        (eevdf, machine)
    }

    #[test]
    fn vcpus_of_many_vms_start_on_all_pcpus() {
        let (_, machine) = host(40, 0, &[(12, [].as_slice()); 10]);
        let starts = |pcpu| machine.vcpus.iter().filter(|vcpu| vcpu.pcpu == pcpu).count();
        assert!((0..40).all(|pcpu| starts(PcpuId::new(pcpu)) == 3));
    }

    #[test]
    fn vcpus_start_where_their_vm_may_run() {
        let (_, machine) = host(8, 0, &[(3, &[]), (6, &[1, 6])]);
        let pinned = machine.vcpus.from(VcpuId::new(3)).iter().map(|vcpu| vcpu.pcpu);
        assert!(
            pinned.clone().all(|pcpu| pcpu == PcpuId::new(1) || pcpu == PcpuId::new(6)),
            "{:?}",
            pinned.collect::<Vec<_>>()
        );
    }

    #[test]
    fn slices_may_be_shorter_than_the_shortest_run_otherwise() {
        let (mut eevdf, mut machine) = host(1, 0, &[(2, &[])]);
        eevdf.config.base_slice_ns = RUN_MIN_NS / 2;
        eevdf.wake(&mut machine, VcpuId::new(0));
        let pick = eevdf.schedule(&mut machine, PcpuId::new(0), None);
        assert_eq!(pick, Some(Pick { vcpu: VcpuId::new(0), slice_end_ns: RUN_MIN_NS / 2 }));
    }

    #[test]
    fn a_directed_yield_goes_to_a_sibling_that_may_hold_what_is_waited_for() {
        let (mut eevdf, mut machine) = host(2, 2, &[(2, &[]), (2, &[])]);
        machine.watched = false;
        for vcpu in 0..4 {
            machine.wakes(VcpuId::new(vcpu));
            eevdf.wake(&mut machine, VcpuId::new(vcpu));
        }
        let run = |eevdf: &mut Eevdf, machine: &mut Machine, pcpu: PcpuId, stopped| {
            let vcpu = eevdf.schedule(machine, pcpu, stopped).expect("somebody waits").vcpu;
            machine.runs(vcpu);
            machine.pcpus[pcpu].current = vcpu;
            vcpu
        };
        let spinner = run(&mut eevdf, &mut machine, PcpuId::new(0), None);
        let sibling = VcpuId::new(1);
        let yields =
            |eevdf: &mut Eevdf, machine: &mut Machine| eevdf.directed_yield(machine, spinner, PcpuId::new(0));
        assert!(yields(&mut eevdf, &mut machine), "it was woken, and waits");
        assert_eq!(run(&mut eevdf, &mut machine, PcpuId::new(1), None), sibling);
        assert!(!yields(&mut eevdf, &mut machine), "it runs");
        machine.now_ns = 10_000_000;
        machine.set_class(sibling, GuestClass::User);
        machine.stops(sibling, false);
        machine.pcpus[PcpuId::new(1)].current = VcpuId::NONE;
        let other = run(&mut eevdf, &mut machine, PcpuId::new(1), Some((sibling, StopReason::SliceExpired)));
        assert_ne!(other, sibling, "it had its slice");
        assert!(!yields(&mut eevdf, &mut machine), "it was preempted in user mode");
        machine.set_class(sibling, GuestClass::LockHolder);
        assert!(yields(&mut eevdf, &mut machine) && yields(&mut eevdf, &mut machine));
        machine.vcpus[sibling].pending_interrupts = 1;
        machine.set_class(sibling, GuestClass::User);
        assert!(yields(&mut eevdf, &mut machine), "it may be an interrupt's answer");
        machine.vcpus[sibling].pending_interrupts = 0;
        machine.set_class(sibling, GuestClass::User);
        assert!(!yields(&mut eevdf, &mut machine));
        machine.vcpus[sibling].preempted = false;
        machine.set_class(sibling, GuestClass::LockWaiter);
        assert!(yields(&mut eevdf, &mut machine), "it gave way itself, and waits");
    }

    #[test]
    fn an_idle_pcpu_pulls_within_its_cache_before_all_others() {
        let (mut eevdf, mut machine) = host(8, 4, &[(8, &[])]);
        for pcpu in [1, 2, 6] {
            machine.pcpus[PcpuId::new(pcpu)].current = VcpuId::new(0);
            eevdf.idle.set(PcpuId::new(pcpu), false);
        }
        for pcpu in [6, 1] {
            eevdf.enqueue(PcpuId::new(pcpu), eevdf.blocked[VcpuId::new(pcpu)]);
        }
        let mut stolen = || eevdf.steal(&mut machine, PcpuId::new(3)).map(|task| task.vcpu);
        assert_eq!(stolen(), Some(VcpuId::new(1)), "pCPU 6 would be nearer by number");
        assert_eq!(stolen(), Some(VcpuId::new(6)));
        assert_eq!(stolen(), None);
        machine.vcpus[VcpuId::new(7)].pcpu = PcpuId::new(2);
        assert_eq!(
            eevdf.find_idle(&machine, VcpuId::new(7)),
            Some(PcpuId::new(3)),
            "of those of its cache, from pCPU 2 on"
        );
    }
}
