//! The BPF side of `microslice observe`: programs, maps, links. Dropping it leaves nothing attached.

use crate::HostError;
use crate::bpf::events::{Event, parse_event};
use crate::bpf::hooks::{Hooks, choose_programs};
use crate::bpf::kernel_vm::KernelVm;
use crate::bpf::mapped_array::MappedArray;
use crate::bpf::maps::update;
use crate::bpf::recursion_misses::RecursionMisses;
use crate::bpf::warnings::{keep_warnings, load_failure};
use crate::bpf::{attach, program_costs};
use crate::guests::counts::CountReader;
use crate::guests::list::{self, KernelSide};
use crate::interface::{
    CountPlace, MISSED_HOLDERS_MAX, MissedHolder, ObservedVcpu, ObservedVm, RunConfig, VMS_MAX, Vcpu, Vm,
    VmFeed, VmStats,
};
use crate::machine::clock::monotonic_ns;
use crate::machine::preflight::Host;
use crate::observe::figures::{VcpuFigures, VmFigures};
use crate::observe::helpers::HelperTimes;
use crate::observe::long_waits::LongWaits;
use crate::observe::stalls::Stalls;
use crate::observe_skeleton::{ObserveSkel, ObserveSkelBuilder, types};
use crate::output::holders::Stops;
use crate::output::tracer::TraceQueue;
use crate::settings::Settings;
use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, OpenObject, RingBuffer, RingBufferBuilder};
use microslice_policy::GuestCode;
use serde_json::Value;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::rc::Rc;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// How often a vCPU that changes while it is read is read again.
const READS_MAX: u32 = 4;

/// Programs of `bpf/observe.bpf.c`.
pub struct Programs {
    rings: RingBuffer<'static>,
    events: Rc<RefCell<VecDeque<Event>>>,
    traces: TraceQueue,
    vms: MappedArray,
    vcpus: MappedArray,
    vm_stats_of: MappedArray,
    hooks: Hooks,
    skeleton: ObserveSkel<'static>,
}

impl Programs {
    /// Loads and attaches everything. On error nothing stays loaded.
    pub fn load(host: &Host, settings: &Settings) -> Result<Self, HostError> {
        let hooks = Hooks::of(host, settings)?;
        keep_warnings();
        let failed = |error: libbpf_rs::Error| load_failure(&error, settings.verbose);
        // One word for each start: the skeleton borrows the place that holds it.
        let storage: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
        let mut open = ObserveSkelBuilder::default().open(storage).map_err(failed)?;
        choose_programs!(open, hooks);
        // Nothing is recorded.
        open.maps.records.set_max_entries(4096).map_err(failed)?;
        open.maps.turns_of.set_max_entries(host.topology.pcpu_count).map_err(failed)?;
        open.progs.on_traced_switch.set_autoload(settings.trace.is_some());
        open.progs.on_traced_wakeup.set_autoload(settings.trace.is_some());
        if settings.trace.is_none() {
            open.maps.traces.set_max_entries(4096).map_err(failed)?;
        }
        let rodata = open.maps.rodata_data.as_deref_mut();
        let rodata = rodata.ok_or_else(|| HostError::broken("the BPF object has no configuration"))?;
        let config = hooks.configure(RunConfig {
            pcpu_count: host.topology.pcpu_count,
            vm_places: VMS_MAX,
            tracing: u32::from(settings.trace.is_some()),
            ..RunConfig::new_zeroed()
        });
        // SAFETY: libbpf-cargo's and crates/border's type of one struct, which consists of integers.
        rodata.config = unsafe { std::mem::transmute::<RunConfig, types::run_config>(config) };
        let mut skeleton = open.load().map_err(failed)?;
        attach(&mut skeleton).map_err(failed)?;
        let events = Rc::new(RefCell::new(VecDeque::new()));
        let heard = Rc::clone(&events);
        let ring = |error| HostError::broken(format!("ring buffer: {error}"));
        let mut builder = RingBufferBuilder::new();
        let hear = move |bytes: &[u8]| {
            heard.borrow_mut().extend(parse_event(bytes));
            0
        };
        builder.add(&skeleton.maps.events, hear).map_err(ring)?;
        let traces = TraceQueue::default();
        let traced = traces.clone();
        let trace = move |bytes: &[u8]| {
            traced.hear(bytes);
            0
        };
        builder.add(&skeleton.maps.traces, trace).map_err(ring)?;
        let rings = builder.build().map_err(ring)?;
        let (vms, vcpus) = (MappedArray::of(&skeleton.maps.vms)?, MappedArray::of(&skeleton.maps.vcpus)?);
        let vm_stats_of = MappedArray::of(&skeleton.maps.vm_stats_of)?;
        Ok(Self { rings, events, traces, vms, vcpus, vm_stats_of, hooks, skeleton })
    }

    /// Returns by what they see.
    pub fn hooks(&self) -> &Hooks {
        &self.hooks
    }

    /// Reads what has arrived in the rings.
    pub fn poll(&mut self) -> Result<Vec<Event>, HostError> {
        self.rings.consume().map_err(|error| HostError::broken(format!("ring buffers: {error}")))?;
        Ok(self.events.borrow_mut().drain(..).collect())
    }

    /// Returns the queue of trace events that have arrived.
    pub fn traces(&self) -> TraceQueue {
        self.traces.clone()
    }

