//! From a configuration to a simulation at time 0: names become numbers, and what makes no sense is refused.

use crate::SimError;
use crate::cpu_limits::CpuLimits;
use crate::guest::eevdf::{ThreadClocks, base_slice_ns};
use crate::guest::hybrid::Stealers;
use crate::guest::mutex::SpinQueue;
use crate::guest::network::Nic;
use crate::guest::program::{Compiler, LockName, LockNames, NO_LOCK, Programs, Tables};
use crate::guest::rcu::{GracePeriods, synchronizes};
use crate::guest::{Beside, GuestVcpu, Holder, Lock, Queue, Thread, ThreadState, WaitsFor};
use crate::guest::{balance::Balancing, modes::Mode};
use crate::halt_polling::HaltPolling;
use crate::measurements::Measurements;
use crate::observers::Observers;
use crate::pause_loops::PauseLoops;
use crate::simulation::{HostTicks, KernelTimes, Simulation, Slots, Vm, Workload};
use crate::text;
use crate::timeline::{PCPUS_MAX, TIME_END_NS, Timeline};
use microslice_model::checker::Checker;
use microslice_model::config::{
    BalanceRule, GuestKernelConfig, KernelFeatures, LOOP_DEPTH, LockKind, NicConfig, RCU_NODE, RUNQUEUE,
    SimulationConfig, ThreadScheduler, VmConfig, Wait,
};
use microslice_model::events::{StopReason, TraceNames, TraceSink};
use microslice_model::ids::{IdVec, LockId, PcpuId, QueueId, SymbolId, VcpuId, VmId, WorkloadId};
use microslice_model::machine::{HostVm, Machine};
use microslice_model::random::{Random, Samplers};
use microslice_model::scheduler;
use microslice_model::smt::Smt;
use std::collections::BTreeSet;

const VCPUS_MAX: usize = 1 << 20;

fn bad(place: impl Into<String>, cause: impl Into<String>) -> SimError {
    SimError::Config { place: place.into(), cause: cause.into() }
}

/// What a scenario can get wrong, in the words of the scenario.
pub fn validate(config: &SimulationConfig) -> Result<(), SimError> {
    let pcpus = config.host.pcpus;
    if pcpus == 0 || pcpus > PCPUS_MAX {
        return Err(bad("host", format!("pcpus is {pcpus}; it must be 1 to {PCPUS_MAX}")));
    }
    if config.duration_ns == 0 {
        return Err(bad("simulation", "the duration is 0"));
    }
    if config.duration_ns.checked_add(config.warmup_ns).is_none_or(|end| end >= TIME_END_NS) {
        return Err(bad("simulation", "the duration is absurd: over three days"));
    }
    let ple = &config.host.ple;
    if ple.enabled && (ple.window_ns == 0 || ple.window_max_ns < ple.window_ns) {
        return Err(bad("host.ple", "the window is 0, or longer than window_max"));
    }
    if config.host.kvm.is_some() && config.scheduler.is_xen_prototype() {
        return Err(bad("host.kvm", "this policy is a prototype in Xen: leave [kvm] out of the host"));
    }
    if let Some((key, cause)) = config.host.misfit().filter(|_| config.host.smt_threads > 0) {
        return Err(bad(format!("host.{key}"), cause));
    }
    let smt = (config.host.smt_threads, config.host.smt_busy_speed_permille);
    if smt.0 == 0 || !(100..=1000).contains(&smt.1) {
        return Err(bad("host", "smt_threads is at least 1, smt_busy_speed 10 % to 100 %"));
    }
    if config.vms.is_empty() {
        return Err(bad("simulation", "there are no VMs"));
    }
    if config.vms.iter().map(|vm| vm.vcpus).sum::<usize>() > VCPUS_MAX {
        return Err(bad("simulation", format!("there are more than {VCPUS_MAX} vCPUs")));
    }
    let most = config.scheduler.most_micro_pcpus();
    if most >= pcpus {
        return Err(bad("scheduler", format!("{most} micro pCPUs leave none of {pcpus} to the normal pool")));
    }
    if most > microslice_policy::POOL_LIMIT_MAX {
        let limit = microslice_policy::POOL_LIMIT_MAX;
        return Err(bad("scheduler", format!("{most} micro pCPUs; the policy allows up to {limit}")));
    }
    validate_cgroups(config)?;
    config.vms.iter().try_for_each(|vm| validate_vm(vm, pcpus))
}

