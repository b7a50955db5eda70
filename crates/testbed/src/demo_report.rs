//! The demo's outcome as a table for people and as JSON for scripts.

use crate::demo::{Phase, Plan, Scheduler};
use crate::guest::Pv;
use crate::measure::Measurement;
use microslice_metrics::table::Table;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// `{"phases": [{"name", "scheduler", "micro_cpus", "pv", "vms": […], "accelerations",
/// "acceleration_returns", "preemptions", …}]}`; what a phase doesn't have (the kernel's own scheduler
/// accelerates nobody) is zero or empty.
pub fn to_json(phases: &[Phase]) -> Value {
    json!({ "phases": phases.iter().map(phase_json).collect::<Vec<_>>() })
}

pub(crate) fn phase_json(phase: &Phase) -> Value {
    let count = |path: &str| phase.statistics.as_ref().and_then(|all| all.pointer(path)).cloned();
    json!({
        "name": format!("{}, {}", phase.scheduler.name(), phase.round.name()),
        "scheduler": match phase.scheduler {
            Scheduler::Kernel | Scheduler::Observed | Scheduler::Alone => "kernel",
            Scheduler::Peer(peer) => peer.program(),
            Scheduler::Coordinated => "coordinated",
            Scheduler::Beside => "beside",
            _ => "microslice",
        },
        "micro_cpus": match phase.scheduler {
            Scheduler::Static(count) | Scheduler::StaticPaper(count) => json!(count),
            Scheduler::Auto => json!("auto"),
            _ => Value::Null,
        },
        "pv": if phase.round.pv == Pv::On { "on" } else { "off" },
        "pause_exits": phase.round.pause_exits,
        "seconds": phase.seconds,
        "vms": phase
            .vms
            .iter()
            .zip(&phase.cpus)
            .map(|((name, vm), cpus)| vm_json(name, vm, *cpus))
            .collect::<Vec<_>>(),
        "accelerations": {
            "by_cause": count("/accelerations/by_cause").unwrap_or(json!({})),
            "by_class": count("/accelerations/by_class").unwrap_or(json!({})),
        },
        "urgent_requests": count("/urgent_requests").unwrap_or(json!({})),
        "urgent_slices": count("/urgent_slices").unwrap_or(json!(0)),
        "acceleration_returns": count("/acceleration_returns/total").unwrap_or(json!(0)),
        "preemptions": { "by_class": count("/preemptions/by_class").unwrap_or(json!({})) },
        "host": {
            "context_switches": phase.context_switches,
            "context_switches_per_work": phase.switches_per_work(),
        },
    })
}

fn vm_json(name: &str, vm: &Measurement, cpus: Option<f64>) -> Value {
    let latency = |kind: &str| vm.latency(kind).to_json();
    json!({
        "name": name,
        "cpus": cpus,
        "work_done": vm.work_done(),
        "work_per_second": vm.work_rate(),
        "shootdown_us": latency("shootdown"),
        "lock_us": latency("lock"),
        "wake_us": latency("wake"),
        "pingpong_us": latency("pingpong"),
    })
}

/// One table: a row per phase, ratios to the first phase with the same PV helpers in parentheses.
pub fn to_text(phases: &[Phase], plan: &Plan, emulated: bool) -> String {
    let mut table = Table::new(&[
        "guests",
        "scheduler",
        ">mix work/s",
        ">hog work/s",
        ">CPUs",
        ">shootdown p50",
        ">p99 ms",
        ">lock p99",
        ">wake p99",
        ">ping p50",
        ">jitter ms",
        ">accelerations",
        ">returns",
        ">switches/work",
    ]);
    for phase in phases {
        let first = phases.iter().find(|other| other.round == phase.round).unwrap_or(phase);
        table.row(row(phase, first));
    }
    let mut text = format!("{table}\n");
    for phase in phases.iter().filter(|phase| phase.statistics.is_some()) {
        text += &causes(phase);
    }
    text += &totals(phases);
    text += "\nIn parentheses: the ratio to the kernel's own scheduler with the same PV helpers. Latencies were measured\n\
             inside the guests, in ms; jitter is p99 - p50 of the ping-pong; CPUs are those that\n\
             mix and hog had, with their VMMs' own threads: where they differ, so does the work; switches are the host's context switches per\n\
             unit of guest work. \"paper\": recipients of call-function IPIs are accelerated only when the sender yields; there is no grace,\n\
             no patience, and no lending.\n";
    if emulated {
        text += &emulation_notes(plan);
    }
    text
}

