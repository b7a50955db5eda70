//! A running, unmodified guest with KASLR: its symbols and its slide, found with no input at all.

use crate::common::{run, with_guests};
use microslice_testbed::GuestSpec;
use microslice_testbed::kernels::DEFAULT_GUEST;

const LIST: &str = "microslice symbols list --pid $(pidof qemu-system-x86_64)";

#[test]
fn a_running_guests_symbols_and_slide_are_what_its_own_kallsyms_says() {
    with_guests(&[GuestSpec::new("plain").vcpus(1).workload("kallsyms,heartbeat")], |host, guests| {
        let identify = "microslice symbols identify --json --pid $(pidof qemu-system-x86_64)";
        let identified = run(host, identify);
        let identified: serde_json::Value = serde_json::from_str(&identified).expect("JSON");
        let source = &identified["sources"][0];
        assert_eq!(source["memory"], "KVM's memory slots", "{identified}");
        let slide = source["slide"].as_str().expect("a slide").trim_start_matches("0x");
        let slide = u64::from_str_radix(slide, 16).expect("hex");
        let text = guests[0].kallsyms("_text").expect("what the guest prints");
        assert_eq!(text - slide, 0xffff_ffff_8100_0000, "{identified}");

        // An idle vCPU has preemption disabled once, by the idle loop.
        let idle = |identified: &serde_json::Value| {
            let counters = &identified["sources"][0]["preempt_counts"]["counters"];
            counters.as_array().is_some_and(|all| all.len() == 1) && counters[0]["count"] == 1
        };
        let mut looks = (0..10).map(|_| serde_json::from_str(&run(host, identify)).expect("JSON"));
        assert!(idle(&identified) || looks.any(|look| idle(&look)), "{identified}");

        let running = run(host, &format!("{LIST} --running"));
        for name in ["_text", "entry_SYSCALL_64"] {
            let line = running.lines().find(|line| line.ends_with(&format!(" {name}"))).expect(name);
            let address = u64::from_str_radix(line.split(' ').next().expect("an address"), 16).expect(line);
            assert_eq!(Some(address), guests[0].kallsyms(name), "{name}");
        }

        // All of them, not only those that the guest prints: memory and image say the same.
        let image = &host.image(DEFAULT_GUEST).expect("the guest's image").kernel;
        let compare =
            format!("{LIST} > /tmp/memory && microslice symbols list --kernel {image} | cmp - /tmp/memory");
        run(host, &compare);
        assert!(running.lines().count() > 50_000, "{} symbols", running.lines().count());
    });
}
