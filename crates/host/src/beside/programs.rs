//! The BPF side of `run --scheduler beside` in the kernel: programs, maps, links. Dropping it leaves nothing
//! attached.

use crate::HostError;
use crate::beside::helper::{Places, Requests, Told, wait_for};
use crate::beside::waits::{Bounds, Waits};
use crate::beside_skeleton::{BesideSkel, BesideSkelBuilder, types};
use crate::bpf::events::{Event, parse_event};
use crate::bpf::hooks::{Hooks, choose_programs};
use crate::bpf::kernel_vm::KernelVm;
use crate::bpf::mapped_array::MappedArray;
use crate::bpf::maps::{lookup, update};
use crate::bpf::recursion_misses::RecursionMisses;
use crate::bpf::warnings::{keep_warnings, load_failure};
use crate::bpf::{attach, program_costs};
use crate::guests::counts::CountReader;
use crate::guests::list::{self, KernelSide};
use crate::interface::{
    BoostEvent, BoostStats, CountPlace, KvmVendor, RunConfig, VMS_MAX, Vcpu, VmFeed, VmStats,
};
use crate::machine::preflight::Host;
use crate::output::recorder::Recorder;
use crate::settings::Settings;
use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{MapHandle, OpenObject, RingBuffer, RingBufferBuilder};
use microslice_policy::{AccelerateConfig, BoostConfig, FairShareConfig, GuestCode, Record, VcpuState};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// The time whose unused budget a VM may use at once.
const BURST_NS: u64 = 1_000_000_000;
/// The budget of all VMs together, in budgets of one VM.
const VMS_PER_HOST_BUDGET: u32 = 5;
/// Real-time turns never take more of the host.
pub const HOST_PERCENT_MAX: u32 = 50;

/// Programs of `bpf/schedulers/beside.bpf.c`.
pub struct Programs {
    rings: RingBuffer<'static>,
    events: Rc<RefCell<VecDeque<Event>>>,
    /// Decisions that the recording hasn't yet.
    records: Rc<RefCell<VecDeque<Record>>>,
    recorder: Option<Recorder>,
    vms: MappedArray,
    vcpus: MappedArray,
    vm_stats_of: MappedArray,
    bounds: Bounds,
    hooks: Hooks,
    skeleton: BesideSkel<'static>,
}

impl Programs {
    /// Loads and attaches everything. On error nothing stays loaded.
    pub fn load(host: &Host, settings: &Settings) -> Result<Self, HostError> {
        let recorder = settings.record.as_deref().map(Recorder::create).transpose()?;
        let hooks = Hooks::of(host, settings)?;
        keep_warnings();
        let failed = |error: libbpf_rs::Error| load_failure(&error, settings.verbose);
        // One word for each start: the skeleton borrows the place that holds it.
        let storage: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
        let mut open = BesideSkelBuilder::default().open(storage).map_err(failed)?;
        choose_programs!(open, hooks);
        let is_amd = hooks.vendor == KvmVendor::Amd;
        open.progs.on_any_exit.set_autoload(hooks.sees_exits() && !is_amd);
        open.progs.on_any_raw_exit.set_autoload(is_amd);
        let rodata = open.maps.rodata_data.as_deref_mut();
        let rodata = rodata.ok_or_else(|| HostError::broken("the BPF object has no configuration"))?;
        let config = hooks.configure(run_config(host, settings));
        // SAFETY: libbpf-cargo's and crates/border's type of one struct, which consists of integers.
        rodata.config = unsafe { std::mem::transmute::<RunConfig, types::run_config>(config) };
        let mut skeleton = open.load().map_err(failed)?;
        attach(&mut skeleton).map_err(failed)?;
        let events = Rc::new(RefCell::new(VecDeque::new()));
        let heard = Rc::clone(&events);
        let mut builder = RingBufferBuilder::new();
        let ring = |error| HostError::broken(format!("ring buffer: {error}"));
        builder
            .add(&skeleton.maps.events, move |bytes| {
                heard.borrow_mut().extend(parse_event(bytes));
                0
            })
            .map_err(ring)?;
        let records = Rc::new(RefCell::new(VecDeque::new()));
        let recorded = Rc::clone(&records);
        builder
            .add(&skeleton.maps.records, move |bytes| {
                recorded.borrow_mut().extend(Record::read_from_prefix(bytes).ok().map(|(record, _)| record));
                0
            })
            .map_err(ring)?;
        let rings = builder.build().map_err(ring)?;
        let vms = MappedArray::of(&skeleton.maps.vms)?;
        let vcpus = MappedArray::of(&skeleton.maps.vcpus)?;
        let vm_stats_of = MappedArray::of(&skeleton.maps.vm_stats_of)?;
        let bounds = Bounds::new(settings.max_wait().bound_ns());
        Ok(Self { rings, events, records, recorder, vms, vcpus, vm_stats_of, bounds, hooks, skeleton })
    }

