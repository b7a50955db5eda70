//! `microslice testbed`: the emulated host, by hand.

use super::campaign::{self, Campaign};
use super::peers::{self, Peers};
use super::side_by_side::{self, SideBySide};
use crate::failure::Failure;
use crate::output;
use clap::{Args, Subcommand};
use microslice_testbed::Testbed as Emulated;
use microslice_testbed::cache::Cache;
use microslice_testbed::costs::{self, Load};
use microslice_testbed::emulator::Emulator;
use microslice_testbed::kernels::{self, Kernel, Rule};
use microslice_testbed::machine::bochs::Bochs;
use microslice_testbed::{
    Guest, GuestSpec, Host, Machine, Process, Pv, guest_modules, installation, say, workload,
};
use serde_json::json;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

#[derive(Args)]
pub struct Testbed {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Kernels(Kernels),
    Exec(Exec),
    Costs(Costs),
    Campaign(Campaign),
    Peers(Peers),
    SideBySide(SideBySide),
}

/// Compare what scheduling costs: ours and the kernel's scx_simple, with the same guests in one boot
#[derive(Args)]
#[command(after_help = "Examples:
  microslice testbed costs                        context switches per unit of guest work, time per BPF event
  microslice testbed costs --count-instructions   instructions per BPF event instead, with vCPUs that run no kernel
  microslice testbed costs --json")]
struct Costs {
    /// Measured seconds per scheduler
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(5..=3600))]
    seconds: u64,
    /// The emulated CPUs' clock counts instructions: one nanosecond each
    #[arg(long)]
    count_instructions: bool,
    /// Print one JSON object per scheduler
    #[arg(long)]
    json: bool,
}

/// Boot the emulated host with guests, run a shell command in it, and tear everything down
#[derive(Args)]
#[command(after_help = "Examples:
  microslice testbed exec -- uname -r
  microslice testbed exec --binary target/release/microslice --guest a=mix --guest b=hog --pv off -- \\
      'timeout -s INT 30 microslice run --scheduler microslice --micro-slice-us 3000 --stats 5'
  microslice testbed exec --append 'isolcpus=2-3' -- microslice run --scheduler microslice
  microslice testbed exec --systemd -- systemctl status
  microslice testbed exec --machine intel --timeout 1800 -- 'vcpus 1 4 pauses & timeout -s INT 60 microslice run'
  microslice testbed exec --kernel 7.2 --guest a=heartbeat,kallsyms --show-guests -- sleep 5
Workloads: hog shootdown lock wake worker collector pingpong heartbeat kallsyms, each as NAME or NAME:COUNT,
crowd:COUNT; of guest/ balloons, torture:SECONDS and locks:SECONDS; several with commas between; mix = collector,wake,pingpong. The guests' kernels lie in /guests/RELEASE/vmlinuz of the host.")]
struct Exec {
    /// Whose processors the host has: amd by QEMU, intel by Bochs, which needs minutes and takes no --guest
    #[arg(long, default_value = "amd", value_parser = ["amd", "intel"])]
    machine: String,
    /// The host's kernel series
    #[arg(long, default_value = kernels::DEFAULT_HOST)]
    kernel: String,
    /// Boot a kernel whose BTF is broken for sched_ext, to see it refused
    #[arg(long)]
    broken_btf: bool,
    /// CPUs of the host [default: 4; 1 of an Intel machine]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=255))]
    cpus: Option<u32>,
    /// Every PAUSE of a guest exits
    #[arg(long)]
    pause_exits: bool,
    /// An installed Debian with systemd, on a disk, is the host's root; all else lies in /testbed
    #[arg(long)]
    systemd: bool,
    /// More for the host's kernel command line, as "isolcpus=3"
    #[arg(long, value_name = "ARGUMENTS", default_value = "")]
    append: String,
    /// Put this program at /usr/bin/microslice of the host [default: this one]
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Put a local file into the host
    #[arg(long = "file", value_name = "PATH=LOCAL")]
    files: Vec<String>,
    /// Start a guest
    #[arg(long = "guest", value_name = "NAME=WORKLOAD")]
    guests: Vec<String>,
    /// The guests' kernel, as 6.12 or 6.12-cloud [default: 6.12-cloud]. An Intel machine has one, and QEMU,
    /// if it is named
    #[arg(long)]
    guest_kernel: Option<String>,
    /// vCPUs per guest
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=255))]
    vcpus: u32,
    /// PV helpers (TLB flush, IPI, sched-yield, spinlock) of the guests
    #[arg(long, default_value = "on", value_parser = ["on", "off"])]
    pv: String,
    /// Print what the guests reported, after the command's output
    #[arg(long)]
    show_guests: bool,
    /// Print the host's kernel log at the end
    #[arg(long)]
    show_console: bool,
    /// Give up on the command after so many seconds
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: u64,
    /// The shell command
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

