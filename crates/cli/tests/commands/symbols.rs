//! `microslice symbols` as a user meets it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const MAP: &str = "ffffffff81000000 T _text\nffffffff81000100 T next\n";

struct Desk(tempfile::TempDir);

impl Desk {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    fn store(&self) -> PathBuf {
        self.0.path().join("store")
    }

    fn symbols(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_microslice"));
        command
            .arg("symbols")
            .args(arguments)
            .env("MICROSLICE_SYMBOL_STORE", self.store())
            .env_remove("DEBUGINFOD_URLS");
        command.output().unwrap()
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Exit code 2 and one line on standard error.
fn refusal(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty());
    let said = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(said.lines().count(), 1, "{said}");
    said
}

#[test]
fn a_listed_kernel_is_a_system_map_again() {
    let desk = Desk::new();
    let map = desk.file("System.map-5.4.0-custom", MAP);
    assert_eq!(stdout(&desk.symbols(&["list", "--kernel", text(&map)])), MAP);
    let json = stdout(&desk.symbols(&["list", "--kernel", text(&map), "--json"]));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["release"], "5.4.0-custom");
    assert_eq!(json["symbols"][0]["name"], "_text");
    assert_eq!(json["symbols"][0]["end"], "0xffffffff81000100");
}

#[test]
fn an_imported_kernel_is_found_by_its_release() {
    let desk = Desk::new();
    let map = desk.file("System.map", MAP);
    let unnamed = refusal(&desk.symbols(&["import", text(&map)]));
    assert!(unnamed.contains("neither build ID nor release") && unnamed.contains("--release"), "{unnamed}");
    stdout(&desk.symbols(&["import", "--release", "5.4.0-custom", text(&map)]));
    assert_eq!(stdout(&desk.symbols(&["list", "--kernel", "5.4.0-custom"])), MAP);
    let listed = stdout(&desk.symbols(&["store", "--json"]));
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(
        (listed[0]["release"].as_str(), listed[0]["symbols"].as_u64()),
        (Some("5.4.0-custom"), Some(2))
    );
}

#[test]
fn an_import_with_one_bad_file_imports_nothing() {
    let desk = Desk::new();
    let good = desk.file("System.map-5.4.0-custom", MAP);
    let bad = desk.file("noise", "this is no kernel\n");
    let said = refusal(&desk.symbols(&["import", text(&good), text(&bad)]));
    assert!(said.starts_with(&format!("microslice: {}: is none of bzImage, ", bad.display())), "{said}");
    assert!(!desk.store().exists());
}

#[test]
fn an_import_that_finds_no_room_for_one_kernel_stores_none() {
    let desk = Desk::new();
    let maps = ["5.4.0", "5.5.0"].map(|release| desk.file(&format!("System.map-{release}"), MAP));
    std::fs::create_dir_all(desk.store().join("release/5.5.0.symbols")).unwrap();
    let output = desk.symbols(&["import", text(&maps[0]), text(&maps[1])]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "the input isn't at fault: {said}");
    assert!(said.ends_with("release/5.5.0.symbols: is a directory\n"), "{said}");
    assert_eq!(std::fs::read_dir(desk.store().join("release")).unwrap().count(), 1, "nothing else is there");
}

#[test]
fn a_release_that_names_no_file_is_refused_with_the_source_it_was_for() {
    let desk = Desk::new();
    let map = desk.file("System.map", MAP);
    let said = refusal(&desk.symbols(&["import", "--release", "../x", text(&map)]));
    assert!(
        said.starts_with(&format!("microslice: {}: release \"../x\" can't name a file", map.display())),
        "{said}"
    );
}

#[test]
fn sources_of_different_kernels_are_said_to_disagree() {
    let desk = Desk::new();
    let (one, other) = (desk.file("System.map-5.4.0", MAP), desk.file("System.map-5.5.0", MAP));
    let json = stdout(&desk.symbols(&["identify", text(&one), text(&other), "--json"]));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let expected = format!("{} and {}: release 5.4.0 against 5.5.0", one.display(), other.display());
    assert_eq!(json["disagreements"], serde_json::json!([expected]));
    assert_eq!(json["sources"][1]["kind"], "text");
}

