//! How many pCPUs are micro-sliced: Algorithm 1, or always as many (`policy/pool_size.h`; on a real host:
//! `bpf/mechanisms/serving/pool_size.bpf.h`).

use super::*;
use microslice_policy::{PoolSizeConfig, PoolSizeObservation, PoolSizeState};

pub(super) struct PoolSizing {
    size: PoolSize,
    state: PoolSizeState,
    /// Since the last step.
    seen: PoolSizeObservation,
    stepped_at_ns: u64,
    due_ns: u64,
}

impl PoolSizing {
    /// `most`: so many pCPUs can be micro-sliced.
    pub fn new(mut size: PoolSize, most: usize) -> Self {
        match &mut size {
            PoolSize::Static { pcpus } => *pcpus = most.min(*pcpus),
            PoolSize::Auto { .. } if most == 0 => size = PoolSize::Static { pcpus: 0 },
            PoolSize::Auto { limit, .. } => *limit = most.min(*limit),
        }
        Self {
            size,
            state: PoolSizeState::default(),
            seen: PoolSizeObservation::default(),
            stepped_at_ns: 0,
            due_ns: 0,
        }
    }

    pub fn is_due(&self, now_ns: u64) -> bool {
        now_ns >= self.due_ns
    }

    pub fn due_ns(&self) -> u64 {
        self.due_ns
    }

    /// So many of these (`policy/urgent_events.h`).
    pub fn count_urgent(&mut self, event: policy::UrgentEvent, count: u64) {
        self.seen.count_urgent(event, count);
    }

    /// A micro pCPU ran a micro slice until now, from then on.
    pub fn was_busy(&mut self, began_ns: u64, now_ns: u64) {
        self.seen.micro_busy_ns += now_ns - began_ns.max(self.stepped_at_ns);
    }

    /// How many pCPUs shall be micro-sliced, when the interval that was seen is over.
    fn step(&mut self, now_ns: u64) -> usize {
        let PoolSize::Auto {
            limit,
            profile_interval_ns,
            epoch_interval_ns,
            second_looks,
            grow_when_busy_percent,
        } = self.size
        else {
            unreachable!("a static pool takes no steps")
        };
        let config = PoolSizeConfig {
            profile_interval_ns,
            epoch_interval_ns,
            limit: limit as u32,
            second_looks,
            grow_when_busy_percent,
            reserved: 0,
        };
        let seen = std::mem::take(&mut self.seen);
        self.stepped_at_ns = now_ns;
        let decision = policy::step_pool_size(&config, &mut self.state, &seen);
        self.due_ns = now_ns + decision.interval_ns.max(1);
        decision.micro_pcpu_count as usize
    }
}

impl<Normal: Core> MicroSliced<Normal> {
    pub(super) fn step_pool_size(&mut self, machine: &mut Machine) {
        if let PoolSize::Static { pcpus } = self.pool_size.size {
            self.resize(machine, pcpus);
            self.pool_size.due_ns = u64::MAX;
            return;
        }
        for pcpu in self.pool.pcpus() {
            if let Some(vcpu) = machine.current(pcpu)
                && self.pool.is_accelerated(vcpu)
            {
                self.pool_size.was_busy(self.pool.began_ns(vcpu), machine.now_ns);
            }
        }
        let count = self.pool_size.step(machine.now_ns);
        if count != self.pool.count() || machine.now_ns == 0 {
            self.resize(machine, count);
        }
    }

    pub(super) fn resize(&mut self, machine: &mut Machine, count: usize) {
        let before = self.pool.count();
        while self.pool.count() < count {
            let pcpu = self.pool.grow();
            for vcpu in self.normal.set_usable(pcpu, false) {
                self.normal.put_back(machine, vcpu);
                self.normal.tickle(machine, vcpu);
            }
            // What runs there goes on in the normal pool.
            machine.request_schedule(pcpu);
        }
        while self.pool.count() > count {
            let pcpu = self.pool.shrink();
            self.normal.set_usable(pcpu, true);
            self.normal.set_idle(pcpu, machine.is_idle(pcpu));
            self.woken.clear(pcpu);
            if let Some(vcpu) = self.pool.take_next(pcpu) {
                self.give_back(machine, vcpu);
            }
            machine.request_schedule(pcpu);
        }
        if self.pool.count() == before && machine.now_ns > 0 {
            return;
        }
        self.answers.set_pool_size(self.pool.count());
        self.forget_claims();
        machine.vms.ids().for_each(|vm| machine.break_all_promises(vm));
        let micro_pcpus = self.pool.count() as u32;
        machine.pool.sizes.push((machine.now_ns, micro_pcpus));
        machine.emit(TraceEvent::PoolResized { micro_pcpus });
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{SIBLINGS, spinning_for_a_shootdown};
    use super::*;

    /// EuroSys'18, 4.3, counts "virtual IRQs for I/O devices"; 4.1 takes a physical one as a hint, too.
    #[test]
    fn the_paper_counts_interrupts_that_guests_get_and_no_hints() {
        let (mut micro, mut machine) = spinning_for_a_shootdown();
        micro.rules.paper_rules = 1;
        micro.interrupt(&mut machine, SIBLINGS[0], InterruptKind::Virq);
        micro.woken(&mut machine, SIBLINGS[0], WokenBy::Interrupt(InterruptKind::Virq));
        assert_eq!(micro.pool_size.seen.irq_count, 0);
        micro.device_interrupt();
        assert_eq!(micro.pool_size.seen.irq_count, 1);
    }
}