fn validate_cgroups(config: &SimulationConfig) -> Result<(), SimError> {
    for (at, cgroup) in config.cgroups.iter().enumerate() {
        let place = || format!("cgroup {}", cgroup.name);
        if !config.scheduler.knows_cgroups() {
            return Err(bad(
                place(),
                "this policy knows no cgroups around VMs; eevdf, beside and microslice do",
            ));
        }
        if cgroup.weight == 0 || cgroup.weight > 65_535 {
            return Err(bad(place(), format!("weight is {}; it must be 1 to 65535", cgroup.weight)));
        }
        if cgroup.parent.is_some_and(|parent| parent >= at) {
            return Err(bad(place(), "it lies in a cgroup that doesn't stand before it"));
        }
    }
    let is_known = |vm: &&VmConfig| vm.cgroup.is_none_or(|cgroup| cgroup < config.cgroups.len());
    match config.vms.iter().find(|vm| !is_known(vm)) {
        Some(vm) => Err(bad(format!("vm {}", vm.name), "it lies in a cgroup that isn't there")),
        None => Ok(()),
    }
}

fn validate_vm(vm: &VmConfig, pcpus: usize) -> Result<(), SimError> {
    let place = format!("vm {}", vm.name);
    if vm.vcpus == 0 {
        return Err(bad(place, "it has no vCPUs"));
    }
    if vm.weight == 0 || vm.weight > 65_535 {
        return Err(bad(place, format!("weight is {}; it must be 1 to 65535", vm.weight)));
    }
    if let Some(pcpu) = vm.affinity.iter().find(|&&pcpu| pcpu >= pcpus) {
        return Err(bad(place, format!("affinity names pCPU {pcpu}; there are {pcpus}")));
    }
    if let Some(pcpu) = vm.pins.iter().find(|&&pcpu| pcpu >= pcpus) {
        return Err(bad(place, format!("a vCPU is pinned to pCPU {pcpu}; there are {pcpus}")));
    }
    if !vm.pins.is_empty() && vm.pins.len() != vm.vcpus {
        return Err(bad(place, format!("{} pins for {} vCPUs", vm.pins.len(), vm.vcpus)));
    }
    if vm.kernel.tick_hz == 0 || vm.kernel.tick_hz > 10_000 {
        return Err(bad(place, format!("tick_hz is {}; it must be 1 to 10000", vm.kernel.tick_hz)));
    }
    if vm.kernel.readers && vm.kernel.wait_lists.is_none() {
        return Err(bad(place, "readers need lists of sleepers that have locks"));
    }
    if vm.kernel.thread_switch_ns == 0 {
        return Err(bad(place, "a thread switch takes no time"));
    }
    if let Some(nic) = &vm.nic
        && nic.vcpu >= vm.vcpus
    {
        return Err(bad(place, format!("the NIC interrupts vCPU {}; there are {}", nic.vcpu, vm.vcpus)));
    }
    for workload in &vm.workloads {
        let place = format!("{place}, workload {}", workload.name);
        if workload.threads == 0 || workload.threads > VCPUS_MAX {
            return Err(bad(place, format!("threads is {}; it must be 1 to {VCPUS_MAX}", workload.threads)));
        }
        if let Some(vcpu) = workload.pinned_vcpu
            && vcpu >= vm.vcpus
        {
            return Err(bad(place, format!("pinned to vCPU {vcpu}; there are {}", vm.vcpus)));
        }
    }
    Ok(())
}

fn machine(config: &SimulationConfig) -> Machine {
    let vms = config.vms.iter().map(|vm| host_vm(vm, config.host.pcpus)).collect();
    let mut machine = Machine::new(&config.host, vms);
    machine.cgroups.clone_from(&config.cgroups);
    machine
}

