//! A running, unmodified guest with KASLR: its symbols and its slide, found with no input at all.

mod common;

use common::{PATIENCE, on_host};
use microslice_testbed::GuestSpec;
use microslice_testbed::kernels::DEFAULT_GUEST;

const LIST: &str = "microslice symbols list --pid $(pidof qemu-system-x86_64)";

#[test]
fn a_running_guests_symbols_and_slide_are_what_its_own_kallsyms_says() {
    on_host(|host| {
        let guests = host.start_guests(vec![GuestSpec::new("plain").workload("kallsyms,heartbeat")]);
        let guests = guests.unwrap_or_else(|error| panic!("{error}"));

        let identify = "microslice symbols identify --json --pid $(pidof qemu-system-x86_64)";
        let identified = host.must_run(identify, PATIENCE).expect("the guest's kernel");
        let identified: serde_json::Value = serde_json::from_str(&identified).expect("JSON");
        let source = &identified["sources"][0];
        assert_eq!(source["memory"], "KVM's memory slots", "{identified}");
        let slide = source["slide"].as_str().expect("a slide").trim_start_matches("0x");
        let slide = u64::from_str_radix(slide, 16).expect("hex");
        let text = guests[0].kallsyms("_text").expect("what the guest prints");
        assert_eq!(text - slide, 0xffff_ffff_8100_0000, "{identified}");

        let running = host.must_run(&format!("{LIST} --running"), PATIENCE).expect("symbols from memory");
        for name in ["_text", "entry_SYSCALL_64"] {
            let line = running.lines().find(|line| line.ends_with(&format!(" {name}"))).expect(name);
            let address = u64::from_str_radix(line.split(' ').next().expect("an address"), 16).expect(line);
            assert_eq!(Some(address), guests[0].kallsyms(name), "{name}");
        }

        // All of them, not only those that the guest prints: memory and image say the same.
        let image = &host.image(DEFAULT_GUEST).expect("the guest's image").kernel;
        let compare =
            format!("{LIST} > /tmp/memory && microslice symbols list --kernel {image} | cmp - /tmp/memory");
        host.must_run(&compare, PATIENCE).expect("the same symbols");
        assert!(running.lines().count() > 50_000, "{} symbols", running.lines().count());
    });
}
