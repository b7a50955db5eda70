//! A report as a screenful of text.

use crate::bpf::counters::add_up;
use crate::interface::VmStats;
use crate::output::holders::Stops;
use crate::run::report::delays;
use crate::run::report::{Report, micro, urgent};
use crate::settings::SchedulerChoice;
use microslice_metrics::Histogram;
use microslice_metrics::table::Table;
use microslice_policy::{Coded, GuestClass, InterruptKind, YieldCause};
use serde_json::Value;

impl Report {
    pub fn to_text(&self) -> String {
        let total = self.total();
        let span = if self.is_final { "whole run" } else { "last interval" };
        let mut text = match self.scheduler {
            SchedulerChoice::Microslice => format!("{span}: {:.1} s, {}\n\n", self.seconds, self.pool_line()),
            SchedulerChoice::Coordinated => format!("{span}: {:.1} s, urgent vCPUs first\n\n", self.seconds),
        };
        text.push_str(&self.vm_table().to_string());
        for vm in &self.vms {
            if !vm.cpu_limits.is_empty() {
                let rested = vm.stats.rested_ns as f64 / 1e9;
                text.push_str(&format!("{}: limited to {}, rested {rested:.1} s\n", vm.name, vm.cpu_limits));
            }
        }
        text.push('\n');
        text.push_str(&match self.scheduler {
            SchedulerChoice::Microslice => {
                let causes = micro::cause_table(&total, self.dry_run);
                format!("{causes}\n{}{}", class_lines(&total), micro::flow_lines(&total))
            }
            SchedulerChoice::Coordinated => urgent::lines(&total),
        });
        text.push_str(&delays::line(&total.delays));
        text.extend(Stops::of(&total).line());
        text.push_str(&self.recursion_misses.line());
        text.push_str(&self.programs.as_ref().map(program_table).unwrap_or_default());
        if let Some(exit) = &self.exit {
            text.push_str(&format!("ended by the kernel: {exit}\n"));
        }
        text
    }

    /// Micro-sliced pCPUs, and what they did.
    fn pool_line(&self) -> String {
        let mode = if self.dry_run { ", dry run: nothing is moved" } else { "" };
        let percent = |part: Option<f64>, word: &str| {
            part.map_or(String::new(), |part| format!(", {:.0} % {word}", part * 100.0))
        };
        let busy = percent(self.micro_cpus_busy(), "busy") + &percent(self.micro_cpus_lent(), "lent");
        format!(
            "{} micro-sliced pCPU{} ({:.2} on average{busy}){mode}",
            self.micro_cpus,
            if self.micro_cpus == 1 { "" } else { "s" },
            self.mean_micro_cpus(),
        )
    }

    fn vm_table(&self) -> Table {
        let [requests, served] = match self.scheduler {
            SchedulerChoice::Microslice => [">requests", ">accelerated"],
            SchedulerChoice::Coordinated => [">urgent", ">urgent slices"],
        };
        let mut table = Table::new(&[
            "vm",
            ">pid",
            ">vcpus",
            ">weight",
            ">share",
            ">due",
            ">wait p50",
            ">wait p99",
            ">preempted",
            requests,
            served,
            "guest",
        ]);
        for (vm, (received, due)) in self.vms.iter().zip(self.shares()) {
            let wait = Histogram::from_log2(&vm.stats.wait_to_run_us, 0);
            let us = |percent| wait.percentile(percent).map_or("-".into(), |us| format!("{us} us"));
            let accelerations = || vm.stats.accelerations.iter().map(|row| add_up(row)).sum();
            let [requests, served] = match self.scheduler {
                SchedulerChoice::Microslice => [add_up(&vm.stats.requests), accelerations()],
                SchedulerChoice::Coordinated => [vm.stats.urgent.became_urgent, vm.stats.urgent.slices],
            };
            table.row([
                vm.name.clone(),
                vm.pid.to_string(),
                vm.vcpu_count.to_string(),
                vm.weight.to_string(),
                format!("{:.1} %", received * 100.0),
                format!("{:.1} %", due * 100.0),
                us(50.0),
                us(99.0),
                add_up(&vm.stats.preemptions).to_string(),
                requests.to_string(),
                served.to_string(),
                match &vm.kernel {
                    Some(kernel) => format!("{kernel}, {}", vm.state),
                    None => vm.state.clone(),
                },
            ]);
        }
        table
    }
}

pub(crate) fn class_lines(total: &VmStats) -> String {
    let list = |names: &mut dyn Iterator<Item = (&str, u64)>| {
        let some: Vec<_> =
            names.filter(|(_, count)| *count > 0).map(|(name, count)| format!("{name} {count}")).collect();
        if some.is_empty() { "none".to_owned() } else { some.join(", ") }
    };
    let preempted =
        list(&mut GuestClass::ALL.iter().map(|class| class.name()).zip(total.preemptions.iter().copied()));
    let yields = list(
        &mut YieldCause::ALL.iter().map(|cause| cause.name()).zip(total.yields.iter().map(|row| add_up(row))),
    );
    let interrupts = list(
        &mut InterruptKind::ALL
            .iter()
            .map(|kind| kind.name())
            .zip(total.interrupts.iter().map(|row| add_up(row))),
    );
    format!("preempted in    {preempted}\nyields          {yields}\ninterrupts      {interrupts}\n")
}

/// Returns the table of what each BPF program cost. Programs that never ran are left out.
fn program_table(programs: &Value) -> String {
    let mut table = Table::new(&["BPF program", ">runs", ">ns/run", ">instructions verified"]);
    for program in programs.as_array().into_iter().flatten() {
        let number = |key: &str| program[key].as_u64().unwrap_or(0);
        let (runs, ns) = (number("runs"), number("ns"));
        if runs > 0 {
            let name = program["program"].as_str().unwrap_or_default().to_owned();
            let cells = [name, runs.to_string(), (ns / runs).to_string(), number("instructions").to_string()];
            table.row(cells.to_vec());
        }
    }
    format!("\n{table}")
}
