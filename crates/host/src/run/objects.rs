//! BPF objects of `bpf/schedulers/`: what all of them have, by one trait, and how the chosen one is loaded.

use crate::HostError;
use crate::bpf::attach;
use crate::bpf::warnings::load_failure;
use crate::interface::KvmVendor;
use crate::interface::{ExitRecord, HostStats, RunConfig};
use crate::machine::core_scheduling;
use crate::machine::preflight::Host;
use crate::settings::{SchedulerChoice, Settings};
use crate::shares::service_weights::Sides;
use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{Link, MapMut, Object, OpenObject};
use std::mem::MaybeUninit;

/// Maps of the core.
pub(crate) struct CoreMaps<'o> {
    pub vms: &'o MapMut<'static>,
    pub vcpus: &'o MapMut<'static>,
    pub vm_stats_of: &'o MapMut<'static>,
    pub vm_feeds: &'o MapMut<'static>,
    pub guest_codes: &'o MapMut<'static>,
    pub cpu_limits: &'o MapMut<'static>,
    pub limit_chains: &'o MapMut<'static>,
    pub service_weights: &'o MapMut<'static>,
    pub events: &'o MapMut<'static>,
    pub records: &'o MapMut<'static>,
    pub traces: &'o MapMut<'static>,
    pub hint_places: &'o MapMut<'static>,
    pub count_places: &'o MapMut<'static>,
}

/// Programs of a scheduler in the kernel.
pub(crate) trait LoadedObject {
    fn maps(&self) -> CoreMaps<'_>;
    /// From now on no task gets a core-scheduling cookie, where the kernel lets that be denied.
    fn attach_core_scheduling_denial(&mut self) -> libbpf_rs::Result<()>;
    /// From now on it is seen where tasks stop.
    fn attach_stops(&mut self) -> libbpf_rs::Result<()>;
    /// The scheduler is in charge until the link is dropped.
    fn attach_scheduler(&mut self) -> libbpf_rs::Result<Link>;
    /// Attaches the programs that see KVM's events.
    fn attach_observers(&mut self) -> libbpf_rs::Result<()>;
    /// From now on vCPUs only leave.
    fn set_scheduler_ends(&mut self);
    /// From now on nothing is traced.
    fn set_trace_ends(&mut self);
    fn host_stats(&self) -> HostStats;
    fn exit_record(&self) -> ExitRecord;
    /// Returns the size that Algorithm 1 decided and the size that holds: 0 for a scheduler without a pool.
    fn micro_pcpu_count(&self) -> (u32, u32);
    /// Returns how long vCPUs of VMs without a bound of their own may wait now (0: as configured), and the
    /// least bound that all can have.
    fn bounds_ns(&self) -> (u64, u64);
    fn set_limits_in_force(&mut self, in_force: bool);
    /// Some of them aren't what they were: vCPUs that rest are released, and ask the new ones. By the host's
    /// monotonic clock.
    fn set_limits_changed_at_ns(&mut self, now_ns: u64);
    fn set_services_are_weighed(&mut self, in_force: bool);
    fn set_sides(&mut self, sides: Sides);
    fn object(&self) -> &Object;
}

/// Loads the chosen scheduler, attached to nothing.
pub(crate) fn load(
    host: &Host,
    settings: &Settings,
    choice: SchedulerChoice,
    config: RunConfig,
) -> Result<Box<dyn LoadedObject>, HostError> {
    match choice {
        SchedulerChoice::Microslice => microslice::load(host, settings, config),
        SchedulerChoice::Coordinated => coordinated::load(host, settings, config),
    }
}

/// The kernel maps them from the start of a scheduler on.
const NO_GLOBALS: &str = "a loaded BPF object has its globals mapped";

