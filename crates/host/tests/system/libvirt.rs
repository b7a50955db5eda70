//! Debian's own libvirtd, in a mount namespace of this test's own, and a domain that it runs without KVM:
//! what `run` reads of it, with the rights that it keeps, and how soon it sees a change.

use microslice_host::guests::libvirt::{NAMESPACE, News, STATE_FOLDER, StateFile};
use microslice_host::guests::vms::VmmProcess;
use microslice_host::machine::privileges;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The daemon asks QEMU what it can do before it starts a domain; a busy machine takes longer.
const PATIENCE: Duration = Duration::from_secs(120);
const DOMAIN: &str = "web-1";

/// Everything that libvirt writes is in this namespace only. It needs neither systemd, nor D-Bus, nor control
/// groups. But it needs a user, which Debian's package of units would make.
const SETUP: &str = "set -e
mount -t tmpfs none /run
mount -t tmpfs none /var
mkdir -p /var/lib /var/cache /var/log
mount -t tmpfs none /etc/libvirt
cp /etc/passwd /etc/group /run
echo libvirt-qemu:x:64055:64055::/:/bin/false >> /run/passwd
echo libvirt-qemu:x:64055: >> /run/group
for file in passwd group; do mount --bind /run/$file /etc/$file; done
echo 'auth_unix_rw = \"none\"' > /etc/libvirt/libvirtd.conf
cat > /etc/libvirt/qemu.conf <<END
user = \"root\"
group = \"root\"
security_driver = \"none\"
cgroup_controllers = []
namespaces = []
stdio_handler = \"file\"
remember_owner = 0
END
exec libvirtd --config /etc/libvirt/libvirtd.conf";

/// A daemon with one domain. Both end with this.
struct Libvirt {
    folder: tempfile::TempDir,
    daemon: Child,
}

impl Libvirt {
    fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let words = std::fs::File::create(folder.path().join("words")).expect("a file");
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", SETUP]);
        command.stdin(Stdio::null()).stdout(words.try_clone().expect("a file")).stderr(words);
        // SAFETY: between fork and exec, one call that is allowed there: a test that is killed leaves no
        // daemon.
        unsafe {
            command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            });
        }
        let daemon = command.spawn().expect("unshare, of Debian's package util-linux");
        let libvirt = Self { folder, daemon };
        let deadline = Instant::now() + PATIENCE;
        while !libvirt.try_virsh(&["list"]).0 {
            let words = std::fs::read_to_string(libvirt.folder.path().join("words")).unwrap_or_default();
            let why = "libvirtd (`make setup-tests` installs it; the test runs as root)";
            assert!(
                Instant::now() < deadline && libvirt.is_there(),
                "{why} doesn't answer; it said: {words}"
            );
            std::thread::sleep(Duration::from_millis(100));
        }
        libvirt
    }

    fn is_there(&self) -> bool {
        // What has ended and isn't waited for has no root.
        self.seen("/run").exists()
    }

    /// A path as the daemon knows it.
    fn seen(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.daemon.id()))
    }

    fn try_virsh(&self, arguments: &[&str]) -> (bool, String) {
        let socket = self.seen("/run/libvirt/libvirt-sock");
        let output = Command::new("virsh")
            .args(["--quiet", "--connect", &format!("qemu+unix:///system?socket={}", socket.display())])
            .args(arguments)
            .output()
            .expect("virsh, which `make setup-tests` installs");
        let words = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        (output.status.success(), words.concat())
    }

    fn virsh(&self, arguments: &[&str]) -> String {
        let (is_done, words) = self.try_virsh(arguments);
        assert!(is_done, "virsh {arguments:?}: {words}");
        words
    }

    /// Starts the domain with this in its metadata, and says which process runs it.
    fn run_domain(&self, metadata: &str) -> u32 {
        let file = self.folder.path().join("domain.xml");
        let text = format!(
            "<domain type='qemu'><name>{DOMAIN}</name><metadata>{metadata}</metadata><memory unit='MiB'>32</memory>\
             <vcpu>1</vcpu><os><type arch='x86_64' machine='pc'>hvm</type></os><devices>\
             <emulator>/usr/bin/qemu-system-x86_64</emulator><controller type='usb' model='none'/>\
             <memballoon model='none'/></devices></domain>"
        );
        std::fs::write(&file, text).expect("written");
        self.virsh(&["create", file.to_str().expect("UTF-8")]);
        self.vmm().expect("a process")
    }

    fn vmm(&self) -> Option<u32> {
        let file = self.seen(&format!("{STATE_FOLDER}/{DOMAIN}.pid"));
        std::fs::read_to_string(file).ok()?.trim().parse().ok()
    }

    /// As an operator does it: `element` is ours, without its namespace.
    fn set_metadata(&self, element: &str) {
        self.virsh(&["metadata", DOMAIN, "--live", "--uri", NAMESPACE, "--key", "ms", "--set", element]);
    }

    fn signal(&self, signal: i32) {
        // SAFETY: it sends a signal to our own child, which nobody has waited for yet.
        assert_eq!(unsafe { libc::kill(self.daemon.id() as i32, signal) }, 0);
    }
}

