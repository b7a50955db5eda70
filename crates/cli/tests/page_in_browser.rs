//! Pages are drawn by a real browser: Debian's chromium, if it is installed.

use std::io::Write;
use std::process::Command;

#[test]
fn a_browser_draws_the_plots_of_a_page() {
    if Command::new("chromium").arg("--version").output().is_err() {
        writeln!(
            std::io::stderr(),
            "SKIPPED: no chromium here (Debian package `chromium`); the page was not drawn by a real browser"
        )
        .expect("stderr");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let page = folder.path().join("page.html");
    let status = Command::new(env!("CARGO_BIN_EXE_microslice"))
        .args(["compare", "gmake-swaptions", "--policies", "credit,micro:1", "--seeds", "2"])
        .args(["--set", "warmup=0 ms", "--set", "duration=30 ms", "--html"])
        .arg(&page)
        .output()
        .expect("the binary starts")
        .status;
    assert!(status.success());
    let screenshot = folder.path().join("page.png");
    let output = Command::new("timeout")
        .args(["120", "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"])
        .arg(format!("--user-data-dir={}", folder.path().join("profile").display()))
        .arg(format!("--screenshot={}", screenshot.display()))
        .arg(format!("file://{}", page.display()))
        .output()
        .expect("chromium starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let drawn = std::fs::read(&screenshot).expect("a screenshot");
    assert!(drawn.starts_with(b"\x89PNG"), "a PNG");
    let dom = String::from_utf8_lossy(&output.stdout);
    let source = std::fs::read_to_string(&page).expect("the page");
    // What the browser understood is what was written: nothing was dropped as malformed.
    for element in ["<svg", "<rect", "<table", "<tr", "<td"] {
        assert!(dom.matches(element).count() >= source.matches(element).count(), "{element}");
    }
    assert!(source.matches("<svg").count() > 0);
}
