//! By what BPF programs see KVM: functions of the kernel, or tracepoints alone
//! (`bpf/core/tracepoints.bpf.h`).

use crate::HostError;
use crate::bpf::warnings::{keep_warnings, load_failure};
use crate::function_probe_skeleton::FunctionProbeSkelBuilder;
use crate::interface::{KvmVendor, RunConfig};
use crate::machine::preflight::{Host, kernel};
use crate::settings::Settings;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use microslice_policy::{Code, Coded};
use serde_json::{Value, json};
use std::mem::MaybeUninit;

/// What tells of interrupts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InterruptHook {
    /// The function of AMD's or Intel's part of KVM.
    VendorFunction,
    /// The tracepoint of KVM's core.
    AcceptedByApic,
    /// This kernel's KVM is older than that function.
    Missing,
}

/// The hooks of one host.
///
/// By default those of one that shows everything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hooks {
    pub vendor: KvmVendor,
    pub interrupts: InterruptHook,
    /// Why no function is traced; `None`: functions are.
    without_functions: Option<String>,
}

impl Default for Hooks {
    fn default() -> Self {
        Self::choose(KvmVendor::Amd, None, true)
    }
}

impl Hooks {
    /// Finds out what this host has.
    ///
    /// # Errors
    /// Nothing can tell of vCPUs here.
    pub fn of(host: &Host, settings: &Settings) -> Result<Self, HostError> {
        let without_functions = if settings.by_tracepoints {
            Some("as asked for".to_owned())
        } else {
            why_functions_cannot_be_traced(settings.verbose)
        };
        if let Some(cause) = &without_functions {
            check_release(&kernel("osrelease"), cause)?;
        }
        let function = match host.vendor {
            KvmVendor::Amd => "svm_complete_interrupt_delivery",
            KvmVendor::Intel => "vmx_deliver_interrupt",
            KvmVendor::Other => "",
        };
        let symbols = std::fs::read_to_string("/proc/kallsyms").unwrap_or_default();
        let has_function = symbols.lines().any(|line| line.split_whitespace().nth(2) == Some(function));
        Ok(Self::choose(host.vendor, without_functions, has_function))
    }

    pub(crate) fn choose(vendor: KvmVendor, without_functions: Option<String>, has_function: bool) -> Self {
        let interrupts = match vendor {
            _ if without_functions.is_some() => InterruptHook::AcceptedByApic,
            KvmVendor::Other => InterruptHook::AcceptedByApic,
            _ if has_function => InterruptHook::VendorFunction,
            _ => InterruptHook::Missing,
        };
        Self { vendor, interrupts, without_functions }
    }

    /// True where functions of the kernel are traced.
    pub fn traces_functions(&self) -> bool {
        self.without_functions.is_none()
    }

    /// True where KVM's tracepoint of exits tells of the vendor's.
    pub fn sees_exits(&self) -> bool {
        self.vendor != KvmVendor::Other
    }

    /// True where a function tells of halts, and not the tracepoint of exits, which builds a record at each
    /// one.
    pub fn traces_halts(&self) -> bool {
        self.vendor == KvmVendor::Amd && self.traces_functions()
    }

    /// True if the programs of the vendor's interrupts are loaded.
    pub fn delivers(&self, vendor: KvmVendor) -> bool {
        self.interrupts == InterruptHook::VendorFunction && self.vendor == vendor
    }

    /// Tells the programs, before they are loaded.
    pub fn configure(&self, config: RunConfig) -> RunConfig {
        RunConfig {
            vendor: Code::raw(self.vendor as u32),
            by_tracepoints: u32::from(!self.traces_functions()),
            ..config
        }
    }

    /// True where something tells of pause-loop exits.
    pub fn sees_spins(&self) -> bool {
        self.traces_functions() || self.sees_exits()
    }

    /// True where something tells of interrupts.
    pub fn sees_interrupts(&self) -> bool {
        self.interrupts != InterruptHook::Missing
    }

    /// Returns what nobody can see by these hooks, as reports name it.
    pub fn unseen(&self) -> Vec<&'static str> {
        let things = [
            ("lock_halts", self.sees_exits()),
            ("polled_halts", self.sees_exits()),
            ("spins", self.sees_spins()),
            ("interrupts", self.sees_interrupts()),
        ];
        things.into_iter().filter(|(_, is_seen)| !is_seen).map(|(name, _)| name).collect()
    }

    /// Returns the line for the operator of a host of which not everything can be seen.
    pub fn line(&self) -> Option<String> {
        let how = match (&self.without_functions, self.vendor) {
            (Some(cause), _) => format!("no function of this kernel is traced ({cause}): tracepoints tell"),
            (None, KvmVendor::Other) => "this host's KVM is neither AMD's nor Intel's".to_owned(),
            (None, _) if !self.sees_interrupts() => {
                "this kernel's KVM has no function by which interrupts are seen".to_owned()
            }
            (None, _) => return None,
        };
        let unseen: Vec<_> = self.unseen().iter().map(|name| name.replace('_', " ")).collect();
        let left_out =
            if unseen.is_empty() { String::new() } else { format!("; left out: {}", unseen.join(", ")) };
        Some(format!("{how}{left_out}"))
    }

    /// For reports.
    pub fn to_json(&self) -> Value {
        json!({
            "kvm": self.vendor.name(),
            "traces_functions": self.traces_functions(),
            "unseen": self.unseen(),
        })
    }
}

