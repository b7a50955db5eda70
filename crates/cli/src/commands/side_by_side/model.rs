//! The testbed as a scenario of the simulator: its costs as measured, its guests' loads as programs.

use microslice_testbed::Pv;
use microslice_testbed::demo::{Plan, Scheduler};
use microslice_testbed::operation_costs::OperationCosts;

/// The collector sleeps so long between two unmappings (`COLLECTOR_PAUSE_NS` of `testbed/guest/loads.c`).
const COLLECTOR_PAUSE_MS: u64 = 50;
/// A locking worker takes the lock so often in a round (`LOCKS_PER_LOCKING_ROUND`).
const LOCKS_PER_ROUND: u32 = 64;
/// A hog's unit of work, in rounds of a worker's computing (`COMPUTE_ITERATIONS` of `WORKER_ITERATIONS`).
const HOG_ROUNDS: u64 = 5;
/// Virtual time that is measured; a fifth of it is warm-up.
const SECONDS: u64 = 60;

/// The host that was measured, as a file of `hosts/`.
pub fn host(costs: &OperationCosts) -> String {
    let OperationCosts { pcpus, switch_ns, exit_ns, call_one_ns, .. } = *costs;
    let delivery_ns = call_one_ns.saturating_sub(exit_ns + answer_ns(costs) + costs.lock_ns).max(1);
    format!(
        "description = \"An emulated host of the testbed: {pcpus} pCPUs, each half of a core of the machine below\"\n\
         pcpus = {pcpus}\n\
         frequency = \"1 GHz\"\n\
         smt_threads = 2\n\
         smt_busy_speed = \"50 %\"\n\
         source = \"microslice testbed side-by-side --write-host FILE: means while every vCPU computes. An emulated pCPU shares its \
         core with another, and the machine gives each half. ipi_send is an exit, as KVM sends for the guest. ipi_delivery is the \
         rest of a call of one sibling. Ticks are in what computing takes. Emulated CPUs have no caches.\"\n\n\
         [costs]\n\
         context_switch = \"{switch_ns} ns\"\n\
         exit = \"{exit_ns} ns\"\n\
         ipi_send = \"{exit_ns} ns\"\n\
         ipi_delivery = \"{delivery_ns} ns\"\n\
         interrupt_entry = \"1 ns\"\n\
         cache_refill_max = \"0 us\"\n\
         cache_displace = \"2 ms\"\n\
         llc_migration = \"0 us\"\n\
         kick = \"{exit_ns} ns\"\n\
         halt = \"{exit_ns} ns\"\n\n\
         [ple]\n\
         enabled = false\n\
         window = \"4096 cycles\"\n"
    )
}

/// What takes `us` on hardware. Assumed: the kernel's work is as many times slower as computing.
fn kernel_ns(costs: &OperationCosts, us: f64) -> u64 {
    (us * 1_000.0 * costs.slowness()) as u64
}

/// An interrupt makes a running vCPU exit, as nothing posts interrupts in an emulated host. The tick's exits
/// are in all that was measured, as it took a second each.
fn answer_ns(costs: &OperationCosts) -> u64 {
    kernel_ns(costs, 1.0) + costs.exit_ns
}

/// The demo's two guests on that host.
pub fn scenario(costs: &OperationCosts, pv: Pv) -> String {
    let OperationCosts { pcpus, compute_ns, lock_ns, unmap_ns, .. } = *costs;
    let answer_ns = answer_ns(costs);
    let (lock_kind, helpers) = match pv {
        Pv::On => ("pv-queued-hybrid", true),
        Pv::Off => ("test-and-set", false),
    };
    // Half of a system call is under the bucket's lock: assumed.
    let half_ns = (lock_ns / 2).max(1);
    let last = pcpus - 1;
    let kernel = format!(
        "kernel = {{ extends = \"linux-modern\", lock_kind = \"{lock_kind}\", pv_ipi = {helpers}, \
         pv_tlb_flush = {helpers}, pv_ipi_yield = {helpers}, \
         call_function_handler = \"{answer_ns} ns\", reschedule_handler = \"{answer_ns} ns\", tick_handler = \"1 ns\", \
         thread_switch = \"{switch} ns\", lock = [{{ name = \"runqueue\", symbol = \"ttwu_do_activate\" }}, \
         {{ name = \"bucket\", symbol = \"_raw_spin_unlock\" }}] }}",
        switch = kernel_ns(costs, 1.5),
    );
    let workers: String = (0..last)
        .map(|vcpu| {
            format!(
                "    {{ name = \"locker-{vcpu}\", threads = 1, pin = {vcpu}, process = \"init\", program = [{{ compute = \"{compute_ns} ns\" }}, \
                 {{ repeat = {LOCKS_PER_ROUND}, body = [{{ kernel = \"{half_ns} ns\", symbol = \"entry_SYSCALL_64\" }}, \
                 {{ lock = \"bucket\", hold = \"{half_ns} ns\" }}] }}, {{ progress = 1 }}] }},\n"
            )
        })
        .collect();
    format!(
        "description = \"The demo's guests in the testbed, as microslice testbed side-by-side models them\"\n\
         warmup = \"{warmup} s\"\nduration = \"{SECONDS} s\"\n\
         host = {{ {host} }}\n\n\
         [[vm]]\nname = \"mix\"\nvcpus = {pcpus}\n{kernel}\nworkloads = [\n{workers}\
         \x20   {{ name = \"collector\", threads = 1, pin = {last}, process = \"init\", program = [{{ sleep = \"{COLLECTOR_PAUSE_MS} ms\" }}, \
         {{ kernel = \"{unmap_ns} ns\", symbol = \"handle_mm_fault\" }}, {{ shootdown = \"{half_ns} ns\" }}, \
         {{ shootdown = \"{half_ns} ns\" }}] }},\n\
         \x20   {{ name = \"ask\", threads = 1, pin = 0, process = \"init\", program = [{{ kernel = \"{lock_ns} ns\", symbol = \"entry_SYSCALL_64\" }}, \
         {{ send = \"there\" }}, {{ receive = \"back\" }}, {{ progress = 1 }}] }},\n\
         \x20   {{ name = \"answer\", threads = 1, pin = 1, process = \"init\", program = [{{ receive = \"there\" }}, \
         {{ kernel = \"{lock_ns} ns\", symbol = \"entry_SYSCALL_64\" }}, {{ send = \"back\" }}] }},\n]\n\n\
         [[vm]]\nname = \"hog\"\nvcpus = {pcpus}\n{kernel}\nworkloads = [{{ name = \"hog\", threads = {pcpus}, program = [\
         {{ compute = \"{hog_ns} ns\" }}, {{ progress = 1 }}] }}]\n",
        warmup = SECONDS / 5,
        host = in_place(&host(costs)),
        hog_ns = HOG_ROUNDS * compute_ns,
    )
}

