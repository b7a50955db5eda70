//! Whose VMs a VMM has: `policy/vm_owner.h`.

use microslice_policy::{OWNER_NAME_MAX, OwnerObservation, cgroup_is_owner, cgroup_is_users};
use proptest::prelude::*;

fn seen(level: u32, name: &str) -> OwnerObservation {
    let mut bytes = [0; OWNER_NAME_MAX as usize];
    let length = name.len().min(bytes.len() - 1);
    for (byte, from) in bytes.iter_mut().zip(name.bytes().take(length)) {
        *byte = from as _;
    }
    OwnerObservation { level, is_of_user: 0, is_last: 0, name_length: length as u32, name: bytes }
}

/// The path of the owner's cgroup, of a VMM that runs in this one, as `owner_of_current` goes through them.
fn owner(path: &str) -> String {
    let names: Vec<&str> = path.split('/').skip(1).collect();
    let mut is_of_user = 0;
    for (level, name) in (1..).zip(&names) {
        let seen = OwnerObservation {
            is_of_user,
            is_last: u32::from(level as usize == names.len()),
            ..seen(level, name)
        };
        is_of_user |= u32::from(cgroup_is_users(&seen));
        if cgroup_is_owner(&seen) {
            return names[..level as usize].iter().flat_map(|name| ["/", name]).collect();
        }
    }
    unreachable!("the last one is")
}

#[test]
fn each_layout_of_cgroups_names_its_owner() {
    let domain = r"/machine.slice/machine-qemu\x2d1\x2da.scope";
    let container = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice/cri-2.scope";
    for (path, due) in [
        (&*format!("{domain}/libvirt/vcpu0"), domain),
        (domain, domain),
        (
            "/machine.slice/machine-a.slice/machine-b.scope/x",
            "/machine.slice/machine-a.slice/machine-b.scope",
        ),
        ("/machine/qemu-1-a.libvirt-qemu/vcpu0", "/machine/qemu-1-a.libvirt-qemu"),
        ("/qemu.slice/100.scope", "/qemu.slice/100.scope"),
        ("/kubepods/burstable/pod1/c2", "/kubepods/burstable/pod1"),
        ("/kubepods/besteffort/pod1/c2", "/kubepods/besteffort/pod1"),
        ("/kubepods/pod1/c2", "/kubepods/pod1"),
        (container, container),
        ("/system.slice/vmm.service/a/b", "/system.slice/vmm.service"),
        ("/user.slice/user-1000.slice/session-3.scope", "/user.slice/user-1000.slice"),
        ("/user.slice/user-1000.slice/user@1000.service/many.slice/a", "/user.slice/user-1000.slice"),
        ("/docker/c1", "/docker/c1"),
        ("/vms", "/vms"),
        ("/a.slice/b.slice", "/a.slice/b.slice"),
        ("/a/user.slice/b", "/a/user.slice/b"),
    ] {
        assert_eq!(owner(path), due, "{path}");
    }
}

proptest! {
    #[test]
    fn a_tenant_is_one_owner_whatever_cgroups_he_makes(
        own in "[a-z]{1,8}\\.(scope|service)",
        below in prop::collection::vec("[a-z]{1,8}(\\.slice|\\.scope)?", 0..20),
    ) {
        let own = format!("/machine.slice/{own}");
        let path = below.iter().fold(own.clone(), |path, name| format!("{path}/{name}"));
        prop_assert_eq!(owner(&path), own);
        let user = "/user.slice/user-7.slice".to_owned();
        let path = below.iter().fold(user.clone(), |path, name| format!("{path}/{name}"));
        prop_assert_eq!(owner(&path), user);
    }

    #[test]
    fn names_of_any_length_are_no_slices_by_accident(length in 0..200usize, level in 2..8u32) {
        let name = "x".repeat(length) + ".slice";
        let cut = name.len() >= OWNER_NAME_MAX as usize;
        prop_assert_eq!(cgroup_is_owner(&seen(level, &name)), cut);
    }
}
