//! What a VM is called, by what its VMM runs as: its command line, else its control group.
//!
//! Both are only names: nothing is opened because of them. docs/how-to/libvirt.md has a table of which VMMs
//! have which.

/// The name of the VM of process `pid`.
pub(crate) fn name(arguments: &[String], cgroup: &str, comm: &str, pid: u32) -> String {
    let known = name_from_arguments(arguments)
        .or_else(|| name_from_cgroup(cgroup))
        .or_else(|| name_of_scope(cgroup))
        .or_else(|| name_of_sockets_folder(arguments));
    known.filter(|name| !name.is_empty()).unwrap_or_else(|| format!("{}-{pid}", comm.trim()))
}

/// Proxmox's number of the VM, which is its own: names needn't be (`kvm -id 100 -name web`).
pub(crate) fn number(arguments: &[String]) -> Option<&str> {
    argument(arguments, "id").filter(|id| is_number(id))
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// The value after `flag`, also as `flag=value`, with one or two dashes.
pub(crate) fn argument<'a>(arguments: &'a [String], flag: &str) -> Option<&'a str> {
    arguments.iter().enumerate().find_map(|(index, argument)| {
        let bare = argument.strip_prefix("--").or_else(|| argument.strip_prefix('-'))?;
        if bare == flag {
            return arguments.get(index + 1).map(String::as_str);
        }
        bare.strip_prefix(flag)?.strip_prefix('=')
    })
}

/// Each VMM has its own word for it.
fn name_from_arguments(arguments: &[String]) -> Option<String> {
    let program = arguments.first()?.rsplit('/').next()?;
    match program {
        "krunvm" => name_of_krunvm(arguments),
        _ if program.starts_with("firecracker") => argument(arguments, "id").map(str::to_owned),
        _ if program.starts_with("cloud-hypervisor") => name_from_socket(argument(arguments, "api-socket")?),
        _ => name_of_incus(arguments).or_else(|| name_of_qemu(argument(arguments, "name")?)),
    }
    .filter(|name| !name.is_empty())
}

/// QEMU: `-name web`, `-name guest=web,debug-threads=on`. The first option may leave out its key.
fn name_of_qemu(value: &str) -> Option<String> {
    let options = qemu_options(value);
    let named = options.iter().find_map(|option| option.strip_prefix("guest="));
    let first = || options.first().map(String::as_str).filter(|first| !first.contains('='));
    named.or_else(first).map(str::to_owned)
}

/// Incus and LXD name instances within a project. The folder of an instance has both, but for the project
/// `default`: `/run/incus/dev_web/qemu.conf`.
fn name_of_incus(arguments: &[String]) -> Option<String> {
    let mut folders = argument(arguments, "readconfig")?.rsplit('/').skip(1);
    let (instance, above) = (folders.next()?, folders.next()?);
    matches!(above, "incus" | "lxd").then(|| instance.to_owned())
}

/// Options between commas; a doubled comma is one of the value (QEMU, `util/keyval.c`).
fn qemu_options(value: &str) -> Vec<String> {
    let mut options = vec![String::new()];
    let mut characters = value.chars().peekable();
    while let Some(character) = characters.next() {
        let ends_option = character == ',' && characters.next_if_eq(&',').is_none();
        match options.last_mut() {
            Some(option) if !ends_option => option.push(character),
            _ => options.push(String::new()),
        }
    }
    options
}

/// Cloud Hypervisor knows no names. Its socket is the VM's: `/run/vms/web.sock`, `path=web.sock`. Kata has a
/// folder for each sandbox, and always the same file in it. A file that is called as the program, or by what
/// it is for, names no VM.
fn name_from_socket(value: &str) -> Option<String> {
    let path = socket_path(value)?;
    let of_kata = ["/run/vc/vm/", "/run/kata/"].into_iter().find_map(|folder| path.strip_prefix(folder));
    if let Some(of_kata) = of_kata {
        return of_kata.split('/').next().map(str::to_owned);
    }
    let file = path.rsplit('/').next()?;
    let stem = file.strip_suffix(".sock").or_else(|| file.strip_suffix(".socket")).unwrap_or(file);
    (!says_what_it_is_for(stem)).then(|| stem.to_owned())
}

