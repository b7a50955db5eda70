//! RCU: read sections, and writers that wait for a grace period (`synchronize_rcu`).
//!
//! Problem.   A writer may free what readers may still see only when each vCPU has passed a quiescent state.
//!            A vCPU that has lost its pCPU passes none, whether it reads or not: its guest doesn't know that
//!            it is in user mode. (EuroSys'18, 2.1, names readers, after Prasad et al., USENIX ATC'17.)
//! Mechanism. Linux, kernel/rcu/tree.c, 6.12. A vCPU learns of a grace period at its next tick
//!            (`note_gp_changes`). At one of the ticks behind that one it reports, unless it has been reading
//!            since (`rcu_sched_clock_irq`, `rcu_report_qs_rdp`). For that it takes the lock of its node,
//!            with interrupts off. Nobody sends an interrupt. A writer sleeps; every few ticks it looks for
//!            vCPUs that idle, which are quiescent (`rcu_gp_fqs_loop`). Whoever makes the grace period end
//!            wakes those that wait for it. A writer that comes while one is under way waits for the next
//!            one.
//! Limits.    Writers do the looks of the grace period's own thread, one after another. Callbacks
//!            (`call_rcu`), expedited grace periods and the reschedule IPI to a vCPU that hasn't reported for
//!            100 ms aren't there. All vCPUs have one node. A reader's end is a quiescent state at once.

use crate::guest::{Act, NO_ARG, Then, WaitsFor};
use crate::simulation::Simulation;
use crate::text;
use microslice_model::config::{Phase, SymbolTable};
use microslice_model::ids::{LockId, ThreadId, VcpuId, VmId};

/// How long a node's lock is held for a report (`rcu_report_qs_rnp`): an assumption.
const REPORT_NS: u64 = 300;

/// What a grace period knows of a vCPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Quiet {
    /// It hasn't learnt of the grace period yet.
    Unaware,
    /// It is to pass a quiescent state.
    Owes,
    /// It has passed one, and reports at its next tick.
    Passed,
    /// It has idled since the grace period began: whoever looks sees that, too.
    Idled,
    Reported,
}

/// Those of a VM with writers.
pub struct GracePeriods {
    /// How many are over. One more is under way while somebody waits.
    completed: u32,
    began_ns: u64,
    vcpus: Vec<Quiet>,
    /// How many of them haven't reported.
    owing: u32,
    writers: Vec<ThreadId>,
    /// That of the node, if the kernel has it.
    node_lock: LockId,
}

impl GracePeriods {
    pub fn new(vcpus: u32, node_lock: LockId) -> Self {
        let vcpus = vec![Quiet::Reported; vcpus as usize];
        Self { completed: 0, began_ns: 0, vcpus, owing: 0, writers: Vec::new(), node_lock }
    }

    fn begin(&mut self, now_ns: u64) {
        self.began_ns = now_ns;
        self.owing = self.vcpus.len() as u32;
        self.vcpus.fill(Quiet::Unaware);
    }

    /// Returns whether all have reported now.
    fn report(&mut self, at: u32) -> bool {
        let vcpu = &mut self.vcpus[at as usize];
        if *vcpu == Quiet::Reported {
            return false;
        }
        *vcpu = Quiet::Reported;
        self.owing -= 1;
        self.owing == 0
    }
}

/// Whether a program, or a part of one, waits for grace periods.
pub fn synchronizes(program: &[Phase]) -> bool {
    program.iter().any(|phase| match phase {
        Phase::Synchronize => true,
        Phase::Repeat { body, .. } | Phase::Sometimes { body, .. } => synchronizes(body),
        _ => false,
    })
}

