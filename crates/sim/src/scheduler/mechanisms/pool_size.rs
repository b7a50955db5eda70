//! How many pCPUs are micro-sliced: Algorithm 1, or always as many (`policy/pool_size.h`; on a real host: `bpf/mechanisms/pool_size.bpf.h`).

use super::*;

impl<Normal: Core> MicroSliced<Normal> {
    pub(super) fn step_pool_size(&mut self, machine: &mut Machine) {
        let now_ns = machine.now_ns;
        match self.config.pool {
            PoolSize::Static { pcpus } => {
                self.resize(machine, pcpus);
                self.next_resize_ns = u64::MAX;
            }
            PoolSize::Auto { .. } => {
                let seen = self.take_seen(machine);
                let decision = policy::step_pool_size(&self.pool_config, &mut self.pool_state, &seen);
                self.next_resize_ns = now_ns + decision.interval_ns.max(1);
                let count = decision.micro_pcpu_count as usize;
                if count != self.micro_count || now_ns == 0 {
                    self.resize(machine, count);
                }
            }
        }
    }

    /// What Algorithm 1 sees of the interval that ends now; the next one begins.
    fn take_seen(&mut self, machine: &Machine) -> PoolSizeObservation {
        let mut seen = std::mem::take(&mut self.seen);
        for pcpu in machine.pcpus.from(self.first_micro()) {
            if let Some(member) = self.members.get(pcpu.current)
                && member.micro_pcpu != PcpuId::NONE
            {
                seen.micro_busy_ns += machine.now_ns - member.began_ns.max(self.stepped_at_ns);
            }
        }
        self.stepped_at_ns = machine.now_ns;
        seen
    }

    pub(super) fn resize(&mut self, machine: &mut Machine, count: usize) {
        let pcpus = machine.pcpus.len();
        let before = self.micro_count;
        while self.micro_count < count {
            self.micro_count += 1;
            let pcpu = PcpuId::from_index(pcpus - self.micro_count);
            for vcpu in self.normal.set_usable(pcpu, false) {
                self.normal.put_back(machine, vcpu);
                self.normal.tickle(machine, vcpu);
            }
            // What runs there goes on in the normal pool.
            machine.request_schedule(pcpu);
        }
        while self.micro_count > count {
            let pcpu = PcpuId::from_index(pcpus - self.micro_count);
            self.micro_count -= 1;
            self.normal.set_usable(pcpu, true);
            self.normal.set_idle(pcpu, machine.is_idle(pcpu));
            self.woken[pcpu] = None;
            if let Some(vcpu) = self.waiting[pcpu].take() {
                self.give_back(machine, vcpu);
            }
            machine.request_schedule(pcpu);
        }
        if self.micro_count == before && machine.now_ns > 0 {
            return;
        }
        self.yield_answers = YieldAnswers::new(self.micro_count);
        self.has_unclaimed.fill(true);
        machine.vms.ids().for_each(|vm| machine.break_all_promises(vm));
        let micro_pcpus = self.micro_count as u32;
        machine.pool.sizes.push((machine.now_ns, micro_pcpus));
        machine.emit(TraceEvent::PoolResized { micro_pcpus });
    }
}
