//! What overcommit costs, seen on stock hosts with and without sched_ext. The hosts and their guests are
//! those of `beside`.

use super::beside::{start, stop};
use crate::common::{Trace, count, print, refusal, reports, run, seconds, stand_still, statistics_from};
use microslice_metrics::profile::{HostProfile, Profile};
use microslice_testbed::{Guest, Host, Process, built_binary};
use serde_json::Value;
use std::collections::BTreeMap;
use std::process::Command;

const OBSERVE: &str = "exec microslice observe --json --interval 1 --html /tmp/page.html";
/// Of the kernel's clocks of waiting and ours: what an emulated host takes between two looks at one event,
/// and four ticks.
const TOLERANCE: f64 = 0.05;
const TICKS_NS: u64 = 4 * 4_000_000;

fn vms(report: &Value) -> &Vec<Value> {
    report["vms"].as_array().expect("VMs")
}

/// A figure of each vCPU's thread.
fn by_thread(report: &Value, figure: &str) -> BTreeMap<u64, u64> {
    let vcpus = vms(report).iter().flat_map(|vm| vm["vcpus"].as_array().expect("vCPUs"));
    vcpus.map(|vcpu| (count(&vcpu["tid"]), vcpu[figure].as_u64().unwrap_or(0))).collect()
}

