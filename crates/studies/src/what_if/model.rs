//! The VMs of a profile as programs, written as a scenario file.
//!
//! Problem.   A profile has rates and sums. The simulator wants programs.
//! Mechanism. Each vCPU of a VM has a thread that computes. In between it now and then sleeps, flushes the
//!            TLBs of its siblings, and holds a spinlock: each by chance, at a rate per second of computing.
//!            So a host that helps gets more of them done.
//! Limits.    All threads of a VM are equal. Which thread wakes which isn't known: sleeps end by timers.

use microslice_experiments::scenario::{Overrides, ScenarioError, parse};
use microslice_metrics::counted;
use microslice_metrics::profile::HostProfile;
use std::fmt::Write as _;

/// A critical section: what `observe` can't tell. Of the order that Table 4a has for uncontended locks.
pub const SECTION_NS: f64 = 2_000.0;
/// A thread does nothing more often than once in so long: what is rarer adds nothing, and what is more
/// frequent only events.
const UNIT_NS_MIN: f64 = 1_000.0;
const UNIT_NS_MAX: f64 = 20_000_000.0;
/// A quarter of what a scenario may have: kernels have locks of their own.
const LOCKS_MAX: usize = 1 << 18;
/// A VM may have so many workloads in a scenario.
const PROCESSES_MAX: u32 = 64;
/// How long the scenario measures where slices are as long as on a host with 8 or more pCPUs, and at most: if
/// they are longer it takes longer to see as many turns. An eighth of it is warm-up.
const DURATION_MS: u64 = 4_000;
const DURATION_MS_MAX: u64 = 40_000;
const BASE_SLICE_NS: u64 = 2_800_000;
/// Whose costs are those of a host that the profile says nothing else of (scenarios/hosts): the best
/// documented one.
const HOST: &str = "xeon-e5645";
/// Its costs that grow with a slower host, in ns: of a switch, an exit, an interrupt sent, one delivered; the
/// guest's handlers of calls, of reschedule interrupts, and of ticks. On a host whose costs were measured
/// ticks are in what computing takes.
const COSTS_NS: [(&str, f64); 4] =
    [("context_switch", 2_000.0), ("exit", 500.0), ("ipi_send", 3_200.0), ("ipi_delivery", 2_000.0)];
const IPI_HANDLERS_NS: [(&str, f64); 2] =
    [("call_function_handler", 1_000.0), ("reschedule_handler", 1_000.0)];
const TICK_HANDLER_NS: [(&str, f64); 1] = [("tick_handler", 3_000.0)];

/// What a thread does, per second of its computing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rates {
    pub sleeps: f64,
    pub shootdowns: f64,
    /// Critical sections of [`SECTION_NS`].
    pub sections: f64,
}

/// One VM.
#[derive(Debug, Clone, PartialEq)]
pub struct VmModel {
    /// Letters, digits and `-_.+#`.
    pub name: String,
    pub vcpus: u32,
    pub weight: u32,
    pub affinity: Vec<u32>,
    pub rates: Rates,
    /// Mean length of a sleep.
    pub sleep_ns: f64,
    /// Siblings that a shootdown goes to, about: the threads that share an address space are one more.
    pub recipients: f64,
    /// Its guest flushes for siblings that have no pCPU once these are back (PV TLB flush).
    pub spares_preempted: bool,
    /// Its guest yields by hypercall to a sibling that it has called and that has no pCPU.
    pub yields_by_hypercall: bool,
    /// Locks among which its threads choose.
    pub locks: u32,
}

/// A host of the simulator, as scenarios name it, and how many times [`HOST`]'s one of its exits takes.
#[derive(Debug, Clone, PartialEq)]
pub struct MeasuredHost {
    pub reference: String,
    pub factor: f64,
}

impl MeasuredHost {
    /// `reference`: the name of a file in `hosts/`, or a path that ends in `.toml`.
    pub fn load(reference: &str) -> Result<Self, ScenarioError> {
        let reference = match std::path::absolute(reference) {
            Ok(path) if reference.ends_with(".toml") => path.to_string_lossy().into_owned(),
            _ => reference.to_owned(),
        };
        let text = format!(
            "host = {reference:?}\nduration = \"1 ms\"\n[[vm]]\nname = \"any\"\nvcpus = 1\nkernel = \"linux-modern\"\n\
             workloads = [{{ name = \"any\", threads = 1, program = [{{ compute = \"1 ms\" }}] }}]\n"
        );
        let host = parse("--host", &text, &Overrides::default())?.config.host;
        let [_, (_, exit_ns), ..] = COSTS_NS;
        Ok(Self { reference, factor: (host.costs.exit_ns as f64 / exit_ns).max(0.01) })
    }
}

