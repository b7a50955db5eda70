//! The guest's modules build for every kernel that they are for, by Debian's headers.

use microslice_testbed::cache::Cache;
use microslice_testbed::kernels::{self, Rule};
use microslice_testbed::{Error, guest_modules};

#[test]
fn modules_build_for_each_kernel_of_guests_and_name_it() {
    let cache = Cache::locate().expect("cache");
    for name in guest_modules::KERNELS {
        let kernel = kernels::obtain(&cache, &Rule::guest(name).expect("a name")).expect("kernel");
        match guest_modules::obtain(&cache, &kernel) {
            Ok(modules) => {
                for (module, path) in modules {
                    let content = std::fs::read(&path).expect("module");
                    let magic = format!("vermagic={} ", kernel.release);
                    let is_for_it = content.windows(magic.len()).any(|part| part == magic.as_bytes());
                    assert!(is_for_it, "{module} isn't for {}", kernel.release);
                }
            }
            // The archive drops headers as it likes; the default guest's are there for sure.
            Err(error @ Error::Kernel { .. }) if name != kernels::DEFAULT_GUEST => eprintln!("{error}"),
            Err(error) => panic!("{error}"),
        }
    }
}
