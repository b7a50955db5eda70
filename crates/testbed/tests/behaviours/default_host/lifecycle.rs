//! Our scheduler among VMs that come and go, and when it dies.

use crate::common::alone::spinning;
use crate::common::{
    PATIENCE, assert_alive, is_long, on_host, print, report_of, run, start_scheduler, statistics_from,
    stop_scheduler, wait_for_state, with_guests,
};
use microslice_testbed::{Guest, GuestSpec, Host, Process};

fn two_hogs() -> [GuestSpec; 2] {
    [GuestSpec::new("guest").workload("hog,heartbeat"), GuestSpec::new("bare").bare()]
}

#[test]
fn guests_live_on_through_kills_of_the_daemon() {
    with_guests(&two_hogs(), |host, guests| {
        for _ in 0..if is_long() { 10 } else { 2 } {
            let scheduler = start_scheduler(host, "--micro-cpus 1 --micro-slice-us 3000");
            guests.iter().for_each(|guest| assert_alive(guest, 2));
            scheduler.signal(libc::SIGKILL).expect("signal");
            assert_eq!(scheduler.wait(PATIENCE).expect("end").code, 137);
            wait_for_state(host, "disabled", &scheduler);
            guests.iter().for_each(|guest| assert_alive(guest, 2));
        }
    });
}

#[test]
#[ignore = "127 s; each behaviour starts and ends VMs: make test-long"]
fn vms_created_and_destroyed_leave_no_residue() {
    on_host(|host| {
        const AT_ONCE: usize = 4;
        let rounds = if is_long() { 5 } else { 2 };
        let scheduler = start_scheduler(host, "--micro-cpus auto --micro-slice-us 3000 --stats 1");
        for round in 0..rounds {
            let specs = (0..AT_ONCE).map(|at| GuestSpec::new(&format!("vm{round}-{at}")).vcpus(1)).collect();
            let guests: Vec<Guest> = host.start_guests(specs).unwrap_or_else(|error| panic!("{error}"));
            guests.iter().for_each(|guest| assert_alive(guest, 1));
            guests.into_iter().for_each(|guest| guest.stop().expect("stop"));
        }
        // From some interval after the last VM's end on none is listed.
        let ended = scheduler.lines(0).len();
        let is_empty = |report: &serde_json::Value| report["vms"].as_array().is_some_and(Vec::is_empty);
        statistics_from(&scheduler, ended, is_empty, "interval without VMs");
        let total = stop_scheduler(host, &scheduler);
        assert_eq!(total["still_accelerated"], 0, "{total}");
    });
}

#[test]
#[ignore = "61 s; the one of higher classes that take a pCPU shows as much: make test-long"]
fn a_kernel_thread_pinned_to_a_micro_pcpu_still_runs() {
    with_guests(&two_hogs(), |host, guests| {
        let scheduler = start_scheduler(host, "--micro-cpus 2 --micro-cpus-limit 2 --micro-slice-us 3000");
        for _ in 0..10 {
            // It queues work for a kworker on every pCPU, and waits for them all.
            run(host, "cat /proc/sys/vm/stat_refresh");
        }
        guests.iter().for_each(|guest| assert_alive(guest, 2));
        stop_scheduler(host, &scheduler);
    });
}

#[test]
fn kernel_threads_and_higher_classes_that_take_a_pcpu_leave_every_queued_task_its_slice() {
    on_host(|host| {
        let scheduler = start_scheduler(host, "--micro-cpus 0");
        // The kernel says so once for each scheduler, and gives such a task its own default.
        let complaints = "dmesg | grep -c 'has zero slice' || true";
        let before = run(host, complaints);
        let tasks: Vec<Process> = (0..4).map(|pcpu| spinning(host, 1 << pcpu).0).collect();
        // Kernel threads of each pCPU, next to the spinning task and to those that move here and there.
        let rounds = if is_long() { 300 } else { 100 };
        let load =
            format!("for n in $(seq {rounds}); do cat /proc/sys/vm/stat_refresh; sync; done > /dev/null");
        run(host, &format!("({load}) & ({load}) & wait"));
        for task in tasks {
            task.signal(libc::SIGKILL).expect("signal");
            task.wait(PATIENCE).expect("end");
        }
        assert_eq!(run(host, complaints), before, "{}", host.console());
        stop_scheduler(host, &scheduler);
    });
}

/// Specification: under 50 MiB for the daemon at 1,000 vCPUs.
const RESIDENT_KIB_MAX: u64 = 50 << 10;

/// The daemon's resident memory once it has seen a thousand vCPUs; or what happened instead.
fn resident_kib_at_a_thousand_vcpus(host: &Host) -> Result<u64, String> {
    let vmm = host.start("exec vcpus 250 4").expect("start");
    vmm.wait_for("ready", 0, PATIENCE).unwrap_or_else(|error| panic!("{error}: {}", vmm.last_words()));
    let scheduler = start_scheduler(host, "--stats 1 --micro-cpus 1 --micro-slice-us 3000");
    let deadline = std::time::Instant::now() + PATIENCE;
    let mut seen = (0, 0);
    let mut broken = None;
    while seen != (250, 1000) {
        if broken.is_some() || !vmm.stderr().is_empty() || std::time::Instant::now() >= deadline {
            stop_scheduler(host, &scheduler);
            vmm.signal(libc::SIGKILL).expect("signal");
            vmm.wait(PATIENCE).expect("end");
            let said = vmm.stderr();
            return Err(format!("{seen:?} VMs and vCPUs; the VMM said: {said}; report: {broken:?}"));
        }
        std::thread::sleep(std::time::Duration::from_secs(1));
        let Some(line) = scheduler.lines(0).pop() else { continue };
        match report_of(&line.text) {
            Ok(report) => {
                let vms = report["vms"].as_array().expect("vms");
                seen = (vms.len(), vms.iter().filter_map(|vm| vm["vcpus"].as_u64()).sum());
            }
            Err(error) => broken = Some(error),
        }
    }
    let status = "cat /proc/$(pidof microslice)/status";
    let status = run(host, status);
    let report = stop_scheduler(host, &scheduler);
    assert_eq!(report["still_accelerated"], 0);
    vmm.signal(libc::SIGKILL).expect("signal");
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("VmRSS");
    Ok(resident.trim().trim_end_matches(" kB").parse().expect("a number"))
}

#[test]
#[ignore = "109 s for one number: make test-long"]
fn vcpus_by_the_thousand_are_scheduled_by_a_daemon_of_less_than_fifty_mib() {
    on_host(|host| {
        // Emulated SVM ends a VM now and then (docs/explanation/testbed.md), and these are many.
        for tries in 1..=3 {
            match resident_kib_at_a_thousand_vcpus(host) {
                Ok(resident) => {
                    eprintln!("the daemon's resident memory at 1,000 vCPUs: {resident} KiB");
                    assert!(resident < RESIDENT_KIB_MAX, "{resident} KiB");
                    return;
                }
                Err(cause) => {
                    print(&format!("try {tries} of 3: {cause}"));
                }
            }
        }
        panic!("a thousand vCPUs were not seen in any of three tries");
    });
}
