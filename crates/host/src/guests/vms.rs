//! VMs: what a VMM process tells about itself, and what is known of its guest.
//!
//! The kernel side says that a process runs vCPUs. Name, kernel image and weight come from the process: its
//! command line, its cgroup. All of it is read through `/proc/PID`, is only trusted as far as names and paths
//! go, and may be gone at any moment.

use crate::bpf::kernel_vm::KernelVm;
use crate::guests::counting::Counting;
use crate::guests::guest_kernels::GuestKernel;
use crate::guests::kernel_reader::{FoundKernel, VmKey, Witness};
use crate::guests::libvirt::StateFile;
use crate::guests::resched_co::Trials;
use crate::guests::vm_names::{self, argument};
use crate::interface::{REGISTERS_64_BIT, REGISTERS_PROTECTED, REGISTERS_SEEN, VmStats};
use crate::machine::cgroups::{self, CpuLimits};
use crate::machine::proc;
use crate::settings::vm_policy::VmPolicy;
use crate::shares::weights::Place;
use microslice_symbols::slide::{SlideFinder, SlideState};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Most bytes of a command line that are looked at.
const COMMAND_LINE_BYTES_MAX: usize = 256 << 10;

/// The state of the search for a guest's kernel.
pub enum GuestKnowledge {
    /// Its kernel is being read for the first time.
    Reading,
    /// No image is named, and its memory may not be read.
    NoImage,
    /// Its kernel can't be read, neither from an image nor from its memory.
    Unreadable(String),
    /// Its kernel is known; the finder says where the guest put it.
    Kernel { kernel: Arc<GuestKernel>, finder: Box<SlideFinder> },
}

/// One VM.
pub struct Vm {
    pub kernel_side: KernelVm,
    pub name: String,
    /// As the policy takes it: what the whole cgroup hierarchy gives it.
    pub weight: u32,
    pub place: Place,
    /// Its state file, if it is one of libvirt's.
    pub libvirt: StateFile,
    /// Its policy, by flags, the configuration file and libvirt's metadata.
    pub policy: VmPolicy,
    /// The schemes of the scheduler `coordinated` that act: bits of `policy/urgent.h`.
    pub urgent_schemes: u32,
    /// Its trials of Resched-Co, where `coordinated` tries it.
    pub resched_co: Option<Trials>,
    /// Says how it is scheduled while its symbols or its slide are unknown.
    pub without_symbols: &'static str,
    /// The time that its vCPUs had run or waited when that was looked at last.
    pub wanted_ns: u64,
    /// Did it want to run since the look before?
    pub is_active: bool,
    /// The limits that its cgroups set.
    pub cpu_limits: CpuLimits,
    pub guest: GuestKnowledge,
    /// The slide that the kernel side was told.
    pub slide_told: Option<u64>,
    /// Halts that contradicted the kernel since the last slide: it may be another one.
    pub contradictions: u32,
    pub latest_witnesses: LatestWitnesses,
    /// Was the kernel named by the operator? Then no other is looked for.
    pub is_named: bool,
    pub memory_looks: MemoryLooks,
    pub slide_news: SlideNews,
    pub counting: Counting,
    /// Counts of schedulers before this one.
    pub stats_before: VmStats,
}

/// The last ones of each kind: those before a reboot say nothing of the kernel that runs now.
#[derive(Debug, Default)]
pub struct LatestWitnesses {
    halt: Option<u64>,
    lstar: Option<u64>,
}

impl LatestWitnesses {
    pub fn hear(&mut self, witness: Witness) {
        match witness {
            Witness::Halt(address) => self.halt = Some(address),
            Witness::Lstar(address) => self.lstar = Some(address),
        }
    }

    pub fn all(&self) -> Vec<Witness> {
        self.halt.map(Witness::Halt).into_iter().chain(self.lstar.map(Witness::Lstar)).collect()
    }
}

/// When to look into a guest's memory, and again: it may not have started its kernel yet, or start another.
#[derive(Default)]
pub struct MemoryLooks {
    pub next: Option<Instant>,
    count: u32,
}