impl<'a> Simulation<'a> {
    pub fn new(config: &'a SimulationConfig, sink: &'a mut dyn TraceSink) -> Result<Self, SimError> {
        validate(config)?;
        let texts = text::all()?;
        let mut machine = machine(config);
        let scheduler =
            scheduler::build(&config.scheduler, &config.host.boosts, config.delay.as_ref(), &mut machine);
        let threads = config.vms.iter().flat_map(|vm| &vm.workloads).map(|workload| workload.threads).sum();
        let cpu_limits = CpuLimits::new(config, &machine);
        let slots = Slots::new(config.host.pcpus, threads, config.vms.len(), cpu_limits.count());
        let exit_ns = config.host.costs.exit_ns;
        let mut simulation = Self {
            config,
            observers: Observers::new(sink),
            names: TraceNames { pcpus: config.host.pcpus as u32, ..TraceNames::default() },
            host_ticks: HostTicks::new(config.host.pcpus),
            timeline: Timeline::new(config.host.pcpus, slots.count as usize),
            slots,
            costs: config.host.costs.clone(),
            smt: Smt::new(&config.host),
            cpu_limits,
            halt_polling: HaltPolling::new(config.host.kvm.as_ref(), machine.vcpus.len()),
            pause_loops: PauseLoops::new(&config.host.ple, exit_ns)
                .with_jitter(config.host.kvm.as_ref().map_or(0, |kvm| kvm.exit_jitter_ns)),
            why: IdVec::of(StopReason::Preempted, config.host.pcpus),
            guest: machine.vcpus.iter().map(|_| GuestVcpu::new()).collect(),
            machine,
            scheduler,
            threads: IdVec::new(),
            locks: IdVec::new(),
            list_locks: IdVec::new(),
            queues: IdVec::new(),
            barriers: IdVec::new(),
            user_locks: Vec::new(),
            programs: Programs::default(),
            workloads: IdVec::new(),
            vms: IdVec::new(),
            classes: texts.iter().flat_map(|text| text.classes.iter().copied()).collect(),
            texts,
            samplers: Samplers::default(),
            random: Random::stream(config.seed, 0),
            slot: 0,
            within_step: VcpuId::NONE,
            measured: Measurements::new(),
            times_guests: config.guest_times,
            is_modern: config.vms.iter().any(|vm| is_modern(&vm.kernel)),
            any_steals: config.vms.iter().any(|vm| steals(&vm.kernel)),
            thread_clocks: ThreadClocks::default(),
            wake_lists: IdVec::new(),
            holds_vary: config.vms.iter().any(|vm| vm.kernel.listed_holds_percent < 100),
            modes: IdVec::new(),
        };
        simulation.modes = IdVec::of(Mode::default(), simulation.guest.len());
        if simulation.is_modern {
            simulation.thread_clocks = ThreadClocks::new(simulation.guest.len(), threads);
            simulation.wake_lists = simulation.guest.iter().map(|_| Vec::new()).collect();
        }
        simulation.add_channels();
        for vm in &config.vms {
            simulation.add_vm(vm)?;
        }
        if config.check {
            let (vcpus, locks) = (simulation.guest.len(), simulation.locks.len());
            let checker =
                Checker::new(config.host.pcpus, vcpus, locks, &config.scheduler, config.delay.as_ref());
            simulation.observers.check_with(checker);
        }
        simulation.machine.tracing = simulation.observers.want_events();
        simulation.name_symbols();
        Ok(simulation)
    }

    fn add_channels(&mut self) {
        for channel in &self.config.channels {
            let (capacity, name) = (channel.capacity, channel.name.clone());
            self.queues.push(Queue { capacity, name, ..Queue::default() });
        }
    }

    fn nic_of(
        &mut self,
        vm: &VmConfig,
        nic: &NicConfig,
        number: VmId,
        vcpu: VcpuId,
    ) -> Result<Nic, SimError> {
        let mut made = Nic::new(nic, vcpu);
        let Some(worker) = &nic.worker else { return Ok(made) };
        let channel = |name: &str| {
            let at = self.config.channels.iter().position(|channel| channel.name == name);
            let place = format!("vm {}", vm.name);
            at.map(QueueId::from_index).ok_or_else(|| bad(place, format!("there is no channel {name:?}")))
        };
        let (from, to) = (channel(&worker.from)?, channel(&worker.to)?);
        made.pass(from, to, self.queues[from].capacity);
        self.queues[to].nic = Some(number);
        Ok(made)
    }

    fn name_symbols(&mut self) {
        for text in self.texts {
            self.names.symbols.extend(text.symbols.iter().map(|symbol| symbol.name.clone()));
        }
    }

    /// Number of a function in the trace's names.
    pub(crate) fn symbol_number(&self, vm: VmId, symbol: u16) -> SymbolId {
        let text = &self.texts[self.vms[vm].text];
        SymbolId::from_index(usize::from(text.first) + text.index(symbol))
    }

