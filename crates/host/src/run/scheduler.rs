//! The loaded scheduler: programs, maps, links. Dropping it gives the host back to the kernel's own
//! scheduler.

use crate::HostError;
use crate::bpf::events::{Event, parse_event};
use crate::bpf::kernel_vm::KernelVm;
use crate::bpf::mapped_array::MappedArray;
use crate::bpf::maps::{update, write};
use crate::bpf::program_costs;
use crate::bpf::recursion_misses::RecursionMisses;
use crate::bpf::warnings::{keep_warnings, load_failure};
use crate::guests::counts::CountReader;
use crate::guests::hint_page::HintPage;
use crate::interface::{
    CountPlace, HintPlace, NEVER_MICRO, PCPUS_MAX, RunConfig, ServiceWeight, Vcpu, VmFeed,
};
use crate::interface::{HostStats, VmStats};
use crate::machine::clock::monotonic_ns;
use crate::machine::core_scheduling;
use crate::machine::kvm_modes;
use crate::machine::preflight::{self, Host};
use crate::machine::real_time::while_real_time;
use crate::output::tracer::TraceQueue;
use crate::run::objects::{self, LoadedObject};
use crate::settings::{PoolChoice, SchedulerChoice, Settings, max_wait};
use crate::shares::limits;
use crate::shares::service_weights::{self, ServiceMap, ServiceTable, Sides};
use libbpf_rs::{Link, MapCore, RingBuffer, RingBufferBuilder};
use microslice_policy::{Code, FairShareConfig, GuestCode, POOL_LIMIT_MAX, Record};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use zerocopy::{FromBytes, IntoBytes};

/// The slice of host tasks that aren't vCPUs.
const OTHERS_SLICE_NS: u64 = 5_000_000;

/// Why the kernel ended it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exit {
    pub kind: i32,
    pub code: i64,
    pub reason: String,
    pub message: String,
}

impl Exit {
    /// `SCX_ECODE_ACT_RESTART` of `kernel/sched/ext_internal.h` (`ext.c` before 6.18). Bits 32 to 47 of a
    /// code are the system's reason, 48 to 63 what it asks for.
    const RESTART: i64 = 1 << 48;
    /// `SCX_EXIT_ERROR` of the same: from here on kinds are failures, and their codes mean other things.
    const FIRST_FAILURE: i32 = 1024;

    /// Does the kernel ask for the same scheduler again, as it does when a pCPU comes or goes?
    pub fn asks_for_restart(&self) -> bool {
        self.kind < Self::FIRST_FAILURE && self.code & Self::RESTART != 0
    }
}

/// Programs of `bpf/` in the kernel.
pub struct Scheduler {
    rings: RingBuffer<'static>,
    events: Rc<RefCell<VecDeque<Event>>>,
    records: Rc<RefCell<VecDeque<Record>>>,
    traces: TraceQueue,
    // Before the object, so that the scheduler is unregistered while its maps exist.
    struct_ops: Option<Link>,
    vms: MappedArray,
    vcpus: MappedArray,
    vm_stats_of: MappedArray,
    object: Box<dyn LoadedObject>,
}

impl Scheduler {
    /// Loads and attaches everything. On error nothing stays loaded. `limits` are in force from the first
    /// task on: until then the kernel itself keeps them.
    pub fn start(
        host: &Host,
        settings: &Settings,
        choice: SchedulerChoice,
        limits: &limits::Changes,
    ) -> Result<Self, HostError> {
        keep_warnings();
        let config = run_config(host, settings, choice)?;
        let mut object = objects::load(host, settings, choice, config)?;
        object.attach_core_scheduling_denial().map_err(|error| load_failure(&error, settings.verbose))?;
        // A task that got a cookie until then has it now.
        core_scheduling::check(&host.topology)?;
        // Now the kernel's own scheduler keeps them all: better that than ours with one that is missing.
        set_cpu_limits(&mut *object, limits).cause.map_or(Ok(()), Err)?;
        // Before it: a limited task may have to rest at once.
        object.attach_stops().map_err(|error| load_failure(&error, settings.verbose))?;
        // What is attached to KVM comes after the scheduler: what it keeps of each task must exist when the
        // first vCPU is seen.
        let struct_ops = while_real_time(|| object.attach_scheduler())
            .map_err(|error| load_failure(&error, settings.verbose))?;
        object.attach_observers().map_err(|error| load_failure(&error, settings.verbose))?;
        let events = Rc::new(RefCell::new(VecDeque::new()));
        let records = Rc::new(RefCell::new(VecDeque::new()));
        let traces = TraceQueue::default();
        let rings = open_rings(&*object, &events, &records, &traces)
            .map_err(|error| HostError::broken(format!("ring buffers: {error}")))?;
        let maps = object.maps();
        let (vms, vcpus) = (MappedArray::of(maps.vms)?, MappedArray::of(maps.vcpus)?);
        let vm_stats_of = MappedArray::of(maps.vm_stats_of)?;
        Ok(Self {
            rings,
            events,
            records,
            traces,
            struct_ops: Some(struct_ops),
            vms,
            vcpus,
            vm_stats_of,
            object,
        })
    }