/// Fetch the stock Debian kernels that testbed, demo and tests run, and the emulator (a second run touches no
/// network)
#[derive(Args)]
#[command(after_help = "Examples:
  microslice testbed kernels                   fetch what tests and demo need
  microslice testbed kernels 6.18 6.12-cloud   only these series, whatever their BTF
  microslice testbed kernels --json            where they are, for scripts")]
struct Kernels {
    /// Series to fetch, as 6.18 or 6.12-cloud; all that tests and demo use if none is named
    series: Vec<String>,
    /// Print one JSON object per kernel: rule, release, image, modules
    #[arg(long)]
    json: bool,
}

pub fn run(args: Testbed) -> Result<(), Failure> {
    match args.command {
        Command::Kernels(args) => fetch_kernels(&args),
        Command::Exec(args) => exec(&args),
        Command::Costs(args) => compare_costs(&args),
        Command::Campaign(args) => campaign::run(&args),
        Command::Peers(args) => peers::run(&args),
        Command::SideBySide(args) => side_by_side::run(&args),
    }
}

fn compare_costs(args: &Costs) -> Result<(), Failure> {
    let machine = Emulated::new(kernels::DEFAULT_HOST)
        .and_then(|machine| machine.with_guest_kernels(&[kernels::DEFAULT_GUEST]))
        .map_err(Failure::broken)?;
    let machine = if args.count_instructions { machine.counts_instructions() } else { machine };
    let binary = std::env::current_exe().map_err(Failure::broken)?;
    let host = machine.with_binary(binary).boot().map_err(Failure::broken)?;
    let progress = |scheduler: &str| say(format_args!("measuring {scheduler} for {} s", args.seconds));
    let load = if args.count_instructions { Load::BareVcpus } else { Load::Guests(kernels::DEFAULT_GUEST) };
    let all = costs::run(&host, &load, args.seconds, &progress).map_err(Failure::broken)?;
    if args.json {
        return all.iter().try_for_each(|costs| print_line(costs.to_json()));
    }
    let unit = if args.count_instructions { "instructions" } else { "ns" };
    print_line(costs::to_text(&all, unit))
}

fn fetch_kernels(args: &Kernels) -> Result<(), Failure> {
    let rules = match args.series.as_slice() {
        [] => kernels::all_rules(),
        named => named
            .iter()
            .map(|name| Rule::guest(name))
            .collect::<Result<_, _>>()
            .map_err(Failure::bad_input)?,
    };
    let cache = Cache::locate().map_err(Failure::broken)?;
    for rule in rules {
        match kernels::obtain(&cache, &rule) {
            Ok(kernel) => print_kernel(&rule, &kernel, args.json)?,
            // The archive drops kernels as it likes: the others are still worth having, and tests that miss
            // one say so.
            Err(error @ microslice_testbed::Error::Kernel { .. }) if args.series.is_empty() => say(&error),
            Err(error) => return Err(Failure::broken(error)),
        }
    }
    if args.series.is_empty() {
        fetch_images(&cache, args.json)?;
        fetch_headers(&cache)?;
        Emulator::obtain(&cache).map_err(Failure::broken)?;
        Bochs::obtain(&cache).map_err(Failure::broken)?;
        // Only root can install one; a user that never boots it needs none.
        if let Err(error) = installation::obtain(&cache) {
            say(format_args!("no host with systemd: {error}"));
        }
    }
    Ok(())
}

