//! Whether KVM has the structs and functions that `bpf/` reads and hooks, by the types of each kernel in the
//! cache. Both vendors' modules are looked at. Interrupts that were posted are looked for on two machines:
//! one before Linux 6.16, which moved them, and one after.

use crate::common::{on_machine, run};
use btf_rs::{Btf, Member, Type};
use microslice_testbed::btf_check::argument_count;
use microslice_testbed::cache::Cache;
use microslice_testbed::kernels::{self, Kernel};
use microslice_testbed::{Machine, Testbed};
use object::{Object, ObjectSection};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

fn types_of(elf: &[u8], base: Option<&Btf>) -> Btf {
    let elf = object::File::parse(elf).expect("an ELF file");
    let section = elf.section_by_name(".BTF").expect("types");
    let data = section.data().expect("readable");
    base.map_or_else(|| Btf::from_bytes(data), |base| Btf::from_split_bytes(data, base)).expect("types")
}

fn unpacked(path: &Path) -> Vec<u8> {
    let tool = if path.extension().is_some_and(|end| end == "xz") { "xz" } else { "cat" };
    let mut command = Command::new(tool);
    if tool == "xz" {
        command.args(["--decompress", "--stdout"]);
    }
    let output = command.arg(path).output().expect("unpacked");
    assert!(output.status.success(), "{}", path.display());
    output.stdout
}

/// Offset, in bits, and the type of a member; members of anonymous ones count as their holder's.
fn member(btf: &Btf, members: &[Member], name: &str) -> Option<(u32, Type)> {
    members.iter().find_map(|member| {
        let own = btf.resolve_name(member).unwrap_or_default();
        let kind = btf.resolve_chained_type(member).ok()?;
        if own == name {
            return Some((member.bit_offset(), kind));
        }
        let inner = match (&kind, own.is_empty()) {
            (Type::Struct(inner) | Type::Union(inner), true) => inner,
            _ => return None,
        };
        let (offset, kind) = self::member(btf, &inner.members, name)?;
        Some((member.bit_offset() + offset, kind))
    })
}

/// Offset in bytes of what a path names, from a struct on.
fn offset(btf: &Btf, path: &str) -> Option<u32> {
    let mut names = path.split('.');
    let first = names.next()?;
    let mut kind =
        btf.resolve_types_by_name(first).ok()?.into_iter().find(|kind| matches!(kind, Type::Struct(_)))?;
    let mut bits = 0;
    for name in names {
        let (Type::Struct(holder) | Type::Union(holder)) = &kind else { return None };
        let (at, next) = member(btf, &holder.members, name)?;
        (bits, kind) = (bits + at, next);
    }
    Some(bits / 8)
}

struct Kvm {
    release: String,
    core: Btf,
    amd: Btf,
    intel: Btf,
}

impl Kvm {
    fn of(kernel: &Kernel) -> Option<Self> {
        let folder = kernel.modules.join("kernel/arch/x86/kvm");
        let find = |name: &str| -> Option<PathBuf> {
            let names = [format!("{name}.ko"), format!("{name}.ko.xz")];
            names.iter().map(|name| folder.join(name)).find(|path| path.exists())
        };
        let (core, amd, intel) = (find("kvm")?, find("kvm-amd")?, find("kvm-intel")?);
        // Of cloud kernels before 6.12 the image is packed in another way.
        let image = microslice_testbed::vmlinux_of(&kernel.image).ok()?;
        let base = types_of(&image, None);
        let of = |path: &Path| types_of(&unpacked(path), Some(&base));
        Some(Self { release: kernel.release.clone(), core: of(&core), amd: of(&amd), intel: of(&intel) })
    }

    /// Where a vCPU of Intel's keeps what was posted to it: in one of two places.
    fn posted_requests(&self) -> Vec<u32> {
        let places = ["vcpu_vmx.pi_desc.pir", "vcpu_vmx.vt.pi_desc.pir"];
        places.iter().filter_map(|path| offset(&self.intel, path)).collect()
    }

