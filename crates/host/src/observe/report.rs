//! What was seen in an interval, or in all: one JSON object, or one screenful.

use crate::bpf::counters::add_up;
use crate::bpf::hooks::Hooks;
use crate::bpf::recursion_misses::RecursionMisses;
use crate::interface::WaitStats;
use crate::observe::crowd::Crowd;
use crate::observe::figures::{VcpuFigures, VmFigures};
use crate::observe::long_waits::{self, LongestWait};
use crate::observe::{judgement, page};
use crate::output::words::{merge, named, names};
use microslice_metrics::profile::HostProfile;
use microslice_metrics::table::Table;
use microslice_metrics::{Histogram, Unit};
use microslice_policy::{GuestClass, InterruptKind};
use serde_json::{Value, json};

/// One VM's part of a report.
#[derive(Debug, Clone)]
pub struct VmReport {
    pub name: String,
    /// libvirt's, if it is one of its domains.
    pub uuid: Option<String>,
    pub pid: u32,
    /// Where the kernel side keeps it, and which of those that ever were there it is.
    pub slot: u32,
    pub generation: u32,
    pub kernel: Option<String>,
    /// The state of its guest's symbols, in one phrase.
    pub state: String,
    /// True if the classes of its guest's code are known.
    pub has_classes: bool,
    pub is_gone: bool,
    /// By which it shares the host with the other VMs, after all levels of cgroups: 100 each, if all are
    /// alike.
    pub weight: u32,
    /// Numbers of the pCPUs where its vCPUs may run; empty: all, or unknown (only the last report has
    /// it).
    pub affinity: Vec<u32>,
    /// Functions in which holders were stopped that symbols don't find, and how often; the most frequent
    /// ones (only the last report has them).
    pub missed: Vec<(String, u64)>,
    pub figures: VmFigures,
}

impl VmReport {
    pub fn is_same(&self, other: &Self) -> bool {
        (self.slot, self.generation) == (other.slot, other.generation)
    }

    /// One line in plain words.
    pub fn judgement(&self, seconds: f64) -> String {
        judgement::judge(self, seconds)
    }
}

/// A report of an interval, or of all that was seen.
#[derive(Debug, Clone, Default)]
pub struct Report {
    pub is_final: bool,
    /// Seconds that it covers.
    pub seconds: f64,
    pub vms: Vec<VmReport>,
    /// By what KVM is seen.
    pub hooks: Hooks,
    /// Runs of BPF programs that the kernel left out.
    pub recursion_misses: RecursionMisses,
    /// The cost of its BPF programs, if that is measured: `program_costs::of_object`.
    pub programs: Option<Value>,
    /// The host, in the last report only.
    pub host: Option<HostProfile>,
    /// The NUMA node of each online pCPU, in the last report only.
    pub nodes: Vec<u32>,
}