/// What our modules for guests are built with.
fn fetch_headers(cache: &Cache) -> Result<(), Failure> {
    for name in guest_modules::KERNELS {
        let kernel = Rule::guest(name).and_then(|rule| kernels::obtain(cache, &rule));
        match kernel.and_then(|kernel| guest_modules::headers(cache, &kernel.release)) {
            Ok(_) => {}
            Err(error @ microslice_testbed::Error::Kernel { .. }) => say(&error),
            Err(error) => return Err(Failure::broken(error)),
        }
    }
    Ok(())
}

/// Kernels of which only symbols are read.
fn fetch_images(cache: &Cache, json: bool) -> Result<(), Failure> {
    for rule in kernels::symbol_rules() {
        match kernels::obtain_image(cache, &rule) {
            Ok((release, image)) if json => print_line(
                json!({"rule": rule.to_string(), "release": release, "image": image, "modules": null}),
            )?,
            Ok((release, image)) => {
                print_line(format_args!("{:<28} {release:<30} {}", rule.to_string(), image.display()))?;
            }
            Err(error @ microslice_testbed::Error::Kernel { .. }) => say(&error),
            Err(error) => return Err(Failure::broken(error)),
        }
    }
    Ok(())
}

fn print_kernel(rule: &Rule, kernel: &Kernel, json: bool) -> Result<(), Failure> {
    let Kernel { release, image, modules } = kernel;
    if json {
        return print_line(
            json!({"rule": rule.to_string(), "release": release, "image": image, "modules": modules}),
        );
    }
    print_line(format_args!("{:<28} {release:<30} {}", rule.to_string(), image.display()))
}

fn print_line(line: impl std::fmt::Display) -> Result<(), Failure> {
    output::print(&format!("{line}\n"))
}

fn exec(args: &Exec) -> Result<(), Failure> {
    let specs = specs(args)?;
    let files = args.files.iter().map(|file| file_pair(file)).collect::<Result<Vec<_>, _>>()?;
    let machine =
        files.into_iter().fold(machine(args)?, |machine, (path, local)| machine.with_file(path, local));
    let host = machine.boot().map_err(Failure::broken)?;
    let guests = host.start_guests(specs).map_err(Failure::broken)?;
    let result = stream(&host, &args.command.join(" "), Duration::from_secs(args.timeout));
    if args.show_guests {
        guests.iter().try_for_each(print_guest)?;
    }
    for guest in guests.iter().filter(|guest| guest.has_ended()) {
        say(format_args!("guest {} ended: {}", guest.name(), guest.last_words()));
    }
    if args.show_console {
        output::say(host.console());
    }
    result
}

fn machine(args: &Exec) -> Result<Emulated, Failure> {
    let rule = if args.broken_btf { Rule::broken_host(&args.kernel) } else { Rule::host(&args.kernel) };
    let binary = match &args.binary {
        Some(path) if !path.is_file() => {
            return Err(Failure::bad_input(format_args!("--binary {}: no such file", path.display())));
        }
        Some(path) => path.clone(),
        None => std::env::current_exe().map_err(Failure::broken)?,
    };
    let machine = Emulated::with_kernel(rule.map_err(Failure::bad_input)?).map_err(Failure::bad_input)?;
    let machine = machine.with_binary(binary).with_kernel_arguments(&args.append);
    let machine = kind_of_machine(args, machine)?;
    let machine = match (&args.guest_kernel, args.machine.as_str()) {
        (None, "intel") => machine,
        (named, _) => {
            let name = named.as_deref().unwrap_or(kernels::DEFAULT_GUEST);
            machine.with_guest_kernels(&[name]).map_err(Failure::bad_input)?
        }
    };
    let needs_modules =
        |guest: &String| guest.split_once('=').is_some_and(|(_, load)| workload::needs_modules(load));
    Ok(if args.guests.iter().any(needs_modules) { machine.with_guest_modules() } else { machine })
}

