//! VMs that run before anything is loaded.

use crate::HostError;
use crate::guests::vms::VmmProcess;
use crate::machine::proc::numbers;
use crate::settings::Settings;

/// A name given with `--guest` that no running VM has is refused while VMs run: it is a typing error more
/// often than a VM to come. Names in the configuration file may be of VMs to come.
pub(crate) fn refuse_unknown_names(settings: &Settings) -> Result<(), HostError> {
    if settings.guests_must_run.is_empty() {
        return Ok(());
    }
    let processes: Vec<_> = vmm_processes().into_iter().map(VmmProcess::read).collect();
    let running: Vec<&str> = processes.iter().map(|process| process.name.as_str()).collect();
    let is_numbered = |name: &str| processes.iter().any(|vm| vm.numbered_name().as_deref() == Some(name));
    let is_unknown = |name: &&String| !running.contains(&name.as_str()) && !is_numbered(name);
    match settings.guests_must_run.iter().find(is_unknown) {
        Some(name) if running.is_empty() => {
            Err(HostError::refused(format!("--guest {name}: no VM runs here")))
        }
        Some(name) => {
            Err(HostError::refused(format!("--guest {name}: no such VM; running: {}", running.join(", "))))
        }
        None => Ok(()),
    }
}

/// Processes that hold a VM of KVM open.
pub(crate) fn vmm_processes() -> Vec<u32> {
    numbers("/proc".as_ref())
        .filter(|pid| {
            std::fs::read_dir(format!("/proc/{pid}/fd")).is_ok_and(|descriptors| {
                descriptors.flatten().any(|descriptor| {
                    std::fs::read_link(descriptor.path())
                        .is_ok_and(|target| target.to_string_lossy() == "anon_inode:kvm-vm")
                })
            })
        })
        .collect()
}
