//! The Debian package on a host with systemd: what an operator does with it, from its installation to its
//! end.

use crate::common::{PATIENCE, print, run, scheduler_state};
use microslice_testbed::{Host, Testbed, built_binary};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
/// Where the packages lie on the host: what the testbed brings is in `/testbed` there.
const PACKAGES: [&str; 2] = ["/testbed/packages/first.deb", "/testbed/packages/second.deb"];
/// Above whatever this program's version is.
const HIGHER: &str = "999.0-1";
/// What an operator changes, and an upgrade keeps.
const CHANGED: &str = "scheduler = \"microslice\"\nmicro-cpus = 1\nmicro-slice-us = 3000\n";

/// Standard output of a program that must succeed.
fn said(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// The package of the program under test, and the same with a higher version.
fn packages(folder: &Path) -> [PathBuf; 2] {
    let binary = built_binary().expect("the program under test");
    let first = said(Command::new(Path::new(ROOT).join("scripts/deb.sh")).arg(binary).arg(folder));
    let first = PathBuf::from(first.trim());
    let [content, second] = ["content", "second.deb"].map(|name| folder.join(name));
    said(Command::new("dpkg-deb").arg("--raw-extract").arg(&first).arg(&content));
    let control = content.join("DEBIAN/control");
    let text = std::fs::read_to_string(&control).expect("a control file");
    let (before, rest) = text.split_once("\nVersion: ").expect("a version");
    let (_, after) = rest.split_once('\n').expect("more");
    std::fs::write(&control, format!("{before}\nVersion: {HIGHER}\n{after}")).expect("written");
    said(
        Command::new("dpkg-deb").args(["--root-owner-group", "-Znone", "--build"]).arg(&content).arg(&second),
    );
    [first, second]
}

/// All files on the host's disk, but for what dpkg writes down of any package.
fn files(host: &Host) -> Vec<String> {
    let found =
        "find / -xdev '(' -path /var/lib/dpkg -o -path /var/log -o -path /testbed ')' -prune -o -print";
    let mut files: Vec<String> = run(host, found).lines().map(str::to_owned).collect();
    files.sort();
    files
}

/// What a command says, whatever it thinks of it.
fn output(host: &Host, command: &str) -> String {
    host.run(command, PATIENCE).expect("run").stdout.trim().to_owned()
}

fn property(host: &Host, name: &str) -> String {
    output(host, &format!("systemctl show --property={name} --value microslice"))
}

/// The service runs, and its scheduler is in charge.
fn assert_in_charge(host: &Host) {
    let status = output(host, "systemctl status --no-pager --full --lines=20 microslice");
    print(&status);
    for words in ["Active: active (running)", "Status: \"scheduling with 1 of 4 pCPUs micro-sliced"] {
        assert!(status.contains(words), "{words}: {status}");
    }
    assert_eq!(scheduler_state(host), "enabled");
    assert_eq!(run(host, "cat /sys/kernel/sched_ext/root/ops").trim(), "microslice");
}

fn assert_the_kernels_own(host: &Host) {
    let deadline = Instant::now() + PATIENCE;
    while scheduler_state(host) != "disabled" {
        assert!(Instant::now() < deadline, "{}", output(host, "systemctl status --no-pager microslice"));
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
#[ignore = "110 s and a Debian to install; breaks with debian/ only: make test-long"]
fn the_package_is_installed_started_upgraded_and_purged_on_a_host_with_systemd() {
    let folder = tempfile::tempdir().expect("a folder");
    let made = packages(folder.path());
    let testbed = || {
        let testbed = Testbed::new("6.18").expect("a series").with_systemd();
        PACKAGES.iter().zip(&made).fold(testbed, |testbed, (path, made)| {
            testbed.with_file(path.trim_start_matches("/testbed"), made.clone())
        })
    };
    crate::common::on_machine("a host with systemd", testbed, &[], |host, _| {
        let before = files(host);
        is_installed_and_does_nothing_yet(host);
        is_started_by_its_operator(host);
        goes_on_with_the_operators_settings_when_upgraded(host);
        leaves_nothing_when_purged(host, &before);
    });
}

fn is_installed_and_does_nothing_yet(host: &Host) {
    run(host, &format!("dpkg --install {}", PACKAGES[0]));
    assert!(run(host, "microslice --version").starts_with("microslice "));
    for (question, answer) in [("is-enabled", "disabled"), ("is-active", "inactive")] {
        assert_eq!(output(host, &format!("systemctl {question} microslice")), answer);
    }
    assert_the_kernels_own(host);
}

fn is_started_by_its_operator(host: &Host) {
    run(host, &format!("printf '{}' >> /etc/microslice.toml", CHANGED.replace('\n', "\\n")));
    run(host, "systemctl enable --now microslice microslice-metrics.socket");
    assert_in_charge(host);
    let journal = run(host, "journalctl --no-pager --unit microslice");
    print(&journal);
    for words in
        ["microslice[", "scheduling with 1 of 4 pCPUs", "slices of 3000 us", "Started microslice.service"]
    {
        assert!(journal.contains(words), "{words}: {journal}");
    }
    let figures = run(host, "/testbed/bin/busybox wget -q -O - http://127.0.0.1:9477/metrics");
    assert!(figures.contains("\nmicroslice_scheduler_restarts_total 0\n"), "{figures}");
}

fn goes_on_with_the_operators_settings_when_upgraded(host: &Host) {
    let before = property(host, "MainPID");
    run(host, &format!("dpkg --install {}", PACKAGES[1]));
    assert_eq!(run(host, "dpkg-query --show --showformat='${Version}' microslice"), HIGHER);
    assert!(run(host, "cat /etc/microslice.toml").ends_with(CHANGED));
    assert_in_charge(host);
    let (after, restarts) = (property(host, "MainPID"), property(host, "NRestarts"));
    assert!(
        after != before && restarts == "0",
        "the new program runs, by no failure: {before}, {after}, {restarts}"
    );
    assert_eq!(output(host, "systemctl is-enabled microslice"), "enabled");
}

fn leaves_nothing_when_purged(host: &Host, before: &[String]) {
    run(host, "dpkg --purge microslice");
    assert_the_kernels_own(host);
    assert_eq!(output(host, "systemctl list-units --all --plain --no-legend 'microslice*'"), "");
    assert_eq!(output(host, "ls -d /run/microslice* /run/systemd/system/microslice* 2>/dev/null"), "");
    assert_eq!(output(host, "pidof microslice"), "");
    let left: Vec<String> = files(host).into_iter().filter(|file| !before.contains(file)).collect();
    assert!(left.is_empty(), "{left:?}");
}
