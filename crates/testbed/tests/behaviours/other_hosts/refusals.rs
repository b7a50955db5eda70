//! Hosts on which our scheduler must not run: one line that says why, exit code 2, and nothing loaded.

use crate::common::{on_machine, refusal, run, scheduler_state, wait_for_state};
use microslice_testbed::Testbed;

#[test]
fn a_host_with_isolated_pcpus_is_refused_with_their_numbers() {
    let isolated = || Testbed::new("6.18").expect("a series").with_kernel_arguments("isolcpus=2-3");
    on_machine("a host with isolated pCPUs", isolated, &[], |host, _| {
        let line = refusal(host, "microslice run --scheduler microslice");
        assert!(line.contains("isolcpus") && line.contains("2-3"), "{line}");
        assert_eq!(scheduler_state(host), "disabled");
    });
}

#[test]
fn without_rights_another_scheduler_or_no_kvm_is_refused_by_name() {
    // A host of its own: it has no KVM afterwards.
    let testbed = || Testbed::new("6.18").expect("a series");
    on_machine("a host that loses KVM", testbed, &[], |host, _| {
        let user = "echo 'nobody:x:65534:65534::/:/bin/sh' >> /etc/passwd; exec su -s /bin/sh nobody -c 'microslice run --scheduler microslice'";
        let line = refusal(host, user);
        assert!(line.contains("CAP_SYS_ADMIN, CAP_PERFMON, CAP_BPF missing: run it as root"), "{line}");
        assert_eq!(scheduler_state(host), "disabled");

        let other = host.start("exec microslice run --simple").expect("start");
        wait_for_state(host, "enabled", &other);
        let line = refusal(host, "microslice run --scheduler microslice");
        assert!(line.contains("another sched_ext scheduler is active (simple"), "{line}");
        other.signal(libc::SIGINT).expect("signal");
        wait_for_state(host, "disabled", &other);

        run(host, "rmmod kvm_amd && rmmod kvm");
        let line = refusal(host, "microslice run --scheduler microslice");
        assert!(line.contains("KVM isn't loaded"), "{line}");
        assert_eq!(scheduler_state(host), "disabled");
    });
}

/// Modules have BTF from Linux 5.11 on.
#[test]
#[ignore = "15 s, and a kernel that nothing else boots: make test-long"]
fn on_5_10_kvm_without_btf_is_refused_by_name() {
    on_machine(
        "5.10",
        || Testbed::new("5.10").expect("a series"),
        &[],
        |host, _| {
            for command in ["microslice run", "microslice observe --for 1s"] {
                let line = refusal(host, command);
                assert!(line.contains("module kvm has no BTF"), "{line}");
            }
        },
    );
}