impl MemoryLooks {
    /// Not at once: kernels that halt, or whose image is known, need no look.
    const FIRST_AFTER: Duration = Duration::from_secs(2);
    /// The longest pause for a guest whose kernel was known, and that may have started another.
    const LATER_AFTER_MAX: Duration = Duration::from_secs(600);
    /// The longest pause for a guest in which no kernel was ever found: it is hardly Linux. A look is a pass
    /// over all its memory.
    const UNKNOWN_AFTER_MAX: Duration = Duration::from_secs(4 * 3600);
    /// Two minutes: a guest that boots Linux has done so by then.
    const HOPEFUL: u32 = 6;

    /// The next look is due later each time.
    pub fn schedule(&mut self, now: Instant, is_known: bool) {
        let longest = if is_known { Self::LATER_AFTER_MAX } else { Self::UNKNOWN_AFTER_MAX };
        let after = Self::FIRST_AFTER.saturating_mul(1 << self.count.min(16)).min(longest);
        self.count = self.count.saturating_add(1);
        self.schedule_after(now, after);
    }

    pub fn schedule_after(&mut self, now: Instant, after: Duration) {
        self.next = Some(now + after);
    }

    /// As [`Self::schedule`] for a guest that was known, unless a look is due already.
    pub fn schedule_once(&mut self, now: Instant) {
        if self.next.is_none() {
            self.schedule(now, true);
        }
    }

    /// True once for each look that is due.
    pub fn take_due(&mut self, now: Instant) -> bool {
        self.next.take_if(|at| *at <= now).is_some()
    }

    /// Is the guest still new, so that a look is likely to find what it has begun to run?
    pub fn are_hopeful(&self) -> bool {
        self.count <= Self::HOPEFUL
    }
}

/// A guest that halted this often at addresses that its image has no `hlt` at runs another kernel.
const CONTRADICTIONS_OF_WRONG_IMAGE: u32 = 8;

impl Vm {
    /// One phrase for the operator.
    pub fn state(&self) -> String {
        let then = self.without_symbols;
        if !self.policy.accelerates() {
            return "not to be accelerated".to_owned();
        }
        match &self.guest {
            GuestKnowledge::Reading => format!("its kernel is being read: {then} until then"),
            GuestKnowledge::NoImage => format!("no kernel image known: {then}"),
            GuestKnowledge::Unreadable(cause) => {
                format!("no symbols ({}): {then}", self.obstacle().unwrap_or(cause))
            }
            GuestKnowledge::Kernel { finder, .. } => match (finder.accepted(), finder.state()) {
                (Some(slide), _) => format!("slide {slide:#x}"),
                (None, _) if let Some(obstacle) = self.obstacle() => {
                    format!("{obstacle}: {then}")
                }
                (None, _) if !finder.landmarks().can_place_halts() => {
                    format!("the image has no code to find the slide with: {then}")
                }
                (None, SlideState::Contradicted(cause)) if self.runs_another_kernel() => {
                    format!("the slide never fits ({cause}): {then}")
                }
                (None, SlideState::Contradicted(cause)) => format!("slide dropped: {cause}"),
                (None, _) => format!("slide not known yet: {then}"),
            },
        }
    }

