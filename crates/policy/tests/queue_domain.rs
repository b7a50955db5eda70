//! Queue domains: in which queue a vCPU waits, and when a pCPU looks into another domain's.

use microslice_policy::queue_domain::*;
use microslice_policy::{
    ElsewhereObservation, FairShareConfig, QueueDomain, QueueObservation, charge, vcpu_weight,
};
use proptest::prelude::*;

const SLICE_NS: u64 = 10_000_000;

fn elsewhere(own: Option<u64>, first_vtime_ns: u64, own_weight: u64) -> bool {
    let config = FairShareConfig::with_slice(SLICE_NS);
    let seen = ElsewhereObservation {
        first_vtime_ns,
        own_vtime_ns: own.unwrap_or(0),
        own_weight,
        has_own: own.is_some().into(),
        reserved: 0,
    };
    decide_on_elsewhere(&config, &seen)
}

#[test]
fn a_pcpu_is_in_its_own_domain_its_caches_or_the_hosts() {
    let of = |domain: QueueDomain| domain.of_pcpu(5, 1);
    assert_eq!([QueueDomain::Pcpu, QueueDomain::Llc, QueueDomain::Host].map(of), [5, 1, 0]);
}

#[test]
fn who_has_nobody_to_run_takes_anybody_from_any_domain() {
    assert!(elsewhere(None, u64::MAX / 2, 1));
    assert_eq!(domains_to_look_at(64, false), 63);
    assert_eq!(domains_to_look_at(64, true), 4);
    assert_eq!(
        [domains_to_look_at(3, true), domains_to_look_at(1, false), domains_to_look_at(0, false)],
        [2, 0, 0]
    );
}

proptest! {
    #[test]
    fn the_confined_share_no_queue_with_others_nor_with_those_of_another_pcpu(
        pcpu in 0..256u32, other in 0..256u32, llc_pcpus in 1..64u32, kind in 0..3usize,
    ) {
        let kind = [QueueDomain::Pcpu, QueueDomain::Llc, QueueDomain::Host][kind];
        let domain = |pcpu: u32| kind.of_pcpu(pcpu, pcpu / llc_pcpus);
        let domain_count = (0..256).map(domain).max().unwrap_or(0) + 1;
        let queue = |pcpu: u32, is_confined: bool| {
            let is_confined = is_confined.into();
            queue_to_join(&QueueObservation { domain_count, domain: domain(pcpu), pcpu, is_confined })
        };
        prop_assert_eq!(queue(pcpu, false), domain(pcpu));
        prop_assert_ne!(queue(pcpu, true), queue(other, false));
        prop_assert_eq!(queue(pcpu, true) == queue(other, true), pcpu == other);
    }

    #[test]
    fn another_domains_first_runs_here_only_if_the_own_one_is_more_than_a_slice_ahead(
        first in any::<u64>(), weight in 1..10_000u32, ahead_ns in 0..20 * SLICE_NS,
    ) {
        let weight = vcpu_weight(weight, 1);
        let slice = charge(SLICE_NS, weight);
        let own = |ahead: u64| Some(first.wrapping_add(ahead));
        prop_assert!(!elsewhere(own(slice), first, weight));
        prop_assert!(elsewhere(own(slice + 1), first, weight));
        prop_assert!(!elsewhere(own(ahead_ns.wrapping_neg()), first, weight), "it is behind itself");
    }
}
