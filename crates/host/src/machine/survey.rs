//! Survey: all that a host has for `run`, with each scheduler, and for `observe`, and what each would refuse.
//!
//! The modes themselves end at the first refusal ([`super::preflight`]). Here the same checks are rows, in
//! the same order, and a row that can't be read says so.

use crate::HostError;
use crate::interface::KvmVendor;
use crate::machine::preflight::{self, kernel};
use crate::machine::topology::Topology;
use crate::machine::{cautions, cgroups, core_scheduling, cpu_list::cpu_list, real_time, refused_kernels};
use std::path::Path;

pub use crate::machine::kvm_modes::Hint;

/// A command that needs something of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// `run` as it is: beside the kernel's own scheduler.
    Run,
    /// With a scheduler in its place.
    InPlace,
    Observe,
}

impl Mode {
    pub const ALL: [Self; 3] = [Self::Run, Self::InPlace, Self::Observe];

    /// Returns the command as it is typed.
    pub const fn command(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::InPlace => "run --scheduler microslice",
            Self::Observe => "observe",
        }
    }
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    pub what: &'static str,
    /// What this host has.
    pub found: String,
    /// The modes that refuse this host for it, each with its line.
    pub refused: Vec<(Mode, String)>,
    /// What the operator should know although nothing is refused.
    pub note: Option<String>,
}

impl Row {
    fn new(what: &'static str, found: impl Into<String>) -> Self {
        Self { what, found: found.into(), refused: Vec::new(), note: None }
    }

    /// `checked` as these modes check it.
    fn refused_by(mut self, modes: &[Mode], checked: Result<(), HostError>) -> Self {
        if let Err(error) = checked {
            self.refused.extend(modes.iter().map(|&mode| (mode, error.to_string())));
        }
        self
    }

    fn noted(mut self, note: Option<impl Into<String>>) -> Self {
        self.note = note.map(Into::into);
        self
    }
}

/// What was found on this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Survey {
    pub rows: Vec<Row>,
    /// None without KVM.
    pub hints: Vec<Hint>,
}

impl Survey {
    /// Looks at the host. Nothing is loaded or changed.
    pub fn look() -> Self {
        use Mode::{InPlace, Run};
        let rights = Mode::ALL.into_iter().fold(Row::new("rights", rights()), |row, mode| {
            row.refused_by(&[mode], preflight::check_rights(mode == Run))
        });
        let lockdown = preflight::lockdown();
        let (release, version) = (kernel("osrelease"), kernel("version"));
        let tickless = preflight::tickless_pcpus();
        let btf = preflight::check_btf_exists();
        let scheduler_btf = if btf.is_ok() { preflight::check_btf().map(|_| ()) } else { Ok(()) };
        let vendor = preflight::find_kvm();
        let hints = vendor.as_ref().map_or_else(|_| Vec::new(), |&vendor| preflight::hints(vendor));
        let known_vendor = match &vendor {
            Ok(vendor) => preflight::check_vendor(*vendor).map(|_| ()),
            Err(_) => Ok(()),
        };
        let module_btf =
            vendor.as_ref().map_or(Ok(()), |&vendor| preflight::check_module_btf(vendor, Path::new("/sys")));
        let kvm =
            Row::new("KVM", vendor.as_ref().map_or_else(|_| "none".to_owned(), |vendor| name_of(*vendor)));
        let topology = Topology::read();
        let core_scheduling = topology.as_ref().map_or(Ok(()), core_scheduling::check);
        let pcpus = Row::new("pCPUs", topology.as_ref().map_or_else(|_| "can't be read".into(), pcpus_of));
        let rows = vec![
            rights,
            Row::new("lockdown", or_none(&lockdown))
                .refused_by(&Mode::ALL, preflight::check_lockdown(&lockdown)),
            Row::new("sched_ext", preflight::sched_ext_state())
                .refused_by(&[InPlace], preflight::check_sched_ext()),
            Row::new("kernel", format!("Linux {release} {version}"))
                .refused_by(&[InPlace], refused_kernels::check(&release, &version, &tickless))
                .noted(real_time::warning(&release)),
            Row::new("preemption", preemption(std::fs::read_to_string(PREEMPTION).ok().as_deref(), &version)),
            Row::new("pCPUs without ticks", or_none(&tickless)).noted(cautions::tickless(&tickless)),
            Row::new("isolcpus", or_none(&preflight::isolated_pcpus()))
                .refused_by(&[InPlace], preflight::check_isolation()),
            Row::new("function tracer", there(preflight::has_function_tracer(Path::new("/proc"))))
                .refused_by(&[InPlace], preflight::check_function_tracer(Path::new("/proc")))
                .noted(
                    (!preflight::has_function_tracer(Path::new("/proc")))
                        .then_some("run and observe go by tracepoints alone"),
                ),
            Row::new("kernel's BTF", there(btf.is_ok()))
                .refused_by(&Mode::ALL, btf)
                .refused_by(&[InPlace], scheduler_btf),
            match vendor {
                Ok(_) => kvm.refused_by(&[InPlace], known_vendor),
                Err(error) => kvm.refused_by(&Mode::ALL, Err(error)),
            },
            Row::new("KVM's BTF", there(module_btf.is_ok())).refused_by(&Mode::ALL, module_btf),
            Row::new("threads of some CPUs", cautions::parted_count().to_string())
                .noted(cautions::parted_threads(&release)),
            match topology {
                Ok(_) => pcpus.noted(cautions::gaps_between_nodes(&release)),
                Err(error) => pcpus.refused_by(&Mode::ALL, Err(error)),
            },
            Row::new("core scheduling", if core_scheduling.is_ok() { "not used" } else { "in use" })
                .refused_by(&[InPlace], core_scheduling),
            Row::new(
                "cgroups",
                if Path::new(cgroups::MOUNT).join("cgroup.controllers").exists() { "v2" } else { "no v2" },
            )
            .noted(cgroups::of_version_one()),
        ];
        Self { rows, hints }
    }

