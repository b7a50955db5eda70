//! What the paper's prototype does otherwise, event by event.

use super::Recorder;
use crate::common::{scenario, with_rules};
use microslice_engine::simulate;
use microslice_model::config::*;
use microslice_model::events::{IpiKind, StopReason, TraceEvent};
use microslice_model::ids::{PcpuId, VcpuId};
use microslice_policy::{Cause, GuestClass};
use std::collections::BTreeSet;

/// By the paper's rules, so that the host's mechanics are the only difference between `micro` and
/// `micro-xen`.
fn trace(name: &str, policy: &str) -> Vec<(u64, TraceEvent)> {
    trace_for(300 * MS, name, policy)
}

fn trace_for(duration_ns: u64, name: &str, policy: &str) -> Vec<(u64, TraceEvent)> {
    let mut recorder = Recorder::default();
    let mut config = scenario(name, policy, duration_ns);
    with_rules(&mut config, 0, false, 0);
    simulate(&config, &mut recorder).unwrap_or_else(|error| panic!("{error}"));
    recorder.0
}

/// pCPU 11 is the micro pool of `micro:1` and `micro-xen:1`.
const MICRO_PCPU: PcpuId = PcpuId::new(11);

#[test]
fn in_the_prototype_the_initiator_of_a_shootdown_never_yields() {
    let yields = |policy| {
        let gives_up = |event: &TraceEvent| matches!(event, TraceEvent::Stopping { reason: StopReason::IpiWait, pcpu, .. } if *pcpu != MICRO_PCPU);
        // Where yields count, they are rare all the same: Xen's rate limit delays most until the wait is
        // over.
        let trace = trace_for(1000 * MS, "dedup-swaptions", policy);
        trace.iter().filter(|(_, event)| gives_up(event)).count()
    };
    assert_eq!(yields("micro-xen:1"), 0);
    assert!(yields("micro:1") > 0);
}

#[test]
fn in_the_prototype_a_spinner_for_a_lock_never_yields() {
    let yields = |policy| {
        let gives_up = |event: &TraceEvent| matches!(event, TraceEvent::Stopping { reason: StopReason::Ple, pcpu, .. } if *pcpu != MICRO_PCPU);
        trace("exim-swaptions", policy).iter().filter(|(_, event)| gives_up(event)).count()
    };
    assert_eq!(yields("micro-xen:1"), 0);
    assert!(yields("micro:1") > 0);
}

#[test]
fn in_the_prototype_a_pass_begins_with_the_first_vcpu() {
    let share_of_first_half = |policy| {
        let (mut first, mut all) = (0, 0);
        for (_, event) in trace("dedup-swaptions", policy) {
            if let TraceEvent::Accelerated { vcpu, .. } = event {
                first += u32::from(vcpu < VcpuId::new(6));
                all += 1;
            }
        }
        f64::from(first) / f64::from(all)
    };
    assert!(share_of_first_half("micro-xen:1") > 0.65, "{}", share_of_first_half("micro-xen:1"));
    assert!((0.35..0.65).contains(&share_of_first_half("micro:1")), "{}", share_of_first_half("micro:1"));
}

#[test]
fn in_the_prototype_a_spinner_leaves_the_micro_pool() {
    let leaves = |event: &TraceEvent| {
        matches!(event, TraceEvent::Stopping { reason: StopReason::Ple, pcpu: MICRO_PCPU, .. })
    };
    assert!(trace("dedup-swaptions", "micro-xen:1").iter().any(|(_, event)| leaves(event)));
}

/// Accelerations for a shootdown of vCPUs that have answered and were stopped elsewhere than in critical
/// code.
fn needless_accelerations(policy: &str) -> usize {
    let mut owes = BTreeSet::new();
    let mut needless = 0;
    for (_, event) in trace("dedup-swaptions", policy) {
        match event {
            TraceEvent::IpiSent { to, kind: IpiKind::CallFunction, .. } => {
                owes.insert(to);
            }
            TraceEvent::IpiHandled { vcpu, kind: IpiKind::CallFunction } => {
                owes.remove(&vcpu);
            }
            TraceEvent::Accelerated { vcpu, cause: Cause::TlbYield, class, .. } => {
                let critical = [GuestClass::TlbShootdown, GuestClass::ReschedIpi, GuestClass::LockHolder];
                needless += usize::from(!owes.contains(&vcpu) && !critical.contains(&class));
            }
            _ => {}
        }
    }
    needless
}

#[test]
fn a_responder_that_has_answered_a_shootdown_is_not_accelerated_for_it_but_in_the_prototype() {
    assert_eq!(needless_accelerations("micro:1"), 0);
    assert!(needless_accelerations("micro-xen:1") > 100);
}
