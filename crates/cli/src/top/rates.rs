//! What happened between two views: a second's worth of it.

use microslice_host::output::monitoring::{LongWaitView, VcpuView, View, VmView};
use microslice_policy::{Coded, GuestClass, class_is_critical};
use std::collections::BTreeMap;

/// Of an interval.
#[derive(Debug, Clone, Default)]
pub struct Rates {
    pub source: String,
    /// Since the daemon that is looked at began.
    pub seconds: f64,
    pub vms: Vec<VmRates>,
    pub pool: Option<PoolRates>,
    /// A second, by cause, most first.
    pub accelerations: Option<Vec<(String, f64)>>,
}

/// Micro-sliced pCPUs: how many, and the parts of their time in which they ran accelerated vCPUs and were
/// lent.
#[derive(Debug, Clone, Copy, Default)]
pub struct PoolRates {
    pub size: u32,
    pub accelerated: f64,
    pub lent: f64,
}

#[derive(Debug, Clone, Default)]
pub struct VmRates {
    pub name: String,
    pub pid: u32,
    pub guest: String,
    pub vcpu_count: u32,
    pub weight: Option<u32>,
    pub shares: Option<(f64, f64)>,
    /// pCPUs that it had.
    pub cpus: f64,
    /// Part of the time that a vCPU wanted to run and had no pCPU: their mean.
    pub ready: f64,
    /// By how much its vCPUs' parts differ; unknown where theirs aren't.
    pub skew: Option<f64>,
    /// For how long its vCPUs may wait now, in nanoseconds.
    pub bound_ns: Option<u64>,
    pub p50_ns: Option<u64>,
    pub p99_ns: Option<u64>,
    /// All three a second.
    pub accelerations: Option<f64>,
    pub preemptions: f64,
    pub critical: f64,
    /// Stopped while they held something by their guest's own count, and those that symbols find, a second.
    pub holding: Option<(f64, f64)>,
    /// Since the start, and of the last minute.
    pub longest_wait: Option<LongWaitView>,
    pub longest_wait_lately: Option<LongWaitView>,
    pub vcpus: Vec<VcpuRates>,
}

#[derive(Debug, Clone, Default)]
pub struct VcpuRates {
    pub id: u32,
    pub tid: u32,
    /// Parts of the time; unknown until it was seen twice.
    pub ran: Option<f64>,
    pub ready: Option<f64>,
    pub p99_ns: Option<u64>,
    /// What it was doing when the host stopped it: lately, most often first, or the last time.
    pub stopped_in: String,
}

impl VmRates {
    /// Tells VMs apart.
    pub fn key(&self) -> (&str, u32) {
        (&self.name, self.pid)
    }

    /// Returns its longest wait of the last minute, in nanoseconds.
    pub fn longest_ns(&self) -> Option<u64> {
        self.longest_wait_lately.as_ref().map(|wait| wait.length_ns)
    }
}

/// `now` before `before`, or another command than that: it began anew.
fn began_anew(before: &View, now: &View) -> bool {
    before.source != now.source || now.seconds <= before.seconds
}

impl Rates {
    /// What came after `before`; without one, all since the start.
    pub fn between(before: Option<&View>, now: &View) -> Self {
        let before = before.filter(|before| !began_anew(before, now));
        let seconds = now.seconds - before.map_or(0.0, |before| before.seconds);
        let seconds = if seconds > 0.0 { seconds } else { f64::MIN_POSITIVE };
        let vms = now.vms.iter().map(|vm| {
            let same = |other: &&VmView| (&other.name, other.pid) == (&vm.name, vm.pid);
            vm_rates(before.and_then(|before| before.vms.iter().find(same)), vm, seconds)
        });
        let pool = now.pool.as_ref().map(|pool| {
            let old = before.and_then(|before| before.pool.clone()).unwrap_or_default();
            let had_ns = pool.pcpu_ns.saturating_sub(old.pcpu_ns).max(1) as f64;
            let part = |now: u64, before: u64| (now.saturating_sub(before) as f64 / had_ns).min(1.0);
            PoolRates {
                size: pool.size,
                accelerated: part(pool.accelerated_ns, old.accelerated_ns),
                lent: part(pool.lent_ns, old.lent_ns),
            }
        });
        let accelerations = now.accelerations.as_ref().map(|counts| {
            let empty = BTreeMap::new();
            let old = before.and_then(|before| before.accelerations.as_ref()).unwrap_or(&empty);
            most_first(counts, old, seconds)
        });
        Self { source: now.source.clone(), seconds: now.seconds, vms: vms.collect(), pool, accelerations }
    }
}