    /// Returns by what they see.
    pub fn hooks(&self) -> &Hooks {
        &self.hooks
    }

    /// Returns the events and the vCPUs that the helper needs.
    pub fn boost_events(&self, settings: &Settings, pcpu_count: u32) -> Result<BoostEvents, HostError> {
        let maps = &self.skeleton.maps;
        let failed = |error| HostError::broken(format!("maps of boosts: {error}"));
        let ring = MapHandle::try_from(&maps.boost_events).map_err(failed)?;
        let vcpus = MappedArray::of(&maps.vcpus)?;
        let look = self.skeleton.progs.look_at_wait.as_fd().try_clone_to_owned();
        let look = look.map_err(|cause| HostError::broken(format!("a program's descriptor: {cause}")))?;
        let waits = Waits::new(settings, self.bounds.clone(), pcpu_count, look);
        BoostEvents::new(&ring, vcpus, MappedArray::of(&maps.taken_back_at)?, waits)
    }

    /// Returns for how long vCPUs of the VM in `slot` may wait now, in nanoseconds. `None`: for ever.
    pub fn bound_ns(&self, slot: u32) -> Option<u64> {
        self.bounds.in_force(slot)
    }

    /// Reads what has arrived in the rings, but for boosts. What was decided is recorded.
    pub fn poll(&mut self) -> Result<Vec<Event>, HostError> {
        self.drain()?;
        Ok(self.events.borrow_mut().drain(..).collect())
    }

    fn drain(&mut self) -> Result<(), HostError> {
        self.rings.consume().map_err(|error| HostError::broken(format!("ring buffer: {error}")))?;
        let mut records = self.records.borrow_mut();
        self.recorder
            .as_mut()
            .map_or(Ok(()), |recorder| records.drain(..).try_for_each(|record| recorder.record(&record)))
    }

    /// Decisions that were recorded, and those for which there was no room; `None`: nothing is.
    pub fn finish_recording(&mut self) -> Result<Option<(u64, u64)>, HostError> {
        let dropped = self.skeleton.maps.bss_data.as_deref().map_or(0, |bss| bss.host_stats.records_dropped);
        let Some(recorder) = self.recorder.take() else { return Ok(None) };
        Ok(Some((recorder.finish()?, dropped)))
    }

    pub fn vm_stats(&self, slot: u32) -> VmStats {
        self.vm_stats_of.get(slot).unwrap_or_else(VmStats::new_zeroed)
    }

    /// Returns the statistics of VMs that are gone. A slot that isn't used again yet still has its own
    /// ([`Self::vm_stats`]).
    pub fn gone_stats(&self) -> VmStats {
        self.vm_stats(VMS_MAX)
    }

    /// Boosts of the VM in `slot`.
    pub fn boosts(&self, slot: u32) -> BoostStats {
        // The last member of `struct boost_vm`, which is the last one of the map's value.
        self.vms.get_last(slot).unwrap_or_else(BoostStats::new_zeroed)
    }

    /// Returns the boosts of VMs whose slots others use by now.
    pub fn boosts_of_gone(&self) -> BoostStats {
        lookup(&self.skeleton.maps.boosts_of_gone, 0).unwrap_or_else(BoostStats::new_zeroed)
    }

