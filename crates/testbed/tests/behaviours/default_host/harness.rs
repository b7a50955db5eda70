//! The testbed itself: commands, files, guests and what they measure.

use crate::common::{PATIENCE, on_host, with_guests};
use microslice_testbed::measure::Measurement;
use microslice_testbed::{GuestSpec, Pv};
use std::time::{Duration, Instant};

#[test]
fn commands_give_their_output_and_exit_codes_back() {
    on_host(|host| {
        let output = host.run("echo out; echo err >&2; exit 3", PATIENCE).expect("run");
        assert_eq!((output.code, output.stdout.as_str(), output.stderr.as_str()), (3, "out\n", "err\n"));
        assert_eq!(host.run("kill -9 $$", PATIENCE).expect("run").code, 137);
        assert!(host.must_run("uname -r", PATIENCE).expect("uname").starts_with("6.18."));
    });
}

#[test]
fn a_command_that_takes_too_long_is_named_in_the_error() {
    on_host(|host| {
        let error = host.run("sleep 60", Duration::from_millis(300)).expect_err("too long");
        assert!(
            error.to_string().contains("sleep 60") && error.to_string().contains("still running"),
            "{error}"
        );
        for cpu in 0..4 {
            let line = format!("CPU#{cpu} RIP=");
            assert!(error.to_string().contains(&line), "it shows where the host's CPUs are: {error}");
        }
    });
}

#[test]
#[ignore = "breaks only with the harness: make test-long"]
fn a_test_whose_guest_ended_by_itself_runs_again_on_a_fresh_host() {
    let tries = std::cell::Cell::new(0);
    on_host(|host| {
        tries.set(tries.get() + 1);
        let guest = host.start_guest(GuestSpec::new("mortal").vcpus(1)).expect("guest");
        if tries.get() == 1 {
            host.must_run("touch /tmp/old && killall qemu-system-x86_64", PATIENCE).expect("killall");
            guest.wait_for("never said", 0, PATIENCE).expect("it lives");
        }
        host.must_run("! test -e /tmp/old", PATIENCE).expect("a fresh host");
    });
    assert_eq!(tries.get(), 2);
}

#[test]
fn files_survive_the_way_to_the_host_and_back() {
    on_host(|host| {
        let content: String = (0..20_000).map(|n| format!("line {n}\n")).collect();
        host.write_file("/tmp/file", content.as_bytes()).expect("write");
        assert_eq!(host.read_file("/tmp/file").expect("read"), content);
    });
}

#[test]
fn two_stock_guests_run_side_by_side_and_measure_every_latency() {
    let guests =
        [GuestSpec::new("mix").workload("mix").network(1).pv(Pv::Off), GuestSpec::new("hog").workload("hog")];
    with_guests(&guests, |host, guests| {
        let _echo = host.start_echo().expect("echo");
        let from = Instant::now();
        for guest in guests {
            guest.wait_for("\"window\":8,", 0, PATIENCE).unwrap_or_else(|error| panic!("{error}"));
        }
        let mix = Measurement::of(&guests[0], from, Instant::now());
        let hog = Measurement::of(&guests[1], from, Instant::now());
        for kind in ["shootdown", "lock", "wake", "pingpong"] {
            assert!(mix.latency(kind).count() > 0, "no {kind} latency in {} windows", mix.windows);
        }
        assert!(mix.work["worker"] > 0 && hog.work["hog"] > 0);
        assert_eq!(hog.latency("shootdown").count(), 0);
    });
}

#[test]
#[ignore = "breaks only with the harness: make test-long"]
fn a_test_whose_host_is_gone_says_what_its_console_said_and_runs_again_on_a_fresh_one() {
    let tries = std::cell::Cell::new(0);
    on_host(|host| {
        tries.set(tries.get() + 1);
        if tries.get() == 1 {
            let farewell = "echo '<3>farewell' > /dev/kmsg; echo o > /proc/sysrq-trigger; sleep 60";
            let error = host.must_run(farewell, PATIENCE).expect_err("it is gone");
            assert!(error.to_string().contains("its kernel didn't complain"), "{error}");
            assert!(error.to_string().lines().any(|line| line.ends_with("farewell")), "{error}");
            panic!("{error}");
        }
        host.must_run("true", PATIENCE).expect("a fresh host");
    });
    assert_eq!(tries.get(), 2);
}

/// For both tests below.
fn small_guest() -> [GuestSpec; 1] {
    [GuestSpec::new("small").vcpus(2).workload("kallsyms,heartbeat")]
}

#[test]
fn a_guest_has_invariant_time() {
    with_guests(&small_guest(), |host, _| {
        // Without it their deadline timers land in the far future (docs/explanation/testbed.md).
        let offsets =
            host.must_run("cat /sys/kernel/debug/kvm/*/vcpu*/tsc-offset", PATIENCE).expect("offsets");
        assert_eq!(offsets.lines().count(), 2);
        assert!(offsets.lines().all(|offset| offset.trim() != "0"), "{offsets}");
    });
}

#[test]
fn a_guests_kernel_is_randomised_and_says_where_it_landed() {
    with_guests(&small_guest(), |_, guests| {
        let guest = &guests[0];
        guest.wait_for("_text", 0, PATIENCE).unwrap_or_else(|error| panic!("{error}"));
        let text = guest.kallsyms("_text").expect("_text");
        assert!(text >= 0xffff_ffff_8100_0000 && text.is_multiple_of(2 << 20), "_text at {text:#x}");
        assert!(guest.kallsyms("entry_SYSCALL_64").expect("entry") > text);
    });
}
