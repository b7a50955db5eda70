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
use crate::interface::{BoundRequest, VCPUS_MAX, Vcpu};
use crate::machine::clock::monotonic_ns;
use crate::settings::Settings;
use libbpf_rs::libbpf_sys::{bpf_prog_test_run_opts, bpf_test_run_opts};
use microslice_policy::{
    VcpuState, WaitDecision, WaitObservation, decide_on_wait, max_wait_shared_ns, wait_look_pause_ns,
    wait_next_look_ns,
};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;
use zerocopy::{FromZeros, IntoBytes};

/// How often new vCPUs are looked for, at most.
const NEW_VCPUS: Duration = Duration::from_millis(100);

/// The looks of one host.
pub struct Waits {
    /// How long vCPUs may wait at least, and for each that wants to run and that a pCPU has.
    least_ns: u64,
    each_ns: u64,
    pcpu_count: u32,
    /// How long they may wait now; 0: for ever.
    bound_ns: u64,
    /// The program that decides.
    program: OwnedFd,
    /// The slots in use, and when they are looked for again.
    slots: Vec<u32>,
    find_at_ns: u64,
}

impl Waits {
    pub fn new(settings: &Settings, pcpu_count: u32, program: OwnedFd) -> Self {
        let least_ns = settings.max_wait().bound_ns();
        let each_ns = settings.max_wait().each_ns(settings.micro_slice_us);
        Self { least_ns, each_ns, pcpu_count, bound_ns: least_ns, program, slots: Vec::new(), find_at_ns: 0 }
    }

    /// Asks for those that are due. Returns in how long to look again; `None`: there is no bound.
    pub fn look(&mut self, vcpus: &MappedArray) -> Option<Duration> {
        if self.bound_ns == 0 {
            return None;
        }
        self.find_vcpus(vcpus);
        let now_ns = monotonic_ns();
        self.share(vcpus);
        let (mut due, mut longest_ns) = (Vec::new(), 0);
        for &slot in &self.slots {
            let Some(vcpu) = vcpus.get::<Vcpu>(slot).filter(|vcpu| vcpu.in_use != 0 && vcpu.rests == 0)
            else {
                continue;
            };
            let state = match vcpu.state.get() {
                // Its boost may have been taken back meanwhile: the kernel side knows.
                Some(VcpuState::Micro) if vcpu.preempted != 0 => VcpuState::Runnable,
                Some(state @ (VcpuState::Runnable | VcpuState::Pending)) => state,
                _ => continue,
            };
            let waited_ns = now_ns.saturating_sub(vcpu.runnable_at_ns);
            // Help may miss one that is asked for, and then it waits on.
            longest_ns = longest_ns.max(waited_ns);
            let bound_ns = self.bound_ns;
            let seen = WaitObservation { bound_ns, waited_ns, state: state.into(), reserved: 0 };
            if matches!(decide_on_wait(&seen), WaitDecision::Ends | WaitDecision::Late) {
                due.push((vcpu.runnable_at_ns, slot));
            }
        }
        // What asking takes isn't counted: nobody is asked for again before it has run.
        let took_ns = monotonic_ns().saturating_sub(now_ns);
        due.sort_unstable();
        due.into_iter().for_each(|(_, slot)| self.ask(slot));
        let pause_ns = wait_next_look_ns(self.bound_ns, longest_ns).max(wait_look_pause_ns(took_ns));
        Some(Duration::from_nanos(took_ns + pause_ns))
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

    /// The bound is for as many as run or want to.
    fn share(&mut self, vcpus: &MappedArray) {
        if self.each_ns == 0 {
            return;
        }
        let wants = |slot: &&u32| {
            let vcpu = vcpus.get::<Vcpu>(**slot).filter(|vcpu| vcpu.in_use != 0);
            vcpu.and_then(|vcpu| vcpu.state.get()).is_some_and(|state| state != VcpuState::Blocked)
        };
        let wanting = self.slots.iter().filter(wants).count() as u32;
        self.bound_ns = max_wait_shared_ns(self.least_ns, self.each_ns, wanting, self.pcpu_count);
    }

    /// The kernel side looks once more, and asks for it if it is due.
    pub fn ask(&self, slot: u32) {
        let request = BoundRequest { slot, bound_ns: self.bound_ns, ..BoundRequest::new_zeroed() };
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