    /// Gives the host back to the kernel's own scheduler. Nothing is counted any more: sums hold of what is
    /// read from now on.
    pub fn detach(&mut self) {
        self.object.set_scheduler_ends();
        while_real_time(|| self.struct_ops = None);
    }

    /// Reads what has arrived in the rings.
    pub fn poll_rings(&mut self) -> Result<(), HostError> {
        self.rings.consume().map_err(|error| HostError::broken(format!("ring buffers: {error}")))
    }

    pub fn next_event(&mut self) -> Option<Event> {
        self.events.borrow_mut().pop_front()
    }

    pub fn next_record(&mut self) -> Option<Record> {
        self.records.borrow_mut().pop_front()
    }

    /// Returns the queue of trace events that have arrived.
    pub(crate) fn traces(&self) -> TraceQueue {
        self.traces.clone()
    }

    /// From now on nothing is traced.
    pub(crate) fn end_trace(&mut self) {
        self.object.set_trace_ends();
    }

    /// The VMs that have a vCPU.
    pub fn vms(&self) -> Vec<KernelVm> {
        KernelVm::all_of(&self.vms)
    }

    /// The threads that run the vCPUs of the VM in `slot`.
    pub fn vcpu_threads(&self, slot: u32) -> Vec<u32> {
        self.vcpus_of(slot).map(|vcpu| vcpu.pid).collect()
    }

    /// The vCPUs of the VM in `slot`, by their VMM's numbers.
    pub fn vcpus(&self, slot: u32) -> Vec<Vcpu> {
        let mut vcpus: Vec<_> = self.vcpus_of(slot).collect();
        vcpus.sort_by_key(|vcpu| (vcpu.vcpu_id, vcpu.pid));
        vcpus
    }

    fn vcpus_of(&self, slot: u32) -> impl Iterator<Item = Vcpu> {
        KernelVm::vcpus_of(&self.vms, &self.vcpus, slot).into_iter().map(|(_, vcpu)| vcpu)
    }

    /// Statistics of the VM in `slot`; of all that are gone in slot [`VMS_MAX`].
    pub fn vm_stats(&self, slot: u32) -> VmStats {
        self.vm_stats_of.get(slot).unwrap_or_default()
    }

    pub fn host_stats(&self) -> HostStats {
        self.object.host_stats()
    }

    /// Present size of the micro pool: what the policy decided, and what holds (0 with `--dry-run`, and
    /// without such a pool).
    pub fn micro_pcpu_count(&self) -> (u32, u32) {
        self.object.micro_pcpu_count()
    }

    /// Returns for how long vCPUs of a VM may wait now, in nanoseconds. `None`: for ever. `own_ns`: as
    /// `max_wait_of_vm_ns()` takes it.
    pub fn bound_in_force_ns(&self, own_ns: u64, settings: &Settings) -> Option<u64> {
        let (host_ns, least_ns) = self.object.bounds_ns();
        let host_ns = if host_ns == 0 { settings.max_wait().bound_ns() } else { host_ns };
        max_wait::in_force_ns(own_ns, host_ns, least_ns)
    }

    /// Set once the kernel has ended the scheduler.
    pub fn exit(&self) -> Option<Exit> {
        let record = self.object.exit_record();
        (record.kind != 0).then(|| Exit {
            kind: record.kind,
            code: record.code,
            reason: text_of(&record.reason),
            message: text_of(&record.message),
        })
    }