    /// Runs of programs that the kernel left out.
    pub fn recursion_misses(&self) -> RecursionMisses {
        RecursionMisses::of_object(self.skeleton.object())
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

    /// To the recording as well.
    fn set_guest_code(&mut self, slot: u32, code: &GuestCode) -> Result<(), HostError> {
        // Decisions with the kernel that had this slot come before the new kernel in the recording.
        self.drain()?;
        update(&self.skeleton.maps.guest_codes, slot, code.as_bytes())?;
        self.recorder.as_mut().map_or(Ok(()), |recorder| recorder.code(slot, code))
    }

    /// The helper is told of the VM's bound, too.
    fn set_vm_feed(&mut self, slot: u32, feed: &VmFeed) -> Result<(), HostError> {
        self.bounds.set(slot, feed.max_wait_ns);
        list::set_vm_feed(&self.skeleton.maps.vm_feeds, slot, feed)
    }
}

fn attach(skeleton: &mut BesideSkel<'static>) -> libbpf_rs::Result<()> {
    // First what runs and what waits: what is known of vCPUs must be true when the first hint comes.
    attach!(
        skeleton: on_switch, on_telling_switch, on_wakeup, on_task_exit, on_vcpu_load, on_vcpu_destroy, on_any_exit,
        on_any_raw_exit, on_spin, on_hypercall, on_halt, on_exit, on_svm_interrupt, on_vmx_interrupt,
        on_accepted_interrupt
    );
    Ok(())
}

fn run_config(host: &Host, settings: &Settings) -> RunConfig {
    let pcpu_count = host.topology.neighbourhoods.len() as u32;
    RunConfig {
        micro_slice_ns: settings.micro_slice_us * 1000,
        // There are no other pools.
        accelerate: AccelerateConfig { home_slices: 0, ..settings.accelerate_config() },
        fair_share: FairShareConfig::DEFAULT,
        dry_run: u32::from(settings.dry_run),
        recording: u32::from(settings.record.is_some()),
        boosts_woken: u32::from(settings.rules.boosts_woken()),
        pcpu_count: host.topology.pcpu_count,
        vm_places: VMS_MAX,
        critical_by: settings.critical_by.into(),
        boost: BoostConfig {
            burst_ns: BURST_NS,
            vm_percent: settings.boost_percent,
            host_percent: (settings.boost_percent * VMS_PER_HOST_BUDGET).min(HOST_PERCENT_MAX),
            pcpu_count,
            reserved: 0,
        },
        max_wait_ns: settings.max_wait().bound_ns(),
        ..RunConfig::new_zeroed()
    }
}

/// The helper's ears and eyes.
pub struct BoostEvents {
    ring: RingBuffer<'static>,
    heard: Arc<Mutex<VecDeque<Told>>>,
    vcpus: MappedArray,
    /// The BPF map of that name, one time per vCPU.
    taken_back_at: MappedArray,
    waits: Waits,
}

impl BoostEvents {
    fn new(
        ring: &MapHandle,
        vcpus: MappedArray,
        taken_back_at: MappedArray,
        waits: Waits,
    ) -> Result<Self, HostError> {
        let failed = |error| HostError::broken(format!("the ring of boosts: {error}"));
        let heard = Arc::new(Mutex::new(VecDeque::new()));
        let hears = Arc::clone(&heard);
        let mut builder = RingBufferBuilder::new();
        let hear = move |bytes: &[u8]| {
            if let (Ok(mut heard), Some(told)) = (hears.lock(), parse_told(bytes)) {
                heard.push_back(told);
            }
            0
        };
        builder.add(ring, hear).map_err(failed)?;
        let ring = builder.build().map_err(failed)?;
        Ok(Self { ring, heard, vcpus, taken_back_at, waits })
    }
}

impl Requests for BoostEvents {
    /// In nanoseconds, which epoll's own waiting can't.
    fn wait(&self, patience: Duration) {
        wait_for(self.ring.epoll_fd(), patience);
        // A signal or an error: the next look finds what has come.
        let _ = self.ring.consume();
    }

    fn next(&self) -> Option<Told> {
        self.heard.lock().ok()?.pop_front()
    }

    fn state(&self, slot: u32, tid: u32) -> Option<VcpuState> {
        let vcpu: Vcpu = self.vcpus.get(slot)?;
        (vcpu.in_use != 0 && vcpu.pid == tid).then(|| vcpu.state.get()).flatten()
    }

    fn look_at_waits(&mut self) -> Option<Duration> {
        Some(self.waits.look(&self.vcpus))
    }

    fn settle(&self, slot: u32) {
        let vcpu: Option<Vcpu> = self.vcpus.get(slot);
        if vcpu.is_some_and(|vcpu| vcpu.preempted != 0 && vcpu.state == VcpuState::Micro.into()) {
            self.waits.ask(slot);
        }
    }

    fn note_taken_back(&self, slot: u32) {
        self.taken_back_at.set(slot, crate::machine::clock::monotonic_ns());
    }
}

fn parse_told(bytes: &[u8]) -> Option<Told> {
    let (event, _) = BoostEvent::read_from_prefix(bytes).ok()?;
    let BoostEvent { slot, tid, start_ns, asked_on, waits_on, for_bound, .. } = event;
    let places = Some(Places { asked_on, waits_on });
    Some(Told { kind: event.kind.get()?, slot, tid, start_ns, for_bound: for_bound != 0, places })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interface::BoostEventKind;
    use microslice_policy::Coded;

    #[test]
    fn events_for_the_helper_are_read_as_written() {
        let mut bytes = [0u8; size_of::<BoostEvent>()];
        for (at, value) in [(0, 1), (4, 7), (8, 9), (12, 2), (16, 3), (24, 5)] {
            bytes[at] = value;
        }
        let places = Some(Places { asked_on: 2, waits_on: 3 });
        let told =
            Told { kind: BoostEventKind::Served, slot: 7, tid: 9, start_ns: 5, for_bound: false, places };
        assert_eq!(parse_told(&bytes), Some(told));
        bytes[0] = 2;
        assert_eq!((parse_told(&bytes), parse_told(&bytes[..39])), (None, None));
        assert_eq!(BoostEventKind::ALL.len(), 2);
    }
}
