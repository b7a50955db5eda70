//! What the package brings along: manual pages, completions, and the package itself, made of the program that
//! tests run.

use std::path::Path;
use std::process::{Command, Output};

const PROGRAM: &str = env!("CARGO_BIN_EXE_microslice");
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn microslice(arguments: &[&str]) -> Output {
    Command::new(PROGRAM).args(arguments).output().expect("run")
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).expect("text")
}

fn said(command: &mut Command) -> String {
    text(&command.output().unwrap_or_else(|error| panic!("{command:?}: {error}")))
}

/// Commands that help names.
fn commands() -> Vec<String> {
    let help = text(&microslice(&["--help"]));
    let (_, list) = help.split_once("Commands:\n").expect("commands");
    let (list, _) = list.split_once("\n\n").expect("an end");
    let names = list.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    names.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

#[test]
fn every_command_has_a_manual_page_with_its_flags_and_examples() {
    let pages = tempfile::tempdir().expect("a folder");
    text(&microslice(&["manual", pages.path().to_str().expect("text")]));
    let page = |name: &str| {
        let path = pages.path().join(format!("{name}.1"));
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    let commands = commands();
    assert!(commands.len() > 8, "{commands:?}");
    for name in commands.iter().filter(|name| *name != "help") {
        let page = page(&format!("microslice-{name}"));
        for section in ["SYNOPSIS", "EXIT STATUS", "SEE ALSO"] {
            assert!(
                page.contains(&format!(".SH \"{section}\"")) || page.contains(&format!(".SH {section}\n")),
                "{page}"
            );
        }
        assert!(name == "symbols" || name == "testbed" || page.contains(".SH EXAMPLES\n.nf\n"), "{page}");
        assert!(!page.contains("Examples:"), "{page}");
    }
    let run = page("microslice-run");
    assert!(
        run.contains(".SH FILES\n")
            && run.contains("/etc/microslice.toml")
            && run.contains("microslice\\-observe(1)"),
        "{run}"
    );
    // Where man is installed: it has nothing to complain about.
    let groff =
        Command::new("groff").args(["-man", "-ww", "-z"]).arg(pages.path().join("microslice-run.1")).output();
    assert!(
        groff.is_ok_and(|output| output.stderr.is_empty())
            || Command::new("groff").arg("-v").output().is_err()
    );
    assert!(page("microslice").contains("microslice\\-run(1)"), "{}", page("microslice"));
    page("microslice-symbols-check");
}

#[test]
fn a_manual_that_cannot_be_written_is_refused_with_the_path() {
    let output = microslice(&["manual", "/proc/none-such"]);
    assert_eq!(output.status.code(), Some(2));
    let line = String::from_utf8(output.stderr).expect("text");
    assert!(line.contains("/proc/none-such") && line.lines().count() == 1, "{line}");
}

#[test]
fn bash_completes_commands_and_flags() {
    let script = text(&microslice(&["completions", "bash"]));
    let complete = format!(
        "{script}\nCOMP_WORDS=(microslice run --micro-cp); COMP_CWORD=2; _microslice microslice --micro-cp run\n\
         printf '%s\\n' \"${{COMPREPLY[@]}}\""
    );
    let completed = said(Command::new("bash").args(["-c", &complete]));
    assert_eq!(completed.lines().collect::<Vec<_>>(), ["--micro-cpus", "--micro-cpus-limit"]);
    for shell in ["zsh", "fish"] {
        assert!(text(&microslice(&["completions", shell])).contains("micro-cpus-limit"));
    }
}

#[test]
fn a_catalogue_that_is_broken_is_refused_before_anything_is_loaded() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), "format = 1\nfamily = 3\n").expect("write");
    let path = file.path().to_str().expect("text");
    let output = microslice(&["run", "--critical", path]);
    assert_eq!(output.status.code(), Some(2));
    let line = String::from_utf8(output.stderr).expect("text");
    assert!(line.contains(&format!("--critical: {path}: line 2")) && line.lines().count() == 1, "{line}");
}