/// A module for the skeleton `$skeleton` of one scheduler. `$observers` are programs that only it has.
macro_rules! scheduler_object {
    ($module:ident, $skeleton:ident, $Skel:ident, $Builder:ident, $ops:ident, $ops_mut:ident,
     observers: [$($observer:ident),*], micro_pcpu_count: $micro_pcpu_count:expr,
     bounds_ns: $bounds_ns:expr) => {
        mod $module {
            use super::*;
            use crate::$skeleton::$Builder;
            use crate::$skeleton::$Skel;
            use crate::$skeleton::types;

            pub(super) fn load(
                host: &Host,
                settings: &Settings,
                config: RunConfig,
            ) -> Result<Box<dyn LoadedObject>, HostError> {
                // One word for each start, of which there are few: the skeleton borrows its place.
                let storage: &'static mut MaybeUninit<OpenObject> =
                    Box::leak(Box::new(MaybeUninit::uninit()));
                let failed = |error: libbpf_rs::Error| load_failure(&error, settings.verbose);
                let mut open = $Builder::default().open(storage).map_err(failed)?;
                let hears_of = |vendor| host.vendor == vendor && !settings.interrupts_by_looks;
                open.progs.on_svm_interrupt.set_autoload(hears_of(KvmVendor::Amd));
                open.progs.on_vmx_interrupt.set_autoload(hears_of(KvmVendor::Intel));
                open.progs.on_halt.set_autoload(host.vendor == KvmVendor::Amd);
                open.progs.on_exit.set_autoload(host.vendor != KvmVendor::Amd);
                open.progs.deny_core_scheduling.set_autoload(core_scheduling::can_be_denied());
                if settings.record.is_none() {
                    open.maps.records.set_max_entries(4096).map_err(failed)?;
                }
                open.progs.on_traced_switch.set_autoload(settings.trace.is_some());
                open.progs.on_traced_wakeup.set_autoload(settings.trace.is_some());
                if settings.trace.is_none() {
                    open.maps.traces.set_max_entries(4096).map_err(failed)?;
                }
                let rodata = open
                    .maps
                    .rodata_data
                    .as_deref_mut()
                    .ok_or_else(|| HostError::broken("the BPF object has no configuration"))?;
                // SAFETY: libbpf-cargo's and crates/border's type of one struct of integers.
                rodata.config = unsafe { std::mem::transmute::<RunConfig, types::run_config>(config) };
                // The kernel asks for a restart if a pCPU has come or gone since `host` was looked at.
                open.struct_ops.$ops_mut().hotplug_seq = host.topology.hotplug_seq;
                open.struct_ops.$ops_mut().flags |= host.asks_about_those_that_may_not_move;
                Ok(Box::new(open.load().map_err(failed)?))
            }

            impl LoadedObject for $Skel<'static> {
                fn maps(&self) -> CoreMaps<'_> {
                    let maps = &self.maps;
                    CoreMaps {
                        vms: &maps.vms,
                        vcpus: &maps.vcpus,
                        vm_stats_of: &maps.vm_stats_of,
                        vm_feeds: &maps.vm_feeds,
                        guest_codes: &maps.guest_codes,
                        cpu_limits: &maps.cpu_limits,
                        limit_chains: &maps.limit_chains,
                        service_weights: &maps.service_weights,
                        events: &maps.events,
                        records: &maps.records,
                        traces: &maps.traces,
                        hint_places: &maps.hint_places,
                        count_places: &maps.count_places,
                    }
                }

                fn attach_core_scheduling_denial(&mut self) -> libbpf_rs::Result<()> {
                    attach!(self: deny_core_scheduling);
                    Ok(())
                }

                fn attach_stops(&mut self) -> libbpf_rs::Result<()> {
                    attach!(self: on_stop);
                    Ok(())
                }

                fn attach_scheduler(&mut self) -> libbpf_rs::Result<Link> {
                    self.maps.$ops.attach_struct_ops()
                }

                fn attach_observers(&mut self) -> libbpf_rs::Result<()> {
                    attach!(
                        self: on_vcpu_load, on_vcpu_destroy, on_spin, on_hypercall, on_halt, on_exit, $($observer,)*
                        on_svm_interrupt, on_vmx_interrupt, on_traced_switch, on_traced_wakeup
                    );
                    Ok(())
                }

                fn host_stats(&self) -> HostStats {
                    let bss = self.maps.bss_data.as_deref().expect(NO_GLOBALS);
                    // SAFETY: libbpf-cargo's and crates/border's type of one struct of integers.
                    unsafe { std::mem::transmute::<types::host_stats, HostStats>(bss.host_stats) }
                }

                fn exit_record(&self) -> ExitRecord {
                    let bss = self.maps.bss_data.as_deref().expect(NO_GLOBALS);
                    // SAFETY: likewise.
                    unsafe { std::mem::transmute::<types::exit_record, ExitRecord>(bss.exit_record) }
                }

                fn micro_pcpu_count(&self) -> (u32, u32) {
                    $micro_pcpu_count(self.maps.bss_data.as_deref().expect(NO_GLOBALS))
                }

                fn bounds_ns(&self) -> (u64, u64) {
                    $bounds_ns(self.maps.bss_data.as_deref().expect(NO_GLOBALS))
                }

                fn set_scheduler_ends(&mut self) {
                    let bss = self.maps.bss_data.as_deref_mut().expect(NO_GLOBALS);
                    bss.scheduler_ends = 1;
                }

                fn set_trace_ends(&mut self) {
                    self.maps.bss_data.as_deref_mut().expect(NO_GLOBALS).trace_ends = 1;
                }

                fn set_limits_in_force(&mut self, in_force: bool) {
                    let bss = self.maps.bss_data.as_deref_mut().expect(NO_GLOBALS);
                    bss.limits_in_force = u32::from(in_force);
                }

                fn set_services_are_weighed(&mut self, in_force: bool) {
                    let bss = self.maps.bss_data.as_deref_mut().expect(NO_GLOBALS);
                    bss.services_are_weighed = u32::from(in_force);
                }

                fn set_sides(&mut self, sides: Sides) {
                    let bss = self.maps.bss_data.as_deref_mut().expect(NO_GLOBALS);
                    (bss.vms_side_weight, bss.services_side_weight) = (sides.vms, sides.services);
                }

                fn set_limits_changed_at_ns(&mut self, now_ns: u64) {
                    self.maps.bss_data.as_deref_mut().expect(NO_GLOBALS).limits_changed_at_ns = now_ns;
                }

                fn object(&self) -> &Object {
                    Skel::object(self)
                }
            }
        }
    };
}

scheduler_object!(
    microslice, microslice_skeleton, MicrosliceSkel, MicrosliceSkelBuilder, microslice_ops, microslice_ops_mut,
    observers: [],
    micro_pcpu_count: |bss: &types::bss| (bss.decided_pcpu_count, bss.micro_pcpu_count),
    bounds_ns: |bss: &types::bss| (bss.host_bound_ns, bss.least_bound_ns)
);
scheduler_object!(
    coordinated, coordinated_skeleton, CoordinatedSkel, CoordinatedSkelBuilder, coordinated_ops, coordinated_ops_mut,
    observers: [on_end_of_interrupt],
    micro_pcpu_count: |_: &types::bss| (0, 0),
    bounds_ns: |_: &types::bss| (0, 0)
);
