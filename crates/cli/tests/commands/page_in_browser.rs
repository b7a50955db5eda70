//! Pages are drawn by a real browser: Debian's chromium, which `make setup-tests` installs.

use std::io::Write;
use std::path::Path;
use std::process::Command;

/// Run in the page by the browser: how many marks it drew, which of them are outside of their plot, and what
/// it fetched.
const LOOK: &str = r#"<script>
const outside = [];
let drawn = 0;
for (const plot of document.querySelectorAll("svg")) {
  const room = plot.getBoundingClientRect();
  for (const mark of plot.querySelectorAll("rect, line, path, polygon, circle, text")) {
    const box = mark.getBoundingClientRect();
    if (box.width + box.height > 0) drawn++;
    if (box.left < room.left - 1 || box.right > room.right + 1 || box.top < room.top - 1 || box.bottom > room.bottom + 1)
      outside.push(mark.outerHTML);
  }
}
const seen = { drawn, outside, fetched: performance.getEntriesByType("resource").map((entry) => entry.name) };
document.body.setAttribute("data-seen", encodeURIComponent(JSON.stringify(seen)));
</script>"#;

/// Writes the page of a command, `--html` last, and has the browser draw it; `None` without a browser.
fn draw(arguments: &[&str]) -> Option<Drawn> {
    if Command::new("chromium").arg("--version").output().is_err() {
        writeln!(
            std::io::stderr(),
            "SKIPPED: no chromium here (make setup-tests installs it); the page of {arguments:?} was not drawn by a real browser"
        )
        .expect("stderr");
        return None;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let page = folder.path().join("page.html");
    let status =
        Command::new(env!("CARGO_BIN_EXE_microslice")).args(arguments).arg("--html").arg(&page).output();
    assert!(status.expect("the binary starts").status.success(), "{arguments:?}");
    let source = std::fs::read_to_string(&page).expect("the page");
    let looked_at = folder.path().join("looked-at.html");
    std::fs::write(&looked_at, source.replace("</body>", &format!("{LOOK}</body>"))).expect("a copy");
    let screenshot = folder.path().join("page.png");
    let dom = browse(folder.path(), &looked_at, &screenshot);
    let is_png = std::fs::read(&screenshot).expect("a screenshot").starts_with(b"\x89PNG");
    assert!(is_png, "a screenshot of {arguments:?}");
    let (_, seen) = dom.split_once("data-seen=\"").expect("the browser ran the script");
    let (seen, _) = seen.split_once('"').expect("the attribute ends");
    let seen = serde_json::from_str(&decoded(seen)).expect("JSON");
    Some(Drawn { source, dom, seen })
}

struct Drawn {
    source: String,
    dom: String,
    seen: serde_json::Value,
}

/// The document as the browser understood it.
fn browse(folder: &Path, page: &Path, screenshot: &Path) -> String {
    let output = Command::new("timeout")
        .args(["120", "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"])
        .arg(format!("--user-data-dir={}", folder.join("profile").display()))
        .arg(format!("--screenshot={}", screenshot.display()))
        .arg(format!("file://{}", page.display()))
        .output()
        .expect("chromium starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Undoes `encodeURIComponent`.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let hex: String =
            if byte == b'%' { rest.by_ref().take(2).map(char::from).collect() } else { String::new() };
        bytes.push(u8::from_str_radix(&hex, 16).unwrap_or(byte));
    }
    String::from_utf8(bytes).expect("UTF-8")
}

impl Drawn {
    /// Nothing dropped as malformed, nothing outside of its plot, nothing fetched from elsewhere.
    fn check(&self) {
        for element in ["<svg", "<rect", "<line", "<path", "<text", "<table", "<tr", "<td"] {
            let (understood, written) =
                (self.dom.matches(element).count(), self.source.matches(element).count());
            assert!(understood >= written, "{element}: {understood} of {written}");
        }
        assert!(self.source.matches("<svg").count() > 0, "the page has plots");
        assert!(self.seen["drawn"].as_u64() >= Some(10), "{}", self.seen["drawn"]);
        assert_eq!(self.seen["outside"], serde_json::json!([]), "drawn outside of its plot");
        assert_eq!(self.seen["fetched"], serde_json::json!([]), "a page contains all that it shows");
    }
}

#[test]
fn a_browser_draws_the_plots_of_a_comparison() {
    let short = ["--set", "warmup=0 ms", "--set", "duration=30 ms"];
    let compare = ["compare", "gmake-swaptions", "--policies", "credit,micro:1", "--seeds", "2"];
    let Some(drawn) = draw(&[&compare[..], &short].concat()) else { return };
    drawn.check();
}

#[test]
fn a_browser_draws_the_plots_of_one_run() {
    let short = ["--set", "warmup=0 ms", "--set", "duration=30 ms"];
    let Some(drawn) = draw(&[&["simulate", "dedup-swaptions"], &short[..]].concat()) else { return };
    drawn.check();
}

#[test]
fn a_browser_draws_the_papers_plots_with_error_bars() {
    let Some(drawn) = draw(&["reproduce", "eurosys18", "--only", "figure9", "--seeds", "2"]) else { return };
    drawn.check();
    // The baseline's throughput and jitter differ between seeds.
    assert!(drawn.dom.matches(r##"stroke="#000" fill="none""##).count() >= 2, "error bars");
}