/// How long each thread of the guests has waited, as the kernel says it: run delay, in nanoseconds.
fn run_delays(host: &Host) -> BTreeMap<u64, u64> {
    let text = run(
        host,
        "for guest in $(pidof qemu-system-x86_64); do for task in /proc/$guest/task/*; do
            echo ${task##*/} $(cat $task/schedstat)
        done; done",
    );
    let number = |text: Option<&str>| text.and_then(|text| text.parse().ok()).expect("a number");
    let of_line = |line: &str| {
        let mut words = line.split(' ');
        (number(words.next()), number(words.nth(1)))
    };
    text.lines().map(of_line).collect()
}

/// Guests stand still, and whatever is reported from now on has nothing of the time before.
fn still(host: &Host, observer: &Process) -> (BTreeMap<u64, u64>, usize) {
    let from = observer.lines(0).len();
    let is_quiet = |report: &Value| by_thread(report, "cpu_time_ns").values().sum::<u64>() < 1_000_000;
    statistics_from(observer, from, is_quiet, "interval in which nobody ran");
    (run_delays(host), observer.lines(0).len())
}

/// The table of both guests; ready as the kernel counts it, and steal as KVM tells it.
pub fn what_overcommit_costs_is_seen(host: &Host) {
    let _echo = host.start_echo().expect("the other end of the ping-pong");
    let observer = start(host, OBSERVE);
    // A guest that is up may still be preparing its work.
    let works = |report: &Value| {
        vms(report)
            .iter()
            .any(|vm| vm["name"] == "a" && count(&vm["preempted_shootdown_wait_ns"]["count"]) > 0)
    };
    statistics_from(&observer, 0, works, "shootdown of the worker");
    let standstill = stand_still(host);
    let (before, from) = still(host, &observer);
    drop(standstill);
    std::thread::sleep(seconds(6, 30));
    let standstill = stand_still(host);
    let (after, to) = still(host, &observer);
    let total = stop(&observer);
    drop(standstill);

    let mut seen = BTreeMap::<u64, [u64; 2]>::new();
    for report in reports(&observer, from).iter().take(to - from) {
        for (at, figure) in ["ready_time_ns", "steal_time_ns"].into_iter().enumerate() {
            by_thread(report, figure)
                .into_iter()
                .for_each(|(tid, ns)| seen.entry(tid).or_default()[at] += ns);
        }
    }
    assert_eq!(seen.len(), 8, "four vCPUs of two guests: {total}");
    for (tid, figures) in seen {
        let kernel = after[&tid] - before[&tid];
        print(&format!("thread {tid}: run delay {kernel} ns; ready and steal {figures:?} ns"));
        for ns in figures {
            let allowed = (kernel as f64 * TOLERANCE) as u64 + TICKS_NS;
            assert!(ns.abs_diff(kernel) <= allowed, "thread {tid}: {figures:?}, {kernel}: {total}");
        }
    }
    assert_names_what_was_lost(&total);
    assert_names_who_ran_meanwhile(&observer, &total);
    assert_histograms_hold(&total);
    let page = run(host, "cat /tmp/page.html; rm /tmp/page.html");
    for vm in vms(&total) {
        let judgement = vm["judgement"].as_str().expect("a judgement");
        assert!(judgement.contains("% ready") && page.contains(judgement), "{judgement}: {page}");
    }
    let screen = run(host, "microslice observe --settle 5s --for 10s 2> /tmp/said; rm /tmp/said");
    print(&screen);
    assert!(screen.contains("meanwhile ran") && screen.contains("a: ") && screen.contains("b: "), "{screen}");
}

/// By what guests were doing, and by what waited for them.
fn assert_names_what_was_lost(total: &Value) {
    let vm = |name: &str| vms(total).iter().find(|vm| vm["name"] == name).expect("both guests");
    let (worker, hog) = (vm("a"), vm("b"));
    for vm in [worker, hog] {
        assert!(vm["ready_percent"].as_f64() > Some(1.0), "four pCPUs for eight vCPUs: {vm}");
        assert!(vm["steal_percent"].as_f64() > Some(0.0), "{vm}");
    }
    let ended = &worker["preemptions"]["by_class"];
    let known: u64 = ["kernel_other", "tlb_shootdown", "user", "lock_holder"]
        .map(|class| count(&ended[class]))
        .iter()
        .sum();
    assert!(known > 0, "its kernel is known: {worker}");
    assert!(count(&worker["preempted_shootdown_wait_ns"]["count"]) > 0, "{worker}");
    assert!(count(&worker["interrupts"]["ipi_call_function"]) > 0, "{worker}");
    assert!(count(&worker["halts"]) > 0, "{worker}");
    // Its kernel does so now and then, for itself.
    let shootdowns = [worker, hog].map(|vm| count(&vm["preempted_shootdown_wait_ns"]["count"]));
    assert!(shootdowns[0] > shootdowns[1], "only the first one's programs call siblings: {worker}, {hog}");
}

/// Each guest has waited behind the other one, and that one's name stands beside the wait.
fn assert_names_who_ran_meanwhile(observer: &Process, total: &Value) {
    for (vm, other) in [("a", "b"), ("b", "a")] {
        let all = reports(observer, 0);
        let waits: Vec<&Value> = all
            .iter()
            .flat_map(vms)
            .filter(|seen| seen["name"] == vm)
            .map(|seen| &seen["longest_wait"])
            .filter(|wait| wait["runner"]["name"] == other)
            .collect();
        let longest = waits.iter().max_by_key(|wait| count(&wait["length_ns"]));
        let longest = longest.unwrap_or_else(|| panic!("{vm} never waits behind {other}: {total}"));
        print(&format!("{vm}'s longest wait behind {other}: {longest}"));
        assert!(count(&longest["runner_ns"]) > 0 && longest["over"] == true, "{longest}");
        assert!(count(&longest["runner_ns"]) <= count(&longest["length_ns"]), "{longest}");
        assert!(longest["pcpu"].as_u64() < Some(4), "{longest}");
    }
    for vm in vms(total) {
        assert!(count(&vm["vmm_time_ns"]) > 0, "its VMM has threads beside vCPUs: {vm}");
        assert_eq!(vm["weight"], 100, "both are alike: {vm}");
        let longest = count(&vm["longest_wait"]["length_ns"]);
        assert!(longest <= count(&vm["wait_to_run_ns"]["max"]), "{vm}");
    }
}

/// The buckets are the kernel side's: what they say of the sum is near to the exact one. No wait is longer
/// than the kernel side was there for.
fn assert_histograms_hold(total: &Value) {
    let longest_ns = total["seconds"].as_f64().expect("seconds") * 2e9;
    for vm in vms(total) {
        let waits = &vm["wait_to_run_ns"];
        let middle =
            |bucket: &Value| (count(&bucket[0]) + count(&bucket[1])) as f64 / 2.0 * count(&bucket[2]) as f64;
        let sum = buckets(waits).map(middle).sum::<f64>();
        let exact = waits["sum"].as_f64().expect("a sum");
        assert!((sum - exact).abs() <= exact / 4.0, "{sum} and {exact}: {waits}");
        let by_kind = vm["interrupt_wait_ns"].as_object().expect("by kind").values();
        for waits in by_kind.chain([waits, &vm["preempted_shootdown_wait_ns"]]) {
            assert!(buckets(waits).all(|bucket| (count(&bucket[0]) as f64) < longest_ns), "{waits}");
        }
    }
}

/// Each is its least value, its end and how many fell into it.
fn buckets(waits: &Value) -> impl Iterator<Item = &Value> {
    waits["buckets"].as_array().expect("buckets").iter()
}

/// Where vCPUs of both guests ran, and what a guest was doing when it was preempted.
pub fn switches_are_traced(host: &Host) {
    let _echo = host.start_echo().expect("the other end of the ping-pong");
    let observer =
        start(host, "exec microslice observe --json --interval 1 --trace /tmp/seen.pftrace --trace-for 1h");
    // Without a slide a preemption has no class. A guest that never halts tells its slide late.
    let is_known = |report: &Value| vms(report).iter().any(|vm| vm["classes_are_known"] == true);
    statistics_from(&observer, 0, is_known, "a guest's slide");
    std::thread::sleep(seconds(4, 20));
    let total = stop(&observer);
    let said = observer.stderr();
    let line = said.lines().find(|line| line.contains("/tmp/seen.pftrace: traced")).expect("what was traced");
    print(line);
    let trace = Trace::take(host, "/tmp/seen.pftrace");
    for vm in ["a", "b"] {
        assert!(trace.vcpus_that_ran(vm) >= 2, "VM {vm}: {line}");
    }
    let known = "select count(*) from slice where name = 'preempted'
                 and extract_arg(arg_set_id, 'debug.class') not in ('unknown', '?')";
    assert!(trace.number(known) > 0, "{total}");
    assert!(trace.number("select count(*) from slice where name = 'hlt'") > 0, "{total}");
}

/// What the profile holds is what was reported; another machine's model is fitted to it.
pub fn a_profile_holds_what_was_seen(host: &Host) {
    let _echo = host.start_echo().expect("the other end of the ping-pong");
    let observer = start(host, "exec microslice observe --json --interval 1 --profile /tmp/profile.json");
    let is_seen = |report: &Value| {
        let of = vms(report);
        of.len() == 2
            && of.iter().all(|vm| vm["classes_are_known"] == true)
            && of.iter().any(|vm| count(&vm["preempted_shootdown_wait_ns"]["count"]) > 0)
    };
    statistics_from(&observer, 0, is_seen, "shootdown of the worker, and both guests' kernels");
    std::thread::sleep(seconds(4, 30));
    let total = stop(&observer);
    let text = run(host, "cat /tmp/profile.json; rm /tmp/profile.json");
    let profile = Profile::parse("profile.json", &text).unwrap_or_else(|error| panic!("{error}: {text}"));

    assert_eq!((profile.host.pcpus, profile.host.scheduler.as_str()), (4, HostProfile::KERNEL));
    assert_eq!(total["sees_interrupts"], profile.host.sees_interrupts);
    assert_eq!(profile.vms.len(), 2, "{text}");
    for vm in &profile.vms {
        let name = vm.name.as_deref().expect("a name");
        let seen = vms(&total).iter().find(|seen| seen["name"] == name).expect("both guests");
        for (kept, reported) in [
            (u64::from(vm.vcpus), seen["vcpus"].as_array().map_or(0, Vec::len) as u64),
            (vm.ran_ns, count(&seen["cpu_time_ns"])),
            (vm.ready_ns, count(&seen["ready_time_ns"])),
            (vm.waits.count, count(&seen["wait_to_run_ns"]["count"])),
            (vm.turns_ended.total(), count(&seen["preemptions"]["total"])),
            (vm.interrupts.call_function.sent, count(&seen["interrupts"]["ipi_call_function"])),
            (vm.shootdowns.count, count(&seen["preempted_shootdown_wait_ns"]["count"])),
        ] {
            assert_eq!(kept, reported, "VM {name}: {text}; {total}");
        }
        assert!(vm.ran_ns > 0 && vm.classes_are_known, "VM {name}: {text}");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("profile.json");
    std::fs::write(&file, &text).expect("written");
    let mut simulate = Command::new(built_binary().expect("the program under test"));
    simulate.args(["simulate", "--policies", "eevdf,microslice", "--seeds", "1", "--json", "--profile"]);
    let output = simulate.arg(&file).output().expect("run");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).contains("shootdown_p50"), "{output:?}");
}

