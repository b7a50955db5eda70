//! Resched-Co where it is `auto`: whether it acts for a VM is tried, and tried again (`decide_on_resched_co`;
//! ASPLOS'13, section 4.2).

use crate::HostError;
use crate::machine::clock::monotonic_ns;
use crate::run::Daemon;
use crate::run::guests::tell;
use microslice_policy::coordinated::RESCHED_CO;

impl Daemon<'_> {
    pub(super) fn try_resched_co(&mut self) -> Result<(), HostError> {
        let now_ns = monotonic_ns();
        let slots: Vec<u32> =
            self.vms.iter().filter(|(_, vm)| vm.resched_co.is_some()).map(|(slot, _)| *slot).collect();
        for slot in slots {
            let stats = self.stats_of(&self.vms[&slot]);
            let Some(vm) = self.vms.get_mut(&slot) else { continue };
            let Some(trials) = &mut vm.resched_co else { continue };
            let bit = if trials.decide(now_ns, &stats) { RESCHED_CO } else { 0 };
            let schemes = vm.urgent_schemes & !RESCHED_CO | bit;
            if schemes != std::mem::replace(&mut vm.urgent_schemes, schemes) {
                tell(self.scheduler.as_mut().expect("it is served"), &self.vms[&slot])?;
            }
        }
        Ok(())
    }
}