/// A second, without those that are none.
fn most_first(
    now: &BTreeMap<String, u64>,
    before: &BTreeMap<String, u64>,
    seconds: f64,
) -> Vec<(String, f64)> {
    let rate = |(word, count): (&String, &u64)| {
        let new = count.saturating_sub(before.get(word).copied().unwrap_or(0));
        (new > 0).then(|| (word.clone(), new as f64 / seconds))
    };
    let mut rates: Vec<_> = now.iter().filter_map(rate).collect();
    rates.sort_by(|a, b| b.1.total_cmp(&a.1));
    rates
}

fn vm_rates(before: Option<&VmView>, now: &VmView, seconds: f64) -> VmRates {
    let nothing = VmView::default();
    let old = before.unwrap_or(&nothing);
    let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
    let waits = now.waits.since(&old.waits);
    let preemptions = most_first(&now.preemptions, &old.preemptions, seconds);
    let is_critical =
        |word: &str| GuestClass::ALL.iter().any(|class| class.name() == word && class_is_critical(*class));
    let rates_of = |vcpu: &VcpuView| {
        let same = |other: &&VcpuView| (other.id, other.tid) == (vcpu.id, vcpu.tid);
        vcpu_rates(old.vcpus.iter().find(same), vcpu, seconds)
    };
    let vcpus: Vec<VcpuRates> = now.vcpus.iter().map(rates_of).collect();
    VmRates {
        name: now.name.clone(),
        pid: now.pid,
        guest: now.guest.clone(),
        vcpu_count: now.vcpu_count,
        weight: now.weight,
        shares: now.shares,
        cpus: rate(now.ran_ns, old.ran_ns) / 1e9,
        ready: rate(now.ready_ns, old.ready_ns) / 1e9 / f64::from(now.vcpu_count.max(1)),
        skew: skew(&vcpus),
        bound_ns: now.bound_ns,
        p50_ns: waits.percentile(50.0),
        p99_ns: waits.percentile(99.0),
        accelerations: now.accelerations.map(|count| rate(count, old.accelerations.unwrap_or(0))),
        preemptions: preemptions.iter().map(|(_, rate)| rate).sum(),
        critical: preemptions.iter().filter(|(word, _)| is_critical(word)).map(|(_, rate)| rate).sum(),
        holding: now.holding.map(|(holding, found)| {
            let (before, found_before) = old.holding.unwrap_or_default();
            (rate(holding, before), rate(found, found_before))
        }),
        longest_wait: now.longest_wait.clone(),
        longest_wait_lately: now.longest_wait_lately.clone(),
        vcpus,
    }
}

fn skew(vcpus: &[VcpuRates]) -> Option<f64> {
    let ready: Vec<f64> = vcpus.iter().filter_map(|vcpu| vcpu.ready).collect();
    let most = ready.iter().copied().reduce(f64::max)?;
    Some(most - ready.iter().copied().fold(most, f64::min))
}