/// A figure of the VM `a` in all reports after the first `from`.
fn sum_of_a(observer: &Process, from: usize, figure: &str) -> u64 {
    let all = reports(observer, from);
    let of_a = all.iter().filter(|report| report["final"] == false).flat_map(vms);
    of_a.filter(|vm| vm["name"] == "a").map(|vm| count(&vm[figure])).sum()
}

/// Time that the kernel says a limit took of the VM `a`, in nanoseconds.
fn throttled_ns(host: &Host) -> u64 {
    let text = run(host, "sed -n 's/^throttled_usec //p' /sys/fs/cgroup/judged/cpu.stat");
    text.trim().parse::<u64>().expect("a number") * 1_000
}

/// A limit takes what the kernel says that it took; a stopped VM is paused. Waits for others are neither.
pub fn limited_and_paused_vms_are_told_apart(host: &Host, guests: &[Guest]) {
    let _echo = host.start_echo().expect("the other end of the ping-pong");
    run(
        host,
        "cd /sys/fs/cgroup && echo +cpu > cgroup.subtree_control && mkdir -p judged && echo '800000 100000' > judged/cpu.max
         for guest in $(pidof qemu-system-x86_64); do
             if tr '\\0' '\\n' < /proc/$guest/cmdline | grep -q '^guest=a,'; then echo $guest > judged/cgroup.procs; fi
         done",
    );
    let limit = |limit: &str| run(host, &format!("echo '{limit}' > /sys/fs/cgroup/judged/cpu.max"));
    let observer = start(host, "exec microslice observe --json --interval 1");
    let contends = |report: &Value| vms(report).iter().any(|vm| count(&vm["ready_time_ns"]) > TICKS_NS);
    statistics_from(&observer, observer.lines(0).len(), contends, "interval in which someone waits");
    assert_eq!(sum_of_a(&observer, 0, "rested_time_ns"), 0, "eight CPUs' time are no limit on four pCPUs");

    let (from, before) = (observer.lines(0).len(), throttled_ns(host));
    limit("50000 100000");
    std::thread::sleep(seconds(8, 20));
    limit("800000 100000");
    // The interval under way, and the look after it.
    std::thread::sleep(seconds(4, 4));
    let (by_us, by_kernel) = (sum_of_a(&observer, from, "rested_time_ns"), throttled_ns(host) - before);
    print(&format!("limited for {by_us} ns; the kernel says {by_kernel} ns"));
    assert!(by_kernel > TICKS_NS, "half a CPU is too little for it");
    let allowed = (by_kernel as f64 * TOLERANCE) as u64 + TICKS_NS;
    assert!(by_us.abs_diff(by_kernel) <= allowed, "{by_us} ns, and {by_kernel} ns");

    let from = observer.lines(0).len();
    let a = guests.iter().find(|guest| guest.name() == "a").expect("its guest");
    a.pause().expect("stopped");
    std::thread::sleep(seconds(6, 6));
    a.go_on().expect("started");
    std::thread::sleep(seconds(3, 3));
    let paused_ns = sum_of_a(&observer, from, "paused_time_ns");
    print(&format!("paused for {paused_ns} ns of six seconds"));
    assert!((5_000_000_000..=7_000_000_000).contains(&paused_ns), "{paused_ns} ns");

    let total = stop(&observer);
    let vm = |name: &str| vms(&total).iter().find(|vm| vm["name"] == name).expect("both guests");
    assert_eq!((&vm("a")["limited_by"], &vm("b")["limited_by"]), (&Value::from("judged"), &Value::Null));
    let judgement = vm("a")["judgement"].as_str().expect("a judgement");
    assert!(
        judgement.contains("limited by cpu.max of judged") && judgement.contains("had it paused for"),
        "{judgement}"
    );
    assert_eq!(count(&vm("b")["rested_time_ns"]), 0, "{total}");
    run(
        host,
        "cd /sys/fs/cgroup && for guest in $(cat judged/cgroup.procs); do echo $guest > cgroup.procs; done; rmdir judged",
    );
}

/// Bad input, and users without the rights.
pub fn users_without_rights_are_refused(host: &Host) {
    let user = "grep -qs ^nobody: /etc/passwd || echo 'nobody:x:65534:65534::/:/bin/sh' >> /etc/passwd; \
                exec su -s /bin/sh nobody -c 'microslice observe --for 1s'";
    let line = refusal(host, user);
    assert!(line.contains("CAP_SYS_ADMIN, CAP_PERFMON, CAP_BPF missing: run it as root"), "{line}");
    let line = refusal(host, "microslice observe --for 60");
    assert!(line.contains("must be a time with its unit"), "{line}");
    let line = refusal(host, "microslice observe --for 1s --guest nobody=/proc/self/exe");
    assert!(line.contains("nobody"), "{line}");
}