    /// Returns the line with which `mode` would refuse this host: the first of all.
    pub fn refusal(&self, mode: Mode) -> Option<&str> {
        self.refusals(mode).next()
    }

    /// Returns all reasons why `mode` can't work here.
    pub fn refusals(&self, mode: Mode) -> impl Iterator<Item = &str> {
        let lines = self.rows.iter().flat_map(|row| &row.refused);
        lines.filter(move |(refused, _)| *refused == mode).map(|(_, line)| line.as_str())
    }
}

fn rights() -> String {
    let missing = preflight::missing_capabilities();
    if missing.is_empty() { "all".to_owned() } else { format!("{} missing", missing.join(", ")) }
}

fn name_of(vendor: KvmVendor) -> String {
    match vendor {
        KvmVendor::Amd => "kvm_amd",
        KvmVendor::Intel => "kvm_intel",
        KvmVendor::Other => "another vendor's",
    }
    .to_owned()
}

fn pcpus_of(topology: &Topology) -> String {
    let online = topology.neighbourhoods.len();
    let nodes =
        topology.neighbourhoods.iter().map(|near| near.node).collect::<std::collections::BTreeSet<_>>();
    let mut text =
        format!("{online} online, {} NUMA node{}", nodes.len(), if nodes.len() == 1 { "" } else { "s" });
    text.push_str(if topology.smt { ", SMT on" } else { ", SMT off" });
    for (what, pcpus) in [("isolated", &topology.isolated), ("slow", &topology.slow)] {
        if !pcpus.is_empty() {
            text.push_str(&format!(", {what}: {}", cpu_list(pcpus)));
        }
    }
    text
}

/// The mode in force stands in parentheses (`sched_dynamic_show`, kernel/sched/debug.c, Linux 5.13 on).
const PREEMPTION: &str = "/sys/kernel/debug/sched/preempt";

/// When the kernel takes a task's pCPU for another one's sake. `shown` is what debugfs has, `version` what
/// the kernel says of its build.
fn preemption(shown: Option<&str>, version: &str) -> String {
    let in_force = shown.and_then(|text| text.split_once('(')?.1.split_once(')')).map(|(mode, _)| mode);
    let built = |word: &str| version.split_whitespace().any(|of| of == word);
    match in_force {
        Some(mode) => mode.to_owned(),
        None if built("PREEMPT_RT") => "rt".to_owned(),
        None if built("PREEMPT_DYNAMIC") => format!("chosen at boot; {PREEMPTION} can't be read"),
        None if built("PREEMPT_LAZY") => "lazy".to_owned(),
        None if built("PREEMPT") => "full".to_owned(),
        None => "none or voluntary".to_owned(),
    }
}

fn or_none(text: &str) -> String {
    if text.is_empty() || text == "(null)" { "none".to_owned() } else { text.to_owned() }
}

fn there(is_there: bool) -> &'static str {
    if is_there { "there" } else { "none" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mode_refuses_what_the_survey_says() {
        let survey = Survey::look();
        let refused =
            |result: Result<preflight::Host, HostError>| result.err().map(|error| error.to_string());
        let expected = [
            refused(preflight::check_beside()),
            refused(preflight::check()),
            refused(preflight::check_observer()),
        ];
        for (mode, expected) in Mode::ALL.into_iter().zip(expected) {
            let line = survey.refusal(mode);
            assert_eq!(line.is_some(), expected.is_some(), "{}: {line:?} {expected:?}", mode.command());
            assert!(expected.unwrap_or_default().starts_with(line.unwrap_or_default()), "{}", mode.command());
        }
    }

    #[test]
    fn the_mode_of_preemption_is_debugfs_or_the_builds() {
        let debian = "#1 SMP PREEMPT_DYNAMIC Debian 6.18.15-1";
        assert_eq!(preemption(Some("none voluntary (full) lazy\n"), debian), "full");
        assert_eq!(preemption(Some("full (lazy)\n"), debian), "lazy");
        assert!(preemption(None, debian).starts_with("chosen at boot; /sys/kernel/debug"));
        assert!(preemption(Some("garbage"), debian).starts_with("chosen at boot"));
        assert_eq!(preemption(None, "#1 SMP PREEMPT_RT Debian"), "rt");
        assert_eq!(preemption(None, "#1 SMP Debian"), "none or voluntary");
    }

    #[test]
    fn the_first_row_that_refuses_a_mode_is_the_reason() {
        let refuse =
            |what, mode, line: &str| Row::new(what, "").refused_by(&[mode], Err(HostError::refused(line)));
        let rows =
            vec![Row::new("fine", ""), refuse("a", Mode::Run, "first"), refuse("b", Mode::Run, "second")];
        let survey = Survey { rows, hints: Vec::new() };
        assert_eq!(survey.refusal(Mode::Run), Some("first"));
        assert!(survey.refusals(Mode::Run).eq(["first", "second"]));
        assert_eq!(survey.refusal(Mode::Observe), None);
    }
}
