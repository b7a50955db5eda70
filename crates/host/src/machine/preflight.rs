//! Refusals: everything that must hold before anything is loaded. Each is one line that says what to do.

use crate::HostError;
use crate::machine::topology::Topology;
use crate::machine::{core_scheduling, refused_kernels};
use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::{Enum64, Func, FuncProto};
use std::path::Path;

const SCHED_EXT: &str = "/sys/kernel/sched_ext";
const KERNEL_BTF: &str = "/sys/kernel/btf/vmlinux";

/// Which virtualization extension KVM uses here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Vendor {
    Amd,
    Intel,
}

/// A host that passed the checks, and what they found out.
#[derive(Debug)]
pub struct Host {
    pub vendor: Vendor,
    pub topology: Topology,
    /// `SCX_OPS_ENQ_MIGRATION_DISABLED`; 0 where this kernel hasn't got it, and passes `ops.enqueue` by for
    /// tasks that may not move.
    pub asks_about_those_that_may_not_move: u64,
}

/// Checks the host. Nothing has been changed when this fails.
pub fn check() -> Result<Host, HostError> {
    check_capabilities()?;
    check_sched_ext()?;
    refused_kernels::check(&kernel("osrelease"), &kernel("version"))?;
    check_isolation()?;
    let asks_about_those_that_may_not_move = check_btf()?;
    let vendor = check_kvm()?;
    check_module_btf(vendor, Path::new("/sys"))?;
    let topology = Topology::read()?;
    core_scheduling::check(&topology)?;
    Ok(Host { vendor, topology, asks_about_those_that_may_not_move })
}

/// Checks the host for a mode that leaves the kernel's own scheduler in charge. It needs no sched_ext, but
/// the right to make threads real-time.
pub fn check_beside() -> Result<Host, HostError> {
    check_capabilities_of(&[SYS_ADMIN, SYS_NICE, PERFMON, BPF])?;
    check_btf_exists()?;
    let vendor = check_kvm()?;
    check_module_btf(vendor, Path::new("/sys"))?;
    Ok(Host { vendor, topology: Topology::read()?, asks_about_those_that_may_not_move: 0 })
}

/// Checks the host for a mode that only looks.
pub fn check_observer() -> Result<Host, HostError> {
    check_capabilities()?;
    check_btf_exists()?;
    let vendor = check_kvm()?;
    check_module_btf(vendor, Path::new("/sys"))?;
    Ok(Host { vendor, topology: Topology::read()?, asks_about_those_that_may_not_move: 0 })
}

/// `uname -r` (`osrelease`), `uname -v` (`version`).
pub fn kernel(what: &str) -> String {
    std::fs::read_to_string(format!("/proc/sys/kernel/{what}")).unwrap_or_default().trim().to_owned()
}

/// Reads the topology of a checked host again, after pCPUs have come or gone.
pub fn look_again(host: &Host) -> Result<Host, HostError> {
    let topology = Topology::read()?;
    core_scheduling::check(&topology)?;
    Ok(Host { topology, ..*host })
}

/// CAP_SYS_ADMIN (sched_ext, KVM's tracepoints), CAP_PERFMON and CAP_BPF.
fn check_capabilities() -> Result<(), HostError> {
    check_capabilities_of(&[SYS_ADMIN, PERFMON, BPF])
}

/// Checks for the one capability that making threads real-time takes, CAP_SYS_NICE.
pub(crate) fn check_may_make_real_time() -> Result<(), HostError> {
    check_capabilities_of(&[SYS_NICE])
}

/// Number and name, by `include/uapi/linux/capability.h`.
type NumberedCapability = (u32, &'static str);
const SYS_ADMIN: NumberedCapability = (21, "CAP_SYS_ADMIN");
const SYS_NICE: NumberedCapability = (23, "CAP_SYS_NICE");
const PERFMON: NumberedCapability = (38, "CAP_PERFMON");
const BPF: NumberedCapability = (39, "CAP_BPF");

fn check_capabilities_of(needed: &[NumberedCapability]) -> Result<(), HostError> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .unwrap_or(0);
    let missing: Vec<_> =
        needed.iter().filter(|(bit, _)| effective >> bit & 1 == 0).map(|(_, name)| *name).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(HostError::refused(format!("{} missing: run it as root", missing.join(", "))))
}