/// `None` if the socket is an open descriptor (`fd=3`).
fn socket_path(value: &str) -> Option<&str> {
    let path = value.split(',').find_map(|option| option.strip_prefix("path=")).unwrap_or(value);
    (!path.contains('=')).then_some(path)
}

/// The innermost folder of a socket that has a name of its own: `/var/lib/vms/web/ch.sock`.
fn name_of_sockets_folder(arguments: &[String]) -> Option<String> {
    let path = socket_path(argument(arguments, "api-socket").or_else(|| argument(arguments, "api-sock"))?)?;
    let folders = path.rsplit('/').skip(1).filter(|folder| !folder.is_empty());
    folders.into_iter().find(|folder| !says_what_it_is_for(folder)).map(str::to_owned)
}

/// True if no word of the name is one by which VMs are told apart.
fn says_what_it_is_for(name: &str) -> bool {
    const WORDS: &str = "api ch chv clh cloud cloudhypervisor control ctl data firecracker fc guest \
                         guests http hypervisor instance instances lib machine machines main rest root \
                         run sock socket sockets state tmp var vm vmm vms";
    let words = name.split(['-', '_', '.', ' ']).filter(|word| !word.is_empty());
    words.into_iter().all(|word| WORDS.split(' ').any(|known| known.eq_ignore_ascii_case(word)))
}

/// libkrun's `krunvm start [--cpus N] [--mem MIB] [--env KEY=VALUE] NAME [COMMAND …]`, which becomes the VMM
/// itself.
fn name_of_krunvm(arguments: &[String]) -> Option<String> {
    const WITH_VALUE: [&str; 3] = ["--cpus", "--mem", "--env"];
    let mut rest = arguments.iter().skip_while(|argument| *argument != "start").skip(1);
    loop {
        let next = rest.next()?;
        if WITH_VALUE.contains(&next.as_str()) {
            rest.next();
        } else if !next.starts_with('-') {
            return Some(next.clone());
        }
    }
}

/// The outermost cgroup that is a VM's or a container's by its name: what lies within may be named by a
/// tenant.
fn name_from_cgroup(cgroup: &str) -> Option<String> {
    let parts: Vec<&str> = cgroup.split('/').collect();
    let of_part = |(index, part): (usize, &&str)| {
        let above = index.checked_sub(1).and_then(|above| parts.get(above)).copied();
        name_of_machine(part)
            .or_else(|| name_of_proxmox(above, part))
            .or_else(|| name_of_container(part))
            .or_else(|| name_of_instance(part))
    };
    parts.iter().enumerate().find_map(of_part)
}

/// systemd-machined's scope, as libvirt uses it: `machine-qemu\x2d1\x2dweb.scope` is machine `qemu-1-web`, VM
/// `web`.
fn name_of_machine(part: &str) -> Option<String> {
    let machine = unescape(part.strip_prefix("machine-")?.strip_suffix(".scope")?);
    let libvirt = machine.strip_prefix("qemu-").and_then(|rest| rest.split_once('-'));
    Some(match libvirt {
        Some((number, name)) if number.bytes().all(|byte| byte.is_ascii_digit()) => name.to_owned(),
        _ => machine,
    })
}

/// The innermost scope, which somebody has made for what runs in it; but for those of logins and desktops.
fn name_of_scope(cgroup: &str) -> Option<String> {
    let scope = cgroup.rsplit('/').find_map(|part| part.strip_suffix(".scope"))?;
    let is_anyones = scope == "init" || scope.starts_with("session-") || scope.starts_with("app-");
    (!is_anyones).then(|| unescape(scope))
}

/// Proxmox: `qemu.slice/100.scope`. A VM without another name is `vm100` there, too (qemu-server,
/// `QemuServer.pm`).
fn name_of_proxmox(above: Option<&str>, part: &str) -> Option<String> {
    let number = part.strip_suffix(".scope").filter(|_| above == Some("qemu.slice"))?;
    is_number(number).then(|| format!("vm{number}"))
}