/// A host and its VMs.
#[derive(Debug, Clone, PartialEq)]
pub struct Model {
    pub host: HostProfile,
    /// A spinning guest exits.
    pub pause_exits: bool,
    /// How many times those of [`HOST`] its costs are; its guests' handlers likewise.
    pub cost_factor: f64,
    /// A host of the simulator whose costs were measured, in place of that.
    pub measured_host: Option<MeasuredHost>,
    pub vms: Vec<VmModel>,
}

impl Model {
    /// A scenario file: `microslice simulate` and `compare` take it.
    pub fn to_scenario(&self) -> String {
        let processes: usize = self.vms.iter().map(|vm| vm.processes().len()).sum();
        let locks_max = (LOCKS_MAX / processes.max(1)) as u32;
        let HostProfile { pcpus, base_slice_ns, .. } = self.host;
        let (llc_pcpus, smt_threads) = self.topology();
        let slices = base_slice_ns.unwrap_or(BASE_SLICE_NS).max(BASE_SLICE_NS) as f64 / BASE_SLICE_NS as f64;
        let duration_ms = ((DURATION_MS as f64 * slices) as u64).min(DURATION_MS_MAX);
        let mut text = format!(
            "description = \"Fitted to a profile of {} on {} (docs/how-to/what-if.md)\"\n\
             policy = {}\nwarmup = \"{} ms\"\nduration = \"{duration_ms} ms\"\n\n\
             [host]\npcpus = {pcpus}\n{}\nple = {{ enabled = {} }}\n",
            counted(self.vms.len(), "VM"),
            counted(pcpus as usize, "pCPU"),
            base_slice_ns.map_or("\"eevdf\"".into(), |ns| format!(
                "{{ extends = \"eevdf\", base_slice = \"{ns} ns\" }}"
            )),
            duration_ms / 8,
            match &self.measured_host {
                Some(host) => format!("extends = {:?}", host.reference),
                None => format!(
                    "extends = \"{HOST}\"\nllc_pcpus = {llc_pcpus}\nsmt_threads = {smt_threads}\ncosts = {{ {} }}",
                    self.costs(&COSTS_NS)
                ),
            },
            self.pause_exits,
        );
        self.vms.iter().for_each(|vm| self.write_vm(&mut text, vm, locks_max));
        text
    }

    /// Sizes of caches and cores that add up: those of a host that had some of its pCPUs offline may not.
    fn topology(&self) -> (u32, u32) {
        let HostProfile { pcpus, llc_pcpus, smt_threads, .. } = self.host;
        let smt_threads = if pcpus.is_multiple_of(smt_threads) { smt_threads } else { 1 };
        let adds_up = pcpus.is_multiple_of(llc_pcpus) && llc_pcpus.is_multiple_of(smt_threads);
        (if adds_up { llc_pcpus } else { 0 }, smt_threads)
    }

    fn costs(&self, of: &[(&str, f64)]) -> String {
        let scaled = of.iter().map(|(name, ns)| format!("{name} = \"{:.0} ns\"", ns * self.cost_factor));
        scaled.collect::<Vec<_>>().join(", ")
    }

    fn handlers(&self) -> String {
        let ipis = self.costs(&IPI_HANDLERS_NS);
        if self.measured_host.is_some() { ipis } else { ipis + ", " + &self.costs(&TICK_HANDLER_NS) }
    }

    fn write_vm(&self, text: &mut String, vm: &VmModel, locks_max: u32) {
        let affinity = match vm.affinity.as_slice() {
            [] => String::new(),
            some => format!("affinity = {some:?}\n"),
        };
        // Writing to a text can't fail.
        let _ = write!(
            text,
            "\n[[vm]]\nname = \"{}\"\nvcpus = {}\nweight = {}\n{affinity}\
             kernel = {{ extends = \"linux-modern\", pv_tlb_flush = {}, pv_ipi_yield = {}, {} }}\nworkloads = [\n",
            vm.name,
            vm.vcpus,
            vm.weight,
            vm.spares_preempted,
            vm.yields_by_hypercall,
            self.handlers(),
        );
        for (number, threads) in (1..).zip(vm.processes()) {
            let _ = write!(
                text,
                "    {{ name = \"process-{number}\", threads = {threads}, address_space = \"shared\", \
                 lock = [{{ name = \"section\", symbol = \"get_page_from_freelist\", irqs_off = true, instances = {} }}], \
                 program = [\n{}    ] }},\n",
                vm.locks.min(locks_max),
                vm.program(),
            );
        }
        text.push_str("]\n");
    }
}

impl VmModel {
    /// The threads of each process.
    fn processes(&self) -> Vec<u32> {
        let wanted = self.recipients.round() as u32 + 1;
        let threads = wanted.clamp(1, self.vcpus).max(self.vcpus.div_ceil(PROCESSES_MAX));
        let full = self.vcpus / threads;
        let rest = self.vcpus % threads;
        (0..full).map(|_| threads).chain((rest > 0).then_some(rest)).collect()
    }

