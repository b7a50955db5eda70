//! What `microslice observe` would have seen of a simulated host: bpf/observe.bpf.c by the same rules, fed
//! with trace events.
//!
//! Mechanism. Running, stopping, runnable and blocked are `sched_switch` and `sched_wakeup`; sent interrupts
//!            are KVM's hook. What is sent to a vCPU without a pCPU waits until that vCPU's next turn.
//! Limits.    Of a call the trace names only the recipients whose interrupt doesn't merge with one that is
//!            pending. The others are taken to be the first siblings with a pending one: exact where a VM has
//!            one address space.

use microslice_engine::SimError;
use microslice_engine::text;
use microslice_experiments::batch::{BatchProgress, run_one};
use microslice_metrics::Histogram;
use microslice_metrics::profile::{Classes, HostProfile, Interrupt, Interrupts, Profile, VmProfile, Waits};
use microslice_model::config::{SchedulerKind, SimulationConfig};
use microslice_model::events::{IpiKind, StopReason, TraceEvent, TraceNames, TraceSink};
use microslice_model::ids::{IdVec, VcpuId, VmId};
use microslice_policy::{Coded, GuestClass, InterruptKind};
use std::collections::HashMap;

const KINDS: usize = InterruptKind::ALL.len();
const CLASSES: usize = GuestClass::ALL.len();

/// Runs a configuration, and says what an observer of its measured time would have kept.
pub fn profile_of(config: &SimulationConfig, progress: &BatchProgress) -> Result<Profile, SimError> {
    let mut observer = Observer::of(config);
    run_one(config, progress, &mut observer)?;
    Ok(observer.profile(config))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Blocked,
    Runnable,
    Running,
}

struct SeenVcpu {
    vm: VmId,
    state: State,
    /// It is what its state says since then.
    since_ns: u64,
    /// The first interrupt of each kind that waits for it.
    interrupt_since_ns: [Option<u64>; KINDS],
    /// Siblings that have called, and wait for this one.
    callers: Vec<VcpuId>,
    /// Its own call: since when, and how many siblings that is still to be answered by.
    call_since_ns: u64,
    unanswered: u32,
    /// It hasn't handled its last call-function interrupt: a further one merges with it.
    has_call_pending: bool,
}

#[derive(Default)]
struct SeenVm {
    ran_ns: u64,
    ready_ns: u64,
    waits: Histogram,
    turns_ended: [u64; CLASSES],
    pause_exits: u64,
    directed_yields: u64,
    lock_halts: u64,
    sent: [u64; KINDS],
    interrupt_waits: [Histogram; KINDS],
    shootdowns: Histogram,
}

struct Observer {
    /// The warm-up isn't observed.
    from_ns: u64,
    end_ns: u64,
    has_begun: bool,
    vcpus: IdVec<VcpuId, SeenVcpu>,
    vms: IdVec<VmId, SeenVm>,
    /// Of each function of the trace.
    classes: Vec<GuestClass>,
}

impl Observer {
    fn of(config: &SimulationConfig) -> Self {
        let end_ns = config.warmup_ns + config.duration_ns;
        Self {
            from_ns: config.warmup_ns,
            end_ns,
            has_begun: false,
            vcpus: IdVec::new(),
            vms: IdVec::new(),
            classes: Vec::new(),
        }
    }

    /// What was seen before isn't kept; what is under way counts from now on.
    fn begin_observing(&mut self) {
        self.has_begun = true;
        self.vms = (0..self.vms.len()).map(|_| SeenVm::default()).collect();
        self.vcpus.iter_mut().for_each(|vcpu| vcpu.since_ns = self.from_ns);
    }

    fn starts_running(&mut self, vcpu: VcpuId, now_ns: u64) {
        let seen = &mut self.vcpus[vcpu];
        let vm = &mut self.vms[seen.vm];
        if seen.state == State::Runnable {
            vm.waits.record(now_ns - seen.since_ns);
            vm.ready_ns += now_ns - seen.since_ns;
        }
        (seen.state, seen.since_ns) = (State::Running, now_ns);
        for (since_ns, waits) in seen.interrupt_since_ns.iter_mut().zip(&mut vm.interrupt_waits) {
            if let Some(since_ns) = since_ns.take() {
                waits.record(now_ns.saturating_sub(since_ns));
            }
        }
        for caller in std::mem::take(&mut seen.callers) {
            self.answer(caller, now_ns);
        }
    }

