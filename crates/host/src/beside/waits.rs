//! Bounds on waits beside the kernel's own scheduler: the helper's looks at whoever waits
//! (`policy/max_wait.h`).
//!
//! Problem.   No program of the kernel side runs while vCPUs only wait, and none of its programs may set a
//!            timer.
//! Mechanism. The helper reads all vCPUs' states in mapped memory when the longest wait may be due. For those
//!            that are it runs a BPF program, the longest wait first. That one decides, counts, and asks the
//!            helper for a boost like any hint.
//! Limits.    A vCPU is looked at from `NEW_VCPUS` after it came at the latest, on a very slow host later.
//!            One that its cgroup's `cpu.max` has throttled while it ran has no bound until it runs again.

use crate::bpf::mapped_array::MappedArray;
use crate::interface::{BoundRequest, VCPUS_MAX, VMS_MAX, Vcpu};
use crate::machine::clock::monotonic_ns;
use crate::settings::{Settings, max_wait};
use libbpf_rs::libbpf_sys::{bpf_prog_test_run_opts, bpf_test_run_opts};
use microslice_policy::{
    MAX_WAIT_MOST_NS, VcpuState, WaitDecision, WaitObservation, decide_on_wait, max_wait_least_now_ns,
    max_wait_shared_ns, wait_look_pause_ns, wait_next_look_ns,
};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use zerocopy::IntoBytes;

/// How often new vCPUs are looked for, at most.
const NEW_VCPUS: Duration = Duration::from_millis(100);

/// Bounds, which the daemon and the helper tell each other.
#[derive(Clone)]
pub struct Bounds(Arc<Shared>);

struct Shared {
    /// Those that VMs have of their own, by slot: the daemon's. A slot's next VM may have those of its last
    /// one for a moment.
    own: Vec<AtomicU64>,
    /// Of all others, and the least that all can have: the helper's, from its last look.
    host_ns: AtomicU64,
    least_ns: AtomicU64,
}

impl Bounds {
    /// `host_ns`: until somebody has looked how many want to run.
    pub fn new(host_ns: u64) -> Self {
        let own = (0..VMS_MAX).map(|_| AtomicU64::new(0)).collect();
        Self(Arc::new(Shared { own, host_ns: AtomicU64::new(host_ns), least_ns: AtomicU64::new(0) }))
    }

    /// `own_ns`: as `max_wait_of_vm_ns()` takes it.
    pub fn set(&self, slot: u32, own_ns: u64) {
        if let Some(bound) = self.0.own.get(slot as usize) {
            bound.store(own_ns, Ordering::Relaxed);
        }
    }

    fn own(&self, slot: u32) -> u64 {
        self.0.own.get(slot as usize).map_or(0, |bound| bound.load(Ordering::Relaxed))
    }

    fn tell(&self, host_ns: u64, least_ns: u64) {
        self.0.host_ns.store(host_ns, Ordering::Relaxed);
        self.0.least_ns.store(least_ns, Ordering::Relaxed);
    }

    /// Returns for how long vCPUs of the VM in `slot` may wait now, in nanoseconds. `None`: for ever.
    pub fn in_force(&self, slot: u32) -> Option<u64> {
        let [host_ns, least_ns] =
            [&self.0.host_ns, &self.0.least_ns].map(|bound| bound.load(Ordering::Relaxed));
        max_wait::in_force_ns(self.own(slot), host_ns, least_ns)
    }
}

/// The looks of one host.
pub struct Waits {
    bounds: Bounds,
    micro_slice_ns: u64,
    /// How long vCPUs of other VMs may wait at least, and for each that wants to run and that a pCPU has.
    least_ns: u64,
    each_ns: u64,
    pcpu_count: u32,
    /// How long they may wait now; 0: for ever. And the least bound that all can have.
    host_bound_ns: u64,
    least_bound_ns: u64,
    /// The program that decides.
    program: OwnedFd,
    /// The slots in use, and when they are looked for again.
    slots: Vec<u32>,
    find_at_ns: u64,
}

impl Waits {
    pub fn new(settings: &Settings, bounds: Bounds, pcpu_count: u32, program: OwnedFd) -> Self {
        let least_ns = settings.max_wait().bound_ns();
        Self {
            bounds,
            micro_slice_ns: settings.micro_slice_us * 1000,
            least_ns,
            each_ns: settings.max_wait().each_ns(settings.micro_slice_us),
            pcpu_count,
            host_bound_ns: least_ns,
            least_bound_ns: 0,
            program,
            slots: Vec::new(),
            find_at_ns: 0,
        }
    }