impl Report {
    /// Returns the report of the time since `before`. VMs that had gone by then aren't in it.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let mut interval = self.clone();
        interval.seconds -= before.seconds;
        interval.recursion_misses = self.recursion_misses.since(&before.recursion_misses);
        interval.vms.retain(|vm| !before.vms.iter().any(|old| old.is_gone && old.is_same(vm)));
        for vm in &mut interval.vms {
            if let Some(old) = before.vms.iter().find(|old| old.is_same(vm)) {
                vm.figures = vm.figures.since(&old.figures);
            }
        }
        interval
    }

    pub fn to_json(&self) -> Value {
        let vms: Vec<Value> = self.vms.iter().map(|vm| self.vm_json(vm)).collect();
        let mut object = json!({
            "observer": "observe",
            "final": self.is_final,
            "seconds": self.seconds,
            "sees_interrupts": self.hooks.sees_interrupts(),
            "hooks": self.hooks.to_json(),
            "vms": vms,
            "program_runs_left_out": self.recursion_misses.to_json(),
        });
        if let Some(programs) = &self.programs {
            merge(&mut object, json!({ "programs": programs }));
        }
        if let Some(crowd) = Crowd::of(self) {
            merge(&mut object, json!({ "overcommit": crowd.to_json() }));
        }
        object
    }

    fn vm_json(&self, vm: &VmReport) -> Value {
        let figures = &vm.figures;
        let waits = |waits: &WaitStats| waits_json(waits);
        let by_kind: serde_json::Map<String, Value> = names::<InterruptKind>()
            .zip(&figures.interrupt_waits)
            .map(|(kind, of_kind)| (kind.to_owned(), waits(of_kind)))
            .collect();
        json!({
            "name": vm.name,
            "uuid": vm.uuid,
            "pid": vm.pid,
            "kernel": vm.kernel,
            "state": vm.state,
            "classes_are_known": vm.has_classes,
            "gone": vm.is_gone,
            "judgement": vm.judgement(self.seconds),
            "ready_percent": figures.ready_percent(),
            "ready_time_ns": figures.total(|vcpu| vcpu.ready_ns),
            "rested_percent": figures.rested_percent(),
            "rested_time_ns": figures.rested_ns(),
            "limited_by": figures.stalls.limited_by(),
            "paused_percent": figures.paused_percent(),
            "paused_time_ns": figures.stalls.paused_ns,
            "skew_percent": figures.skew_percent(),
            "skew_time_ns": figures.skew_ns(),
            "longest_wait": figures.long_waits.longest().map(LongestWait::to_json),
            "longest_wait_lately": figures.long_waits.lately().as_ref().map(LongestWait::to_json),
            "weight": vm.weight,
            "vmm_time_ns": figures.helpers.vmm_ns,
            "vhost_time_ns": figures.helpers.vhost_ns,
            "pit_time_ns": figures.helpers.pit_ns,
            "cpu_time_ns": figures.total(|vcpu| vcpu.ran_ns),
            "steal_percent": figures.steal_percent(),
            "wait_to_run_ns": waits(&figures.waits()),
            "preemptions": {
                "total": add_up(&figures.turns_ended()),
                "by_class": named(names::<GuestClass>(), &figures.turns_ended()),
            },
            "holders": figures.stops.to_json(),
            "missed_holders": missed_json(&vm.missed),
            "answers_owed": figures.total(|vcpu| vcpu.turns_ended_owing),
            "yields": {"ple": add_up(&figures.spins()), "hlt": figures.total(|vcpu| vcpu.halts)},
            "ipis": figures.ipis(),
            "virqs": figures.virqs(),
            "spins": named(names::<GuestClass>(), &figures.spins()),
            "halts": figures.total(|vcpu| vcpu.halts),
            "lock_halts": figures.total(|vcpu| vcpu.lock_halts),
            "directed_yields": figures.total(|vcpu| vcpu.directed_yields),
            "preempted_shootdown_wait_ns": waits(&figures.shootdowns),
            "interrupts": named(names::<InterruptKind>(), &figures.interrupts),
            "interrupt_wait_ns": by_kind,
            "vcpus": figures.vcpus.iter().map(vcpu_json).collect::<Vec<_>>(),
        })
    }

    pub fn to_text(&self) -> String {
        let span = if self.is_final { "all that was seen" } else { "last interval" };
        let mut text = format!("{span}: {:.1} s\n\n", self.seconds);
        if self.vms.is_empty() {
            text.push_str("no VM was seen\n");
            return text;
        }
        for table in [self.wait_table(), self.place_table(), self.loss_table(), self.vcpu_table()] {
            text.push_str(&table.to_string());
            text.push('\n');
        }
        text.extend(Crowd::of(self).map(|crowd| crowd.line()));
        self.vms.iter().for_each(|vm| text.push_str(&format!("{}\n", vm.judgement(self.seconds))));
        text.extend(self.vms.iter().filter_map(missed_line));
        text.push_str(&self.recursion_misses.line());
        for program in self.programs.iter().flat_map(|programs| programs.as_array().into_iter().flatten()) {
            let of = |key: &str| program[key].as_u64().unwrap_or(0);
            if let Some(each) = of("ns").checked_div(of("runs")) {
                let name = program["program"].as_str().unwrap_or_default();
                text.push_str(&format!("{name:16}{} runs, {each} ns each\n", of("runs")));
            }
        }
        text
    }

    /// One line for each VM.
    pub fn to_lines(&self) -> String {
        self.vms.iter().map(|vm| format!("{}\n", vm.judgement(self.seconds))).collect()
    }

    /// A page for a browser.
    pub fn to_html(&self) -> String {
        page::of(self)
    }

    pub(super) fn wait_table(&self) -> Table {
        let mut table = Table::new(&[
            "vm",
            ">pid",
            ">vcpus",
            ">pCPUs had",
            ">ready",
            ">limited",
            ">paused",
            ">skew",
            ">steal",
            ">waits/s",
            ">p50",
            ">p99",
            ">max",
            "guest",
        ]);
        for vm in &self.vms {
            let (figures, waits) = (&vm.figures, vm.figures.waits());
            let [p50, p99, max] = shown(&waits);
            table.row([
                vm.name.clone(),
                vm.pid.to_string(),
                figures.vcpus.len().to_string(),
                format!("{:.2}", figures.total(|vcpu| vcpu.ran_ns) as f64 / 1e9 / self.seconds),
                percent(figures.ready_percent()),
                percent(figures.rested_percent()),
                percent(figures.paused_percent()),
                percent(figures.skew_percent()),
                figures.steal_percent().map_or("-".into(), percent),
                self.rate(waits.count()),
                p50,
                p99,
                max,
                guest_of(vm),
            ]);
        }
        table
    }

    /// What each VM has beside the time of its vCPUs, and its longest wait.
    pub(super) fn place_table(&self) -> Table {
        let mut table = Table::new(&[
            "vm",
            ">weight",
            ">VMM",
            ">vhost",
            ">kvm-pit",
            ">longest wait",
            "began",
            "meanwhile ran",
            ">for",
        ]);
        for vm in &self.vms {
            let (helpers, longest) = (&vm.figures.helpers, vm.figures.long_waits.longest());
            let of_a_cpu = |ns: u64| percent(ns as f64 / vm.figures.seen_ns().max(1) as f64 * 100.0);
            let of_wait = |of: &dyn Fn(&LongestWait) -> String| longest.map_or("-".into(), of);
            table.row([
                vm.name.clone(),
                vm.weight.to_string(),
                of_a_cpu(helpers.vmm_ns),
                of_a_cpu(helpers.vhost_ns),
                of_a_cpu(helpers.pit_ns),
                of_wait(&|wait| long_waits::shown(wait.length_ns)),
                of_wait(&LongestWait::time),
                of_wait(&LongestWait::runner),
                of_wait(&|wait| wait.behind.as_ref().map_or("-".into(), |(_, _, ns)| long_waits::shown(*ns))),
            ]);
        }
        table
    }

    pub(super) fn loss_table(&self) -> Table {
        let mut table = Table::new(&[
            "vm",
            ">turns ended/s",
            ">critical",
            ">lock held",
            ">answer owed",
            ">shootdowns/s",
            ">p99",
            ">interrupts/s",
            ">waited/s",
            ">p99",
            ">spins/s",
            ">halts/s",
            ">lock halts/s",
        ]);
        for vm in &self.vms {
            let figures = &vm.figures;
            let ended = figures.turns_ended();
            let seen = |is_seen, count: u64| if is_seen { self.rate(count) } else { "-".into() };
            let of_class = |count: u64| if vm.has_classes { self.rate(count) } else { "unknown".into() };
            let sent = figures.sent_interrupt_waits();
            table.row([
                vm.name.clone(),
                self.rate(add_up(&ended)),
                of_class(judgement::critical(&ended)),
                match figures.stops.known() {
                    0 => of_class(ended[GuestClass::LockHolder as usize]),
                    _ => format!("{} by count", self.rate(figures.stops.holding())),
                },
                self.rate(figures.total(|vcpu| vcpu.turns_ended_owing)),
                self.rate(figures.shootdowns.count()),
                shown(&figures.shootdowns)[1].clone(),
                self.rate(add_up(&figures.interrupts)),
                self.rate(sent.count()),
                shown(&sent)[1].clone(),
                seen(self.hooks.sees_spins(), add_up(&figures.spins())),
                self.rate(figures.total(|vcpu| vcpu.halts)),
                seen(self.hooks.sees_exits(), figures.total(|vcpu| vcpu.lock_halts)),
            ]);
        }
        table
    }

    pub(super) fn vcpu_table(&self) -> Table {
        let columns = [
            "vm",
            ">vcpu",
            ">tid",
            ">ran",
            ">ready",
            ">steal",
            ">waits/s",
            ">p50",
            ">p99",
            ">max",
            ">turns ended/s",
        ];
        let mut table = Table::new(&columns);
        for vm in &self.vms {
            for vcpu in &vm.figures.vcpus {
                let [p50, p99, max] = shown(&vcpu.waits);
                let part = |ns: u64| ns as f64 / vcpu.observed_ns.max(1) as f64 * 100.0;
                table.row([
                    vm.name.clone(),
                    vcpu.id.to_string(),
                    vcpu.tid.to_string(),
                    format!("{:.1} %", part(vcpu.ran_ns)),
                    format!("{:.1} %", vcpu.ready_percent()),
                    vcpu.steal_ns.map_or("-".into(), |steal| format!("{:.1} %", part(steal))),
                    self.rate(vcpu.waits.count()),
                    p50,
                    p99,
                    max,
                    self.rate(add_up(&vcpu.turns_ended)),
                ]);
            }
        }
        table
    }

    fn rate(&self, count: u64) -> String {
        judgement::a_second(count, self.seconds)
    }
}