impl Drop for Libvirt {
    fn drop(&mut self) {
        if let Some(vmm) = self.vmm() {
            // SAFETY: it sends a signal to the process that our daemon has started.
            unsafe { libc::kill(vmm as i32, libc::SIGKILL) };
        }
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

fn line(news: Option<News>) -> String {
    news.expect("news").line.expect("a line")
}

/// What `virsh` has answered is in the file: the daemon's next look, within a second, sees it. Nothing here
/// waits.
#[test]
fn a_real_domains_name_uuid_and_policy_are_followed() {
    let libvirt = Libvirt::start();
    let pid = libvirt.run_domain(&format!("<ms:vm xmlns:ms='{NAMESPACE}' weight='200'/>"));
    let uuid = libvirt.virsh(&["domuuid", DOMAIN]).trim().to_owned();
    let folder = libvirt.seen(STATE_FOLDER);
    let file = folder.join(format!("{DOMAIN}.xml"));
    let looks = || {
        // As the daemon once it is loaded.
        privileges::keep_only_used().expect("fewer rights");
        let process = VmmProcess::read(pid);
        assert_eq!(process.name, DOMAIN);
        let mut state = StateFile::of(&folder, &process.name, pid);
        assert_eq!(line(state.look()), "its libvirt metadata say: weight 200");
        assert_eq!(state.uuid(), Some(uuid.as_str()));
        assert_eq!(state.look(), None, "nothing has changed");

        libvirt.set_metadata("<vm weight='50' accelerate='false' resched-co='auto'/>");
        assert_eq!(
            line(state.look()),
            "its libvirt metadata say: weight 50, accelerate false, resched-co auto"
        );

        libvirt.virsh(&["desc", DOMAIN, "--live", "for the operator"]);
        assert_eq!(state.look(), None, "libvirt has written the file, and says the same of us");
        assert_eq!(state.policy().weight, Some(50));

        libvirt.set_metadata("<vm weight='0'/>");
        let bad = line(state.look());
        let place = format!("{}:", file.display());
        assert!(bad.starts_with(&place) && bad.contains(": weight \"0\": must be 1 to 10000: "), "{bad}");
        assert_eq!(state.policy().to_string(), "", "the defaults");

        libvirt.set_metadata("<vm weight='7'/>");
        assert_eq!(line(state.look()), "its libvirt metadata say: weight 7");
        libvirt.virsh(&["metadata", DOMAIN, "--live", "--uri", NAMESPACE, "--remove"]);
        assert_eq!(line(state.look()), "its libvirt metadata say nothing of it");

        libvirt.set_metadata("<vm weight='8'/>");
        libvirt.signal(libc::SIGSTOP);
        let mut of_another_run = StateFile::of(&folder, &process.name, pid);
        assert_eq!(
            line(of_another_run.look()),
            "its libvirt metadata say: weight 8",
            "of a daemon that hangs"
        );
        libvirt.signal(libc::SIGCONT);

        let mut of_another_process = StateFile::of(&folder, &process.name, pid + 1);
        assert_eq!((of_another_process.look(), of_another_process.uuid()), (None, None));
        libvirt.virsh(&["destroy", DOMAIN]);
        assert!(state.look().is_some());
        assert_eq!(state.uuid(), None, "no domain any more");
    };
    // Capabilities are a thread's.
    std::thread::scope(|scope| {
        scope.spawn(looks).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}
