//! Queue domains: in which queue a vCPU waits, and when a pCPU looks into another domain's.

use microslice_policy::queue_domain::*;
use microslice_policy::{
    DomainRange, ElsewhereObservation, FairShareConfig, QueueDomain, QueueObservation, QueuePlace, charge,
    vcpu_weight,
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
fn a_pcpu_with_nothing_to_run_takes_any_task_from_any_domain() {
    assert!(elsewhere(None, u64::MAX / 2, 1));
    assert_eq!(domains_to_look_at(64, false), 63);
    assert_eq!(domains_to_look_at(64, true), 4);
    assert_eq!(
        [domains_to_look_at(3, true), domains_to_look_at(1, false), domains_to_look_at(0, false)],
        [2, 0, 0]
    );
}

#[test]
fn an_heir_goes_first_for_a_slice_after_the_last_look_into_other_domains() {
    let may_inherit =
        |domains, ago| may_inherit_without_a_look(&FairShareConfig::with_slice(SLICE_NS), domains, ago);
    assert!(may_inherit(2, SLICE_NS - 1) && !may_inherit(2, SLICE_NS));
    assert!(may_inherit(1, u64::MAX), "there are no others");
}

/// A host whose vCPUs always want to run, each of a VM of its own. Each pCPU chooses once in a round, for a
/// slice.
struct Model {
    domains: u32,
    /// Of each pCPU.
    domain: Vec<u32>,
    cursors: Vec<u32>,
    running: Vec<Option<usize>>,
    /// Of each domain: the vCPUs that wait there.
    waiting: Vec<Vec<usize>>,
    /// Of each vCPU.
    clocks: Vec<u64>,
    weights: Vec<u64>,
    /// Of each pCPU and each vCPU: how many turns in a row have begun there while the vCPU waited in another
    /// domain. Counted are turns of vCPUs that were ahead of it by more than a slice costs the one that the
    /// pCPU compared with.
    passed_over: Vec<Vec<u32>>,
}

impl Model {
    fn new(domains: u32, per_domain: u32, vcpus: &[(u32, u32)]) -> Self {
        let domain: Vec<u32> = (0..domains * per_domain).map(|pcpu| pcpu / per_domain).collect();
        let mut waiting = vec![Vec::new(); domains as usize];
        (0..).zip(vcpus).for_each(|(vcpu, (at, _))| waiting[(at % domains) as usize].push(vcpu));
        Self {
            domains,
            cursors: domain.clone(),
            running: vec![None; domain.len()],
            waiting,
            clocks: vec![0; vcpus.len()],
            weights: vcpus.iter().map(|&(_, weight)| vcpu_weight(weight, 1)).collect(),
            passed_over: vec![vec![0; vcpus.len()]; domain.len()],
            domain,
        }
    }

    fn first_of(&self, domain: u32) -> Option<usize> {
        self.waiting[domain as usize].iter().copied().min_by_key(|&vcpu| self.clocks[vcpu])
    }

    fn take(&mut self, vcpu: usize) {
        self.waiting.iter_mut().for_each(|waiting| waiting.retain(|&other| other != vcpu));
        self.passed_over.iter_mut().for_each(|passed| passed[vcpu] = 0);
    }

    fn place(&self, domain: u32) -> QueuePlace {
        let near = [(domain, domain + 1), (domain, domain + 1), (0, self.domains), (0, self.domains)];
        QueuePlace { domain, near: near.map(|(first, end)| DomainRange { first, end }) }
    }

    /// What `take_from_elsewhere` of both hosts does.
    fn take_from_elsewhere(&mut self, pcpu: usize, own: Option<usize>) -> Option<usize> {
        let looks = domains_to_look_at(self.domains, own.is_some());
        let Some(own) = own else {
            let place = self.place(self.domain[pcpu]);
            return (0..looks).find_map(|n| self.first_of(nth_nearest_domain(&place, n)));
        };
        let mut found: Option<usize> = None;
        for _ in 0..looks {
            self.cursors[pcpu] = next_domain_to_look_at(self.domains, self.domain[pcpu], self.cursors[pcpu]);
            let first = self.first_of(self.cursors[pcpu]);
            found = found.into_iter().chain(first).min_by_key(|&vcpu| self.clocks[vcpu]);
        }
        let runs = |vcpu: &usize| {
            let seen = ElsewhereObservation {
                first_vtime_ns: self.clocks[*vcpu],
                own_vtime_ns: self.clocks[own],
                own_weight: self.weights[own],
                has_own: 1,
                reserved: 0,
            };
            decide_on_elsewhere(&FairShareConfig::with_slice(SLICE_NS), &seen)
        };
        found.filter(runs)
    }

    /// A turn ends and one begins.
    fn choose(&mut self, pcpu: usize) {
        let ran = self.running[pcpu].take();
        if let Some(ran) = ran {
            self.clocks[ran] += charge(SLICE_NS, self.weights[ran]);
        }
        let first = self.first_of(self.domain[pcpu]);
        let own = ran.into_iter().chain(first).min_by_key(|&vcpu| self.clocks[vcpu]);
        let next = self.take_from_elsewhere(pcpu, own).or(own);
        if let Some(ran) = ran {
            self.waiting[self.domain[pcpu] as usize].push(ran);
        }
        let Some(next) = next else { return };
        self.take(next);
        self.running[pcpu] = Some(next);
        let bound = own.map_or(u64::MAX, |own| charge(SLICE_NS, self.weights[own]));
        for domain in (0..self.domains).filter(|&domain| domain != self.domain[pcpu]) {
            for &waits in &self.waiting[domain as usize] {
                let is_passed = self.clocks[next] > self.clocks[waits].saturating_add(bound);
                let passed = &mut self.passed_over[pcpu][waits];
                *passed = if is_passed { *passed + 1 } else { 0 };
            }
        }
    }
}

#[test]
fn the_nearest_domains_come_first_and_the_others_in_turn() {
    let range = |first, end| DomainRange { first, end };
    let place = QueuePlace { domain: 5, near: [range(4, 6), range(4, 8), range(2, 8), range(0, 10)] };
    let order: Vec<u32> = (0..9).map(|n| nth_nearest_domain(&place, n)).collect();
    assert_eq!(order, [4, 6, 7, 2, 3, 8, 9, 0, 1]);
    assert_eq!(nth_nearest_domain(&place, 9), 5, "there are no more");
    let mut last = 2;
    let mut next = || {
        last = next_domain_to_look_at(4, 2, last);
        last
    };
    assert_eq!([(); 6].map(|()| next()), [3, 0, 1, 3, 0, 1]);
}

proptest! {
    #[test]
    fn no_task_more_than_a_slice_behind_is_passed_over_once_all_domains_were_looked_at(
        domains in 2..12u32, per_domain in 1..4u32, rounds in 20..200usize, seed in any::<u64>(),
        vcpus in prop::collection::vec((0..12u32, prop::sample::select(vec![50u32, 100, 100, 400])), 1..40),
    ) {
        let mut model = Model::new(domains, per_domain, &vcpus);
        let most = (domains - 1).div_ceil(BALANCE_LOOK_MAX) - 1;
        let mut random = seed | 1;
        for round in 0..rounds {
            for step in 0..model.domain.len() {
                // pCPUs choose in another order each time.
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let pcpu = (step + (random >> 33) as usize * (round % 2)) % model.domain.len();
                model.choose(pcpu);
                let worst = model.passed_over.iter().flatten().max().copied();
                prop_assert!(worst <= Some(most), "{worst:?} of {most} in round {round}");
            }
        }
    }

    /// What a VM is behind by has a bound, whatever the time: so shares hold over seconds.
    #[test]
    fn clocks_stay_together_however_work_is_spread_at_first(
        domains in 2..10u32, per_domain in 1..4u32, more in 1..30u32,
        weights in prop::collection::vec(prop::sample::select(vec![100u32, 200, 400]), 60),
        all_at in 0..10u32,
    ) {
        let vcpus: Vec<_> = (0..domains * per_domain + more).map(|vcpu| (all_at, weights[vcpu as usize])).collect();
        let mut model = Model::new(domains, per_domain, &vcpus);
        let rounds_to_look = u64::from((domains - 1).div_ceil(BALANCE_LOOK_MAX));
        let bound = (rounds_to_look + 2) * charge(SLICE_NS, vcpu_weight(100, 1));
        let pcpus = model.domain.len();
        let mut widest = [0; 2];
        for (part, rounds) in [50, 1000].into_iter().enumerate() {
            for pcpu in (0..rounds).flat_map(|_| 0..pcpus) {
                model.choose(pcpu);
                let latest = model.clocks.iter().max().unwrap();
                let earliest = model.waiting.iter().flatten().map(|&vcpu| model.clocks[vcpu]).min().unwrap();
                widest[part] = widest[part].max(latest.saturating_sub(earliest));
            }
        }
        prop_assert!(widest[0].max(widest[1]) <= bound, "{widest:?}, {bound}");
    }

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
