//! Refusals: everything that must hold before anything is loaded. Each is one line that says what to do.

use crate::HostError;
use crate::interface::KvmVendor;
use crate::machine::kvm_modes::{self, Hint};
use crate::machine::topology::Topology;
use crate::machine::{core_scheduling, refused_kernels};
use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::{Enum64, Func, FuncProto};
use std::path::Path;

const SCHED_EXT: &str = "/sys/kernel/sched_ext";
const KERNEL_BTF: &str = "/sys/kernel/btf/vmlinux";
/// The modes that the kernel has, with the one in force in brackets.
const LOCKDOWN: &str = "/sys/kernel/security/lockdown";
/// The pCPUs that `nohz_full=` names.
const TICKLESS: &str = "/sys/devices/system/cpu/nohz_full";

/// A host that passed the checks, and what they found out.
#[derive(Debug)]
pub struct Host {
    pub vendor: KvmVendor,
    pub topology: Topology,
    /// `SCX_OPS_ENQ_MIGRATION_DISABLED`; 0 where this kernel hasn't got it, and passes `ops.enqueue` by for
    /// tasks that may not move.
    pub asks_about_those_that_may_not_move: u64,
}

/// Returns the lockdown modes of this kernel; nothing if it has none.
pub(super) fn lockdown() -> String {
    read(LOCKDOWN)
}

/// Returns the pCPUs of `nohz_full=`, as the kernel lists them.
pub(super) fn tickless_pcpus() -> String {
    read(TICKLESS)
}

/// Checks the host. Nothing has been changed when this fails.
pub fn check() -> Result<Host, HostError> {
    checked_for_run().map_err(naming_the_survey)
}

fn checked_for_run() -> Result<Host, HostError> {
    check_rights(false)?;
    check_lockdown(&lockdown())?;
    check_sched_ext()?;
    refused_kernels::check(&kernel("osrelease"), &kernel("version"), &tickless_pcpus())?;
    check_isolation()?;
    check_function_tracer(Path::new("/proc"))?;
    let asks_about_those_that_may_not_move = check_btf()?;
    let vendor = check_vendor(find_kvm()?)?;
    check_module_btf(vendor, Path::new("/sys"))?;
    let topology = Topology::read()?;
    core_scheduling::check(&topology)?;
    Ok(Host { vendor, topology, asks_about_those_that_may_not_move })
}

/// Checks the host for a mode that leaves the kernel's own scheduler in charge. It needs no sched_ext, but
/// the right to make threads real-time.
pub fn check_beside() -> Result<Host, HostError> {
    checked_for_beside().map_err(naming_the_survey)
}

fn checked_for_beside() -> Result<Host, HostError> {
    check_rights(true)?;
    check_lockdown(&lockdown())?;
    check_btf_exists()?;
    let vendor = find_kvm()?;
    check_module_btf(vendor, Path::new("/sys"))?;
    Ok(Host { vendor, topology: Topology::read()?, asks_about_those_that_may_not_move: 0 })
}

/// Checks the host for a mode that only looks.
pub fn check_observer() -> Result<Host, HostError> {
    checked_for_observer().map_err(naming_the_survey)
}

fn checked_for_observer() -> Result<Host, HostError> {
    check_rights(false)?;
    check_lockdown(&lockdown())?;
    check_btf_exists()?;
    let vendor = find_kvm()?;
    check_module_btf(vendor, Path::new("/sys"))?;
    Ok(Host { vendor, topology: Topology::read()?, asks_about_those_that_may_not_move: 0 })
}

/// Adds to a refusal where all of them stand together.
fn naming_the_survey(error: HostError) -> HostError {
    match error {
        HostError::Refused(line) => {
            HostError::Refused(format!("{line}; `microslice check` shows all at once"))
        }
        other => other,
    }
}

/// `uname -r` (`osrelease`), `uname -v` (`version`).
pub fn kernel(what: &str) -> String {
    read(&format!("/proc/sys/kernel/{what}"))
}