fn percent(of: f64) -> String {
    format!("{of:.1} %")
}

fn missed_json(missed: &[(String, u64)]) -> Vec<Value> {
    missed.iter().map(|(function, count)| json!({"function": function, "stops": count})).collect()
}

fn missed_line(vm: &VmReport) -> Option<String> {
    let functions: Vec<_> = vm.missed.iter().map(|(function, count)| format!("{function} {count}")).collect();
    let shown = (!functions.is_empty()).then(|| functions.join(", "))?;
    Some(format!("{}: symbols miss holders in {shown}\n", vm.name))
}

fn guest_of(vm: &VmReport) -> String {
    let gone = if vm.is_gone { "gone; " } else { "" };
    match &vm.kernel {
        Some(kernel) => format!("{gone}{kernel}, {}", vm.state),
        None => format!("{gone}{}", vm.state),
    }
}

/// Median, 99th percentile and the longest.
fn shown(waits: &WaitStats) -> [String; 3] {
    let longest = (waits.max_ns > 0).then_some(waits.max_ns);
    [waits.percentile_ns(50.0), waits.percentile_ns(99.0), longest]
        .map(|ns| ns.map_or("-".into(), |ns| Unit::Nanoseconds.show(ns as f64)))
}

/// As all histograms, but with the exact sum and the longest.
fn waits_json(waits: &WaitStats) -> Value {
    let histogram: Histogram = waits.histogram();
    let mut object = json!(histogram);
    merge(&mut object, json!({"sum": waits.total_ns, "max": waits.max_ns}));
    object
}