impl Simulation<'_> {
    fn grace_periods(&mut self, vm: VmId) -> &mut GracePeriods {
        self.vms[vm].grace_periods.as_deref_mut().expect("a VM whose programs synchronize has them")
    }

    /// A writer wants a grace period that begins from now on.
    pub(crate) fn want_grace_period(&mut self, thread: ThreadId) {
        let (now_ns, vm) = (self.machine.now_ns, self.threads[thread].vm);
        let grace = self.grace_periods(vm);
        let is_under_way = grace.owing > 0;
        if !is_under_way {
            grace.begin(now_ns);
        }
        let wanted = grace.completed.wrapping_add(1 + u32::from(is_under_way));
        grace.writers.push(thread);
        self.threads[thread].passage = wanted;
    }

    /// The writer looks, and sleeps until its grace period is over or it looks again. Returns false if it is
    /// over.
    pub(crate) fn await_grace_period(&mut self, vcpu: VcpuId, thread: ThreadId) -> bool {
        let vm = self.threads[thread].vm;
        if !self.grace_periods(vm).writers.contains(&thread) {
            return false;
        }
        let woken = self.look_for_idle(vm, thread);
        let waits_on = self.grace_periods(vm).writers.contains(&thread);
        if waits_on {
            // It comes here again.
            self.threads[thread].pc -= 1;
        }
        if !waits_on || !woken.is_empty() {
            return self.wake_then_go_on(vcpu, woken);
        }
        let look_at_ns = self.machine.now_ns + look_ns(self.vms[vm].kernel.tick_ns);
        self.timeline.set(self.slots.thread(thread), look_at_ns);
        self.block_thread(vcpu, thread, WaitsFor::GracePeriod);
        true
    }

    /// Idle vCPUs are quiescent (`force_qs_rnp`). Returns whom to wake, if that ends the grace period.
    fn look_for_idle(&mut self, vm: VmId, looking: ThreadId) -> Vec<ThreadId> {
        let (first, count) = (self.vms[vm].first_vcpu, self.vms[vm].vcpus);
        let mut is_over = false;
        for at in 0..count {
            let (vcpu, quiet) = (first.plus(at), self.grace_periods(vm).vcpus[at as usize]);
            let guest = &self.guest[vcpu];
            // What an interrupt has stopped is where it was.
            let symbol = guest.frames[0].symbol;
            let idles = guest.depth == 0 && guest.thread == ThreadId::NONE && symbol == text::IDLE;
            if quiet == Quiet::Idled || idles {
                is_over |= self.grace_periods(vm).report(at);
            } else if quiet != Quiet::Reported && self.is_preempted(vcpu) {
                self.measured.found_holdout(vm, self.reads(vcpu), symbol == text::USER);
            }
        }
        if is_over { self.end_grace_period(vm, looking) } else { Vec::new() }
    }

    /// Whether that vCPU's thread reads what RCU protects. In a kernel that doesn't preempt itself readers
    /// leave no mark: there all of the kernel counts.
    fn reads(&self, vcpu: VcpuId) -> bool {
        let frame = &self.guest[vcpu].frames[0];
        let vm = &self.vms[self.machine.vcpus[vcpu].vm];
        let shows_readers = vm.text != SymbolTable::Linux44 as usize;
        let reads = frame.act == Act::Timed && frame.then == Then::LeaveReader;
        reads || !shows_readers && !matches!(frame.symbol, text::USER | text::IDLE)
    }

    /// The vCPU's idle loop halts.
    pub(crate) fn note_idle(&mut self, vcpu: VcpuId) {
        let vm = &mut self.vms[self.machine.vcpus[vcpu].vm];
        let at = vcpu.since(vm.first_vcpu) as usize;
        if let Some(grace) = vm.grace_periods.as_deref_mut()
            && grace.vcpus[at] != Quiet::Reported
        {
            grace.vcpus[at] = Quiet::Idled;
        }
    }

    /// A read section is over, or the guest's scheduler takes another thread: a quiescent state.
    pub(crate) fn pass_quiet_state(&mut self, vcpu: VcpuId) {
        let vm = self.machine.vcpus[vcpu].vm;
        let at = vcpu.since(self.vms[vm].first_vcpu) as usize;
        if let Some(grace) = self.vms[vm].grace_periods.as_deref_mut()
            && grace.vcpus[at] == Quiet::Owes
        {
            grace.vcpus[at] = Quiet::Passed;
        }
    }

    /// The vCPU's tick: it learns of a grace period, or reports. Returns whether that takes time.
    pub(crate) fn tick_of_rcu(&mut self, vcpu: VcpuId) -> bool {
        let vm = self.machine.vcpus[vcpu].vm;
        if self.vms[vm].grace_periods.is_none() {
            return false;
        }
        let (at, reads) = (vcpu.since(self.vms[vm].first_vcpu), self.reads(vcpu));
        let grace = self.grace_periods(vm);
        let quiet = &mut grace.vcpus[at as usize];
        match *quiet {
            Quiet::Unaware => *quiet = Quiet::Owes,
            Quiet::Passed | Quiet::Idled => return self.report_quiet(vcpu, vm),
            Quiet::Owes if !reads => return self.report_quiet(vcpu, vm),
            Quiet::Owes | Quiet::Reported => {}
        }
        false
    }

    /// Takes the node's lock, if there is one, and reports.
    fn report_quiet(&mut self, vcpu: VcpuId, vm: VmId) -> bool {
        let lock = self.grace_periods(vm).node_lock;
        if lock == LockId::NONE {
            self.reported_quiet(vcpu);
            return false;
        }
        self.acquire(vcpu, lock, REPORT_NS, Then::ReportQuiet, NO_ARG);
        true
    }

    /// In the node's lock, or without one: the vCPU has reported.
    pub(crate) fn reported_quiet(&mut self, vcpu: VcpuId) {
        let (vm, depth) = (self.machine.vcpus[vcpu].vm, self.guest[vcpu].depth);
        let at = vcpu.since(self.vms[vm].first_vcpu);
        if self.grace_periods(vm).report(at) {
            let writers = self.end_grace_period(vm, ThreadId::NONE);
            self.guest[vcpu].wake_later(usize::from(depth), writers);
        }
    }

    /// All have reported. Returns the writers that are to be woken. One that looks just now isn't, nor is one
    /// whose next look has come: it will see.
    fn end_grace_period(&mut self, vm: VmId, looking: ThreadId) -> Vec<ThreadId> {
        let now_ns = self.machine.now_ns;
        let grace = self.vms[vm].grace_periods.as_deref_mut().expect("one was under way");
        grace.completed = grace.completed.wrapping_add(1);
        let (over, length_ns) = (grace.completed, now_ns - grace.began_ns);
        let writers = std::mem::take(&mut grace.writers);
        let (mut done, next): (Vec<_>, Vec<_>) =
            writers.into_iter().partition(|&writer| self.threads[writer].passage == over);
        if !next.is_empty() {
            grace.begin(now_ns);
        }
        grace.writers = next;
        self.measured.grace_period_took(vm, length_ns);
        done.retain(|&writer| {
            let slot = self.slots.thread(writer);
            let sleeps = writer != looking && self.timeline.is_set(slot);
            if sleeps {
                self.timeline.cancel(slot);
            }
            sleeps
        });
        done
    }
}

/// Between two looks: `RCU_JIFFIES_TILL_FORCE_QS`, of up to 255 vCPUs.
fn look_ns(tick_ns: u64) -> u64 {
    tick_ns * (1 + u64::from(tick_ns < 4_000_000) + u64::from(tick_ns < 2_000_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_are_as_many_ticks_apart_as_in_linux() {
        assert_eq!([10_000_000, 4_000_000, 3_333_333, 1_000_000].map(|ns| look_ns(ns) / ns), [1, 1, 2, 3]);
    }

    #[test]
    fn a_grace_period_ends_when_each_vcpu_has_reported() {
        let mut grace = GracePeriods::new(2, LockId::NONE);
        grace.begin(5);
        assert!(!grace.report(1) && !grace.report(1) && grace.owing == 1);
        assert!(grace.report(0) && !grace.report(0));
    }
}