/// Returns the text of a file of the kernel's; nothing where this kernel hasn't got it.
fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

/// Reads the topology of a checked host again, after pCPUs have come or gone.
pub fn look_again(host: &Host) -> Result<Host, HostError> {
    let topology = Topology::read()?;
    core_scheduling::check(&topology)?;
    Ok(Host { topology, ..*host })
}

/// Checks for CAP_SYS_ADMIN (sched_ext, KVM's tracepoints), CAP_PERFMON and CAP_BPF, and for CAP_SYS_NICE
/// where threads are to be boosted.
pub(super) fn check_rights(boosts: bool) -> Result<(), HostError> {
    let needed = [SYS_ADMIN, SYS_NICE, PERFMON, BPF].into_iter().filter(|&right| boosts || right != SYS_NICE);
    check_capabilities_of(&needed.collect::<Vec<_>>())
}

/// Returns the names of those that some mode needs and this process hasn't got.
pub(super) fn missing_capabilities() -> Vec<&'static str> {
    missing_of(&[SYS_ADMIN, SYS_NICE, PERFMON, BPF])
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
    let missing = missing_of(needed);
    if missing.is_empty() {
        return Ok(());
    }
    Err(HostError::refused(format!("{} missing: run it as root", missing.join(", "))))
}

fn missing_of(needed: &[NumberedCapability]) -> Vec<&'static str> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .unwrap_or(0);
    needed.iter().filter(|(bit, _)| effective >> bit & 1 == 0).map(|(_, name)| *name).collect()
}

pub(super) fn check_sched_ext() -> Result<(), HostError> {
    if !Path::new(SCHED_EXT).is_dir() {
        return Err(HostError::refused(
            "this kernel has no sched_ext (no /sys/kernel/sched_ext): it needs Linux 6.12 or later with \
             CONFIG_SCHED_CLASS_EXT=y; `microslice run --scheduler beside` needs none",
        ));
    }
    match active_scheduler() {
        None => Ok(()),
        Some(name) => {
            Err(HostError::refused(format!("another sched_ext scheduler is active ({name}): stop it first")))
        }
    }
}

/// Returns the name of the sched_ext scheduler that is loaded.
fn active_scheduler() -> Option<String> {
    if read(&format!("{SCHED_EXT}/state")) == "disabled" {
        return None;
    }
    let name = read(&format!("{SCHED_EXT}/root/ops"));
    Some(if name.is_empty() { "unnamed".to_owned() } else { name })
}

/// Describes what this kernel has of sched_ext.
pub(super) fn sched_ext_state() -> String {
    if !Path::new(SCHED_EXT).is_dir() {
        return "none".to_owned();
    }
    active_scheduler().map_or_else(|| "free".to_owned(), |name| format!("{name} is active"))
}

/// Under `lockdown=confidentiality` no BPF program may read the kernel's memory (`bpf_tracing_func_proto`,
/// LOCKDOWN_BPF_READ_KERNEL), and the verifier names a helper only.
pub(super) fn check_lockdown(modes: &str) -> Result<(), HostError> {
    if !modes.contains("[confidentiality]") {
        return Ok(());
    }
    Err(HostError::refused(
        "this kernel is locked down (lockdown=confidentiality), so no BPF program may read what it schedules: boot it \
         with lockdown=integrity or without",
    ))
}

pub(super) fn has_function_tracer(proc: &Path) -> bool {
    proc.join("sys/kernel/ftrace_enabled").exists()
}

/// Hooks are attached by the function tracer (`bpf_trampoline_link_prog`), without which the kernel answers
/// EBUSY.
pub(super) fn check_function_tracer(proc: &Path) -> Result<(), HostError> {
    if has_function_tracer(proc) {
        return Ok(());
    }
    Err(HostError::refused(
        "this kernel has no function tracer (CONFIG_FUNCTION_TRACER=n), by which KVM is watched: \
         `microslice run --scheduler beside` and `observe` need none",
    ))
}

