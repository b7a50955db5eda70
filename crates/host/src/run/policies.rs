//! What is to hold for each VM: flags and the configuration file go before libvirt's metadata, and these
//! before what holds for all.

use crate::HostError;
use crate::guests::lines::say_metadata;
use crate::guests::vms::Vm;
use crate::run::guests::tell;
use crate::run::{Daemon, Output};
use crate::settings::Settings;

impl Daemon<'_> {
    /// Looks at libvirt's metadata, which may change at any time, and puts changes into force.
    pub(super) fn look_at_domains(&mut self, output: &mut Output<'_>) -> Result<(), HostError> {
        for vm in self.vms.values_mut() {
            if has_changed(vm, self.settings, output)
                && let Some(scheduler) = &mut self.scheduler
            {
                tell(scheduler, vm)?;
            }
        }
        Ok(())
    }
}

/// Gives a new VM its policy, before the kernel side is told of it.
pub(super) fn begin(vm: &mut Vm, settings: &Settings, output: &mut Output<'_>) {
    vm.coordinate(&settings.schemes_of(&vm.policy));
    adopt(vm, settings);
    has_changed(vm, settings, output);
    vm.weight = vm.place.given.unwrap_or(vm.weight);
}

/// Looks at what libvirt says of it. The operator hears of a change.
fn has_changed(vm: &mut Vm, settings: &Settings, output: &mut Output<'_>) -> bool {
    let Some(news) = vm.libvirt.look() else { return false };
    say_metadata(vm, news, settings, output.say);
    adopt(vm, settings);
    true
}

/// Takes up what is said of it. Its weight is the kernel side's once it has been weighed with the others.
fn adopt(vm: &mut Vm, settings: &Settings) {
    let policy = settings.policy_of(&vm.name, &vm.libvirt.policy());
    let (before, now) = (settings.schemes_of(&vm.policy), settings.schemes_of(&policy));
    // A change of something else doesn't begin its trials of Resched-Co anew.
    if before != now {
        vm.coordinate(&now);
    }
    vm.place.given = policy.weight;
    vm.policy = policy;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::kernel_vm::KernelVm;
    use crate::guests::libvirt::{NAMESPACE, StateFile};
    use crate::guests::vms::VmmProcess;
    use crate::run::report::Report;
    use crate::settings::SchedulerChoice;
    use microslice_policy::coordinated::{RESCHED_DP, TLB_CO};
    use std::path::Path;

    const PID: u32 = 4711;

    /// A new VM called `web`, whose state libvirt has in `folder`.
    fn welcome(folder: &Path) -> Vm {
        let kernel_side =
            KernelVm { slot: 0, generation: 1, kvm: 2, pid: PID, vcpu_count: 1, ..KernelVm::default() };
        let process = VmmProcess { name: "web".into(), ..VmmProcess::default() };
        let (mut vm, _) = Vm::welcome(kernel_side, process, None, true, "scheduled normally");
        vm.libvirt = StateFile::of(folder, "web", PID);
        vm
    }

    fn write(folder: &Path, attributes: &str) {
        let text = format!(
            "<domstatus pid='{PID}'><domain><metadata><vm xmlns='{NAMESPACE}' {attributes}/></metadata></domain></domstatus>"
        );
        std::fs::write(folder.join("new"), text).unwrap();
        std::fs::rename(folder.join("new"), folder.join("web.xml")).unwrap();
    }

    /// What is said to the operator meanwhile.
    fn lines(
        settings: &Settings,
        vm: &mut Vm,
        act: impl Fn(&mut Vm, &Settings, &mut Output<'_>),
    ) -> Vec<String> {
        let mut lines = Vec::new();
        let mut say = |line: &str| lines.push(line.to_owned());
        act(vm, settings, &mut Output { report: &mut |_: &Report| {}, say: &mut say });
        lines
    }

    fn look(vm: &mut Vm, settings: &Settings, output: &mut Output<'_>) {
        has_changed(vm, settings, output);
    }

    #[test]
    fn configuration_file_overrides_metadata_overrides_defaults() {
        let folder = tempfile::tempdir().unwrap();
        let mut settings = Settings { scheduler: Some(SchedulerChoice::Coordinated), ..Settings::default() };
        settings.weights.insert("web".into(), 300);
        write(folder.path(), "weight='50' resched-dp='false'");
        let mut vm = welcome(folder.path());
        let said = lines(&settings, &mut vm, begin);
        assert_eq!(said, ["web: its libvirt metadata say: weight 50, resched-dp off"]);
        assert_eq!((vm.weight, vm.place.given, vm.urgent_schemes), (300, Some(300), TLB_CO));
        assert!(vm.policy.accelerates());

        write(folder.path(), "accelerate='false'");
        lines(&settings, &mut vm, look);
        assert_eq!((vm.place.given, vm.urgent_schemes, vm.policy.accelerates()), (Some(300), 0, false));
        settings.vm_accelerate.insert("web".into(), true);
        write(folder.path(), "accelerate='false' weight='7'");
        lines(&settings, &mut vm, look);
        assert!(vm.policy.accelerates() && vm.urgent_schemes == RESCHED_DP | TLB_CO);
    }

    #[test]
    fn bad_metadata_leave_defaults_and_ineffective_settings_are_said() {
        let folder = tempfile::tempdir().unwrap();
        let settings = Settings::of_microslice();
        write(folder.path(), "weight='50' tlb-co='false'");
        let mut vm = welcome(folder.path());
        let said = lines(&settings, &mut vm, begin);
        assert_eq!(said[1], "web: tlb-co has no effect: the scheduler microslice has no such setting");
        let said = lines(&Settings::default(), &mut welcome(folder.path()), look);
        assert!(said[1].starts_with("web: weight, tlb-co has no effect: the scheduler beside"), "{said:?}");
        assert_eq!((vm.weight, vm.place.given), (50, Some(50)));
        write(folder.path(), "weight='0'");
        let said = lines(&settings, &mut vm, look);
        assert!(
            said.len() == 1 && said[0].starts_with("web: ") && said[0].contains("must be 1 to 10000"),
            "{said:?}"
        );
        assert_eq!(vm.place.given, None, "it is its cgroup's");
    }

    #[test]
    fn a_vm_without_libvirt_has_the_configuration_files_policy() {
        let folder = tempfile::tempdir().unwrap();
        let mut settings = Settings::default();
        settings.vm_accelerate.insert("web".into(), false);
        let mut vm = welcome(folder.path());
        assert!(lines(&settings, &mut vm, begin).is_empty());
        assert!(!vm.policy.accelerates() && vm.libvirt.uuid().is_none());
    }
}