/// A file's tables as one inline table.
fn in_place(file: &str) -> String {
    let mut parts: Vec<String> = Vec::new();
    let mut table: Option<(String, Vec<String>)> = None;
    let close = |table: Option<(String, Vec<String>)>| {
        table.map(|(name, entries)| format!("{name} = {{ {} }}", entries.join(", ")))
    };
    for line in file.lines().filter(|line| !line.is_empty()) {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            parts.extend(close(table.replace((name.to_owned(), Vec::new()))));
        } else if let Some((_, entries)) = &mut table {
            entries.push(line.to_owned());
        } else {
            parts.push(line.to_owned());
        }
    }
    parts.extend(close(table));
    parts.join(", ")
}

/// The simulator's policy for a phase; `None` if it has none.
pub fn policy(scheduler: Scheduler, costs: &OperationCosts, plan: &Plan) -> Option<String> {
    let Plan { slice_us, micro_slice_us, dilation, .. } = plan;
    let base_slice_ns = costs.base_slice_ns * u64::from(*dilation);
    let ours = |pool: &str| format!("microslice{pool}+slice={slice_us} us+micro_slice={micro_slice_us} us");
    match scheduler {
        Scheduler::Kernel => Some(format!("eevdf+base_slice={base_slice_ns} ns")),
        Scheduler::Static(count) => Some(ours(&format!(":{count}"))),
        Scheduler::Auto => Some(ours("")),
        _ => None,
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use microslice_experiments::scenario::{Overrides, parse};
    use microslice_testbed::operation_costs::ITERATIONS;

    /// About what an emulated host has.
    pub const COSTS: OperationCosts = OperationCosts {
        pcpus: 4,
        base_slice_ns: 2_100_000,
        switch_ns: 60_000,
        exit_ns: 9_000,
        compute_ns: 400_000,
        lock_ns: 12_000,
        unmap_ns: 400_000,
        call_one_ns: 300_000,
        call_all_ns: 500_000,
    };

    #[test]
    fn what_is_written_is_a_host_and_a_scenario_that_the_simulator_takes() {
        for pv in [Pv::On, Pv::Off] {
            let scenario = parse("model", &scenario(&COSTS, pv), &Overrides::default()).expect("a scenario");
            let config = scenario.config;
            assert_eq!((config.host.pcpus, config.vms.len(), config.vms[0].workloads.len()), (4, 2, 6));
        }
    }

    #[test]
    fn the_loads_are_those_of_the_guests_program() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testbed/guest");
        let source = ["loads.h", "loads.c"]
            .map(|file| std::fs::read_to_string(format!("{folder}/{file}")).expect("part of the tree"))
            .concat();
        let defined = |name: &str| {
            let line = source.lines().find_map(|line| line.strip_prefix(&format!("#define {name} ")));
            line.expect("a number").trim_end_matches('L').parse::<u64>().expect("a number")
        };
        assert_eq!(defined("COLLECTOR_PAUSE_NS"), COLLECTOR_PAUSE_MS * 1_000_000);
        assert_eq!(defined("LOCKS_PER_LOCKING_ROUND"), u64::from(LOCKS_PER_ROUND));
        assert_eq!(defined("COMPUTE_ITERATIONS"), defined("WORKER_ITERATIONS") * HOG_ROUNDS);
        assert_eq!(defined("WORKER_ITERATIONS") as f64, ITERATIONS);
    }

    #[test]
    fn a_table_in_place_says_what_the_file_says() {
        assert_eq!(in_place("a = 1\n\n[b]\nc = 2\nd = 3\n"), "a = 1, b = { c = 2, d = 3 }");
    }
}