/// sched_ext refuses to be enabled on such a host, and tells only the kernel's log why (`kernel/sched/ext.c`,
/// scx_enable).
pub(super) fn check_isolation() -> Result<(), HostError> {
    match isolated_pcpus().as_str() {
        "" => Ok(()),
        pcpus => Err(HostError::refused(format!(
            "the kernel was booted with isolcpus={pcpus}, which no sched_ext scheduler can be loaded with: isolate \
             them by cpusets instead"
        ))),
    }
}

/// Returns the pCPUs that `isolcpus=` takes away from scheduling; nothing if there are none.
pub(super) fn isolated_pcpus() -> String {
    isolated_from_scheduling(&read("/proc/cmdline")).unwrap_or_default().to_owned()
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

pub(super) fn check_btf_exists() -> Result<(), HostError> {
    if Path::new(KERNEL_BTF).exists() {
        return Ok(());
    }
    Err(HostError::refused(
        "this kernel has no BTF (no /sys/kernel/btf/vmlinux): it needs CONFIG_DEBUG_INFO_BTF=y",
    ))
}

/// Returns what this kernel knows as `SCX_OPS_ENQ_MIGRATION_DISABLED`.
pub(super) fn check_btf() -> Result<u64, HostError> {
    check_btf_exists()?;
    let btf = Btf::from_vmlinux().map_err(|cause| HostError::refused(format!("{KERNEL_BTF}: {cause}")))?;
    if kfuncs_are_broken(&btf) {
        return Err(HostError::refused(
            "this kernel's BTF is broken for sched_ext: it describes scx_bpf_kick_cpu with its implicit argument and \
             has no scx_bpf_kick_cpu_impl (kernels built with pahole 1.30, or one before 1.26), so no scheduler that \
             kicks can load; use another build of this kernel",
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
pub(super) fn find_kvm() -> Result<KvmVendor, HostError> {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    kvm_of(vendor_of(&cpuinfo), Path::new("/sys"))
}

/// Returns the hints that this host's KVM gives.
pub fn hints(vendor: KvmVendor) -> Vec<Hint> {
    kvm_modes::hints(vendor, Path::new("/sys"), &read("/proc/cpuinfo"))
}

/// `processor`: whose it is, if KVM knows its virtualization.
fn kvm_of(processor: Option<KvmVendor>, sys: &Path) -> Result<KvmVendor, HostError> {
    let module = processor.and_then(module_of);
    if let (Some(vendor), Some(module)) = (processor, module)
        && sys.join("module").join(module).is_dir()
    {
        return Ok(vendor);
    }
    // KVM has a device as soon as some vendor's part of it works. A node in /dev may be there before.
    if sys.join("class/misc/kvm").exists() {
        return Ok(KvmVendor::Other);
    }
    Err(HostError::refused(match module {
        Some(module) => format!("KVM isn't loaded: run `modprobe {module}` first"),
        None => "/proc/cpuinfo names no processor whose virtualization KVM knows".to_owned(),
    }))
}

/// The module of its part of KVM.
fn module_of(vendor: KvmVendor) -> Option<&'static str> {
    match vendor {
        KvmVendor::Amd => Some("kvm_amd"),
        KvmVendor::Intel => Some("kvm_intel"),
        KvmVendor::Other => None,
    }
}

/// Checks that guests' registers can be read where `vendor`'s part of KVM keeps them.
pub(super) fn check_vendor(vendor: KvmVendor) -> Result<KvmVendor, HostError> {
    if vendor != KvmVendor::Other {
        return Ok(vendor);
    }
    Err(HostError::refused(
        "this host's KVM is neither AMD's nor Intel's: `microslice run --scheduler beside` and `observe` work with it",
    ))
}

/// Built as modules, KVM has BTF of its own, and without that none of our hooks finds it. The kernel drops a
/// module's BTF that doesn't fit its own.
pub(super) fn check_module_btf(vendor: KvmVendor, sys: &Path) -> Result<(), HostError> {
    // What is built into the kernel has no state.
    let is_module = |name: &&str| sys.join("module").join(name).join("initstate").exists();
    let without = ["kvm"]
        .into_iter()
        .chain(module_of(vendor))
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
fn vendor_of(cpuinfo: &str) -> Option<KvmVendor> {
    let (_, name) =
        cpuinfo.lines().filter_map(|line| line.split_once(':')).find(|(key, _)| key.trim() == "vendor_id")?;
    match name.trim() {
        "AuthenticAMD" | "HygonGenuine" => Some(KvmVendor::Amd),
        "GenuineIntel" | "CentaurHauls" | "Shanghai" => Some(KvmVendor::Intel),
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
        assert_eq!(vendor("GenuineIntel"), Some(KvmVendor::Intel));
        assert_eq!(vendor("AuthenticAMD"), Some(KvmVendor::Amd));
        assert_eq!(vendor("HygonGenuine"), Some(KvmVendor::Amd));
        assert_eq!(vendor("  Shanghai  "), Some(KvmVendor::Intel));
        assert_eq!(vendor("Other"), None);
        assert_eq!(vendor_of(""), None);
    }

    #[test]
    fn a_kvm_of_another_vendor_has_its_device_only() {
        let sys = tempfile::tempdir().unwrap();
        let found = |processor| kvm_of(processor, sys.path());
        assert!(found(Some(KvmVendor::Intel)).unwrap_err().to_string().contains("modprobe kvm_intel"));
        assert!(found(None).unwrap_err().to_string().contains("names no processor"));
        std::fs::create_dir_all(sys.path().join("class/misc/kvm")).unwrap();
        assert_eq!(found(Some(KvmVendor::Intel)).unwrap(), KvmVendor::Other);
        assert_eq!(found(None).unwrap(), KvmVendor::Other);
        std::fs::create_dir_all(sys.path().join("module/kvm_intel")).unwrap();
        assert_eq!(found(Some(KvmVendor::Intel)).unwrap(), KvmVendor::Intel);
    }

    #[test]
    fn a_kernel_that_shows_nothing_or_traces_nothing_is_refused() {
        for fine in ["", "[none] integrity confidentiality", "none [integrity] confidentiality"] {
            assert!(check_lockdown(fine).is_ok(), "{fine}");
        }
        let refused = check_lockdown("none integrity [confidentiality]").unwrap_err();
        assert!(refused.is_refusal() && refused.to_string().contains("lockdown=integrity"));
        let proc = tempfile::tempdir().unwrap();
        let refused = check_function_tracer(proc.path()).unwrap_err();
        assert!(refused.is_refusal() && refused.to_string().contains("CONFIG_FUNCTION_TRACER"));
        std::fs::create_dir_all(proc.path().join("sys/kernel")).unwrap();
        std::fs::write(proc.path().join("sys/kernel/ftrace_enabled"), "0\n").unwrap();
        assert!(check_function_tracer(proc.path()).is_ok());
    }

    #[test]
    fn kvm_modules_need_btf_unless_built_in() {
        let sys = tempfile::tempdir().unwrap();
        let make = |path: &str| {
            let path = sys.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        };
        assert!(check_module_btf(KvmVendor::Amd, sys.path()).is_ok(), "built in");
        make("module/kvm/initstate");
        make("module/kvm_amd/initstate");
        make("kernel/btf/kvm");
        let refused = check_module_btf(KvmVendor::Amd, sys.path()).unwrap_err();
        assert!(refused.is_refusal() && refused.to_string().starts_with("module kvm_amd has no BTF"));
        assert!(check_module_btf(KvmVendor::Intel, sys.path()).is_ok());
        make("kernel/btf/kvm_amd");
        assert!(check_module_btf(KvmVendor::Amd, sys.path()).is_ok());
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