    fn program(&self) -> String {
        let Rates { sleeps, shootdowns, sections } = self.rates;
        let most = sleeps.max(shootdowns).max(sections).max(1e-9);
        let unit_ns = (1e9 / most).clamp(UNIT_NS_MIN, UNIT_NS_MAX);
        let phases = [
            (sleeps, format!("{{ sleep = \"exponential {:.0} ns\" }}", self.sleep_ns.max(1.0))),
            (sections, format!("{{ lock = \"section\", hold = \"exponential {SECTION_NS} ns\" }}")),
            (shootdowns, "{ shootdown = \"1 us\" }".to_owned()),
        ];
        let mut program = format!("        {{ compute = \"exponential {unit_ns:.0} ns\" }},\n");
        for (rate, phase) in phases {
            program.push_str(&by_chance(rate * unit_ns / 1e9, &phase));
        }
        program + "        { progress = 1 },\n"
    }
}

/// Which `[[vm]]` of a scenario of [`Model::to_scenario`] that line is in.
pub fn vm_at_line(scenario: &str, line: usize) -> Option<usize> {
    scenario.lines().take(line).filter(|line| *line == "[[vm]]").count().checked_sub(1)
}

/// A phase that comes with that probability.
fn by_chance(probability: f64, phase: &str) -> String {
    let ppm = (probability * 1e6).round();
    match ppm {
        ppm if ppm < 1.0 => String::new(),
        ppm if ppm >= 1e6 => format!("        {phase},\n"),
        ppm => format!("        {{ sometimes = \"{:.4} %\", body = [{phase}] }},\n", ppm / 1e4),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn model() -> Model {
        let vm = |name: &str, rates| VmModel {
            name: name.into(),
            vcpus: 4,
            weight: 100,
            affinity: vec![],
            rates,
            sleep_ns: 400_000.0,
            recipients: 3.0,
            spares_preempted: false,
            yields_by_hypercall: true,
            locks: 1,
        };
        Model {
            host: HostProfile {
                pcpus: 4,
                llc_pcpus: 0,
                smt_threads: 1,
                scheduler: "kernel".into(),
                base_slice_ns: Some(2_800_000),
                sees_interrupts: true,
            },
            pause_exits: true,
            cost_factor: 1.0,
            measured_host: None,
            vms: vec![
                vm("web", Rates { sleeps: 800.0, shootdowns: 800.0, sections: 2_000.0 }),
                vm("hog", Rates { sleeps: 0.0, shootdowns: 0.0, sections: 0.0 }),
            ],
        }
    }

    #[test]
    fn a_model_is_a_scenario_that_the_simulator_reads() {
        let scenario = parse("fitted.toml", &model().to_scenario(), &Overrides::default()).expect("valid");
        let [web, hog] = scenario.config.vms.as_slice() else { panic!("two VMs") };
        assert_eq!((web.vcpus, web.workloads[0].threads, web.workloads[0].program.len()), (4, 4, 5));
        assert_eq!(hog.workloads[0].program.len(), 2, "{:?}", hog.workloads[0].program);
    }

    #[test]
    fn a_measured_host_brings_its_costs_and_scales_its_guests_handlers() {
        let host = MeasuredHost::load("xeon-x5550").expect("built in");
        let model = Model { cost_factor: host.factor, measured_host: Some(host), ..model() };
        let scenario = parse("fitted.toml", &model.to_scenario(), &Overrides::default()).expect("valid");
        assert_eq!(scenario.config.host.costs.ipi_send_ns, 20_000, "{}", model.to_scenario());
        let error = MeasuredHost::load("no-such-host").expect_err("unknown");
        assert!(error.to_string().contains("no-such-host"), "{error}");
    }

    #[test]
    fn processes_have_all_threads_between_them() {
        let processes =
            |vcpus, recipients| VmModel { vcpus, recipients, ..model().vms[0].clone() }.processes();
        assert_eq!(processes(12, 3.2), [4, 4, 4]);
        assert_eq!(processes(7, 2.0), [3, 3, 1]);
        assert_eq!(processes(1, 8.0), [1]);
        assert!(processes(512, 1.0).len() <= PROCESSES_MAX as usize);
    }

    proptest! {
        #[test]
        fn whatever_was_fitted_can_be_read(
            sleeps in 0.0f64..1e9, shootdowns in 0.0f64..1e9, sections in 0.0f64..1e9, sleep_ns in 0.0f64..4e9,
            vcpus in 1u32..64, recipients in 0.0f64..99.0, cost_factor in 0.1f64..500.0,
        ) {
            let mut model = model();
            model.cost_factor = cost_factor;
            let vm = VmModel { sleep_ns, vcpus, recipients, ..model.vms[0].clone() };
            model.vms[0] = VmModel { rates: Rates { sleeps, shootdowns, sections }, ..vm };
            let read = parse("fitted.toml", &model.to_scenario(), &Overrides::default());
            prop_assert!(read.is_ok(), "{:?}\n{}", read.err(), model.to_scenario());
        }
    }
}
