//! The VMX path, on a host that Bochs interprets: one run of the scheduler beside bare vCPUs and a guest's
//! kernel, in phases, and each test looks at its own.

use crate::common::{assert_sums_hold, count, on_machine, print, report_of};
use microslice_testbed::kernels::DEFAULT_GUEST;
use microslice_testbed::{Host, Machine, Process, Testbed};
use serde_json::Value;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Verifying the scheduler alone takes minutes there.
const PATIENCE: Duration = Duration::from_secs(3600);
/// Reports are so many of the host's seconds apart: each is a page on a serial line.
const REPORT_S: u32 = 3;
/// Whole reports of each phase.
const REPORTS: usize = 2;
/// What began or ended isn't in the report of that interval only, but perhaps in the next one, too.
const UNSETTLED: usize = 2;
/// Two equals' parts of both, together.
const PART_OFF_MAX: f64 = 0.03;
/// Of the preemptions of vCPUs that are as long in either half of the address space.
const HALF_AT_LEAST: f64 = 0.2;
/// How long the guest's kernel waits for a disk that it hasn't. It halts meanwhile, and tells its slide.
const GUEST_WAITS_S: u32 = 180;
/// Where the guest's console goes.
const GUEST_CONSOLE: &str = "/tmp/guest-console";

/// What each phase's reports said, and the last one of all.
struct Seen {
    pauses: Vec<Value>,
    spinning: Vec<Value>,
    halts: Vec<Value>,
    interrupts: Vec<Value>,
    /// Of the VM that has gone, while nobody is there.
    between: Vec<Value>,
    /// KVM's own words for a window of pause loops that grew.
    windows: u64,
    guest: GuestKernel,
    end: Value,
}

/// A guest's kernel that has no user space: what each source says that it is.
struct GuestKernel {
    /// What is reported while it panics, which takes all that it gets, beside vCPUs that spin.
    panicking: Vec<Value>,
    /// `microslice symbols identify`, of its memory.
    in_memory: Value,
    /// Its slide, by its own words.
    offset: String,
    release: String,
}

fn seen() -> &'static Seen {
    static SEEN: OnceLock<Seen> = OnceLock::new();
    static MAKING: Mutex<()> = Mutex::new(());
    let _making = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    if SEEN.get().is_none() {
        let testbed = || {
            let testbed = Testbed::new("6.18").expect("a series").machine(Machine::Intel).cpus(2);
            testbed.with_guest_kernels(&[DEFAULT_GUEST]).expect("a guest's kernel")
        };
        on_machine("an Intel machine", testbed, &[], |host, _| {
            let _ = SEEN.set(look(host));
        });
    }
    SEEN.get().expect("a look that didn't fail has seen something")
}

fn look(host: &Host) -> Seen {
    let trace = "/sys/kernel/tracing";
    let event = format!("{trace}/events/kvm/kvm_ple_window_update/enable");
    // There are ten thousands of them: to read all would take a minute of the host's.
    must(host, &format!("echo 64 > {trace}/buffer_size_kb; echo 1 > {event}"));
    // The kernel's image is named by the VMM. So the slide comes from halts alone.
    let flags = format!("--micro-cpus 1 --no-guest-memory --stats {REPORT_S}");
    let scheduler =
        host.start(&format!("exec microslice run --scheduler microslice --json {flags}")).expect("start");
    wait_for_reports(&scheduler, 0, 1);
    // A second is a hundred million instructions.
    let times = must(host, "cut -d' ' -f14,15 /proc/$(pidof microslice)/stat");
    print(&format!("it loaded in hundredths of a second, of its own and of the kernel's: {}", times.trim()));
    let spinning = beside(host, &scheduler, &["1 2 spin kernel", "1 2 spin mixed"]);
    let between = reports_of_now(&scheduler, 1);
    let pauses = beside(host, &scheduler, &["1 4 pauses"]);
    let windows =
        must(host, &format!("echo 0 > {event}; grep -c 'window_update.*growed' {trace}/trace || true"));
    let halts = beside(host, &scheduler, &["1 2"]);
    let interrupts = beside(host, &scheduler, &["1 2 interrupts"]);
    let guest = look_at_guest_kernel(host, &scheduler);
    scheduler.signal(libc::SIGINT).expect("signal");
    let output = scheduler.wait(PATIENCE).expect("end");
    assert_eq!(output.code, 0, "{}", output.stderr);
    let end = report_of(output.stdout.lines().last().expect("statistics")).expect("a report");
    let windows = windows.trim().parse().expect("a number");
    Seen { pauses, spinning, halts, interrupts, between, windows, guest, end }
}