    fn add_vm(&mut self, vm: &VmConfig) -> Result<(), SimError> {
        let number = self.vms.next_id();
        let first_vcpu = self.machine.vms[number].first_vcpu;
        let text = vm.kernel.symbols as usize;
        self.names.vms.push(vm.name.clone());
        self.names.vcpus.extend((0..vm.vcpus as u32).map(|vcpu| (number, vcpu)));
        self.measured.add_vm();
        let lock_names = self.add_locks(vm, number, text)?;
        let runqueue_lock = lock_names[0].first;
        let grace_periods = grace_periods(vm, &lock_names)?;
        let first_thread = self.threads.next_id();
        let nic = vm.nic.as_ref().map(|nic| self.nic_of(vm, nic, number, first_vcpu)).transpose()?;
        let pv_spin_ns = self.pause_loops.with_exits(vm.kernel.pv_spin_ns, &self.machine.pause_windows);
        self.vms.push(Vm {
            first_vcpu,
            vcpus: vm.vcpus as u32,
            are_tasks: vm.are_tasks,
            text,
            kernel: kernel_times(vm, pv_spin_ns),
            runqueue_lock,
            first_queue: self.queues.next_id(),
            first_barrier: self.barriers.next_id(),
            first_user_lock: self.user_locks.len() as u32,
            ready_threads: 0,
            nic,
            balancing: vm.kernel.balance.clone().map(|config| Balancing::new(config, vm.vcpus as u32)),
            grace_periods,
            first_thread,
            threads: 0,
        });
        let tables = Tables {
            samplers: &mut self.samplers,
            programs: &mut self.programs,
            queues: &mut self.queues,
            barriers: &mut self.barriers,
            user_locks: &mut self.user_locks,
            channels: &self.config.channels,
        };
        let mut compiler = Compiler::new(vm, &self.texts[text], &lock_names, tables);
        let programs =
            vm.workloads.iter().map(|workload| compiler.compile(workload)).collect::<Result<Vec<_>, _>>()?;
        for lock in &mut self.user_locks[self.vms[number].first_user_lock as usize..] {
            lock.statistics = self.measured.add_locks(number, &lock.name);
        }
        self.add_workloads(vm, number, &programs);
        self.vms[number].threads = self.threads.next_id().since(first_thread);
        Ok(())
    }

    /// A VM's workloads, of which the programs begin there, and their threads.
    fn add_workloads(&mut self, vm: &VmConfig, number: VmId, programs: &[u32]) {
        let first_vcpu = self.vms[number].first_vcpu;
        let mut next_vcpu = 0;
        let mut processes: Vec<(&str, WorkloadId)> = Vec::new();
        for (workload, program) in vm.workloads.iter().zip(programs.iter().copied()) {
            let next = self.workloads.next_id();
            let process = workload.process.as_deref();
            let known = processes.iter().find(|(name, _)| Some(*name) == process);
            let address_space = known.map_or(next, |&(_, first)| first);
            processes.extend(process.filter(|_| address_space == next).map(|name| (name, next)));
            let index = self.workloads.push(Workload {
                address_space,
                vm: number,
                shared_address_space: workload.shared_address_space,
                cache_permille: workload.cache_sensitive_permille,
                units_done: 0,
                computed_ns: 0,
            });
            for thread in 0..workload.threads {
                self.names.threads.push(format!("{}/{}#{thread}", vm.name, workload.name));
                let vcpu = match workload.pinned_vcpu {
                    Some(vcpu) => first_vcpu.plus(vcpu as u32),
                    None => {
                        next_vcpu += 1;
                        first_vcpu.plus((next_vcpu - 1) % vm.vcpus as u32)
                    }
                };
                self.add_thread(number, index, program, vcpu, workload.pinned_vcpu.is_some());
            }
        }
    }

    fn add_thread(&mut self, vm: VmId, workload: WorkloadId, program: u32, vcpu: VcpuId, pinned: bool) {
        let number = self.threads.len() as u64;
        if let Some(balancing) = &mut self.vms[vm].balancing {
            balancing.add_thread();
        }
        self.threads.push(Thread {
            vm,
            workload,
            pinned,
            state: ThreadState::Blocked,
            waits_for: WaitsFor::Timer,
            vcpu,
            pc: program,
            first_lock: self.vms[vm].runqueue_lock,
            loops: [0; LOOP_DEPTH],
            random: Random::stream(self.config.seed, number + 1),
            compute_left_ns: 0,
            woken_at_ns: crate::guest::NOT_WOKEN,
            due_ns: crate::guest::NOT_WOKEN,
            granted: LockId::NONE,
            hold_ns: 0,
            wait_since_ns: 0,
            reads: false,
            wakes_under: LockId::NONE,
            user_lock: NO_LOCK,
            spins_since_ns: crate::guest::NOT_WOKEN,
            says_ns: 0,
            passage: 0,
        });
    }

