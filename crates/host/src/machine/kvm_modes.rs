//! KVM's modes: which hints this host gives about what guests wait for, by the parameters of KVM's modules.
//!
//! Names are the kernel's own (`arch/x86/kvm/vmx/vmx.c`, `svm/svm.c`, `svm/avic.c`, Linux 6.18). A module
//! shows what it made of a parameter on this processor: `enable_ipiv` is N where that hasn't got it.

use crate::interface::KvmVendor;
use std::path::Path;

/// Something that can tell a scheduler which vCPU is needed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hint {
    /// The key in `--json`.
    pub key: &'static str,
    pub name: &'static str,
    /// `None`: this host doesn't say.
    pub given: Option<bool>,
    /// By what, or why not.
    pub by: String,
}

/// Returns the hints that the KVM of `vendor` gives. `sys` is the kernel's, `cpuinfo` the text of
/// `/proc/cpuinfo`.
pub fn hints(vendor: KvmVendor, sys: &Path, cpuinfo: &str) -> Vec<Hint> {
    let parameter = |module: &str, name: &str| -> Option<String> {
        let path = sys.join("module").join(module).join("parameters").join(name);
        std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
    };
    let is_on = |module: &str, name: &str| parameter(module, name).map(|value| ["Y", "1"].contains(&&*value));
    let hint = |key, name, given, by: String| Hint { key, name, given, by };
    let pause = |given, by| hint("pause_loop_exits", "pause-loop exits", given, by);
    let ipis = |given, by: &str| hint("ipi_exits", "exits of IPIs", given, by.to_owned());
    let pending = |given, by: &str| hint("pending_interrupts", "pending interrupts", given, by.to_owned());
    let unknown = "no parameter of KVM's says so";
    match vendor {
        KvmVendor::Amd => {
            let has_filter = cpuinfo.lines().any(|line| {
                line.starts_with("flags") && line.split_whitespace().any(|flag| flag == "pausefilter")
            });
            let count = parameter("kvm_amd", "pause_filter_count");
            let avic = is_on("kvm_amd", "avic");
            vec![
                match count.as_deref() {
                    Some("0") => pause(Some(false), "pause_filter_count is 0".to_owned()),
                    Some(count) if has_filter => pause(Some(true), format!("after {count} PAUSEs")),
                    _ if !has_filter => pause(Some(false), "the processor has no pause filter".to_owned()),
                    _ => pause(None, unknown.to_owned()),
                },
                match avic {
                    Some(true) => ipis(Some(true), "AVIC: the sender's, if the recipient doesn't run"),
                    _ => ipis(Some(true), "each IPI is one"),
                },
                pending(Some(true), "the local APIC's page shows them"),
                devices(avic == Some(true), is_on("kvm_amd", "enable_device_posted_irqs")),
            ]
        }
        KvmVendor::Intel => {
            let gap = parameter("kvm_intel", "ple_gap");
            let window = parameter("kvm_intel", "ple_window").unwrap_or_default();
            let posts = is_on("kvm_intel", "enable_apicv");
            let virtual_ipis = posts == Some(true) && is_on("kvm_intel", "enable_ipiv") == Some(true);
            vec![
                match gap.as_deref() {
                    Some("0") => pause(Some(false), "ple_gap is 0".to_owned()),
                    Some(_) => pause(Some(true), format!("after {window} cycles")),
                    None => pause(None, unknown.to_owned()),
                },
                match (posts, virtual_ipis) {
                    (_, true) => ipis(
                        Some(false),
                        "IPI virtualization: none exits; --scheduler microslice looks for them",
                    ),
                    (Some(true), _) => ipis(Some(true), "APICv: the sender's"),
                    _ => ipis(Some(true), "each IPI is one"),
                },
                match posts {
                    Some(true) => pending(Some(true), "APICv: the posted-interrupt descriptor shows them"),
                    _ => pending(Some(true), "the local APIC's page shows them"),
                },
                devices(posts == Some(true), is_on("kvm_intel", "enable_device_posted_irqs")),
            ]
        }
        KvmVendor::Other => vec![
            pause(None, unknown.to_owned()),
            ipis(None, unknown),
            pending(None, "what stands in the in-kernel APIC, if there is one"),
            hint("device_interrupts", "interrupts of devices", None, unknown.to_owned()),
        ],
    }
}

/// `posted`: what the processor's APIC and the IOMMU can do together. KVM says so from Linux 6.16 on
/// (`kvm_x86_vendor_init`).
fn devices(has_virtual_apic: bool, posted: Option<bool>) -> Hint {
    let (given, by) = match (has_virtual_apic, posted) {
        (false, _) => (Some(true), "none can be posted"),
        (true, Some(true)) => (Some(false), "those of assigned devices are posted"),
        (true, Some(false)) => (Some(true), "none is posted"),
        (true, None) => (None, "those of assigned devices may be posted"),
    };
    Hint { key: "device_interrupts", name: "interrupts of devices", given, by: by.to_owned() }
}