/// What is reported while these vCPUs run, and no others.
fn beside(host: &Host, scheduler: &Process, vcpus: &[&str]) -> Vec<Value> {
    let vmms: Vec<Process> = vcpus.iter().map(|which| start_vcpus(host, which)).collect();
    let reports = reports_of_now(scheduler, REPORTS);
    vmms.into_iter().for_each(kill);
    reports
}

fn start_vcpus(host: &Host, which: &str) -> Process {
    let vmm = host.start(&format!("exec vcpus {which}")).expect("start");
    vmm.wait_for("ready", 0, PATIENCE).unwrap_or_else(|error| panic!("{error}"));
    print(&format!("vcpus {which}"));
    vmm
}

fn kill(process: Process) {
    process.signal(libc::SIGKILL).expect("signal");
    process.wait(PATIENCE).expect("end");
}

/// Guests' programs crash there. So the kernel gets neither an initial root nor a disk: it boots, waits for
/// the disk, and panics.
fn look_at_guest_kernel(host: &Host, scheduler: &Process) -> GuestKernel {
    let image = host.image(DEFAULT_GUEST).expect("the guest's image");
    let append = format!("console=ttyS0 loglevel=3 panic=0 root=/dev/vda rootwait={GUEST_WAITS_S}");
    let kernel = &image.kernel;
    let vmm = host.start(&format!(
        "exec qemu-system-x86_64 -M pc,accel=kvm,usb=off,hpet=off,vmport=off -bios qboot.rom -cpu host -smp 2 \
         -m 256M -nodefaults -no-user-config -no-reboot -display none -name guest=stock -kernel {kernel} \
         -append '{append}' -serial file:{GUEST_CONSOLE} -monitor none"
    ));
    let vmm = vmm.expect("start");
    wait_until(scheduler, |report| vm_of(report, "stock").is_some_and(|vm| vm["slide"].is_string()));
    print("the guest's slide is known");
    let in_memory = must(host, "microslice symbols identify --json --pid $(pidof qemu-system-x86_64)");
    let in_memory = serde_json::from_str(&in_memory).expect("JSON");
    print("the guest's memory was read");
    let words = format!("grep -o 'Kernel Offset: 0x[0-9a-f]*' {GUEST_CONSOLE}");
    let panics = must(host, &format!("until {words}; do sleep 1; done"));
    print("the guest's kernel panics");
    let panicking = beside(host, scheduler, &["1 2 spin"]);
    kill(vmm);
    let offset = panics.trim().rsplit(' ').next().expect("an offset").to_owned();
    GuestKernel { panicking, in_memory, offset, release: image.release.clone() }
}

/// Of intervals in which nothing began or ended.
fn reports_of_now(scheduler: &Process, wanted: usize) -> Vec<Value> {
    wait_for_reports(scheduler, scheduler.lines(0).len() + UNSETTLED, wanted)
}

/// So many, from the scheduler's line `from` on.
fn wait_for_reports(scheduler: &Process, from: usize, wanted: usize) -> Vec<Value> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let lines = scheduler.lines(from);
        if lines.len() >= wanted {
            let reports = lines[..wanted].iter().map(|line| report_of(&line.text));
            return reports.collect::<Result<_, _>>().unwrap_or_else(|error| panic!("{error}"));
        }
        let is_hopeless = scheduler.has_ended() || Instant::now() >= deadline;
        assert!(!is_hopeless, "{} reports: {}", lines.len(), scheduler.last_words());
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Until a report is one that it `is`.
fn wait_until(scheduler: &Process, is: impl Fn(&Value) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let reports = reports_of_now(scheduler, 1);
        if reports.iter().any(&is) {
            return;
        }
        assert!(Instant::now() < deadline, "{reports:?}: {}", scheduler.last_words());
    }
}