fn emulation_notes(plan: &Plan) -> String {
    let Plan { dilation, slice_us, micro_slice_us, .. } = plan;
    let hardware_slice_ms = slice_us / u64::from(*dilation) / 1000;
    format!(
        "\nThis host is emulated, 20 to 50 times slower than hardware and on shared cores: timings are coarse and only ratios\n\
         within this run mean something. Everything takes longer here but slices, so slices are stretched: the normal ones of\n\
         all schedulers {dilation} times (ours are {hardware_slice_ms} ms on hardware), micro slices to {micro_slice_us} us. \
         The paper's 100 us\nwould be over before an emulated vCPU has entered its guest and answered an interrupt. PLE: the emulated \
         CPU exits at every\nPAUSE, not only after a loop of them; so guests with PLE show that path, and no load of real life. \
         On a KVM host with\nsched_ext, `microslice demo --here` runs the same phases at full speed with 100 us.\n"
    )
}

fn row(phase: &Phase, first: &Phase) -> Vec<String> {
    let vm = |phase: &Phase, at: usize| phase.vms.get(at).map(|(_, vm)| vm.clone()).unwrap_or_default();
    let (mix, mix_first, hog, hog_first) = (vm(phase, 0), vm(first, 0), vm(phase, 1), vm(first, 1));
    let ms = |kind: &str, percent: f64| {
        let of = |vm: &Measurement| vm.latency(kind).percentile_us(percent).map(|us| us / 1000.0);
        with_ratio(of(&mix), of(&mix_first))
    };
    let jitter = |vm: &Measurement| {
        let latency = vm.latency("pingpong");
        Some((latency.percentile_us(99.0)? - latency.percentile_us(50.0)?) / 1000.0)
    };
    let counted = |path: &str| {
        let count = phase.statistics.as_ref().and_then(|all| all.pointer(path)).and_then(Value::as_u64);
        count.map_or("-".to_owned(), |count| count.to_string())
    };
    vec![
        phase.round.name().into(),
        phase.scheduler.name(),
        with_ratio(Some(mix.work_rate()), Some(mix_first.work_rate())),
        with_ratio(Some(hog.work_rate()), Some(hog_first.work_rate())),
        phase.cpus.iter().map(|&cpus| cpus_text(cpus)).collect::<Vec<_>>().join(" "),
        ms("shootdown", 50.0),
        ms("shootdown", 99.0),
        ms("lock", 99.0),
        ms("wake", 99.0),
        ms("pingpong", 50.0),
        with_ratio(jitter(&mix), jitter(&mix_first)),
        counted("/accelerations/total"),
        counted("/acceleration_returns/total"),
        with_ratio(phase.switches_per_work(), first.switches_per_work()),
    ]
}

/// `-` where nobody knows.
pub fn cpus_text(cpus: Option<f64>) -> String {
    cpus.map_or("-".into(), |cpus| format!("{cpus:.2}"))
}

/// All phases together: which causes accelerated anything, and which didn't.
fn totals(phases: &[Phase]) -> String {
    let mut by_cause: BTreeMap<&str, u64> = BTreeMap::new();
    let objects =
        phases.iter().filter_map(|phase| phase.statistics.as_ref()?.pointer("/accelerations/by_cause"));
    for (cause, count) in objects.filter_map(Value::as_object).flatten() {
        *by_cause.entry(cause).or_default() += count.as_u64().unwrap_or(0);
    }
    let named: Vec<String> = by_cause.iter().map(|(cause, count)| format!("{cause} {count}")).collect();
    format!("all phases: {}\n", named.join(", "))
}

/// Accelerations of a phase by cause and by class, those that happened; or its urgent requests by scheme.
fn causes(phase: &Phase) -> String {
    let list = |path: &str| {
        let counts = phase.statistics.as_ref().and_then(|all| all.pointer(path)).and_then(Value::as_object);
        let named = counts.into_iter().flatten().filter(|(_, count)| count.as_u64() != Some(0));
        let named: Vec<String> = named.map(|(name, count)| format!("{name} {count}")).collect();
        if named.is_empty() { "none".to_owned() } else { named.join(", ") }
    };
    if phase.scheduler == Scheduler::Coordinated {
        return format!(
            "{}, {}: urgent requests: {}; ends: {}\n",
            phase.round.name(),
            phase.scheduler.name(),
            list("/urgent_requests"),
            list("/urgent_ends")
        );
    }
    format!(
        "{}, {}: accelerated by cause: {}; by class: {}\n",
        phase.round.name(),
        phase.scheduler.name(),
        list("/accelerations/by_cause"),
        list("/accelerations/by_class")
    )
}