    /// From now on nothing is traced. How many events found no room in the ring.
    pub fn end_trace(&mut self) -> u64 {
        let bss =
            self.skeleton.maps.bss_data.as_deref_mut().expect("a loaded BPF object has its globals mapped");
        bss.trace_ends = 1;
        bss.host_stats.traces_dropped
    }

    /// From now on longest waits are those that end later than `now_ns`.
    pub fn look_for_longest_from(&mut self, now_ns: u64) {
        let bss =
            self.skeleton.maps.bss_data.as_deref_mut().expect("a loaded BPF object has its globals mapped");
        bss.longest_from_ns = now_ns;
    }

    /// Returns the figures of the VM in `slot`, from when it came up to now, as the BPF side has them.
    pub fn figures(&self, slot: u32) -> VmFigures {
        let core: Vm = self.vms.get(slot).unwrap_or_default();
        let seen: ObservedVm = self.vms.get_last(slot).unwrap_or_else(ObservedVm::new_zeroed);
        let places = core.vcpus.iter().filter(|&&entry| entry > 0);
        let mut vcpus: Vec<_> = places.filter_map(|entry| self.vcpu_figures(entry - 1, slot)).collect();
        vcpus.sort_by_key(|vcpu| (vcpu.id, vcpu.tid));
        let stats = self.vm_stats_of.get::<VmStats>(slot).unwrap_or_else(VmStats::new_zeroed);
        VmFigures {
            vcpus,
            stops: Stops::of(&stats),
            interrupts: seen.interrupts,
            interrupt_waits: seen.interrupt_waits,
            shootdowns: seen.shootdowns,
            stalls: Stalls::default(),
            long_waits: LongWaits::default(),
            helpers: HelperTimes::default(),
        }
    }

    /// Returns where vCPUs were stopped that held something, and of which symbols don't say so. And how
    /// often.
    pub fn missed_holders(&self) -> Vec<(MissedHolder, u64)> {
        let map = &self.skeleton.maps.missed_holders;
        let missed = |key: Vec<u8>| {
            let count = map.lookup(&key, MapFlags::ANY).ok()??;
            let (place, _) = MissedHolder::read_from_prefix(&key).ok()?;
            Some((place, u64::from_ne_bytes(*count.first_chunk()?)))
        };
        map.keys().take(MISSED_HOLDERS_MAX as usize).filter_map(missed).collect()
    }

    /// From now on others are counted.
    pub fn forget_missed_holders(&self) {
        let map = &self.skeleton.maps.missed_holders;
        let keys: Vec<_> = map.keys().take(MISSED_HOLDERS_MAX as usize).collect();
        // One that went by itself is as well forgotten.
        keys.iter().for_each(|key| map.delete(key).unwrap_or(()));
    }

    fn vcpu_figures(&self, place: u32, vm_slot: u32) -> Option<VcpuFigures> {
        let read = || {
            let core: Vcpu = self.vcpus.get(place)?;
            let seen: ObservedVcpu = self.vcpus.get_last(place)?;
            (core.in_use != 0 && core.vm == vm_slot).then_some((core, seen))
        };
        let (mut core, mut seen) = read()?;
        for _ in 1..READS_MAX {
            let (before, since_ns) = (core.state.value(), seen.since_ns);
            (core, seen) = read()?;
            if (core.state.value(), seen.since_ns) == (before, since_ns) {
                break;
            }
        }
        Some(VcpuFigures::of(&core, &seen, monotonic_ns()))
    }

    /// Runs of programs that the kernel left out.
    pub fn recursion_misses(&self) -> RecursionMisses {
        RecursionMisses::of_object(self.skeleton.object())
    }

    /// [`program_costs::of_object`] its programs.
    pub fn program_costs(&self) -> Value {
        program_costs::of_object(self.skeleton.object())
    }

    /// [`program_costs::instructions_of`] its programs.
    pub fn verified_instruction_counts(&self) -> Vec<(String, u32)> {
        program_costs::instructions_of(self.skeleton.object())
    }
}

impl CountReader for Programs {
    fn vcpus(&self, slot: u32) -> Vec<(u32, Vcpu)> {
        KernelVm::vcpus_of(&self.vms, &self.vcpus, slot)
    }

    fn set_count_place(&mut self, slot: u32, place: CountPlace) -> Result<(), HostError> {
        update(&self.skeleton.maps.count_places, slot, place.as_bytes())
    }
}

impl KernelSide for Programs {
    fn vms(&self) -> Vec<KernelVm> {
        KernelVm::all_of(&self.vms)
    }

    fn set_guest_code(&mut self, slot: u32, code: &GuestCode) -> Result<(), HostError> {
        update(&self.skeleton.maps.guest_codes, slot, code.as_bytes())
    }

    fn set_vm_feed(&mut self, slot: u32, feed: &VmFeed) -> Result<(), HostError> {
        list::set_vm_feed(&self.skeleton.maps.vm_feeds, slot, feed)
    }
}

fn attach(skeleton: &mut ObserveSkel<'static>) -> libbpf_rs::Result<()> {
    // First what runs and what waits: what is known of vCPUs must be true when the first interrupt comes.
    attach!(
        skeleton: on_switch, on_telling_switch, on_wakeup, on_task_exit, on_vcpu_load, on_vcpu_destroy, on_spin,
        on_hypercall, on_halt, on_exit, on_svm_interrupt, on_vmx_interrupt, on_accepted_interrupt, on_traced_switch,
        on_traced_wakeup
    );
    Ok(())
}