    fn answer(&mut self, caller: VcpuId, now_ns: u64) {
        let caller = &mut self.vcpus[caller];
        caller.unanswered -= 1;
        if caller.unanswered == 0 {
            self.vms[caller.vm].shootdowns.record(now_ns - caller.call_since_ns);
        }
    }

    fn stops_running(&mut self, vcpu: VcpuId, now_ns: u64, reason: StopReason, class: GuestClass) {
        let seen = &mut self.vcpus[vcpu];
        let vm = &mut self.vms[seen.vm];
        if seen.state == State::Running {
            vm.ran_ns += now_ns - seen.since_ns;
        }
        let halts = matches!(reason, StopReason::Hlt | StopReason::LockHlt);
        vm.lock_halts += u64::from(reason == StopReason::LockHlt);
        // Those that the host lets pass aren't told.
        vm.directed_yields += u64::from(reason == StopReason::IpiWait);
        if !halts {
            vm.turns_ended[class as usize] += 1;
        }
        // A halt that something ended at once is followed by no event of its own.
        (seen.state, seen.since_ns) = (State::Runnable, now_ns);
    }

    fn interrupt(&mut self, to: VcpuId, kind: InterruptKind, now_ns: u64) {
        let seen = &mut self.vcpus[to];
        self.vms[seen.vm].sent[kind as usize] += 1;
        if seen.state != State::Running {
            seen.interrupt_since_ns[kind as usize].get_or_insert(now_ns);
        }
    }

    /// `recipient` has no pCPU, or nothing is noted.
    fn call(&mut self, caller: VcpuId, recipient: VcpuId, now_ns: u64) {
        let called = &mut self.vcpus[recipient];
        if called.state == State::Running || called.callers.contains(&caller) {
            return;
        }
        called.callers.push(caller);
        let caller = &mut self.vcpus[caller];
        if caller.unanswered == 0 {
            caller.call_since_ns = now_ns;
        }
        caller.unanswered += 1;
    }

    /// Its interrupts to those that have one pending aren't told.
    fn shootdown(&mut self, caller: VcpuId, targets: u32, now_ns: u64) {
        let vm = self.vcpus[caller].vm;
        let merges =
            |(id, seen): &(VcpuId, &SeenVcpu)| *id != caller && seen.vm == vm && seen.has_call_pending;
        let pending: Vec<VcpuId> =
            self.vcpus.enumerate().filter(merges).map(|(id, _)| id).take(targets as usize).collect();
        for recipient in pending {
            self.interrupt(recipient, InterruptKind::IpiCallFunction, now_ns);
            self.call(caller, recipient, now_ns);
        }
    }

