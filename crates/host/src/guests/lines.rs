//! Lines for the operator about a VM and its guest.

use crate::guests::libvirt::News;
use crate::guests::vms::{Vm, namesakes};
use crate::settings::Settings;
use std::time::Instant;

/// Says which VM it is, and what is known of its kernel.
pub(crate) fn introduce(vm: &Vm, say: &mut dyn FnMut(&str)) {
    say(&format!(
        "{}: pid {}, kernel {}: {}",
        vm.name,
        vm.kernel_side.pid,
        vm.release().unwrap_or("unknown"),
        vm.state()
    ));
}

/// Says that its slide has changed, a few times a minute at most.
pub(crate) fn say_slide(vm: &mut Vm, say: &mut dyn FnMut(&str)) {
    if let Some(changes) = vm.slide_news.take_due(Instant::now()) {
        let more = if changes > 1 { format!(" (changed {changes} times)") } else { String::new() };
        say(&format!("{}: {}{more}", vm.name, vm.state()));
    }
}

/// Says what its domain's metadata say from now on, and what of that has no effect under this scheduler.
pub(crate) fn say_metadata(vm: &Vm, news: News, settings: &Settings, say: &mut dyn FnMut(&str)) {
    let Some(line) = news.line else { return };
    for line in [Some(line), settings.without_effect(&vm.libvirt.policy())].into_iter().flatten() {
        say(&format!("{}: {line}", vm.name));
    }
}

/// Says that others have the name of a VM for which something is configured. Names come from command lines: a
/// user that may choose one gets what the operator meant for another VM.
pub(crate) fn say_namesakes<'v>(
    vm: &Vm,
    others: impl Iterator<Item = &'v Vm>,
    settings: &Settings,
    say: &mut dyn FnMut(&str),
) {
    if !settings.knows_vm(&vm.name) {
        return;
    }
    let pids: Vec<u32> =
        others.filter(|other| other.name == vm.name).map(|other| other.kernel_side.pid).collect();
    if let Some(line) = namesakes(&vm.name, vm.kernel_side.pid, &pids) {
        say(&line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::kernel_vm::KernelVm;
    use crate::guests::vms::VmmProcess;

    fn web(pid: u32) -> Vm {
        let process = VmmProcess { name: "web".into(), ..VmmProcess::default() };
        Vm::welcome(KernelVm { pid, ..KernelVm::default() }, process, None, true, "without classes").0
    }

    #[test]
    fn a_second_vm_of_a_configured_name_is_said() {
        let said = |settings: &Settings, others: &[Vm]| {
            let mut lines = Vec::new();
            say_namesakes(&web(7), others.iter(), settings, &mut |line: &str| lines.push(line.to_owned()));
            lines
        };
        let mut settings = Settings::default();
        assert_eq!(said(&settings, &[web(3)]), [""; 0], "nothing is configured for it");
        settings.vm_accelerate.insert("web".into(), false);
        assert_eq!(said(&settings, &[]), [""; 0]);
        assert!(said(&settings, &[web(3)])[0].starts_with("web: pid 7 has the name of pid 3"));
    }
}