fn vcpu_json(vcpu: &VcpuFigures) -> Value {
    json!({
        "vcpu": vcpu.id,
        "tid": vcpu.tid,
        "observed_ns": vcpu.observed_ns,
        "cpu_time_ns": vcpu.ran_ns,
        "ready_time_ns": vcpu.ready_ns,
        "ready_percent": vcpu.ready_percent(),
        "steal_time_ns": vcpu.steal_ns,
        "wait_to_run_ns": waits_json(&vcpu.waits),
        "preemptions": {
            "total": add_up(&vcpu.turns_ended),
            "by_class": named(names::<GuestClass>(), &vcpu.turns_ended),
        },
        "answers_owed": vcpu.turns_ended_owing,
        "spins": add_up(&vcpu.spins),
        "halts": vcpu.halts,
        "lock_halts": vcpu.lock_halts,
        "directed_yields": vcpu.directed_yields,
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::interface::KvmVendor;
    use crate::interface::LongWait;
    use crate::observe::{HelperTimes, LongWaits, Stalls};
    use crate::output::holders::Stops;
    use microslice_policy::Coded;
    use zerocopy::FromZeros;

    /// One vCPU that was ready for 140 ms of a second, and 106 shootdowns of 9 ms each half a second.
    pub(crate) fn report(has_classes: bool) -> Report {
        let mut turns_ended = [0; GuestClass::ALL.len()];
        turns_ended[GuestClass::User as usize] = 30;
        turns_ended[GuestClass::LockHolder as usize] = 10;
        let mut shootdowns =
            WaitStats { total_ns: 106 * 9_000_000, max_ns: 9_000_000, ..WaitStats::new_zeroed() };
        shootdowns.counts[48] = 212;
        let vcpu = VcpuFigures {
            id: 0,
            tid: 8,
            observed_ns: 1_000_000_000,
            ran_ns: 500_000_000,
            ready_ns: 140_000_000,
            waiting_ns: 0,
            waits: WaitStats::new_zeroed(),
            longest: LongWait::new_zeroed(),
            turns_ended,
            turns_ended_owing: 4,
            spins: [0; GuestClass::ALL.len()],
            halts: 3,
            lock_halts: 1,
            directed_yields: 0,
            steal_ns: None,
        };
        let figures = VmFigures {
            vcpus: vec![vcpu],
            stops: Stops::default(),
            interrupts: [5; 5],
            interrupt_waits: [WaitStats::new_zeroed(); 5],
            shootdowns,
            stalls: Stalls::default(),
            long_waits: LongWaits::default(),
            helpers: HelperTimes::default(),
        };
        let vm = VmReport {
            name: "<web>".into(),
            uuid: None,
            pid: 7,
            slot: 3,
            generation: 1,
            kernel: None,
            state: "slide 0x0".into(),
            has_classes,
            is_gone: false,
            weight: 100,
            affinity: vec![],
            missed: vec![("futex_wait_setup".into(), 7), ("memcpy".into(), 2)],
            figures,
        };
        Report {
            is_final: true,
            seconds: 1.0,
            vms: vec![vm],
            hooks: Hooks::default(),
            recursion_misses: RecursionMisses::default(),
            programs: None,
            host: None,
            nodes: vec![],
        }
    }

    #[test]
    fn the_judgement_says_in_words_what_a_vm_loses() {
        assert_eq!(
            report(true).vms[0].judgement(1.0),
            "<web>: 14 % ready, which is much; 212 shootdowns a second wait 9 ms p99 for preempted vCPUs; \
             10 turns a second (25 %) end in critical code, 10 holding a lock"
        );
        assert!(!report(false).vms[0].judgement(1.0).contains("critical"));
    }

    fn stalled(throttled_ns: u64, paused_ns: u64) -> VmReport {
        let mut vm = report(false).vms.remove(0);
        vm.figures.shootdowns = WaitStats::new_zeroed();
        let by_cgroup = [("machine.slice/a.scope".into(), throttled_ns)].into();
        vm.figures.stalls = Stalls { throttled_ns, by_cgroup, paused_ns };
        vm
    }

    #[test]
    fn the_judgement_tells_limited_from_contended() {
        assert_eq!(
            stalled(120_000_000, 0).judgement(1.0),
            "<web>: 14 % ready: 12 % limited by cpu.max of machine.slice/a.scope, which no scheduler changes, \
             and 2 % contended"
        );
        assert!(stalled(20_000_000, 0).judgement(1.0).ends_with("and 12 % contended, which is much"));
        assert_eq!(stalled(900_000, 0).judgement(1.0), "<web>: 14 % ready, which is much");
        let json = Report { vms: vec![stalled(900_000_000, 0)], ..report(true) }.to_json();
        let vm = &json["vms"][0];
        assert_eq!(
            (&vm["rested_time_ns"], &vm["limited_by"]),
            (&json!(140_000_000), &json!("machine.slice/a.scope"))
        );
    }

    #[test]
    fn the_judgement_says_that_a_vm_was_paused() {
        let judgement = stalled(0, 300_000_000).judgement(1.0);
        assert!(judgement.ends_with("; its VMM had it paused for 300 ms"), "{judgement}");
        assert!(!stalled(0, 0).judgement(1.0).contains("paused"));
    }

    #[test]
    fn a_pinned_vm_that_waits_is_said_to_be_pinned() {
        let pinned = VmReport { affinity: vec![0, 1], ..stalled(0, 0) };
        assert!(pinned.judgement(1.0).ends_with("; it may run on 2 of the host's pCPUs only"));
    }

    #[test]
    fn without_symbols_classes_are_unknown_and_all_else_is_there() {
        let text = report(false).to_text();
        assert!(text.contains("unknown") && text.contains("14.0 %") && text.contains("9 ms"), "{text}");
        assert!(!report(true).to_text().contains("unknown"));
    }

    #[test]
    fn functions_in_which_symbols_miss_holders_are_named() {
        let report = report(true);
        assert!(report.to_text().contains("symbols miss holders in futex_wait_setup 7, memcpy 2\n"));
        let missed = &report.to_json()["vms"][0]["missed_holders"];
        assert_eq!(missed[0], json!({"function": "futex_wait_setup", "stops": 7}));
    }

    #[test]
    fn what_nobody_can_see_is_a_dash() {
        let hooks = Hooks::choose(KvmVendor::Other, Some("refused".into()), false);
        let report = Report { hooks, ..report(true) };
        let text = report.to_text();
        let losses = text.lines().filter(|line| line.starts_with("<web>")).nth(1).unwrap();
        let row: Vec<_> = losses.split_whitespace().collect();
        assert_eq!((row[row.len() - 3], row[row.len() - 1]), ("-", "-"), "{text}");
        assert_eq!(report.to_json()["hooks"]["unseen"], json!(["lock_halts", "polled_halts", "spins"]));
    }

    #[test]
    fn json_names_classes_and_kinds_and_unknown_steal_is_null() {
        let json = report(true).to_json();
        let vm = &json["vms"][0];
        assert_eq!((&vm["preemptions"]["total"], &vm["answers_owed"]), (&json!(40), &json!(4)));
        assert_eq!(vm["preemptions"]["by_class"]["lock_holder"], 10);
        assert_eq!(vm["preempted_shootdown_wait_ns"]["count"], 212);
        assert_eq!((&vm["steal_percent"], &vm["vcpus"][0]["steal_time_ns"]), (&Value::Null, &Value::Null));
    }

    #[test]
    fn a_page_has_every_vm_and_none_of_their_markup() {
        let html = report(true).to_html();
        assert!(html.contains("&lt;web&gt;: 14 % ready") && !html.contains("<web>"), "{html}");
        assert_eq!(html.matches("<svg").count(), 2);
    }

    #[test]
    fn vms_of_one_process_are_told_apart() {
        let mut now = report(true);
        now.vms.push(VmReport { slot: 4, ..now.vms[0].clone() });
        let cpu_time = |report: Report| report.to_json()["vms"][1]["cpu_time_ns"].clone();
        assert_eq!(cpu_time(now.since(&report(true))), 500_000_000, "it came since");
        assert_eq!(cpu_time(now.since(&now)), 0);
    }

    #[test]
    fn an_interval_leaves_out_vms_that_had_gone_before_it() {
        let mut before = report(true);
        let now = report(true);
        assert_eq!(now.since(&before).to_json()["vms"][0]["cpu_time_ns"], 0);
        before.vms[0].is_gone = true;
        assert_eq!(now.since(&before).vms.len(), 0);
        assert!(now.since(&before).to_text().contains("no VM was seen"));
    }
}
