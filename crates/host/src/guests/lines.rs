//! Lines for the operator about a VM and its guest.

use crate::guests::libvirt::News;
use crate::guests::vms::Vm;
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