    fn add_locks(&mut self, vm: &VmConfig, number: VmId, text: usize) -> Result<LockNames, SimError> {
        let mut names = LockNames::new();
        let default = vm.kernel.lock_kind;
        let runqueue = vm.kernel.locks.iter().find(|lock| lock.name == RUNQUEUE);
        let kind = runqueue_kind(vm);
        let symbol = runqueue.map_or("ttwu_do_activate", |lock| &lock.symbol);
        if kind.sleeps() {
            return Err(bad(format!("vm {}, lock {RUNQUEUE}", vm.name), "a runqueue's lock can't sleep"));
        }
        self.add_lock(&mut names, vm, number, text, (RUNQUEUE, kind, true, vm.vcpus, symbol))?;
        let mut known = BTreeSet::new();
        for lock in vm.kernel.locks.iter().filter(|lock| lock.name != RUNQUEUE) {
            if !known.insert(&lock.name) {
                return Err(bad(format!("vm {}", vm.name), format!("lock {} is there twice", lock.name)));
            }
            let kind = lock.kind.unwrap_or(default);
            let instances = lock.instances.clamp(1, 1 << 20);
            self.add_lock(
                &mut names,
                vm,
                number,
                text,
                (&lock.name, kind, lock.irqs_off, instances, &lock.symbol),
            )?;
        }
        Ok(names)
    }

    fn add_lock(
        &mut self,
        names: &mut LockNames,
        vm: &VmConfig,
        number: VmId,
        text: usize,
        (name, kind, irqs_off, instances, symbol): (&str, LockKind, bool, usize, &str),
    ) -> Result<(), SimError> {
        let place = format!("vm {}, lock {name}", vm.name);
        let functions = &self.texts[text];
        let hold_symbol = functions
            .find(symbol)
            .ok_or_else(|| bad(place, format!("{:?} has no function {symbol:?}", vm.kernel.symbols)))?;
        let rules = kind.rules();
        let spin_symbol = functions.fixed.spin_in(rules.spins_in);
        let beside = || match rules.wait {
            Wait::SpinOrSleep => Some(Box::new(Beside::Spinners(SpinQueue {
                vcpus: Default::default(),
                first_symbol: spin_symbol,
                queued_symbol: functions.fixed.spin_for_turn,
                hands_off: false,
            }))),
            Wait::StealOrHalt => Some(Box::new(Beside::Stealers(Stealers::default()))),
            Wait::Sleep if vm.kernel.readers => Some(Box::new(Beside::Readers(0))),
            _ => None,
        };
        let statistics = self.measured.add_locks(number, name);
        names.push(LockName {
            name: name.into(),
            first: self.locks.next_id(),
            instances: instances as u32,
            sleeps: kind.sleeps(),
        });
        let (first, count) = (self.locks.next_id(), instances as u32);
        let has_lists = rules.wait.sleeps() && vm.kernel.wait_lists.is_some();
        for instance in 0..instances {
            let list = if has_lists { first.plus(count + instance as u32) } else { LockId::NONE };
            self.list_locks.push(list);
            self.names.locks.push(if instances > 1 {
                format!("{}/{name}#{instance}", vm.name)
            } else {
                format!("{}/{name}", vm.name)
            });
            self.locks.push(Lock {
                statistics,
                wait: rules.wait,
                irqs_off,
                doublings: 0,
                spin_symbol,
                hold_symbol,
                owner: Holder::NONE,
                acquisitions: 0,
                waiters: Default::default(),
                beside: beside(),
            });
        }
        if has_lists {
            self.add_list_locks(vm, number, text, (name, rules.wait, instances))?;
        }
        Ok(())
    }

