//! Threads that the guest's scheduler balances over its vCPUs, and time balloons that make it do so by what
//! these vCPUs get (VM'04, section 4).
//!
//! Problem.   A guest takes its vCPUs for equally fast. If one has a third of its pCPU, whose threads are
//!            there make a third.
//! Mechanism. Linux's O(1) scheduler balances by the lengths of run queues. Now and then each vCPU looks for
//!            the longest one, and takes threads from it if that is longer by more than a quarter (4.1). A
//!            module polls what each vCPU was given (its steal time). It adds balloon threads to the queues
//!            of the slower ones, up to the length that the fastest one's should have. They have the lowest
//!            priority and never run beside others. Kernels of today divide a queue by its vCPU's capacity,
//!            from which steal time is taken. So no balloons are needed (`scale_rt_capacity` in
//!            kernel/sched/fair.c).
//! Formula.   balloons(v) = ceil((s_max - s_v) * p / sum of s) s: a vCPU's share of its pCPU, p: threads that
//!            want to run
//! Limits.    Neither caches nor priorities are looked at. Balancing itself costs nothing.

use crate::guest::stealing;
use crate::report::BalanceSample;
use crate::reporting::run_and_wait_ns;
use crate::simulation::Simulation;
use microslice_model::config::{BalanceConfig, BalanceRule};
use microslice_model::ids::{ThreadId, VcpuId, VmId};

/// Shares are in 1/1000 of a pCPU.
pub(super) const WHOLE: u64 = 1_000;

/// Numbers in all samples of a VM that are kept: 8 MiB.
const SAMPLED_MAX: usize = 1 << 20;

/// The balancing of a VM's threads.
pub struct Balancing {
    pub(super) config: BalanceConfig,
    next_poll_ns: u64,
    vcpus: Vec<Balanced>,
    samples: Samples,
    /// Of each thread, where they are on one list (`stealing.rs`).
    pub(super) ticks_left: Vec<u8>,
}

/// What polls found: of each poll, or of every second, fourth and so on where those are too many.
#[derive(Default)]
struct Samples {
    kept: Vec<BalanceSample>,
    polls: usize,
    /// So many polls have one sample; 2 to the power of this.
    thinned: u32,
}

impl Samples {
    fn add(&mut self, sample: BalanceSample) {
        let is_kept = self.polls.trailing_zeros() >= self.thinned;
        self.polls += 1;
        if !is_kept {
            return;
        }
        let numbers = 1 + 4 * sample.threads.len();
        self.kept.push(sample);
        if self.kept.len() * numbers > SAMPLED_MAX && self.kept.len() > 1 {
            let mut is_even = false;
            self.kept.retain(|_| {
                is_even = !is_even;
                is_even
            });
            self.thinned += 1;
        }
    }
}

#[derive(Clone, Copy)]
struct Balanced {
    next_ns: u64,
    /// The queue's length when it was looked at last.
    sampled: u64,
    balloons: u64,
    share: u64,
    /// When it was polled last.
    run_ns: u64,
    wait_ns: u64,
}

impl Balancing {
    pub fn new(config: BalanceConfig, vcpus: u32) -> Self {
        let balanced = Balanced { next_ns: 0, sampled: 0, balloons: 0, share: WHOLE, run_ns: 0, wait_ns: 0 };
        Self {
            config,
            next_poll_ns: 0,
            vcpus: vec![balanced; vcpus as usize],
            samples: Samples::default(),
            ticks_left: Vec::new(),
        }
    }

    /// What polls found.
    pub fn samples(&self) -> &[BalanceSample] {
        &self.samples.kept
    }

    /// What each vCPU is given of its pCPU.
    pub(super) fn shares(&self) -> Vec<u64> {
        self.vcpus.iter().map(|balanced| balanced.share).collect()
    }

    /// The guest's scheduler never finds this vCPU idle: a balloon is there.
    pub fn is_filled(&self, at: usize) -> bool {
        self.vcpus[at].balloons > 0
    }
}

/// How many balloons each vCPU gets, by their shares.
fn balloons(shares: &[u64], threads: u64) -> Vec<u64> {
    let (most, sum) = (shares.iter().copied().max().unwrap_or(0), shares.iter().sum::<u64>().max(1));
    shares.iter().map(|share| ((most - share) * threads).div_ceil(sum)).collect()
}