/// Systemd's own check, where it is installed: of settings and of their values.
#[test]
fn units_say_nothing_that_systemd_does_not_know() {
    let text = std::fs::read_to_string(format!("{ROOT}/packaging/microslice.service")).expect("a unit");
    assert!(text.contains("NoNewPrivileges=yes") && text.contains("ExecStart=/usr/bin/microslice run\n"));
    assert!(!text.contains("\nRestrictRealtime=yes"), "it makes threads real-time");
    for unit in ["microslice.service", "microslice-metrics.service", "microslice-metrics.socket"] {
        let path = format!("{ROOT}/packaging/{unit}");
        let Ok(output) = Command::new("systemd-analyze").args(["verify", &path]).output() else { continue };
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        // The program isn't installed here.
        let complaints: Vec<_> =
            words.lines().filter(|line| line.contains("Unknown") || line.contains("parse")).collect();
        assert!(complaints.is_empty(), "{unit}: {complaints:?}");
    }
}

/// What a service's environment says, flags and files override, and all are refused alike.
#[test]
fn an_address_that_is_none_or_in_use_is_refused_in_one_line() {
    let refusal = |arguments: &[&str], environment: &str| {
        let mut command = Command::new(PROGRAM);
        let output =
            command.args(arguments).env("MICROSLICE_METRICS_LISTEN", environment).output().expect("run");
        let line = String::from_utf8(output.stderr).expect("text");
        assert!(output.status.code() == Some(2) && line.lines().count() == 1, "{line}");
        line
    };
    for command in ["run", "observe"] {
        let line = refusal(&[command, "--metrics-listen", "9477"], "off");
        assert!(
            line.contains("--metrics-listen") && line.contains("must be unix:/PATH or IP:PORT"),
            "{line}"
        );
        let line = refusal(&[command], "nowhere");
        assert!(
            line.contains("the environment's MICROSLICE_METRICS_LISTEN: \"nowhere\" is no address"),
            "{line}"
        );
    }
}

/// Where a file of the package comes from, by its last words in `dpkg-deb --contents`.
const FILES: [&str; 15] = [
    "./usr/bin/microslice",
    "./etc/microslice.toml",
    "./usr/share/microslice/critical/linux.toml",
    "./usr/share/man/man1/microslice-run.1.gz",
    "./usr/share/bash-completion/completions/microslice",
    "./usr/share/zsh/vendor-completions/_microslice",
    "./usr/share/fish/vendor_completions.d/microslice.fish",
    "./usr/share/doc/microslice/README.md",
    "./usr/share/doc/microslice/docs/how-to/what-if-sample.json",
    "./usr/share/microslice/scenarios/dedup-swaptions.toml",
    "/systemd/system/microslice.service",
    "/systemd/system/microslice-metrics.service",
    "/systemd/system/microslice-metrics.socket",
    "./usr/share/microslice/grafana/microslice.json",
    "./usr/share/microslice/prometheus/microslice.rules.yml",
];

/// Links of pages in a folder, and of those in it, that lead nowhere.
fn dead_links(folder: &Path) -> Vec<String> {
    let mut dead = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            dead.extend(dead_links(&path));
        } else if path.extension().is_some_and(|extension| extension == "md") {
            let text = std::fs::read_to_string(&path).expect("a page");
            let targets = text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
            let local = targets.filter(|target| !target.is_empty() && !target.contains("://"));
            dead.extend(
                local
                    .filter(|target| !folder.join(target).exists())
                    .map(|to| format!("{}: {to}", path.display())),
            );
        }
    }
    dead
}

#[test]
fn the_debian_package_has_all_its_files_and_lintian_finds_no_error_in_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = Path::new(ROOT).join("scripts/deb.sh");
    let made = said(Command::new(script).args([Path::new(PROGRAM), folder.path()]));
    let package = made.trim();
    let contents = said(Command::new("dpkg-deb").args(["--contents", package]));
    for file in FILES {
        assert!(
            contents.lines().any(|line| line.ends_with(file) || line.contains(&format!("{file}."))),
            "{file}: {contents}"
        );
    }
    let control = said(Command::new("dpkg-deb").args(["--info", package]));
    assert!(
        control.contains("conffiles"),
        "an operator's changes to /etc/microslice.toml are kept: {control}"
    );
    let content = folder.path().join("content");
    said(Command::new("dpkg-deb").args(["--extract", package]).arg(&content));
    assert_eq!(dead_links(&content.join("usr/share/doc/microslice")), [""; 0]);
    said(Command::new("lintian").args(["--allow-root", "--fail-on", "error", package]));
}