/// A container engine's: `libpod-ID.scope`, `cri-containerd-ID.scope`, or ID alone, of 64 digits. Their own
/// tools show twelve.
fn name_of_container(part: &str) -> Option<String> {
    const DIGITS: usize = 64;
    const SHOWN: usize = 12;
    let unit = part.strip_suffix(".scope").unwrap_or(part);
    let id = unit.rsplit(['-', '_']).next()?;
    let is_id = id.len() == DIGITS && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_id.then(|| id[..SHOWN].to_owned())
}

/// A unit for each VM, from a template: `microvm@web.service`. Those of systemd for users aren't VMs'.
fn name_of_instance(part: &str) -> Option<String> {
    let (template, instance) = part.strip_suffix(".service")?.split_once('@')?;
    (template != "user" && !instance.is_empty()).then(|| unescape(instance))
}

/// systemd's unit escaping: `\x2d` is `-`.
fn unescape(text: &str) -> String {
    let mut parts = text.split("\\x");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.get(..2).and_then(|hex| u8::from_str_radix(hex, 16).ok()).filter(u8::is_ascii) {
            Some(byte) => {
                out.push(char::from(byte));
                out.push_str(&part[2..]);
            }
            None => {
                out.push_str("\\x");
                out.push_str(part);
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    fn named(command_line: &str) -> Option<String> {
        name_from_arguments(&words(command_line))
    }

    #[test]
    fn the_name_is_the_one_that_qemu_was_given() {
        assert_eq!(named("qemu -name web -m 1").as_deref(), Some("web"));
        assert_eq!(named("qemu -name guest=web,debug-threads=on").as_deref(), Some("web"));
        let commas = named("qemu -name guest=web,,blue,,,debug-threads=on");
        assert_eq!(commas.as_deref(), Some("web,blue,"));
        assert_eq!(named("qemu -name a,,b").as_deref(), Some("a,b"));
        assert_eq!(named("qemu -name a=,,b,guest="), None);
        assert_eq!(named("qemu -m 1"), None);
        assert_eq!(named("qemu -name"), None);
        let proxmox = named("/usr/bin/kvm -id 100 -name web,debug-threads=on -no-shutdown");
        assert_eq!(proxmox.as_deref(), Some("web"));
    }

    #[test]
    fn other_vmms_have_other_words_for_it() {
        for (command_line, expected) in [
            ("/usr/bin/firecracker --id web --api-sock /run/api", Some("web")),
            ("firecracker-v1.7 --id=551e7604 --start-time-us 1", Some("551e7604")),
            ("firecracker --api-sock /run/api", None),
            ("/usr/bin/cloud-hypervisor --api-socket /run/vms/web.sock --kernel k", Some("web")),
            ("cloud-hypervisor --api-socket=path=db.socket", Some("db")),
            ("cloud-hypervisor --api-socket fd=3", None),
            ("cloud-hypervisor --kernel k", None),
            ("/opt/kata/bin/cloud-hypervisor --api-socket /run/vc/vm/9e7c83/clh-api.sock", Some("9e7c83")),
            ("krunvm start web", Some("web")),
            ("/usr/bin/krunvm start --cpus 2 --env A=b web /bin/sh -name other", Some("web")),
            ("krunvm list", None),
            ("crosvm run --name web --mem 512", Some("web")),
        ] {
            assert_eq!(named(command_line).as_deref(), expected, "{command_line}");
        }
    }

    #[test]
    fn the_name_of_a_machine_scope_is_unescaped() {
        let cgroup = r"/machine.slice/machine-qemu\x2d3\x2dweb\x2dserver.scope/libvirt/emulator";
        assert_eq!(name_from_cgroup(cgroup).as_deref(), Some("web-server"));
        assert_eq!(name_from_cgroup("/machine.slice/machine-box.scope").as_deref(), Some("box"));
        assert_eq!(name_from_cgroup("/user.slice"), None);
    }

    #[test]
    fn the_outermost_cgroup_of_a_vm_or_container_names_it() {
        let id = "0a074afb4cc4".to_owned() + &"fd".repeat(26);
        for (cgroup, expected) in [
            ("/qemu.slice/100.scope".to_owned(), Some("vm100")),
            ("/100.scope".to_owned(), None),
            (format!("/machine.slice/libpod-{id}.scope/container"), Some("0a074afb4cc4")),
            (format!("/kubepods.slice/cri-containerd-{id}.scope"), Some("0a074afb4cc4")),
            (format!("/kubepods/burstable/pod7/{id}"), Some("0a074afb4cc4")),
            (r"/system.slice/system-microvm.slice/microvm@web\x2d1.service".to_owned(), Some("web-1")),
            ("/user.slice/user-1000.slice/user@1000.service/app.slice".to_owned(), None),
            ("/user.slice/user@1000.service/app.slice/vm@web.service".to_owned(), Some("web")),
            ("/machine.slice/machine-box.scope/system.slice/vm@web.service".to_owned(), Some("box")),
            ("/system.slice/containerd.service".to_owned(), None),
        ] {
            assert_eq!(name_from_cgroup(&cgroup).as_deref(), expected, "{cgroup}");
        }
    }

    #[test]
    fn a_socket_that_every_vm_calls_the_same_names_none() {
        let id = "0a074afb4cc4".to_owned() + &"fd".repeat(26);
        for (socket, cgroup, expected) in [
            ("/var/lib/x/guests/abc/ch.sock", "/system.slice/x.service".to_owned(), "abc"),
            (&format!("/run/kata/{id}/root/ch-api.sock"), format!("/k8s.io/cri-containerd-{id}.scope"), &*id),
            ("/run/x/ch/7f/ch.sock", "/x.slice/vm-7f3a.scope".to_owned(), "vm-7f3a"),
            ("/run/vms/7f/api.socket", "/user.slice/session-3.scope".to_owned(), "7f"),
            ("/run/cloud-hypervisor/ch-api.sock", "/".to_owned(), "vmm-7"),
        ] {
            let arguments = words(&format!("cloud-hypervisor --api-socket {socket}"));
            assert_eq!(name(&arguments, &cgroup, "vmm", 7), expected, "{socket}");
        }
        let firecracker = words("firecracker --api-sock /srv/vms/web/root/run/firecracker.socket");
        assert_eq!(name(&firecracker, "/", "firecracker", 7), "web");
    }

    #[test]
    fn instances_of_two_projects_have_two_names() {
        let incus =
            |folder: &str| named(&format!("qemu -S -name web -readconfig /run/incus/{folder}/qemu.conf"));
        assert_eq!((incus("web").as_deref(), incus("dev_web").as_deref()), (Some("web"), Some("dev_web")));
        assert_eq!(named("qemu -name web -readconfig /etc/q35.cfg").as_deref(), Some("web"));
    }

    #[test]
    fn proxmox_numbers_its_vms() {
        assert_eq!(number(&words("/usr/bin/kvm -id 100 -name web")), Some("100"));
        assert_eq!(number(&words("firecracker --id web")), None);
    }

    #[test]
    fn a_nameless_vm_is_called_by_command_and_pid() {
        assert_eq!(name(&words("vmm --kernel k"), "/", "vmm\n", 7), "vmm-7");
        assert_eq!(name(&[], "/qemu.slice/100.scope", "kvm", 7), "vm100");
    }

    proptest! {
        #[test]
        fn whatever_a_process_calls_itself_it_has_a_name(
            program in "(krunvm|firecracker|cloud-hypervisor|qemu)?",
            more in prop::collection::vec("(--?(name|id|api-socket)=?|start|path=)?\\PC{0,8}", 0..6),
            cgroup in "(/(machine-|libpod-|x@)?\\PC{0,8}(\\\\x[0-9a-g]{2})?(\\.scope|\\.service)?){0,4}",
        ) {
            let arguments: Vec<String> = std::iter::once(program).chain(more).collect();
            prop_assert!(!name(&arguments, &cgroup, "vmm", 7).is_empty());
        }
    }
}