    /// Says what keeps it from being accelerated whatever its kernel is.
    fn obstacle(&self) -> Option<&'static str> {
        obstacle(self.kernel_side.registers)
    }

    /// The host can't read its registers, and didn't know that when `before` was seen of them.
    pub fn hides_since(&self, before: u32) -> bool {
        self.kernel_side.registers & !before & REGISTERS_PROTECTED != 0
    }

    pub fn release(&self) -> Option<&str> {
        match &self.guest {
            GuestKnowledge::Kernel { kernel, .. } => Some(&kernel.release),
            _ => None,
        }
    }

    /// Returns the function of its kernel at a linked address, where functions are named.
    pub fn function_at(&self, address: u64) -> Option<&str> {
        match &self.guest {
            GuestKnowledge::Kernel { kernel, .. } => kernel.function_at(address),
            _ => None,
        }
    }

    /// Its kernel was found, though it may run another by now.
    pub fn is_known(&self) -> bool {
        matches!(self.guest, GuestKnowledge::Kernel { .. })
    }

    pub fn key(&self) -> VmKey {
        (self.kernel_side.pid, self.kernel_side.kvm)
    }

    /// Its kernel was read. What witnesses said of the same kernel before stays said; what the operator named
    /// stays the kernel, whatever the memory says.
    pub fn learn(&mut self, found: FoundKernel) {
        let known = match &self.guest {
            GuestKnowledge::Kernel { kernel, .. } => Some(kernel),
            _ => None,
        };
        if !known.is_some_and(|known| Arc::ptr_eq(known, &found.kernel)) {
            if known.is_some() && self.is_named {
                return;
            }
            let finder = Box::new(found.kernel.slide_finder());
            self.guest = GuestKnowledge::Kernel { kernel: found.kernel, finder };
            self.slide_told = None;
            self.contradictions = 0;
        }
        if let (GuestKnowledge::Kernel { finder, .. }, Some(slide)) = (&mut self.guest, found.slide) {
            finder.observe_kernel_offset(slide);
            self.slide_told = finder.accepted();
        }
    }

    /// Halts keep contradicting what is believed of its kernel.
    pub fn runs_another_kernel(&self) -> bool {
        self.contradictions >= CONTRADICTIONS_OF_WRONG_IMAGE
    }
}

/// `registers`: bits `REGISTERS_…` of `bpf/core/intf.h`.
fn obstacle(registers: u32) -> Option<&'static str> {
    if registers & REGISTERS_PROTECTED != 0 {
        return Some("its registers are hidden from the host: SEV-ES, SEV-SNP or TDX");
    }
    (registers & (REGISTERS_SEEN | REGISTERS_64_BIT) == REGISTERS_SEEN)
        .then_some("a 32-bit guest, or none yet: no vCPU has been in 64-bit mode")
}

/// A VM has a name that the operator gave a weight or a kernel, beside others that have it too: one line for
/// the newcomer.
pub fn namesakes(name: &str, pid: u32, others: &[u32]) -> Option<String> {
    const SHOWN: usize = 4;
    if others.is_empty() {
        return None;
    }
    let mut pids: Vec<String> = others.iter().take(SHOWN).map(u32::to_string).collect();
    if others.len() > SHOWN {
        pids.push("…".to_owned());
    }
    let pids = pids.join(", ");
    Some(format!(
        "{name}: pid {pid} has the name of pid {pids}: what is configured for it holds for each of them"
    ))
}

/// When to say that a guest's slide has changed: a few lines a minute, however often the guest changes it.
#[derive(Default)]
pub struct SlideNews {
    minute: Option<Instant>,
    said: u32,
    unsaid: u32,
}

impl SlideNews {
    /// A guest that starts anew has two: the old one is dropped, the new one is found.
    const LINES_A_MINUTE: u32 = 4;

    pub fn add(&mut self) {
        self.unsaid = self.unsaid.saturating_add(1);
    }

    /// How many changes the line covers that is due now, if one is.
    pub fn take_due(&mut self, now: Instant) -> Option<u32> {
        if self.unsaid == 0 {
            return None;
        }
        if self.minute.is_none_or(|start| now.duration_since(start) >= Duration::from_secs(60)) {
            self.minute = Some(now);
            self.said = 0;
        }
        if self.said == Self::LINES_A_MINUTE {
            return None;
        }
        self.said += 1;
        Some(std::mem::take(&mut self.unsaid))
    }
}

/// A VMM process, and what it says about its VM.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct VmmProcess {
    pub name: String,
    /// What tells it from others of its name.
    pub number: Option<String>,
    /// The path that the VMM was given, as it names it.
    pub kernel_argument: Option<PathBuf>,
    /// Cgroups and their weights, the outermost first.
    pub cgroups: Vec<(PathBuf, u32)>,
}

impl VmmProcess {
    pub fn read(pid: u32) -> Self {
        let folder = PathBuf::from(format!("/proc/{pid}"));
        let arguments = command_line(&folder);
        let cgroup = cgroups::named_in(&folder.join("cgroup")).unwrap_or_else(|| "/".to_owned());
        let comm = proc::name(&folder).unwrap_or_default();
        Self {
            name: vm_names::name(&arguments, &cgroup, &comm, pid),
            number: vm_names::number(&arguments).map(str::to_owned),
            kernel_argument: kernel_from_arguments(&arguments),
            cgroups: cgroups::weights(Path::new(cgroups::MOUNT), &cgroup).unwrap_or_default(),
        }
    }