/// A vCPU's thread is found with a runqueue locked. Before 6.4 what is kept of it came from an allocator that
/// may wake others then (`kernel/bpf/bpf_local_storage.c`).
fn check_release(release: &str, cause: &str) -> Result<(), HostError> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|number| number.parse().ok());
    let found: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if found >= (6, 4) {
        return Ok(());
    }
    Err(HostError::refused(format!(
        "no function of this kernel is traced ({cause}), and tracepoints alone do from Linux 6.4 on: this is {release}"
    )))
}

/// Loads and attaches one, and takes it back. `None`: they can.
fn why_functions_cannot_be_traced(verbose: bool) -> Option<String> {
    keep_warnings();
    let try_it = || -> libbpf_rs::Result<()> {
        let mut storage = MaybeUninit::uninit();
        let skeleton = FunctionProbeSkelBuilder::default().open(&mut storage)?.load()?;
        skeleton.progs.function_probe.attach().map(drop)
    };
    match try_it() {
        Ok(()) => None,
        Err(error) => {
            load_failure(&error, verbose);
            Some(error.to_string())
        }
    }
}

/// Sets which programs of an open skeleton are loaded: those that `$hooks` has.
macro_rules! choose_programs {
    ($open:ident, $hooks:expr) => {{
        let (hooks, programs) = (&$hooks, &mut $open.progs);
        let switches_tell = !hooks.traces_functions() || !hooks.sees_exits();
        programs.on_switch.set_autoload(!switches_tell);
        programs.on_telling_switch.set_autoload(switches_tell);
        programs.on_vcpu_load.set_autoload(hooks.traces_functions());
        programs.on_vcpu_destroy.set_autoload(hooks.traces_functions());
        programs.on_spin.set_autoload(hooks.traces_functions());
        programs.on_halt.set_autoload(hooks.traces_halts());
        programs.on_exit.set_autoload(hooks.sees_exits() && !hooks.traces_halts());
        programs.on_svm_interrupt.set_autoload(hooks.delivers(crate::interface::KvmVendor::Amd));
        programs.on_vmx_interrupt.set_autoload(hooks.delivers(crate::interface::KvmVendor::Intel));
        let is_accepted = hooks.interrupts == crate::bpf::hooks::InterruptHook::AcceptedByApic;
        programs.on_accepted_interrupt.set_autoload(is_accepted);
    }};
}
pub(crate) use choose_programs;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_shows_everything_has_no_line() {
        let hooks = Hooks::choose(KvmVendor::Amd, None, true);
        assert_eq!((hooks.line(), hooks.unseen()), (None, vec![]));
        assert!(hooks.delivers(KvmVendor::Amd) && !hooks.delivers(KvmVendor::Intel));
        assert!(hooks.traces_halts());
    }

    #[test]
    fn tracepoints_alone_do_from_6_4_on() {
        assert!(check_release("6.4.0", "refused").is_ok() && check_release("10.1-rc2", "refused").is_ok());
        for old in ["6.3.13-generic", "5.15.0", "unknown"] {
            let line = check_release(old, "refused").unwrap_err().to_string();
            assert!(line.contains(old) && line.contains("(refused)"), "{line}");
        }
    }

    #[test]
    fn an_old_kernel_leaves_interrupts_out() {
        let hooks = Hooks::choose(KvmVendor::Intel, None, false);
        assert_eq!((hooks.interrupts, hooks.unseen()), (InterruptHook::Missing, vec!["interrupts"]));
        assert!(!hooks.traces_halts(), "on VMX only the tracepoint has the instruction pointer read");
        assert!(hooks.line().unwrap().ends_with("left out: interrupts"));
    }

    #[test]
    fn without_functions_amds_kvm_still_tells_of_spins() {
        let hooks = Hooks::choose(KvmVendor::Amd, Some("refused".into()), true);
        assert_eq!((hooks.interrupts, hooks.unseen()), (InterruptHook::AcceptedByApic, vec![]));
        assert!(hooks.line().unwrap().contains("(refused)") && !hooks.traces_halts());
    }

    #[test]
    fn another_vendors_kvm_tells_less() {
        let hooks = Hooks::choose(KvmVendor::Other, None, false);
        assert_eq!(hooks.unseen(), ["lock_halts", "polled_halts"]);
        let hooks = Hooks::choose(KvmVendor::Other, Some("refused".into()), false);
        assert_eq!(hooks.unseen(), ["lock_halts", "polled_halts", "spins"]);
    }
}