fn vcpu_rates(before: Option<&VcpuView>, now: &VcpuView, seconds: f64) -> VcpuRates {
    let times = before.and_then(|before| before.times.as_ref()).zip(now.times.as_ref());
    let part = |now: u64, before: u64| now.saturating_sub(before) as f64 / 1e9 / seconds;
    let nothing = BTreeMap::new();
    let lately = most_first(&now.preemptions, before.map_or(&nothing, |before| &before.preemptions), seconds);
    let words: Vec<String> =
        lately.iter().take(3).map(|(word, rate)| format!("{word} {rate:.0}/s")).collect();
    VcpuRates {
        id: now.id,
        tid: now.tid,
        ran: times.map(|(old, now)| part(now.ran_ns, old.ran_ns)),
        ready: times.map(|(old, now)| part(now.ready_ns, old.ready_ns)),
        p99_ns: times.and_then(|(old, now)| now.waits.since(&old.waits).percentile(99.0)),
        stopped_in: match &now.stopped_in {
            Some(word) => format!("{word} (last)"),
            None => words.join(", "),
        },
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use microslice_host::output::monitoring::{PoolView, VcpuTimes, Waits};

    fn words(of: &[(&str, u64)]) -> BTreeMap<String, u64> {
        of.iter().map(|(word, count)| ((*word).to_owned(), *count)).collect()
    }

    /// Of a scheduler that has run for so many seconds, with a VM that waits and one that hardly does.
    pub fn run_view(seconds: u64) -> View {
        let s = seconds * 1_000_000_000;
        let vm = |name: &str, pid: u32, ready_ns: u64, due: f64| VmView {
            name: name.into(),
            pid,
            guest: "6.12.63+deb13-cloud-amd64, slide 0x1e000000".into(),
            vcpu_count: 4,
            weight: Some(100),
            shares: Some((1.0 - due, due)),
            ran_ns: s + s / 2,
            ready_ns,
            waits: Waits(vec![(30_000, seconds * 90), (9_000_000, seconds * 3)]),
            bound_ns: Some(25_000_000),
            accelerations: Some(seconds * 12),
            preemptions: words(&[("user", seconds * 30), ("lock_holder", seconds * 6)]),
            holding: None,
            longest_wait: None,
            longest_wait_lately: None,
            vcpus: (0..4)
                .map(|id| VcpuView {
                    id,
                    tid: pid + 10 + id,
                    times: Some(VcpuTimes { ran_ns: s / 3, ready_ns: s / 7, waits: Waits::default() }),
                    stopped_in: Some("lock_holder".into()),
                    preemptions: BTreeMap::new(),
                })
                .collect(),
        };
        View {
            source: "run".into(),
            seconds: seconds as f64,
            vms: vec![vm("db", 100, s / 50, 0.5), vm("web", 200, s / 2, 0.52)],
            pool: Some(PoolView { size: 1, pcpu_ns: s, accelerated_ns: s / 4, lent_ns: s / 2 }),
            accelerations: Some(words(&[("tlb_yield", seconds * 20), ("resched_ipi", seconds * 4)])),
        }
    }

    #[test]
    fn rates_are_of_the_interval() {
        let rates = Rates::between(Some(&run_view(10)), &run_view(12));
        let web = &rates.vms[1];
        assert_eq!((web.cpus, web.ready, web.preemptions, web.critical), (1.5, 0.125, 36.0, 6.0));
        assert_eq!(web.accelerations, Some(12.0));
        assert!(web.p50_ns.is_some_and(|ns| (28_000..=32_000).contains(&ns)), "{web:?}");
        assert!(web.p99_ns.unwrap() > 8_000_000);
        let pool = rates.pool.unwrap();
        assert_eq!((pool.size, pool.accelerated, pool.lent), (1, 0.25, 0.5));
        assert_eq!(
            rates.accelerations.unwrap(),
            [("tlb_yield".to_owned(), 20.0), ("resched_ipi".to_owned(), 4.0)]
        );
        assert!((web.vcpus[0].ran.unwrap() - 1.0 / 3.0).abs() < 1e-6);
    }

    #[test]
    fn holders_have_rates_where_they_are_known() {
        let known = |seconds| {
            let mut view = run_view(seconds);
            view.vms[1].holding = Some((seconds * 5, seconds));
            view
        };
        assert_eq!(Rates::between(Some(&run_view(10)), &run_view(12)).vms[1].holding, None);
        assert_eq!(Rates::between(Some(&known(10)), &known(12)).vms[1].holding, Some((5.0, 1.0)));
    }

    #[test]
    fn a_daemon_that_began_anew_has_rates_since_then() {
        let rates = Rates::between(Some(&run_view(100)), &run_view(2));
        assert_eq!(rates.vms[1].cpus, 1.5);
        assert_eq!(rates.vms[1].vcpus[0].ran, None, "its threads' times are older than that");
    }
}
