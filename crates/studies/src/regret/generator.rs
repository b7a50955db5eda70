//! A scenario from a seed: a host and its VMs, as the text of a file that `simulate` takes.
//!
//! Problem.   Programs that an author chose show what the author thought of. Whether a policy can be loaded
//!            blindly is asked of programs that nobody chose.
//! Mechanism. Hosts, VMs and programs (`today.rs`, `papers.rs`, `programs.rs`) are drawn from all that
//!            scenario files can say. Each part has a stream of random numbers of its own. What is drawn is
//!            written as a file, and the run reads that file.
//! Limits.    It is overcommitted, mostly. Where VMs differ in width, policies differ in what a weight means
//!            (of a vCPU, or of a VM). Programs of the papers aren't drawn.

use super::draw::{Draw, time};
use super::programs::Guest;
use super::{papers, today};
use microslice_model::config::{LockKind, SymbolTable};

/// Simulated before measuring starts.
pub const WARMUP_NS: u64 = 500_000_000;
/// Measured.
pub const DURATION_NS: u64 = 1_500_000_000;

/// Of random numbers.
pub const HOST_STREAM: u64 = 1;
pub const VMS_STREAM: u64 = 2;
const HOSTS_STREAM: u64 = 4;
pub const FIRST_VM_STREAM: u64 = 16;

/// How many of ten scenarios of [`Hosts::Mixed`] are of today.
const OF_TODAY: u64 = 8;

/// Which hosts and guests are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Hosts {
    /// Four of five scenarios are of today.
    #[default]
    Mixed,
    /// Of Linux 6.12, on processors with APICv, AVIC or IPI virtualization.
    Today,
    /// Like those of the papers.
    Papers,
}

/// What a seed draws.
pub struct Scenario {
    /// The file.
    pub text: String,
    /// What each VM of the report runs, in a word or two.
    pub programs: Vec<Vec<&'static str>>,
}

/// A host, as its table.
pub struct Host {
    pub pcpus: u64,
    /// Of a last-level cache; 0: there is one only.
    pub llc_pcpus: u64,
    pub text: String,
}

/// One `[[vm]]`.
pub struct Vm {
    pub name: char,
    pub copies: u64,
    pub vcpus: u64,
    /// Further keys.
    pub keys: Vec<String>,
    pub kernel: Kernel,
    pub guest: Guest,
}

/// A guest's kernel.
pub struct Kernel {
    pub text: String,
    pub symbols: SymbolTable,
    /// The kind of a lock that doesn't name one.
    pub lock_kind: LockKind,
    /// Its own locks, all of that kind.
    pub locks: Vec<&'static str>,
    /// What locks of programs there are, and how often each.
    pub kinds: &'static [(u64, Option<LockKind>)],
}

impl Scenario {
    /// Draws the scenario of this seed.
    pub fn draw(hosts: Hosts, seed: u64) -> Self {
        let is_of_today = match hosts {
            Hosts::Mixed => Draw::stream(seed, HOSTS_STREAM).chance(10 * OF_TODAY),
            Hosts::Today => true,
            Hosts::Papers => false,
        };
        let draw_host = if is_of_today { today::draw_host } else { papers::draw_host };
        let draw_vms = if is_of_today { today::draw_vms } else { papers::draw_vms };
        let host = draw_host(&mut Draw::stream(seed, HOST_STREAM));
        let vms = draw_vms(&mut Draw::stream(seed, VMS_STREAM), seed, &host);
        let tasks = if is_of_today { today::draw_tasks(seed, &host) } else { Vec::new() };
        let widths = vms.iter().flat_map(|vm| vec![vm.vcpus.to_string(); vm.copies as usize]);
        let description = format!(
            "regret {seed}: {} pCPUs, VMs of {} vCPUs: {}",
            host.pcpus,
            widths.collect::<Vec<_>>().join(", "),
            vms.iter().map(|vm| vm.guest.words.join(" and ")).collect::<Vec<_>>().join("; ")
        );
        let mut text = format!(
            "description = \"{description}\"\nseed = {seed}\nwarmup = \"{}\"\nduration = \"{}\"\n\n{}",
            time(WARMUP_NS),
            time(DURATION_NS),
            host.text
        );
        vms.iter().for_each(|vm| text.push_str(&vm.text()));
        tasks.iter().for_each(|task| text.push_str(task));
        let of_vms = vms.iter().flat_map(|vm| vec![vm.guest.words.clone(); vm.copies as usize]);
        let programs = of_vms.chain(tasks.iter().map(|_| vec![today::HOST_TASKS])).collect();
        Self { text, programs }
    }
}

impl Vm {
    fn text(&self) -> String {
        let mut text = format!("\n[[vm]]\nname = \"{}\"\nvcpus = {}\n", self.name, self.vcpus);
        if self.copies > 1 {
            text += &format!("copies = {}\n", self.copies);
        }
        self.keys.iter().for_each(|key| text += &format!("{key}\n"));
        text += &format!("kernel = {}\n", self.kernel.text);
        if let Some(nic) = &self.guest.nic {
            text += &format!("nic = {nic}\n");
        }
        text + &self.guest.text()
    }
}

/// Draws how long a kernel's handlers and switches take, or nothing: then they take what its kernel has.
pub fn draw_handlers(draw: &mut Draw) -> Vec<String> {
    if !draw.chance(15) {
        return Vec::new();
    }
    [
        ("call_function_handler", 500, 4_000),
        ("reschedule_handler", 300, 2_000),
        ("tick_handler", 1_000, 6_000),
        ("thread_switch", 500, 3_000),
    ]
    .map(|(key, low_ns, high_ns)| format!("{key} = \"{}\"", time(draw.over_decades(low_ns, high_ns))))
    .into()
}