fn check_sched_ext() -> Result<(), HostError> {
    if !Path::new(SCHED_EXT).is_dir() {
        return Err(HostError::refused(
            "this kernel has no sched_ext (no /sys/kernel/sched_ext): it needs Linux 6.12 or later with \
             CONFIG_SCHED_CLASS_EXT=y; `microslice run --beside` needs none",
        ));
    }
    let state = std::fs::read_to_string(format!("{SCHED_EXT}/state")).unwrap_or_default();
    if state.trim() == "disabled" {
        return Ok(());
    }
    let name = std::fs::read_to_string(format!("{SCHED_EXT}/root/ops")).unwrap_or_default();
    let name = if name.trim().is_empty() { "unnamed" } else { name.trim() };
    Err(HostError::refused(format!("another sched_ext scheduler is active ({name}): stop it first")))
}

/// sched_ext refuses to be enabled on such a host, and tells only the kernel's log why (`kernel/sched/ext.c`,
/// scx_enable).
fn check_isolation() -> Result<(), HostError> {
    let command_line = std::fs::read_to_string("/proc/cmdline").unwrap_or_default();
    match isolated_from_scheduling(&command_line) {
        None => Ok(()),
        Some(pcpus) => Err(HostError::refused(format!(
            "the kernel was booted with isolcpus={pcpus}, which no sched_ext scheduler can be loaded with: isolate \
             them by cpusets instead"
        ))),
    }
}

/// The value of `isolcpus=` if it takes pCPUs away from the scheduler's balancing: that is what it means
/// without flags and with `domain`, not with `nohz` and `managed_irq` alone (`kernel/sched/isolation.c`).
fn isolated_from_scheduling(command_line: &str) -> Option<&str> {
    let value =
        command_line.split_whitespace().filter_map(|word| word.strip_prefix("isolcpus=")).next_back()?;
    let mut flags =
        value.split(',').take_while(|word| ["nohz", "domain", "managed_irq"].contains(word)).peekable();
    (flags.peek().is_none() || flags.any(|flag| flag == "domain")).then_some(value)
}

fn check_btf_exists() -> Result<(), HostError> {
    if Path::new(KERNEL_BTF).exists() {
        return Ok(());
    }
    Err(HostError::refused(
        "this kernel has no BTF (no /sys/kernel/btf/vmlinux): it needs CONFIG_DEBUG_INFO_BTF=y",
    ))
}

/// Returns what this kernel knows as `SCX_OPS_ENQ_MIGRATION_DISABLED`.
fn check_btf() -> Result<u64, HostError> {
    check_btf_exists()?;
    let btf = Btf::from_vmlinux().map_err(|cause| HostError::refused(format!("{KERNEL_BTF}: {cause}")))?;
    if kfuncs_are_broken(&btf) {
        return Err(HostError::refused(
            "this kernel's BTF is broken for sched_ext: it describes scx_bpf_kick_cpu with its implicit argument and \
             has no scx_bpf_kick_cpu_impl (kernels built with pahole 1.30), so no scheduler that kicks can load; \
             use another build of this kernel",
        ));
    }
    Ok(ops_flag(&btf, "SCX_OPS_ENQ_MIGRATION_DISABLED").unwrap_or(0))
}

/// A flag of `struct sched_ext_ops`, if this kernel knows it.
fn ops_flag(btf: &Btf<'_>, name: &str) -> Option<u64> {
    let flags = btf.type_by_name::<Enum64<'_>>("scx_ops_flags")?;
    let flag = flags.iter().find(|member| member.name.is_some_and(|known| known == name))?;
    u64::try_from(flag.value).ok()
}

/// From 7.1 on the verifier supplies a hidden last argument. BTF must show the call without it, and a twin
/// with it.
fn kfuncs_are_broken(btf: &Btf<'_>) -> bool {
    match argument_count(btf, "scx_bpf_kick_cpu") {
        Some(arguments) => arguments > 2 && argument_count(btf, "scx_bpf_kick_cpu_impl").is_none(),
        None => false,
    }
}

fn argument_count(btf: &Btf<'_>, function: &str) -> Option<usize> {
    let prototype: FuncProto<'_> = btf.type_by_name::<Func<'_>>(function)?.next_type()?.try_into().ok()?;
    Some(prototype.len())
}