    fn check(&self) {
        let Self { release, core, amd, intel } = self;
        for path in [
            "kvm.created_vcpus",
            "kvm_vcpu.kvm",
            "kvm_vcpu.vcpu_id",
            "kvm_vcpu.arch.apic",
            "kvm_vcpu.arch.mp_state",
            "kvm_vcpu.arch.hflags",
            "kvm_vcpu.arch.efer",
            "kvm_lapic.vcpu",
            "kvm_lapic.regs",
            "kvm_lapic.apicv_active",
        ] {
            for (module, btf) in [("kvm", core), ("kvm-amd", amd), ("kvm-intel", intel)] {
                assert!(offset(btf, path).is_some(), "{release}: {module} has no {path}");
            }
        }
        assert!(
            offset(core, "kvm_vcpu.arch.regs").is_some() || offset(core, "kvm_vcpu.arch.rip").is_some(),
            "{release}"
        );
        // What is found by the address of the vCPU itself.
        for (btf, vcpu) in [(amd, "vcpu_svm.vcpu"), (intel, "vcpu_vmx.vcpu")] {
            assert_eq!(offset(btf, vcpu), Some(0), "{release}: {vcpu}");
        }
        for path in ["vcpu_svm.vmcb", "vmcb.save.rflags", "vmcb.save.lstar"] {
            assert!(offset(amd, path).is_some(), "{release}: kvm-amd has no {path}");
        }
        let found = self.posted_requests();
        assert!(matches!(found[..], [at] if at.is_multiple_of(64)), "{release}: {found:?}");
        assert_eq!(offset(intel, "pi_desc.pir"), Some(0), "{release}");
        for (btf, function, arguments) in [
            (core, "kvm_vcpu_on_spin", 2),
            (core, "kvm_emulate_halt", 1),
            (core, "kvm_arch_vcpu_load", 2),
            (core, "kvm_arch_vcpu_destroy", 1),
            (amd, "svm_complete_interrupt_delivery", 4),
            (intel, "vmx_deliver_interrupt", 4),
        ] {
            assert_eq!(argument_count(btf, function), Some(arguments), "{release}: {function}");
        }
    }
}

#[test]
fn what_bpf_reads_of_kvm_is_there_for_both_vendors() {
    let cache = Cache::locate().unwrap_or_else(|error| panic!("{error}"));
    let mut seen = 0;
    for rule in kernels::all_rules() {
        let Ok(Some(kernel)) = kernels::cached(&cache, &rule) else { continue };
        if let Some(kvm) = Kvm::of(&kernel) {
            kvm.check();
            seen += 1;
        }
    }
    assert!(seen > 2, "{seen} kernels in the cache");
}

/// 0xfb and 0xfc are calls.
const POSTED: [&[u64]; 5] =
    [&[], &[0xfb], &[0xfc], &[0x20, 0x41, 0xec, 0xfd, 0xff], &[0x3f, 0x40, 0xfb, 0xfc]];

/// No machine here can post interrupts. So a vCPU is made whose bits stand where the types of this kernel's
/// `kvm-intel` say, and the programs look at it.
fn assert_posted_interrupts_are_seen(series: &str) {
    let testbed = || Testbed::new(series).expect("a series").machine(Machine::Intel).cpus(1);
    on_machine(&format!("an Intel machine of {series}"), testbed, &[], |host, _| {
        let cache = Cache::locate().unwrap_or_else(|error| panic!("{error}"));
        let rule = kernels::Rule::host(series).expect("a series");
        let kernel = kernels::cached(&cache, &rule).expect("a cache").expect("the host's kernel");
        assert_eq!(run(host, "uname -r").trim(), kernel.release);
        let kvm = Kvm::of(&kernel).expect("types");
        let apic = offset(&kvm.core, "kvm_vcpu.arch.apic").expect("an APIC");
        let registers = offset(&kvm.core, "kvm_lapic.regs").expect("registers");
        let places = format!("{apic},{registers},{}", kvm.posted_requests()[0]);
        for posted in POSTED {
            let vectors: Vec<String> = posted.iter().map(u64::to_string).collect();
            let made = format!("{places}:{}", vectors.join(","));
            let seen = run(host, &format!("microslice run --posted-interrupts {made}"));
            println!("{}: {made}: {}", kernel.release, seen.trim());
            let seen: Value = serde_json::from_str(&seen).expect("JSON");
            let calls =
                if posted.iter().any(|vector| [0xfb, 0xfc].contains(vector)) { "owed" } else { "given" };
            assert_eq!(seen, json!({ "pending": posted, "calls": calls }), "{made}");
        }
    });
}

#[test]
#[ignore = "Bochs needs a minute for each boot: make test-long"]
fn posted_interrupts_are_seen_until_6_15() {
    assert_posted_interrupts_are_seen("6.12");
}

#[test]
#[ignore = "Bochs needs a minute for each boot: make test-long"]
fn posted_interrupts_are_seen_from_6_16() {
    assert_posted_interrupts_are_seen("6.18");
}