fn must(host: &Host, command: &str) -> String {
    host.must_run(command, PATIENCE).unwrap_or_else(|error| panic!("{error}"))
}

/// All figures at or below `pointer`, of all reports, or of one VM in all.
fn sum<'a>(reports: impl IntoIterator<Item = &'a Value>, pointer: &str) -> u64 {
    fn all_of(value: &Value) -> u64 {
        value.as_object().map_or_else(|| count(value), |parts| parts.values().map(all_of).sum())
    }
    let figures = |report: &Value| all_of(report.pointer(pointer).unwrap_or_else(|| panic!("no {pointer}")));
    reports.into_iter().map(figures).sum()
}

fn vms(report: &Value) -> &Vec<Value> {
    report["vms"].as_array().expect("vms")
}

fn vm_of<'a>(report: &'a Value, name: &str) -> Option<&'a Value> {
    vms(report).iter().find(|vm| vm["name"] == name)
}

/// What all reports say of each of the VMs that spin: the one in the upper half, then the one in both.
fn spinning_vms(seen: &Seen) -> [Vec<&Value>; 2] {
    let is_mixed = |vm: &&Value| count(&vm["preemptions"]["by_class"]["user"]) > 0;
    let (mixed, upper) = seen.spinning.iter().flat_map(vms).partition(is_mixed);
    [upper, mixed]
}

#[test]
#[ignore = "Bochs needs minutes for its boot and for loading a scheduler: make test-long"]
fn on_vmx_vms_are_found_when_they_come_and_forgotten_when_they_go() {
    let seen = seen();
    for (reports, expected) in [
        (&seen.pauses, 1),
        (&seen.between, 0),
        (&seen.spinning, 2),
        (&seen.halts, 1),
        (&seen.interrupts, 1),
        (&seen.guest.panicking, 2),
    ] {
        let counts: Vec<_> = reports.iter().map(|report| vms(report).len()).collect();
        assert!(counts.iter().all(|&vms| vms == expected), "{expected} expected: {counts:?}");
    }
}

#[test]
#[ignore = "looks at the same run: make test-long"]
fn on_vmx_accelerations_and_returns_add_up() {
    let end = &seen().end;
    print(&format!("accelerations: {}", end["accelerations"]));
    assert!(sum([end], "/accelerations/total") > 0, "{end}");
    assert_sums_hold(end);
}

#[test]
#[ignore = "looks at the same run: make test-long"]
fn on_vmx_pause_loops_exit_after_a_window_that_grows_and_count_as_yields() {
    let seen = seen();
    let [pausing, spinning] = [&seen.pauses, &seen.spinning].map(|reports| sum(reports, "/yields/ple"));
    print(&format!("{pausing} yields of vCPUs that pause, {spinning} of others"));
    assert!(seen.windows > 0, "no window grew");
    assert!(pausing > 1000 && spinning == 0, "{pausing} and {spinning}");
}

#[test]
#[ignore = "looks at the same run: make test-long"]
fn on_vmx_directed_yields_overtake() {
    let seen = seen();
    let overtakes = |reports| sum(reports, "/overtakes/directed_yield");
    let [pausing, spinning] = [&seen.pauses, &seen.spinning].map(overtakes);
    print(&format!("{pausing} overtakes by directed yields where vCPUs pause, {spinning} elsewhere"));
    assert!(pausing > 0 && spinning == 0, "{pausing} and {spinning}");
}