    /// Makes a guest kernel's ranges known under `slot`.
    pub fn set_guest_code(&mut self, slot: u32, code: &GuestCode) -> Result<(), HostError> {
        update(self.object.maps().guest_codes, slot, code.as_bytes())
    }

    /// Tells the kernel side what is known of a VM.
    pub fn set_vm_feed(&mut self, slot: u32, feed: &VmFeed) -> Result<(), HostError> {
        update(self.object.maps().vm_feeds, slot, feed.as_bytes())
    }

    /// Tells the kernel side where a VM has its hint page; `None`: it has none.
    pub fn set_hint_page(&mut self, vm: KernelVm, page: Option<HintPage>) -> Result<(), HostError> {
        let (address, vcpu_count) = page.map_or((0, 0), |page| (page.address, page.vcpu_count));
        let place = HintPlace { address, vcpu_count, generation: vm.generation };
        update(self.object.maps().hint_places, vm.slot, place.as_bytes())
    }

    /// Tells the kernel side which limits there are now, and which cgroups they count for.
    pub fn set_cpu_limits(&mut self, changes: &limits::Changes) -> limits::Untold {
        set_cpu_limits(&mut *self.object, changes)
    }

    /// Tells the kernel side which services have a weight now.
    ///
    /// # Errors
    /// The first that it didn't take, which the table has for untold.
    pub fn set_service_weights(
        &mut self,
        table: &mut ServiceTable,
        changes: &service_weights::Changes,
    ) -> Result<(), HostError> {
        let told = table.tell(changes, &mut *self.object);
        self.object.set_services_are_weighed(changes.in_force);
        told
    }

    pub fn set_sides(&mut self, sides: Sides) {
        self.object.set_sides(sides);
    }

    /// [`program_costs::instructions_of`] its programs.
    pub fn verified_instruction_counts(&self) -> Vec<(String, u32)> {
        program_costs::instructions_of(self.object.object())
    }

    /// Runs of its programs that the kernel left out.
    pub fn recursion_misses(&self) -> RecursionMisses {
        RecursionMisses::of_object(self.object.object())
    }

    /// Returns the cost of its programs: [`program_costs::of_object`].
    pub fn program_costs(&self) -> serde_json::Value {
        let mut costs = program_costs::of_object(self.object.object());
        let stats = self.host_stats();
        // The kernel counts programs, not what timers call.
        let looks = serde_json::json!({"program": "look_at_turn", "instructions": 0, "runs": stats.looks, "ns": stats.looks_ns});
        if let (Some(costs), true) = (costs.as_array_mut(), stats.looks > 0) {
            costs.push(looks);
        }
        costs
    }
}

impl CountReader for Scheduler {
    fn vcpus(&self, slot: u32) -> Vec<(u32, Vcpu)> {
        KernelVm::vcpus_of(&self.vms, &self.vcpus, slot)
    }

    fn set_count_place(&mut self, slot: u32, place: CountPlace) -> Result<(), HostError> {
        update(self.object.maps().count_places, slot, place.as_bytes())
    }
}

fn open_rings(
    object: &dyn LoadedObject,
    events: &Rc<RefCell<VecDeque<Event>>>,
    records: &Rc<RefCell<VecDeque<Record>>>,
    traces: &TraceQueue,
) -> libbpf_rs::Result<RingBuffer<'static>> {
    let mut builder = RingBufferBuilder::new();
    let events = Rc::clone(events);
    builder.add(object.maps().events, move |bytes| {
        events.borrow_mut().extend(parse_event(bytes));
        0
    })?;
    let records = Rc::clone(records);
    builder.add(object.maps().records, move |bytes| {
        records.borrow_mut().extend(Record::read_from_prefix(bytes).ok().map(|(record, _)| record));
        0
    })?;
    let traces = traces.clone();
    builder.add(object.maps().traces, move |bytes| {
        traces.hear(bytes);
        0
    })?;
    builder.build()
}