    fn profile(mut self, config: &SimulationConfig) -> Profile {
        for seen in self.vcpus.iter() {
            let vm = &mut self.vms[seen.vm];
            match seen.state {
                State::Running => vm.ran_ns += self.end_ns - seen.since_ns,
                State::Runnable => vm.ready_ns += self.end_ns - seen.since_ns,
                State::Blocked => {}
            }
        }
        let host = &config.host;
        let (scheduler, base_slice_ns) = match &config.scheduler {
            SchedulerKind::Eevdf(eevdf) => (HostProfile::KERNEL, Some(eevdf.base_slice_ns)),
            SchedulerKind::MicroSliced(_) => (HostProfile::MICROSLICE, None),
            _ => ("another", None),
        };
        let host = HostProfile {
            pcpus: host.pcpus as u32,
            llc_pcpus: host.llc_pcpus as u32,
            smt_threads: host.smt_threads as u32,
            scheduler: scheduler.into(),
            base_slice_ns,
            sees_interrupts: true,
        };
        let vms = self.vms.iter().zip(&config.vms).map(|(seen, vm)| VmProfile {
            name: Some(vm.name.clone()),
            vcpus: vm.vcpus as u32,
            weight: vm.weight,
            affinity: vm.affinity.iter().map(|&pcpu| pcpu as u32).collect(),
            kernel: Some(vm.kernel.symbols.word().to_owned()),
            classes_are_known: true,
            observed_ns: config.duration_ns * vm.vcpus as u64,
            ran_ns: seen.ran_ns,
            ready_ns: seen.ready_ns,
            waits: Waits::from(&seen.waits),
            turns_ended: Classes::of(seen.turns_ended),
            pause_exits: seen.pause_exits,
            directed_yields: seen.directed_yields,
            lock_halts: seen.lock_halts,
            interrupts: Interrupts::of(std::array::from_fn(|kind| Interrupt {
                sent: seen.sent[kind],
                waits: Waits::from(&seen.interrupt_waits[kind]),
            })),
            shootdowns: Waits::from(&seen.shootdowns),
        });
        Profile::new(config.duration_ns as f64 / 1e9, host, vms.collect())
    }
}

impl TraceSink for Observer {
    fn begin(&mut self, names: &TraceNames) {
        let seen = |&(vm, _): &(VmId, u32)| SeenVcpu {
            vm,
            state: State::Blocked,
            since_ns: 0,
            interrupt_since_ns: [None; KINDS],
            callers: Vec::new(),
            call_since_ns: 0,
            unanswered: 0,
            has_call_pending: false,
        };
        self.vcpus = names.vcpus.iter().map(seen).collect();
        self.vms = names.vms.iter().map(|_| SeenVm::default()).collect();
        // Kernels that have a function of the same name have it in the same class.
        let texts = text::all().unwrap_or_default();
        let classes: HashMap<&str, GuestClass> = texts
            .iter()
            .flat_map(|text| {
                text.symbols.iter().map(|symbol| symbol.name.as_str()).zip(text.classes.iter().copied())
            })
            .collect();
        let class_of = |name: &String| classes.get(name.as_str()).copied().unwrap_or(GuestClass::Unknown);
        self.classes = names.symbols.iter().map(class_of).collect();
    }

    fn event(&mut self, time_ns: u64, event: &TraceEvent) {
        if !self.has_begun && time_ns >= self.from_ns {
            self.begin_observing();
        }
        match *event {
            TraceEvent::Running { vcpu, .. } => self.starts_running(vcpu, time_ns),
            TraceEvent::Stopping { vcpu, reason, symbol, .. } => {
                let class = self.classes.get(symbol.index()).copied().unwrap_or(GuestClass::Unknown);
                self.stops_running(vcpu, time_ns, reason, class);
            }
            TraceEvent::Blocked { vcpu } => self.vcpus[vcpu].state = State::Blocked,
            TraceEvent::Runnable { vcpu } => {
                let seen = &mut self.vcpus[vcpu];
                if seen.state == State::Blocked {
                    (seen.state, seen.since_ns) = (State::Runnable, time_ns);
                }
            }
            TraceEvent::PauseLoopExits { vcpu, count } => self.vms[self.vcpus[vcpu].vm].pause_exits += count,
            TraceEvent::IpiSent { from, to, kind: IpiKind::CallFunction } => {
                self.vcpus[to].has_call_pending = true;
                self.interrupt(to, InterruptKind::IpiCallFunction, time_ns);
                self.call(from, to, time_ns);
            }
            TraceEvent::IpiSent { to, kind: IpiKind::Reschedule, .. } => {
                self.interrupt(to, InterruptKind::IpiReschedule, time_ns)
            }
            TraceEvent::IpiHandled { vcpu, kind: IpiKind::CallFunction } => {
                self.vcpus[vcpu].has_call_pending = false
            }
            TraceEvent::VirqRaised { vcpu } => self.interrupt(vcpu, InterruptKind::Virq, time_ns),
            TraceEvent::ShootdownBegan { vcpu, targets } => self.shootdown(vcpu, targets, time_ns),
            _ => {}
        }
    }
}