/// Its processors, and what only one of the kinds has.
fn kind_of_machine(args: &Exec, machine: Emulated) -> Result<Emulated, Failure> {
    if args.machine == "amd" {
        let machine = machine.cpus(args.cpus.unwrap_or(4));
        let machine = if args.pause_exits { machine.pause_exits() } else { machine };
        return Ok(if args.systemd { machine.with_systemd() } else { machine });
    }
    let refused = [
        (
            !args.guests.is_empty(),
            "--guest: guests' programs crash on an Intel machine (docs/explanation/testbed.md)",
        ),
        (args.pause_exits, "--pause-exits: an Intel machine has them, with gap and window"),
        (args.systemd, "--systemd: an Intel machine has no such disk"),
    ];
    match refused.into_iter().find(|(is_asked_for, _)| *is_asked_for) {
        Some((_, why)) => Err(Failure::bad_input(why)),
        None => Ok(machine.machine(Machine::Intel).cpus(args.cpus.unwrap_or(1))),
    }
}

/// Nothing that can be seen now shall be found wrong after minutes of booting.
fn specs(args: &Exec) -> Result<Vec<GuestSpec>, Failure> {
    let mut names = BTreeSet::new();
    let specs = args.guests.iter().enumerate().map(|(at, guest)| {
        let refuse = |cause: &str| Failure::bad_input(format_args!("--guest {guest}: {cause}"));
        let (name, workload) = guest.split_once('=').ok_or_else(|| refuse("write it as NAME=WORKLOAD"))?;
        if !is_guest_name(name) {
            return Err(refuse("a name is 1 to 32 letters, digits, - and _"));
        }
        if !names.insert(name) {
            return Err(refuse("a second guest of that name"));
        }
        workload::check(workload).map_err(|cause| refuse(&cause))?;
        guest_spec(args, at, name, workload)
    });
    specs.collect()
}

fn is_guest_name(name: &str) -> bool {
    (1..=32).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
}

/// Where a file goes in the host, and which one it is here.
fn file_pair(file: &str) -> Result<(&str, &str), Failure> {
    let refuse = |cause: &str| Failure::bad_input(format_args!("--file {file}: {cause}"));
    let (path, local) = file.split_once('=').ok_or_else(|| refuse("write it as PATH=LOCAL"))?;
    match Path::new(local).is_file() {
        _ if path.is_empty() => Err(refuse("write it as PATH=LOCAL")),
        true => Ok((path, local)),
        false => Err(refuse("LOCAL is no file")),
    }
}

fn guest_spec(args: &Exec, at: usize, name: &str, workload: &str) -> Result<GuestSpec, Failure> {
    let spec = GuestSpec::new(name)
        .workload(workload)
        .kernel(args.guest_kernel.as_deref().unwrap_or(kernels::DEFAULT_GUEST))
        .vcpus(args.vcpus);
    let spec = spec.pv(if args.pv == "on" { Pv::On } else { Pv::Off });
    let network = u8::try_from(at + 1).map_err(|_| Failure::bad_input("more than 255 guests"))?;
    Ok(if workload.contains("pingpong") || workload.contains("mix") { spec.network(network) } else { spec })
}

/// Runs the command and passes its output on as it comes.
fn stream(host: &Host, command: &str, patience: Duration) -> Result<(), Failure> {
    let process = host.start(command).map_err(Failure::broken)?;
    let deadline = Instant::now() + patience;
    let mut printed = 0;
    while !process.has_ended() && Instant::now() < deadline {
        printed += print_lines(&process, printed)?;
        std::thread::sleep(Duration::from_millis(100));
    }
    let ended = process.wait(Duration::ZERO).map_err(Failure::broken)?;
    print_lines(&process, printed)?;
    if !ended.stderr.is_empty() {
        output::say(ended.stderr.trim_end_matches('\n'));
    }
    match ended.code {
        0 => Ok(()),
        code => Err(Failure::broken(format_args!("`{command}` ended with exit code {code}"))),
    }
}

fn print_lines(process: &Process, from: usize) -> Result<usize, Failure> {
    let lines = process.lines(from);
    lines.iter().try_for_each(|line| output::print_as_it_is(&format!("{}\n", line.text)))?;
    Ok(lines.len())
}

fn print_guest(guest: &Guest) -> Result<(), Failure> {
    let name = guest.name();
    guest.lines(0).iter().try_for_each(|line| print_line(format_args!("{name}: {}", line.text)))
}