    /// Asks for those that are due. Returns in how long to look again.
    pub fn look(&mut self, vcpus: &MappedArray) -> Duration {
        self.find_vcpus(vcpus);
        let now_ns = monotonic_ns();
        self.share(vcpus);
        let (mut due, mut pause_ns) = (Vec::new(), u64::from(MAX_WAIT_MOST_NS));
        for &slot in &self.slots {
            let Some(vcpu) = vcpus.get::<Vcpu>(slot).filter(|vcpu| vcpu.in_use != 0 && vcpu.rests == 0)
            else {
                continue;
            };
            let own_ns = self.bounds.own(vcpu.vm);
            let Some(bound_ns) = max_wait::in_force_ns(own_ns, self.host_bound_ns, self.least_bound_ns)
            else {
                continue;
            };
            let state = match vcpu.state.get() {
                // Its boost may have been taken back meanwhile: the kernel side knows.
                Some(VcpuState::Micro) if vcpu.preempted != 0 => Some(VcpuState::Runnable),
                state => state.filter(|state| matches!(state, VcpuState::Runnable | VcpuState::Pending)),
            };
            let waited_ns = state.map_or(0, |_| now_ns.saturating_sub(vcpu.runnable_at_ns));
            // Help may miss one that is asked for, and then it waits on.
            pause_ns = pause_ns.min(wait_next_look_ns(bound_ns, waited_ns));
            let Some(state) = state else { continue };
            let seen = WaitObservation { bound_ns, waited_ns, state: state.into(), reserved: 0 };
            if matches!(decide_on_wait(&seen), WaitDecision::Ends | WaitDecision::Late) {
                due.push((vcpu.runnable_at_ns, slot));
            }
        }
        // What asking takes isn't counted: nobody is asked for again before it has run.
        let took_ns = monotonic_ns().saturating_sub(now_ns);
        due.sort_unstable();
        due.into_iter().for_each(|(_, slot)| self.ask(slot));
        Duration::from_nanos(took_ns + pause_ns.max(wait_look_pause_ns(took_ns)))
    }

    /// There are thousands of slots, of which most are free: they are looked at seldom, by one word each.
    fn find_vcpus(&mut self, vcpus: &MappedArray) {
        const IN_USE: usize = std::mem::offset_of!(Vcpu, in_use);
        const { assert!(IN_USE.is_multiple_of(size_of::<u64>())) };
        let now_ns = monotonic_ns();
        if now_ns < self.find_at_ns {
            return;
        }
        let in_use = |slot: &u32| vcpus.get_at::<u32>(*slot, IN_USE).is_some_and(|in_use| in_use != 0);
        self.slots = (0..VCPUS_MAX).filter(in_use).collect();
        let found_ns = monotonic_ns();
        let pause_ns = wait_look_pause_ns(found_ns.saturating_sub(now_ns));
        self.find_at_ns = found_ns + pause_ns.max(NEW_VCPUS.as_nanos() as u64);
    }

    /// Bounds are for as many as run or want to.
    fn share(&mut self, vcpus: &MappedArray) {
        let wants = |slot: &&u32| {
            let vcpu = vcpus.get::<Vcpu>(**slot).filter(|vcpu| vcpu.in_use != 0);
            vcpu.and_then(|vcpu| vcpu.state.get()).is_some_and(|state| state != VcpuState::Blocked)
        };
        let wanting = self.slots.iter().filter(wants).count() as u32;
        self.host_bound_ns = max_wait_shared_ns(self.least_ns, self.each_ns, wanting, self.pcpu_count);
        self.least_bound_ns = max_wait_least_now_ns(self.micro_slice_ns, wanting, self.pcpu_count);
        self.bounds.tell(self.host_bound_ns, self.least_bound_ns);
    }

    /// The kernel side looks once more, and asks for it if it is due.
    pub fn ask(&self, slot: u32) {
        let request = BoundRequest {
            slot,
            reserved: 0,
            host_bound_ns: self.host_bound_ns,
            least_bound_ns: self.least_bound_ns,
        };
        let mut options = bpf_test_run_opts {
            sz: size_of::<bpf_test_run_opts>() as _,
            ctx_in: request.as_bytes().as_ptr().cast(),
            ctx_size_in: size_of::<BoundRequest>() as u32,
            ..Default::default()
        };
        // SAFETY: the kernel reads as many bytes as said, of what lives until the call returns. It writes to
        // the options only. Should it refuse, the next look asks again.
        let _ = unsafe { bpf_prog_test_run_opts(self.program.as_raw_fd(), &raw mut options) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use microslice_policy::MAX_WAIT_NEVER;

    #[test]
    fn a_bound_in_force_is_the_hosts_or_its_own() {
        let bounds = Bounds::new(10_000_000);
        assert_eq!(bounds.in_force(0), Some(10_000_000));
        bounds.set(1, 5_000_000);
        bounds.set(2, MAX_WAIT_NEVER);
        bounds.tell(25_000_000, 8_000_000);
        assert_eq!([0, 1, 2].map(|slot| bounds.in_force(slot)), [Some(25_000_000), Some(8_000_000), None]);
        assert_eq!((Bounds::new(0).in_force(0), bounds.in_force(VMS_MAX)), (None, Some(25_000_000)));
    }
}