impl Simulation<'_> {
    /// rebalance_tick.
    pub(crate) fn balance_threads(&mut self, vcpu: VcpuId) {
        let now_ns = self.machine.now_ns;
        let vm = self.machine.vcpus[vcpu].vm;
        let at = vcpu.since(self.vms[vm].first_vcpu) as usize;
        self.poll_shares(vm);
        let Some(balancing) = &mut self.vms[vm].balancing else { return };
        let here = &mut balancing.vcpus[at];
        if now_ns < here.next_ns {
            return;
        }
        here.next_ns = now_ns + balancing.config.interval_ns;
        match balancing.config.rule {
            BalanceRule::QueueLength => self.pull_by_length(vm, at),
            BalanceRule::Capacity => self.pull_by_capacity(vm, at),
            // They are on one list.
            BalanceRule::WorkStealing => {}
        }
    }

    /// Threads that run or wait on each vCPU.
    fn lengths(&self, vm: VmId) -> Vec<u64> {
        let vm = &self.vms[vm];
        let length = |vcpu: VcpuId| {
            let guest = &self.guest[vcpu];
            guest.queue.len() as u64 + u64::from(guest.thread != ThreadId::NONE)
        };
        vm.first_vcpu.span(vm.vcpus).map(length).collect()
    }

    /// The module's poll: what each vCPU was given of the time that it wanted.
    fn poll_shares(&mut self, vm: VmId) {
        let now_ns = self.machine.now_ns;
        let since_ns = self.measured.since_ns();
        if self.vms[vm].balancing.as_ref().is_none_or(|balancing| now_ns < balancing.next_poll_ns) {
            return;
        }
        let lengths = self.lengths(vm);
        let first = self.vms[vm].first_vcpu;
        let Some(balancing) = &mut self.vms[vm].balancing else { return };
        balancing.next_poll_ns = now_ns + balancing.config.interval_ns;
        for (vcpu, balanced) in first.span(balancing.vcpus.len() as u32).zip(&mut balancing.vcpus) {
            let (run_ns, wait_ns) = run_and_wait_ns(&self.machine.vcpus[vcpu], since_ns, now_ns);
            // Counters begin anew when measuring does.
            let (ran_ns, waited_ns) =
                (run_ns.saturating_sub(balanced.run_ns), wait_ns.saturating_sub(balanced.wait_ns));
            (balanced.run_ns, balanced.wait_ns) = (run_ns, wait_ns);
            if ran_ns + waited_ns >= (balancing.config.interval_ns / 2).max(1) {
                balanced.share = WHOLE * ran_ns / (ran_ns + waited_ns);
            }
        }
        let shares = balancing.shares();
        if balancing.config.balloons {
            let counts = match balancing.steals() {
                true => stealing::balloons(&shares),
                false => balloons(&shares, lengths.iter().sum()),
            };
            balancing.vcpus.iter_mut().zip(counts).for_each(|(balanced, count)| balanced.balloons = count);
        }
        let balloons = balancing.vcpus.iter().map(|balanced| balanced.balloons).collect();
        let run_ns = balancing.vcpus.iter().map(|balanced| balanced.run_ns).collect();
        balancing.samples.add(BalanceSample { time_ns: now_ns, threads: lengths, balloons, shares, run_ns });
        if balancing.config.plans {
            self.plan_preferred(vm);
        }
    }

    /// load_balance: from the longest queue, if it is longer by more than a quarter.
    fn pull_by_length(&mut self, vm: VmId, here: usize) {
        let threads = self.lengths(vm);
        let Some(balancing) = &mut self.vms[vm].balancing else { return };
        // Of two samples, so that nobody moves for a moment's sake.
        let mut steady = Vec::new();
        for (balanced, threads) in balancing.vcpus.iter_mut().zip(&threads) {
            let length = threads + balanced.balloons;
            steady.push(length.min(balanced.sampled));
            balanced.sampled = length;
        }
        let own = threads[here] + balancing.vcpus[here].balloons;
        let busiest =
            (0..steady.len()).filter(|&at| at != here).max_by_key(|&at| (steady[at], usize::MAX - at));
        let Some(busiest) = busiest.filter(|&at| steady[at] > own && 4 * (steady[at] - own) > steady[at])
        else {
            return;
        };
        for _ in 0..(steady[busiest] - own) / 2 {
            self.move_thread(vm, busiest, here);
        }
    }

    /// One thread at a time, if it will have more of a vCPU here.
    fn pull_by_capacity(&mut self, vm: VmId, here: usize) {
        let threads = self.lengths(vm);
        let Some(balancing) = &self.vms[vm].balancing else { return };
        let share = |at: usize| balancing.vcpus[at].share.max(1);
        let load = |at: usize| threads[at] * WHOLE * WHOLE / share(at);
        let busiest =
            (0..threads.len()).filter(|&at| at != here).max_by_key(|&at| (load(at), usize::MAX - at));
        let Some(busiest) = busiest else { return };
        let load_here = (threads[here] + 1) * WHOLE * WHOLE / share(here);
        // imbalance_pct.
        if 100 * load(busiest) > 117 * load_here {
            self.move_thread(vm, busiest, here);
        }
    }

    /// The last that waits there and may leave.
    fn move_thread(&mut self, vm: VmId, from: usize, to: usize) {
        let first = self.vms[vm].first_vcpu;
        let [from, to] = [from, to].map(|at| first.plus(at as u32));
        let queue = &mut self.guest[from].queue;
        let Some(at) = (0..queue.len()).rev().find(|&at| !self.threads[queue[at]].pinned) else { return };
        let thread = queue[at];
        self.leave_queue(from, to, thread);
        self.guest[from].queue.remove(at);
        self.threads[thread].vcpu = to;
        self.guest[to].queue.push_back(thread);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_that_are_too_many_are_thinned_evenly() {
        let sample = |time_ns| {
            let vcpus = vec![0; 1_000];
            let [threads, balloons, shares, run_ns] = [(); 4].map(|()| vcpus.clone());
            BalanceSample { time_ns, threads, balloons, shares, run_ns }
        };
        let mut samples = Samples::default();
        (0..1_000).for_each(|poll| samples.add(sample(poll)));
        let times: Vec<u64> = samples.kept.iter().map(|sample| sample.time_ns).collect();
        assert_eq!(times, (0..1_000).step_by(4).collect::<Vec<_>>());
        let mut few = Samples::default();
        (0..200).for_each(|poll| few.add(sample(poll)));
        assert_eq!(few.kept.len(), 200);
    }

    #[test]
    fn balloons_make_all_queues_as_long_as_the_fastest_vcpus_should_be() {
        // VM'04's own case: of ten threads 2.3 belong to the vCPU with 30 %, 7.7 to the other one.
        assert_eq!(balloons(&[300, 1000], 10), [6, 0]);
        assert_eq!(balloons(&[1000, 1000], 10), [0, 0]);
        assert_eq!(balloons(&[999, 1000, 500], 3), [1, 0, 1], "rounded up");
        assert_eq!(balloons(&[0, 0], 10), [0, 0]);
    }
}
