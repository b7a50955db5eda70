//! What KVM itself does on a host that says so (`[kvm]`). Every run has the checkers on.

use microslice_engine::report::RunReport;
use microslice_engine::{SimError, simulate};
use microslice_experiments::scenario::{Overrides, parse};
use microslice_model::events::NoTrace;
use microslice_policy::Cause;

/// Two vCPUs that sleep for 50 µs again and again, beside so many that always run, on two pCPUs.
fn sleepers(halt_poll_ns: &str, hogs: usize, policy: &str) -> RunReport {
    try_sleepers(halt_poll_ns, hogs, policy).unwrap_or_else(|error| panic!("{error}"))
}

fn try_sleepers(halt_poll_ns: &str, hogs: usize, policy: &str) -> Result<RunReport, SimError> {
    let text = format!(
        r#"
        warmup = "100 ms"
        duration = "200 ms"

        [host]
        extends = "xeon-e5645"
        pcpus = 2
        llc_pcpus = 2
        smt_threads = 1
        costs = {{ halt = "20 us" }}
        kvm = {{ yield_to = "400 ns", halt_poll_ns = "{halt_poll_ns}" }}

        [[vm]]
        name = "sleepers"
        vcpus = 2
        kernel = "linux-modern"
        workloads = [{{ name = "sleepers", threads = "per vcpu", program = [
            {{ compute = "5 us" }}, {{ sleep = "50 us" }}, {{ progress = 1 }},
        ] }}]

        [[vm]]
        name = "hogs"
        vcpus = 2
        kernel = "linux-modern"
        workloads = [{{ name = "hogs", threads = {}, program = [{{ compute = "1 ms" }}, {{ progress = 1 }}] }}]
        "#,
        hogs.max(1)
    );
    let text = if hogs == 0 { &text[..text.rfind("[[vm]]").expect("two")] } else { &text };
    let overrides = Overrides { policy: Some(policy.to_owned()), seed: Some(1), ..Overrides::default() };
    let mut config = parse("kvm.toml", text, &overrides).unwrap_or_else(|error| panic!("{error}")).config;
    config.check = true;
    simulate(&config, &mut NoTrace)
}

fn naps(report: &RunReport) -> u64 {
    report.vms[0].workloads[0].units_done
}

#[test]
fn who_polls_wakes_at_once_and_keeps_the_pcpu_busy() {
    for policy in ["eevdf", "eevdf-flat", "microslice:0"] {
        let [with, without] = ["200 us", "0 us"].map(|polls| sleepers(polls, 0, policy));
        assert!(naps(&with) * 4 > naps(&without) * 5, "{policy}: {}, {}", naps(&with), naps(&without));
        let idle_ns = |report: &RunReport| report.pcpus.idle_ns;
        assert!(idle_ns(&with) * 20 < idle_ns(&without), "{policy}: {} ns", idle_ns(&with));
        // Half as long as they sleep: too short to be of use.
        let short = sleepers("25 us", 0, policy);
        assert!(naps(&short) * 20 < naps(&without) * 21, "{policy}: {}", naps(&short));
    }
}

#[test]
fn nobody_polls_while_another_task_waits_for_the_pcpu() {
    for policy in ["eevdf", "eevdf-flat"] {
        let [with, without] = ["200 us", "0 us"].map(|polls| naps(&sleepers(polls, 2, policy)));
        assert!(with.abs_diff(without) * 20 < without, "{policy}: {with}, {without}");
    }
}

#[test]
fn the_xen_prototype_is_refused_on_a_host_of_kvm() {
    let refusal = try_sleepers("0 us", 2, "micro-xen:1").expect_err("there is no such host").to_string();
    assert_eq!(refusal, "host.kvm: this policy is a prototype in Xen: leave [kvm] out of the host");
}

/// So many VMs of four vCPUs on four pCPUs and a micro-sliced one; their threads shoot TLBs down.
fn shootdowns(kvm: &str, vms: usize) -> RunReport {
    shootdowns_with(kvm, vms, true)
}

/// `ple`: pause loops exit.
fn shootdowns_with(kvm: &str, vms: usize, ple: bool) -> RunReport {
    let text = format!(
        r#"
        warmup = "100 ms"
        duration = "400 ms"

        [host]
        extends = "xeon-e5645"
        pcpus = 5
        llc_pcpus = 5
        smt_threads = 1
        ple = {{ enabled = {ple}, window = "4096 cycles" }}
        kvm = {{ yield_to = "400 ns", halt_poll_ns = "0 us", {kvm} }}

        [[vm]]
        name = "guest"
        vcpus = 4
        copies = {vms}
        kernel = "linux-6.12-nopv"
        workloads = [{{ name = "maps", threads = "per vcpu", address_space = "shared", program = [
            {{ compute = "exponential 200 us" }}, {{ shootdown = "1 us" }}, {{ progress = 1 }},
        ] }}]
        "#
    );
    let overrides =
        Overrides { policy: Some("microslice:1+grace=0".to_owned()), seed: Some(1), ..Overrides::default() };
    let mut config = parse("kvm.toml", &text, &overrides).unwrap_or_else(|error| panic!("{error}")).config;
    config.check = true;
    simulate(&config, &mut NoTrace).unwrap_or_else(|error| panic!("{error}"))
}

const IPIV: &str = r#"module = "kvm_intel", interrupts = "ipiv", icr_write = "300 cycles""#;
const AVIC: &str = r#"module = "kvm_amd", interrupts = "avic", icr_write = "300 cycles""#;
const APICV: &str = r#"module = "kvm_intel", interrupts = "apicv""#;

#[test]
fn with_ipi_virtualization_a_scheduler_hears_by_looks_and_spinners() {
    for kvm in [APICV, AVIC, IPIV] {
        let requests = shootdowns(kvm, 3).pool.requests().collect::<Vec<_>>();
        let of = |cause| requests.iter().filter(|(of, _)| *of == cause).map(|(_, count)| count).sum::<u64>();
        let (by_ipis, by_exits) = (of(Cause::CallFunctionIpi), of(Cause::TlbYield));
        assert!(by_ipis > 100, "{kvm}: {by_ipis}");
        assert!(by_exits > 100 || kvm != IPIV, "{by_exits}: the pause-loop exits of the sender are seen");
    }
}

#[test]
fn an_ipi_to_a_running_vcpu_is_cheap_with_avic() {
    let done = |kvm| shootdowns(kvm, 1).vms[0].workloads[0].units_done;
    let [apicv, avic, ipiv] = [APICV, AVIC, IPIV].map(done);
    assert!(avic * 100 > apicv * 102, "{avic}, {apicv}");
    assert!(avic.abs_diff(ipiv) * 50 < avic, "{avic}, {ipiv}: all of them run");
}

/// Not even pause loops exit: what is posted shows who is needed. Without looks 58 are done.
#[test]
fn with_nothing_exiting_looks_bring_most_of_what_exits_do() {
    let done = |kvm: &str, ple| shootdowns_with(kvm, 3, ple).vms[0].workloads[0].units_done;
    let [exits, looks] = [done(APICV, true), done(IPIV, false)];
    assert!(looks * 2 > exits, "{looks} in place of {exits}");
}

/// Each write of ICR exits there, which is what `ipi_send` is.
#[test]
fn icr_write_costs_nothing_where_every_ipi_exits() {
    let [without, with] =
        ["", ", icr_write = \"100 us\""].map(|cost| shootdowns(&format!("{APICV}{cost}"), 1));
    assert_eq!(without, with);
}