#[test]
#[ignore = "looks at the same run: make test-long"]
fn on_vmx_halts_count_as_yields_of_idle_vcpus() {
    let seen = seen();
    let [halts, idle] = ["/yields/hlt", "/yields/hlt/idle"].map(|which| sum(&seen.halts, which));
    let others = sum(&seen.spinning, "/yields/hlt");
    print(&format!("{halts} halts, {idle} of them idle; {others} of vCPUs that spin"));
    assert!(halts > 0 && halts == idle && others == 0, "{:?}", seen.halts);
}

/// The upper half of the address space is a kernel's, and nobody knows which: no class.
#[test]
#[ignore = "looks at the same run: make test-long"]
fn on_vmx_the_instruction_pointer_of_a_preempted_vcpu_is_in_the_half_that_its_code_lies_in() {
    let seen = seen();
    let [upper, mixed] = spinning_vms(seen);
    let pausing = seen.pauses.iter().flat_map(vms).collect();
    let parts = |reports: &Vec<&Value>| {
        ["", "/user", "/unknown"]
            .map(|part| sum(reports.iter().copied(), &format!("/preemptions/by_class{part}")))
    };
    let all = [&upper, &mixed, &pausing].map(parts);
    print(&format!("preemptions, in the lower and in the upper half: {all:?}"));
    let [[in_kernel, _, unknown], [both, user, other], [pauses, lower, _]] = all;
    assert!(in_kernel > 0 && in_kernel == unknown && pauses > 0 && pauses == lower, "{all:?}");
    let least = user.min(other) as f64 / both as f64;
    assert!(both == user + other && least >= HALF_AT_LEAST, "{all:?}");
}

#[test]
#[ignore = "looks at the same run: make test-long"]
fn on_vmx_interrupts_of_a_guests_own_are_seen() {
    let seen = seen();
    let [sent, other] = [&seen.interrupts, &seen.spinning].map(|reports| sum(reports, "/interrupts"));
    print(&format!("{sent} interrupts of a guest that sends some without end, {other} of others"));
    assert!(sent > 1000 && other == 0, "{sent} and {other}");
}

#[test]
#[ignore = "looks at the same run: make test-long"]
fn on_vmx_two_equal_vms_have_equal_shares() {
    let ran = spinning_vms(seen()).map(|vm| sum(vm, "/cpu_time_ns"));
    let parts = ran.map(|one| one as f64 / ran.iter().sum::<u64>() as f64);
    print(&format!("parts of what both ran: {parts:.4?}"));
    assert!(parts.iter().all(|part| (part - 0.5).abs() <= PART_OFF_MAX), "{parts:?}");
}

/// Its own console says the slide, too.
#[test]
#[ignore = "looks at the same run: make test-long"]
fn on_vmx_a_stock_kernels_slide_is_the_same_by_its_halts_and_by_its_memory() {
    let guest = &seen().guest;
    let vm = vm_of(&guest.panicking[0], "stock").expect("the guest");
    let memory = &guest.in_memory["sources"][0];
    print(&format!("{} {}: {} {}", vm["kernel"], vm["slide"], memory["slide"], memory["witnesses"]));
    assert_eq!((&vm["kernel"], &vm["slide"]), (&memory["release"], &memory["slide"]), "{memory}");
    assert_eq!(vm["kernel"], guest.release.as_str());
    assert_eq!(vm["slide"], guest.offset.as_str());
}

/// Its symbols are known, so that only its own code has classes, and user space has none: it has no program.
#[test]
#[ignore = "looks at the same run: make test-long"]
fn on_vmx_a_stock_kernels_preemptions_have_classes() {
    let guest = &seen().guest;
    let of_guest: Vec<&Value> =
        guest.panicking.iter().map(|report| vm_of(report, "stock").expect("the guest")).collect();
    let of = |part: &str| sum(of_guest.iter().copied(), &format!("/preemptions/by_class{part}"));
    let [all, user, unknown] = ["", "/user", "/unknown"].map(of);
    print(&format!("{all} preemptions: {}", of_guest[0]["preemptions"]));
    assert!(all > 0 && user == 0 && unknown == 0, "{of_guest:?}");
}