#[test]
fn bad_input_is_one_line_with_file_place_and_cause() {
    let desk = Desk::new();
    let map = desk.file("System.map", "ffffffff81000000 T _text\nhello\n");
    let said = refusal(&desk.symbols(&["list", "--kernel", text(&map)]));
    assert_eq!(said, format!("microslice: {}: line 2: \"hello\" isn't `address type name`\n", map.display()));
    let said = refusal(&desk.symbols(&["list", "--kernel", "6.99.0-absent"]));
    assert!(
        said.contains("6.99.0-absent: no such file, and no kernel of that release or build ID in "),
        "{said}"
    );
    let said = refusal(&desk.symbols(&["identify", "--pid", "4294967294"]));
    assert_eq!(said, "microslice: process 4294967294: no such process\n");
    let said = refusal(&desk.symbols(&["import", "--build-id", "abcdef"]));
    assert!(said.contains("set DEBUGINFOD_URLS"), "{said}");
}

#[test]
fn a_wrong_command_line_is_one_line_too() {
    let desk = Desk::new();
    let map = desk.file("System.map-5.4.0-custom", MAP);
    for (arguments, said) in [
        (&["classify", "--kernel", text(&map), "0xgg"][..], "invalid value '0xgg' for '<ADDRESS>...'"),
        (&["classify", "--kernel", text(&map), "--slide", "x", "0"], "invalid value 'x' for '--slide <HEX>'"),
        (&["classify", "--kernel", text(&map), "1\n\ng"], "invalid value '1 g' for '<ADDRESS>...'"),
        (&["slide"], "required arguments were not provided: --kernel <FILE> <ADDRESS>..."),
        (&["identify", "--pid", "-3"], "unexpected argument '-3'"),
        (&["list", "--kernel", text(&map), "--pid", "1"], "cannot be used with '--pid <PID>'"),
    ] {
        let line = refusal(&desk.symbols(arguments));
        assert!(line.contains(said), "{line}");
    }
}

#[test]
fn a_damaged_store_lists_what_is_whole_and_fails() {
    let desk = Desk::new();
    for release in ["5.4.0-whole", "5.4.0-damaged"] {
        let map = desk.file(&format!("System.map-{release}"), MAP);
        stdout(&desk.symbols(&["import", text(&map)]));
    }
    std::fs::write(desk.store().join("release/5.4.0-damaged.symbols"), "MSLSYM01 but no more").unwrap();
    let output = desk.symbols(&["store"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stdout).contains("5.4.0-whole"));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("5.4.0-damaged.symbols: offset") && said.lines().count() == 1, "{said}");
    let no_store = refusal(&desk.symbols(&["store", "--store", text(&desk.file("a-file", ""))]));
    assert!(no_store.contains("a-file: Not a directory"), "{no_store}");
    let half = desk.store().join("half");
    std::fs::create_dir(&half).unwrap();
    std::fs::write(half.join("build-id"), "").unwrap();
    let no_folder = refusal(&desk.symbols(&["store", "--store", text(&half)]));
    assert!(no_folder.contains("build-id: Not a directory"), "{no_folder}");
}

#[test]
fn a_process_that_is_gone_or_no_vmm_is_one_line() {
    let desk = Desk::new();
    let gone = refusal(&desk.symbols(&["identify", "--pid", "4294967294"]));
    assert_eq!(gone, "microslice: process 4294967294: no such process\n");
    let own = std::process::id().to_string();
    let no_vmm = refusal(&desk.symbols(&["list", "--pid", &own]));
    assert!(no_vmm.starts_with(&format!("microslice: process {own}: ")), "{no_vmm}");
}

#[test]
fn every_subcommand_explains_itself_with_examples() {
    let desk = Desk::new();
    for subcommand in ["list", "identify", "import", "store", "classify", "check", "slide"] {
        let help = stdout(&desk.symbols(&[subcommand, "--help"]));
        assert!(help.contains("Examples:\n  microslice symbols "), "{subcommand}: {help}");
    }
}