    /// Those of the lists of a lock's sleepers, right behind its instances.
    fn add_list_locks(
        &mut self,
        vm: &VmConfig,
        number: VmId,
        text: usize,
        (name, wait, instances): (&str, Wait, usize),
    ) -> Result<(), SimError> {
        let unlock = self.texts[text].find("__raw_spin_unlock");
        let unlock = unlock.map_or("_raw_spin_unlock", |_| "__raw_spin_unlock");
        // With interrupts off where semaphores have them (`raw_spin_lock_irq`, lib/rwsem.c).
        let is_semaphore = wait == Wait::Sleep;
        let symbol = if is_semaphore { "rwsem_wake" } else { unlock };
        let lock = (format!("{name}.wait_lock"), runqueue_kind(vm));
        let lock = (lock.0.as_str(), lock.1, is_semaphore, instances, symbol);
        self.add_lock(&mut LockNames::new(), vm, number, text, lock)
    }
}

fn grace_periods(vm: &VmConfig, locks: &LockNames) -> Result<Option<Box<GracePeriods>>, SimError> {
    let node = locks.iter().find(|lock| lock.name == RCU_NODE);
    if node.is_some_and(|lock| lock.sleeps) {
        return Err(bad(
            format!("vm {}, lock {RCU_NODE}", vm.name),
            "RCU takes it in interrupts: it can't sleep",
        ));
    }
    let node_lock = node.map_or(LockId::NONE, |lock| lock.first);
    let has_writers = vm.workloads.iter().any(|workload| synchronizes(&workload.program));
    Ok(has_writers.then(|| Box::new(GracePeriods::new(vm.vcpus as u32, node_lock))))
}

/// Of the locks that the guest's scheduler takes itself: none of them sleeps.
fn runqueue_kind(vm: &VmConfig) -> LockKind {
    let runqueue = vm.kernel.locks.iter().find(|lock| lock.name == RUNQUEUE);
    runqueue.and_then(|lock| lock.kind).unwrap_or(vm.kernel.lock_kind)
}

fn host_vm(vm: &VmConfig, pcpus: usize) -> HostVm {
    let affinity = if vm.affinity.is_empty() {
        Vec::new()
    } else {
        (0..pcpus).map(|pcpu| vm.affinity.contains(&pcpu)).collect()
    };
    let mut host_vm = HostVm::new(vm.vcpus as u32, vm.weight, affinity);
    host_vm.knobs = vm.knobs;
    host_vm.are_tasks = vm.are_tasks;
    host_vm.own_max_wait_ns = vm.max_wait_ns;
    host_vm.cgroup = vm.cgroup;
    host_vm.pins = vm.pins.iter().map(|&pcpu| PcpuId::from_index(pcpu)).collect();
    host_vm
}

fn thread_slice_ns(kernel: &GuestKernelConfig, vcpus: usize) -> u64 {
    match kernel.thread_scheduler {
        ThreadScheduler::Fifo => kernel.thread_slice_ns,
        ThreadScheduler::Eevdf => base_slice_ns(kernel.thread_slice_ns, vcpus),
    }
}

/// The threads of its guest are on one list.
fn steals(kernel: &GuestKernelConfig) -> bool {
    kernel.balance.as_ref().is_some_and(|balance| balance.rule == BalanceRule::WorkStealing)
}

/// Whether a guest has anything that costs time where nobody has it.
fn is_modern(kernel: &GuestKernelConfig) -> bool {
    kernel.thread_scheduler == ThreadScheduler::Eevdf || kernel.features != KernelFeatures::default()
}

fn kernel_times(vm: &VmConfig, pv_spin_ns: u64) -> KernelTimes {
    let kernel = &vm.kernel;
    KernelTimes {
        tick_ns: 1_000_000_000 / u64::from(kernel.tick_hz),
        thread_slice_ns: thread_slice_ns(kernel, vm.vcpus),
        is_eevdf: kernel.thread_scheduler == ThreadScheduler::Eevdf,
        features: kernel.features,
        pv_spin_ns,
        yield_spin_ns: kernel.yield_spin_ns,
        call_function_ns: kernel.call_function_handler_ns,
        reschedule_ns: kernel.reschedule_handler_ns,
        tick_handler_ns: kernel.tick_handler_ns,
        switch_ns: kernel.thread_switch_ns,
        pv_tlb_flush: kernel.pv_tlb_flush,
        pv_ipi_yield: kernel.pv_ipi_yield,
        preemption_hint_ns: kernel.preemption_hint_ns,
        wait_lists: kernel.wait_lists,
        flat_ipi: kernel.flat_ipi,
        listed_percent: kernel.listed_holds_percent,
        shown_count: kernel.shown_count,
    }
}
