//! Runs scenarios under policies and prints what calibration looks at: `explore SCENARIO POLICY... [--set
//! k=v] [--check]`.

use microslice_engine::report::{RunReport, VmReport};
use microslice_experiments::scenario::{Overrides, load};
use microslice_model::events::NoTrace;
use std::time::Instant;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let scenario = arguments.next().expect("a scenario");
    let (mut policies, mut settings, mut check) = (Vec::new(), Vec::new(), false);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--check" => check = true,
            "--set" => {
                let setting = arguments.next().expect("path=value");
                let (path, value) = setting.split_once('=').expect("path=value");
                settings.push((path.to_string(), value.to_string()));
            }
            _ => policies.push(argument),
        }
    }
    for policy in policies {
        let overrides = Overrides { policy: Some(policy.clone()), seed: None, settings: settings.clone() };
        let mut config = match load(&scenario, &overrides) {
            Ok(scenario) => scenario.config,
            Err(error) => return eprintln!("{error}"),
        };
        config.check = check;
        let start = Instant::now();
        match microslice_engine::simulate(&config, &mut NoTrace) {
            Ok(report) => {
                println!("== {scenario} {policy}: {}", of_host(&report, start.elapsed().as_secs_f64()));
                print_pool(&report);
                report.vms.iter().for_each(|vm| print_vm(vm, report.measured_ns as f64 / 1e9));
            }
            Err(error) => println!("{policy}: {error}"),
        }
    }
}

fn of_host(report: &RunReport, elapsed_s: f64) -> String {
    format!(
        "{} events, {:.1} M/s, {:.2} s; pcpu guest {:.3} overhead {:.3} idle {:.3} micro {:.2}",
        report.events,
        report.events as f64 / elapsed_s / 1e6,
        elapsed_s,
        report.pcpus.guest_ns as f64 / 1e9,
        report.pcpus.overhead_ns as f64 / 1e9,
        report.pcpus.idle_ns as f64 / 1e9,
        report.pool.mean_micro_pcpus,
    )
}

fn print_pool(report: &RunReport) {
    println!(
        "   accel {:?} returns {} full {} unfinished {}",
        report.pool.accelerations().filter(|&(_, _, count)| count > 0).collect::<Vec<_>>(),
        report.pool.returns,
        report.pool.failed_pulls().map(|(_, count)| count).sum::<u64>(),
        report.pool.slice_ended_unfinished
    );
}

fn print_vm(vm: &VmReport, seconds: f64) {
    let rates: Vec<_> = vm.workloads.iter().map(|w| format!("{} {:.1}/s", w.name, w.units_per_s)).collect();
    println!(
        "   {:9} {} run {:.3} wait {:.3} spin {:.3} shoot {:.3} switches/s {:.0} yields/s ple {:.0} ipi {:.0} halt {:.0} ipis/s {:.0}",
        vm.name,
        rates.join(" "),
        vm.run_ns as f64 / 1e9,
        vm.wait_ns as f64 / 1e9,
        vm.spin_ns as f64 / 1e9,
        vm.shootdown_spin_ns as f64 / 1e9,
        vm.context_switches as f64 / seconds,
        vm.yields.ple as f64 / seconds,
        vm.yields.ipi as f64 / seconds,
        vm.yields.halt as f64 / seconds,
        vm.ipis_sent as f64 / seconds,
    );
    print_shootdowns(vm, seconds);
    print_locks(vm, seconds);
    print_network(vm);
}

fn us(ns: Option<f64>) -> f64 {
    ns.unwrap_or(0.0) / 1e3
}

fn print_shootdowns(vm: &VmReport, seconds: f64) {
    if vm.tlb_sync.count() > 0 {
        let sync = &vm.tlb_sync;
        println!(
            "     tlb sync/s {:.0} avg {:.1} min {:.1} max {:.0} p50 {:.1} p99 {:.0} us",
            sync.count() as f64 / seconds,
            us(sync.mean()),
            us(sync.min().map(|x| x as f64)),
            us(sync.max().map(|x| x as f64)),
            us(sync.percentile(50.0).map(|x| x as f64)),
            us(sync.percentile(99.0).map(|x| x as f64)),
        );
    }
}

fn print_locks(vm: &VmReport, seconds: f64) {
    for (name, waits) in &vm.lock_waits {
        let all = vm.lock_acquisitions[name];
        println!(
            "     lock {name:15} {:8.0}/s contended {:.4} wait avg {:.2} max {:.0} us, by lockstat {:.2}",
            all as f64 / seconds,
            waits.count() as f64 / all as f64,
            us(waits.mean()),
            us(waits.max().map(|x| x as f64)),
            us(vm.lockstat_waits[name].mean())
        );
    }
}

fn print_network(vm: &VmReport) {
    if let Some(net) = &vm.network {
        println!(
            "     net {:.1} Mbit/s jitter {:.4} ms packets {} dropped {} irq avg {:.1} us",
            net.throughput_mbps,
            net.jitter_ms,
            net.packets,
            net.dropped,
            us(net.irq_latency.mean())
        );
    }
}