fn with_ratio(value: Option<f64>, first: Option<f64>) -> String {
    match (value, first) {
        (Some(value), Some(first)) if first > 0.0 => format!("{} ({:.2}x)", short(value), value / first),
        (Some(value), _) => short(value),
        (None, _) => "-".into(),
    }
}

fn short(value: f64) -> String {
    match value {
        100.0.. => format!("{value:.0}"),
        0.1.. => format!("{value:.2}"),
        0.0 => "0".into(),
        _ => format!("{value:.4}"),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::demo::Round;

    fn phases() -> Vec<Phase> {
        let phase = |scheduler, statistics| Phase {
            scheduler,
            round: Round { pv: Pv::Off, pause_exits: false },
            vms: vec![("mix".into(), Measurement::default()), ("hog".into(), Measurement::default())],
            cpus: vec![Some(2.25), None],
            statistics,
            profile: None,
            context_switches: 10,
            seconds: 1.0,
        };
        let statistics = json!({
            "accelerations": {"total": 7, "by_cause": {"ipi": 7, "ple": 0}, "by_class": {"tlb_shootdown": 7}},
            "acceleration_returns": {"total": 7}, "preemptions": {"by_class": {"user": 3}},
        });
        vec![phase(Scheduler::Kernel, None), phase(Scheduler::Static(1), Some(statistics))]
    }

    #[test]
    fn boosts_are_accelerations() {
        let statistics = json!({
            "accelerations": {"total": 5, "by_cause": {"tlb_yield": 5}, "by_class": {"user": 5}},
            "acceleration_returns": {"total": 5},
        });
        let [first, _] = phases().try_into().expect("two phases");
        let phase = Phase { scheduler: Scheduler::Beside, statistics: Some(statistics), ..first };
        let json = phase_json(&phase);
        assert_eq!(
            (&json["accelerations"]["by_cause"]["tlb_yield"], &json["acceleration_returns"]),
            (&json!(5), &json!(5))
        );
        let text = to_text(&[phase], &plan(1), false);
        assert!(text.contains("beside: accelerated by cause: tlb_yield 5; by class: user 5"), "{text}");
    }

    pub(crate) fn plan(dilation: u32) -> Plan {
        Plan {
            seconds: 1,
            dilation,
            slice_us: 10_000 * u64::from(dilation),
            micro_slice_us: 100 * u64::from(dilation),
            urgent_slice_us: 500 * u64::from(dilation),
            urgent_allowance_us: 18_000 * u64::from(dilation),
            urgent_answer_us: 100 * u64::from(dilation),
            boost_percent: dilation,
            guest_kernel: String::new(),
            own_cgroups: true,
            microslice: String::new(),
            schedulers: Vec::new(),
            rounds: Vec::new(),
        }
    }

    #[test]
    fn json_has_the_same_keys_whichever_scheduler_runs() {
        let json = to_json(&phases());
        for phase in json["phases"].as_array().expect("phases") {
            for key in [
                "name",
                "scheduler",
                "micro_cpus",
                "pv",
                "vms",
                "accelerations",
                "acceleration_returns",
                "preemptions",
            ] {
                assert!(phase.get(key).is_some(), "{key} is missing in {phase}");
            }
            assert!(
                phase["accelerations"]["by_cause"].is_object()
                    && phase["preemptions"]["by_class"].is_object()
            );
        }
        assert_eq!(json["phases"][1]["accelerations"]["by_class"]["tlb_shootdown"], 7);
        assert_eq!(json["phases"][1]["acceleration_returns"], 7);
        assert_eq!(json["phases"][0]["vms"][0]["cpus"], 2.25);
        assert!(json["phases"][0]["vms"][1]["cpus"].is_null());
    }

    #[test]
    fn the_table_says_that_emulated_timings_are_coarse_and_lists_only_causes_that_happened() {
        let text = to_text(&phases(), &plan(10), true);
        assert!(text.contains("coarse") && text.contains("micro slices to 1000 us"), "{text}");
        assert!(text.contains("accelerated by cause: ipi 7; by class"), "{text}");
        assert!(text.contains(" 2.25 - "), "{text}");
        assert!(!to_text(&phases(), &plan(1), false).contains("coarse"));
    }
}
