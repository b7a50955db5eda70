//! Several ways to run the scheduler over the same two guests in one boot, and what the first of them
//! measured.
//!
//! ```sh
//! cargo run --release -p microslice-testbed --example phases -- shootdown 12 pv-off,pause-exits \
//!     "--scheduler microslice --micro-cpus 0" "--scheduler microslice --micro-slice-us 3000" kernel
//! ```
//!
//! Arguments: the first guest's workload (the other hogs its vCPUs), measured seconds per phase, options
//! (`pv-off`, `pause-exits`, `eight-vcpus` of the first guest, `dilated`: the kernel's own slices are ten
//! times as long, as in the demo) or `-`, and the phases: flags of `microslice run`, or `kernel`; after the
//! word `other` flags of the build that `OTHER_BINARY` names, to compare two builds in one boot.

use microslice_testbed::measure::Measurement;
use microslice_testbed::{GuestSpec, Pv, Testbed, built_binary, demo, demo_report, exit_code};
use serde_json::Value;
use std::process::ExitCode;
use std::time::{Duration, Instant};

fn main() -> ExitCode {
    exit_code(measure())
}

fn measure() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [workload, seconds, options, phases @ ..] = &words[..] else {
        return Err("usage: WORKLOAD SECONDS OPTIONS PHASE…".into());
    };
    let pv = if options.contains("pv-off") { Pv::Off } else { Pv::On };
    let testbed = Testbed::new("6.18")?.with_binary(built_binary()?);
    let testbed = if options.contains("pause-exits") { testbed.pause_exits() } else { testbed };
    let testbed = match std::env::var_os("OTHER_BINARY") {
        Some(path) => testbed.with_file("root/other", path),
        None => testbed,
    };
    let host = testbed.boot()?;
    if options.contains("dilated") {
        demo::dilate_kernel_slices(&host, demo::EMULATED_DILATION)?;
    }
    let _echo = host.start_echo()?;
    let vcpus = if options.contains("eight-vcpus") { 8 } else { 4 };
    let guests = host.start_guests(vec![
        GuestSpec::new("a").workload(workload).pv(pv).network(1).vcpus(vcpus).own_cgroup(),
        GuestSpec::new("b").workload("hog").pv(pv).own_cgroup(),
    ])?;
    for flags in phases {
        let scheduler = match flags.as_str() {
            "kernel" => None,
            flags => {
                let (binary, flags) = flags
                    .strip_prefix("other ")
                    .map_or(("microslice", flags), |flags| ("/root/other", flags));
                Some(demo::start(&host, &format!("exec {binary} run {flags} --stats 1 --json"))?)
            }
        };
        if let Some(scheduler) = &scheduler {
            demo::wait_for_slide(scheduler, "a");
        }
        std::thread::sleep(Duration::from_secs(3));
        let used_before = demo::cpu_times(&host)?;
        let from = Instant::now();
        std::thread::sleep(Duration::from_secs(seconds.parse()?));
        let to = Instant::now();
        let used_after = demo::cpu_times(&host)?;
        println!("== {flags}");
        for guest in &guests {
            let cpus = demo::cpus_between(&used_before, &used_after, guest.name());
            println!("{}: {} CPUs", guest.name(), demo_report::cpus_text(cpus));
            print_measurement(guest.name(), &Measurement::of(guest, from, to));
            if guest.has_ended() {
                return Err(format!("guest {} ended: {}", guest.name(), guest.last_words()).into());
            }
        }
        if let Some(scheduler) = scheduler {
            print_statistics(&demo::finish(&host, &scheduler)?);
        }
    }
    Ok(())
}

fn print_measurement(name: &str, seen: &Measurement) {
    let mut line = format!("{name}: {:9.1} work/s in {} windows", seen.work_rate(), seen.windows);
    for (kind, latency) in seen.latency.iter().filter(|(_, latency)| latency.count() > 0) {
        let ms = |percent| latency.percentile_us(percent).unwrap_or(0.0) / 1000.0;
        line += &format!(
            "; {kind} x{} p50 {:.2} p90 {:.2} p99 {:.2} p99.9 {:.2}",
            latency.count(),
            ms(50.0),
            ms(90.0),
            ms(99.0),
            ms(99.9)
        );
    }
    println!("{line}");
}

fn print_statistics(report: &Value) {
    for key in [
        "/accelerations/by_cause",
        "/failed_pulls",
        "/requests",
        "/siblings",
        "/graces",
        "/asked_again",
        "/woken",
        "/returns_by_outcome",
        "/host/pool_resizes",
        "/micro_cpus_mean",
        "/micro_cpus_busy",
        "/micro_cpus_lent",
        "/called_back",
        "/home_slices",
    ] {
        if let Some(value) = report.pointer(key) {
            println!("   {key}: {value}");
        }
    }
}