    /// Its name and its number: what it is called where others have its name.
    pub fn numbered_name(&self) -> Option<String> {
        Some(format!("{}-{}", self.name, self.number.as_ref()?))
    }

    /// Calls a VM by its numbered name if the operator does (`is_configured`), or if another VM has its name
    /// already (`is_taken`). Returns what to say of that.
    pub fn told_apart(
        self,
        is_configured: impl Fn(&str) -> bool,
        is_taken: impl Fn(&str) -> bool,
    ) -> (Self, Option<String>) {
        let is_taken = is_taken(&self.name);
        let numbered = self.numbered_name().filter(|numbered| is_taken || is_configured(numbered));
        let Some(name) = numbered else { return (self, None) };
        let said = is_taken.then(|| format!("{}: another VM has this name; this one is {name}", self.name));
        (Self { name, ..self }, said)
    }
}

/// Reads the cgroups that all vCPU threads of a process lie in, and their weights. The process's own may be
/// another: `/kata_overhead`, libvirt's `emulator`. `None` if they can't be read now, or if the process is
/// gone.
pub fn read_weights(pid: u32, vcpu_threads: &[u32]) -> Option<Vec<(PathBuf, u32)>> {
    let cgroup = cgroups::common(&cgroups_of(pid, vcpu_threads))
        .or_else(|| cgroups::named_in(Path::new(&format!("/proc/{pid}/cgroup"))))?;
    cgroups::weights(Path::new(cgroups::MOUNT), &cgroup).ok()
}

/// Reads the limits of these threads, the vCPUs of a process. `None` if all of them are gone, or if their
/// cgroups can't be read now.
pub fn read_cpu_limits(pid: u32, vcpu_threads: &[u32]) -> Option<CpuLimits> {
    let cgroups = cgroups_of(pid, vcpu_threads);
    if cgroups.is_empty() { None } else { CpuLimits::read(Path::new(cgroups::MOUNT), &cgroups).ok() }
}

fn cgroups_of(pid: u32, threads: &[u32]) -> Vec<String> {
    let of_thread = |thread: &u32| cgroups::named_in(Path::new(&format!("/proc/{pid}/task/{thread}/cgroup")));
    threads.iter().filter_map(of_thread).collect()
}

fn command_line(folder: &Path) -> Vec<String> {
    let bytes = std::fs::read(folder.join("cmdline")).unwrap_or_default();
    let bytes = &bytes[..bytes.len().min(COMMAND_LINE_BYTES_MAX)];
    bytes.split(|&byte| byte == 0).map(|argument| String::from_utf8_lossy(argument).into_owned()).collect()
}