fn run_config(host: &Host, settings: &Settings, choice: SchedulerChoice) -> Result<RunConfig, HostError> {
    let order = &host.topology.micro_order;
    let limit = settings.pool_limit(order.len())?;
    let domains = settings.queue_domains(&host.topology)?;
    let (count, dynamic) = match settings.micro_cpus {
        PoolChoice::Static(count) => (count, 0),
        PoolChoice::Auto => (0, 1),
    };
    let mut config = RunConfig {
        micro_slice_ns: settings.micro_slice_us * 1000,
        others_slice_ns: OTHERS_SLICE_NS,
        accelerate: settings.accelerate_config(),
        fair_share: FairShareConfig::with_slice(settings.turn_us() * 1000),
        pool_size: settings.pool_size_config(limit),
        urgent: settings.urgent_config(),
        delay: settings.delay_config(choice == SchedulerChoice::Microslice),
        micro_pcpu_count: count,
        pool_is_dynamic: dynamic,
        dry_run: u32::from(settings.dry_run),
        program_costs: u32::from(settings.program_costs),
        recording: u32::from(settings.record.is_some()),
        tracing: u32::from(settings.trace.is_some()),
        pcpu_count: host.topology.pcpu_count,
        wide_pcpu_count: host.topology.wide_pcpu_count(),
        vendor: Code::raw(host.vendor as u32),
        smt: u32::from(host.topology.smt),
        lend: u32::from(settings.rules.lends()),
        looks_for_interrupts: u32::from(
            settings.interrupts_by_looks || kvm_modes::hides_interrupts(&preflight::hints(host.vendor)),
        ),
        max_wait_ns: settings.max_wait().bound_ns(),
        max_wait_each_ns: settings.max_wait().each_ns(settings.micro_slice_us),
        vm_places: settings.vm_places,
        critical_by: settings.critical_by.into(),
        micro_rank: [NEVER_MICRO; PCPUS_MAX as usize],
        domain_count: domains.count,
        ..Default::default()
    };
    config.places.copy_from_slice(&domains.places);
    for (rank, &pcpu) in order.iter().take(POOL_LIMIT_MAX).enumerate() {
        config.micro_order[rank] = pcpu;
        config.micro_rank[pcpu as usize] = rank as u32;
    }
    Ok(config)
}

impl limits::LimitMaps for dyn LoadedObject + '_ {
    fn set_limit(&mut self, place: u32, limit: &microslice_policy::CpuLimit) -> Result<(), HostError> {
        update(self.maps().cpu_limits, place, limit.as_bytes())
    }

    fn remove_chain(&mut self, cgroup: u64) {
        // That it isn't there is no failure.
        let _ = self.maps().limit_chains.delete(&cgroup.to_le_bytes());
    }

    fn set_chain(&mut self, cgroup: u64, chain: &limits::Chain) -> Result<(), HostError> {
        write(self.maps().limit_chains, &cgroup.to_le_bytes(), chain.as_bytes())
    }
}

impl ServiceMap for dyn LoadedObject + '_ {
    fn remove(&mut self, cgroup: u64) {
        // That it isn't there is no failure.
        let _ = self.maps().service_weights.delete(&cgroup.to_le_bytes());
    }

    fn set(&mut self, cgroup: u64, weight: &ServiceWeight) -> Result<(), HostError> {
        write(self.maps().service_weights, &cgroup.to_le_bytes(), weight.as_bytes())
    }
}

fn set_cpu_limits(object: &mut dyn LoadedObject, changes: &limits::Changes) -> limits::Untold {
    let untold = changes.tell(object);
    object.set_limits_in_force(changes.in_force);
    if !changes.is_empty() {
        object.set_limits_changed_at_ns(monotonic_ns());
    }
    untold
}

fn text_of(bytes: &[i8]) -> String {
    let bytes: Vec<u8> = bytes.iter().take_while(|&&byte| byte != 0).map(|&byte| byte as u8).collect();
    String::from_utf8_lossy(&bytes).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_hotplug_asks_for_a_restart() {
        let exit = |kind, code| Exit { kind, code, reason: String::new(), message: String::new() };
        // SCX_EXIT_UNREG_KERN with SCX_ECODE_ACT_RESTART | SCX_ECODE_RSN_HOTPLUG, as kernel/sched/ext.c has
        // them.
        assert!(exit(66, 1 << 48 | 1 << 32).asks_for_restart());
        for other in [exit(66, 1 << 32), exit(64, 0), exit(65, 0), exit(1025, 0), exit(1026, 1 << 48)] {
            assert!(!other.asks_for_restart(), "{other:?}");
        }
    }
}