/// Both modules can be built into a kernel, so that both have a folder on any machine: the processor says
/// which one works.
fn check_kvm() -> Result<Vendor, HostError> {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let Some(vendor) = vendor_of(&cpuinfo) else {
        return Err(HostError::refused("/proc/cpuinfo names no processor whose virtualization KVM knows"));
    };
    let module = match vendor {
        Vendor::Amd => "kvm_amd",
        Vendor::Intel => "kvm_intel",
    };
    if Path::new("/sys/module").join(module).is_dir() {
        return Ok(vendor);
    }
    Err(HostError::refused(format!("KVM isn't loaded: run `modprobe {module}` first")))
}

/// Built as modules, KVM has BTF of its own, and without that none of our hooks finds it. The kernel drops a
/// module's BTF that doesn't fit its own.
fn check_module_btf(vendor: Vendor, sys: &Path) -> Result<(), HostError> {
    let module = match vendor {
        Vendor::Amd => "kvm_amd",
        Vendor::Intel => "kvm_intel",
    };
    // What is built into the kernel has no state.
    let is_module = |name: &&str| sys.join("module").join(name).join("initstate").exists();
    let without = ["kvm", module]
        .into_iter()
        .filter(is_module)
        .find(|name| !sys.join("kernel/btf").join(name).exists());
    match without {
        None => Ok(()),
        Some(name) => Err(HostError::refused(format!(
            "module {name} has no BTF (no /sys/kernel/btf/{name}): it needs CONFIG_DEBUG_INFO_BTF_MODULES=y, and modules \
             that were built with this kernel"
        ))),
    }
}

/// Hygon's processors have AMD's extension, and Zhaoxin's, under both of their names, have Intel's.
fn vendor_of(cpuinfo: &str) -> Option<Vendor> {
    let (_, name) =
        cpuinfo.lines().filter_map(|line| line.split_once(':')).find(|(key, _)| key.trim() == "vendor_id")?;
    match name.trim() {
        "AuthenticAMD" | "HygonGenuine" => Some(Vendor::Amd),
        "GenuineIntel" | "CentaurHauls" | "Shanghai" => Some(Vendor::Intel),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_says_whose_virtualization_it_has() {
        let vendor = |name: &str| {
            vendor_of(&format!(
                "processor\t: 0\nvendor_id\t: {name}\nmodel name\t: vendor_id\n\nvendor_id\t: other\n"
            ))
        };
        assert_eq!(vendor("GenuineIntel"), Some(Vendor::Intel));
        assert_eq!(vendor("AuthenticAMD"), Some(Vendor::Amd));
        assert_eq!(vendor("HygonGenuine"), Some(Vendor::Amd));
        assert_eq!(vendor("  Shanghai  "), Some(Vendor::Intel));
        assert_eq!(vendor("Other"), None);
        assert_eq!(vendor_of(""), None);
    }

    #[test]
    fn kvm_modules_need_btf_unless_built_in() {
        let sys = tempfile::tempdir().unwrap();
        let make = |path: &str| {
            let path = sys.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        };
        assert!(check_module_btf(Vendor::Amd, sys.path()).is_ok(), "built in");
        make("module/kvm/initstate");
        make("module/kvm_amd/initstate");
        make("kernel/btf/kvm");
        let refused = check_module_btf(Vendor::Amd, sys.path()).unwrap_err();
        assert!(refused.is_refusal() && refused.to_string().starts_with("module kvm_amd has no BTF"));
        assert!(check_module_btf(Vendor::Intel, sys.path()).is_ok());
        make("kernel/btf/kvm_amd");
        assert!(check_module_btf(Vendor::Amd, sys.path()).is_ok());
    }

    #[test]
    fn isolcpus_counts_unless_its_flags_say_otherwise() {
        let isolated = |arguments: &str| {
            isolated_from_scheduling(&format!("quiet {arguments} console=ttyS0\n")).map(str::to_owned)
        };
        assert_eq!(isolated("isolcpus=2-3").as_deref(), Some("2-3"));
        assert_eq!(isolated("isolcpus=domain,managed_irq,1,3").as_deref(), Some("domain,managed_irq,1,3"));
        assert_eq!(isolated("isolcpus=all").as_deref(), Some("all"));
        assert_eq!(isolated("isolcpus=nohz,managed_irq,1-3"), None);
        assert_eq!(isolated("nohz_full=1-3"), None);
        assert_eq!(isolated(""), None);
    }
}