/// Whether interrupts may come to waiting vCPUs without an event, so that they have to be looked for.
pub fn hides_interrupts(hints: &[Hint]) -> bool {
    hints
        .iter()
        .any(|hint| ["ipi_exits", "device_interrupts"].contains(&hint.key) && hint.given != Some(true))
}

/// Describes `hints` in one line for the operator.
pub fn line(hints: &[Hint]) -> String {
    let words = hints.iter().map(|hint| {
        let given = match hint.given {
            Some(true) => "yes",
            Some(false) => "no",
            None => "unknown",
        };
        format!("{}: {given} ({})", hint.name, hint.by)
    });
    format!("hints of this host's KVM: {}", words.collect::<Vec<_>>().join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(vendor: KvmVendor, flags: &str, parameters: &[(&str, &str)]) -> Vec<Hint> {
        let sys = tempfile::tempdir().unwrap();
        for (path, value) in parameters {
            let (module, name) = path.split_once('/').unwrap();
            let folder = sys.path().join("module").join(module).join("parameters");
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join(name), format!("{value}\n")).unwrap();
        }
        hints(vendor, sys.path(), &format!("flags\t\t: fpu {flags} sse\n"))
    }

    fn given(vendor: KvmVendor, flags: &str, parameters: &[(&str, &str)]) -> [Option<bool>; 4] {
        found(vendor, flags, parameters)
            .into_iter()
            .map(|hint| hint.given)
            .collect::<Vec<_>>()
            .try_into()
            .unwrap()
    }

    #[test]
    fn amd_shows_pending_interrupts_with_and_without_avic() {
        let with = |avic, count| {
            let parameters = [("kvm_amd/avic", avic), ("kvm_amd/pause_filter_count", count)];
            given(KvmVendor::Amd, "svm pausefilter", &parameters)
        };
        assert_eq!(with("N", "3000"), [Some(true); 4]);
        assert_eq!(with("Y", "3000"), [Some(true), Some(true), Some(true), None]);
        assert_eq!(with("Y", "0"), [Some(false), Some(true), Some(true), None]);
        let without_filter = given(KvmVendor::Amd, "svm", &[("kvm_amd/pause_filter_count", "3000")]);
        assert_eq!(without_filter[0], Some(false));
    }

    #[test]
    fn intel_hides_ipis_by_ipiv_and_shows_pending_interrupts() {
        let with = |apicv, ipiv| {
            let parameters = [
                ("kvm_intel/enable_apicv", apicv),
                ("kvm_intel/enable_ipiv", ipiv),
                ("kvm_intel/ple_gap", "128"),
                ("kvm_intel/ple_window", "4096"),
            ];
            given(KvmVendor::Intel, "vmx", &parameters)
        };
        assert_eq!(with("N", "Y"), [Some(true); 4], "IPI virtualization needs APICv");
        assert_eq!(with("Y", "N"), [Some(true), Some(true), Some(true), None]);
        assert_eq!(with("Y", "Y"), [Some(true), Some(false), Some(true), None]);
        assert_eq!(given(KvmVendor::Intel, "vmx", &[("kvm_intel/ple_gap", "0")])[0], Some(false));
    }

    #[test]
    fn interrupts_are_looked_for_unless_all_of_them_are_told() {
        let looks = |apicv, ipiv, posted: Option<&str>| {
            let posted = posted.map(|value| ("kvm_intel/enable_device_posted_irqs", value));
            let parameters: Vec<_> = [("kvm_intel/enable_apicv", apicv), ("kvm_intel/enable_ipiv", ipiv)]
                .into_iter()
                .chain(posted)
                .collect();
            hides_interrupts(&found(KvmVendor::Intel, "vmx", &parameters))
        };
        assert!(!looks("N", "N", None), "without APICv nothing can be posted");
        assert!(!looks("Y", "N", Some("N")), "the IOMMU posts none");
        assert!(looks("Y", "N", Some("Y")) && looks("Y", "Y", Some("N")));
        assert!(looks("Y", "N", None), "kernels before 6.16 don't say");
    }

    #[test]
    fn of_an_unknown_kvm_hints_are_unknown() {
        let hints = hints(KvmVendor::Other, Path::new("/nowhere"), "");
        assert!(hints.iter().all(|hint| hint.given.is_none()));
        assert!(line(&hints).starts_with("hints of this host's KVM: pause-loop exits: unknown ("));
    }
}