/// QEMU `-kernel`, Cloud Hypervisor and crosvm `--kernel`.
fn kernel_from_arguments(arguments: &[String]) -> Option<PathBuf> {
    argument(arguments, "kernel").filter(|path| !path.is_empty()).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vm_whose_name_is_taken_has_its_number_too() {
        let of = |number: Option<&str>| VmmProcess {
            name: "web".into(),
            number: number.map(str::to_owned),
            ..VmmProcess::default()
        };
        let (nobody, web) = (|_: &str| false, |name: &str| name == "web");
        let (process, said) = of(Some("101")).told_apart(nobody, web);
        assert_eq!(process.name, "web-101");
        assert_eq!(said.as_deref(), Some("web: another VM has this name; this one is web-101"));
        let (process, said) = of(Some("101")).told_apart(|name| name == "web-101", nobody);
        assert_eq!((process.name.as_str(), said), ("web-101", None), "whichever comes first");
        assert_eq!(of(Some("101")).told_apart(nobody, nobody), (of(Some("101")), None));
        assert_eq!(of(None).told_apart(nobody, web), (of(None), None));
    }

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn guests_of_32_bits_or_hidden_registers_are_named() {
        assert_eq!(obstacle(0), None, "nobody has looked yet");
        assert_eq!(obstacle(REGISTERS_SEEN | REGISTERS_64_BIT), None);
        let narrow = obstacle(REGISTERS_SEEN).unwrap();
        assert!(narrow.starts_with("a 32-bit guest"), "{narrow}");
        // Its mode is hidden, too; before it was launched it may have shown one.
        for before in [0, REGISTERS_64_BIT] {
            let hidden = obstacle(REGISTERS_SEEN | REGISTERS_PROTECTED | before).unwrap();
            assert!(hidden.contains("SEV-ES, SEV-SNP or TDX"), "{hidden}");
        }
    }

    #[test]
    fn the_latest_witness_of_each_kind_is_kept() {
        let mut latest = LatestWitnesses::default();
        assert_eq!(latest.all(), []);
        for witness in [Witness::Halt(1), Witness::Lstar(2), Witness::Halt(3)] {
            latest.hear(witness);
        }
        assert_eq!(latest.all(), [Witness::Halt(3), Witness::Lstar(2)]);
    }

    #[test]
    fn looks_into_memory_become_rarer() {
        let start = Instant::now();
        let mut looks = MemoryLooks::default();
        assert!(!looks.take_due(start), "nothing is scheduled");
        looks.schedule(start, false);
        assert!(!looks.take_due(start));
        assert!(looks.take_due(start + MemoryLooks::FIRST_AFTER));
        assert!(!looks.take_due(start + MemoryLooks::FIRST_AFTER), "once for each look");
        for _ in 0..40 {
            looks.schedule(start, true);
        }
        assert_eq!(looks.next, Some(start + MemoryLooks::LATER_AFTER_MAX));
    }

    #[test]
    fn a_guest_without_a_kernel_is_read_few_times_daily() {
        let (start, mut now) = (Instant::now(), Instant::now());
        let (mut looks, mut hopeful) = (MemoryLooks::default(), 0);
        for _ in 0..20 {
            looks.schedule(now, false);
            now = looks.next.unwrap();
            hopeful += u32::from(looks.are_hopeful());
        }
        assert_eq!(hopeful, MemoryLooks::HOPEFUL);
        let hours = now.duration_since(start).as_secs() / 3600;
        assert!(hours >= 24, "20 looks in {hours} hours");
        looks.schedule(start, false);
        assert_eq!(looks.next, Some(start + MemoryLooks::UNKNOWN_AFTER_MAX));
    }

    #[test]
    fn ever_changing_slides_bring_few_lines_and_the_last_state() {
        let start = Instant::now();
        let mut news = SlideNews::default();
        let (mut lines, mut changes) = (0, 0);
        for second in 0..180 {
            news.add();
            let covered = news.take_due(start + Duration::from_secs(second));
            lines += u32::from(covered.is_some());
            changes += covered.unwrap_or(0);
        }
        assert_eq!((lines, changes), (12, 124), "56 are told by the next line");
        let later = start + Duration::from_secs(200);
        assert_eq!((news.take_due(later), news.take_due(later)), (Some(56), None));
    }

    #[test]
    fn vms_of_one_configured_name_are_named_together() {
        assert_eq!(namesakes("web", 7, &[]), None);
        let said = "web: pid 7 has the name of pid 3, 5: what is configured for it holds for each of them";
        assert_eq!(namesakes("web", 7, &[3, 5]).as_deref(), Some(said));
        assert!(namesakes("web", 7, &[1; 99]).unwrap().contains("pid 1, 1, 1, 1, …: "));
    }

    #[test]
    fn kernels_are_found_in_command_lines_of_several_vmms() {
        let path = |text: &str| kernel_from_arguments(&words(text));
        assert_eq!(path("qemu -kernel /boot/vmlinuz -m 1"), Some("/boot/vmlinuz".into()));
        assert_eq!(path("cloud-hypervisor --kernel vmlinux"), Some("vmlinux".into()));
        assert_eq!(path("vmm --kernel=/k"), Some("/k".into()));
        assert_eq!(path("qemu -kernel"), None);
        assert_eq!(path("qemu -kernel-irqchip on"), None);
    }
}
