//! Debian's own Prometheus, which tests ask about what it scraped, and what our dashboard and our alerts ask
//! it.
//!
//! `make setup-tests` installs it. It is asked by its own `promtool`.

use crate::{Error, Result, children};
use serde_json::Value;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// This source tree.
const TREE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// One that runs, with our alerts, until this is dropped.
pub struct Prometheus {
    process: Child,
    port: u16,
    /// Its configuration and what it scraped.
    _folder: TempDir,
}

impl Prometheus {
    /// Scrapes each `(job, target)`, and itself, once an `interval`, in whole seconds.
    ///
    /// # Errors
    /// It isn't installed, or there is no room for its files.
    pub fn start(targets: &[(&str, SocketAddr)], interval: Duration) -> Result<Self> {
        let folder = tempfile::tempdir().map_err(|cause| Error::file(std::env::temp_dir(), cause))?;
        let port = free_port()?;
        let itself = ("prometheus", SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        let jobs: String = targets
            .iter()
            .chain([&itself])
            .map(|(job, target)| {
                format!("  - job_name: {job}\n    static_configs: [{{targets: ['{target}']}}]\n")
            })
            .collect();
        let seconds = interval.as_secs();
        let text = format!(
            "global: {{scrape_interval: {seconds}s, scrape_timeout: {seconds}s, evaluation_interval: {seconds}s}}\n\
             rule_files: ['{}']\nscrape_configs:\n{jobs}",
            rules().display()
        );
        let config = folder.path().join("prometheus.yml");
        std::fs::write(&config, text).map_err(|cause| Error::file(&config, cause))?;
        let mut command = Command::new("prometheus");
        command.args([
            format!("--config.file={}", config.display()),
            format!("--storage.tsdb.path={}", folder.path().join("data").display()),
            format!("--web.listen-address=127.0.0.1:{port}"),
        ]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = children::spawn(command, Vec::new())
            .map_err(|cause| Error::Program { program: "prometheus".into(), cause })?;
        Ok(Self { process, port, _folder: folder })
    }

    /// The rows of a query's answer that have a number.
    ///
    /// # Errors
    /// It doesn't answer, or the query is wrong.
    pub fn ask(&self, query: &str) -> Result<Vec<Value>> {
        let server = format!("http://127.0.0.1:{}", self.port);
        let (is_right, words) = judged(&["query", "instant", "--format=json", &server, query], "")?;
        let failed =
            |cause: String| Error::Command { machine: "prometheus".into(), command: query.into(), cause };
        if !is_right {
            return Err(failed(words));
        }
        let rows: Vec<Value> = serde_json::from_str(&words).map_err(|cause| failed(cause.to_string()))?;
        let number = |row: &Value| row["value"][1].as_str().and_then(|text| text.parse::<f64>().ok());
        Ok(rows.into_iter().filter(|row| number(row).is_some_and(f64::is_finite)).collect())
    }

    /// Likewise, once there are such rows.
    ///
    /// # Errors
    /// There are none within `patience`.
    pub fn answer(&self, query: &str, patience: Duration) -> Result<Vec<Value>> {
        let deadline = Instant::now() + patience;
        loop {
            let last = match self.ask(query) {
                Ok(rows) if !rows.is_empty() => return Ok(rows),
                Ok(_) => "no row with a number".to_owned(),
                Err(error) => error.to_string(),
            };
            if Instant::now() >= deadline {
                let (machine, command) = ("prometheus".into(), query.into());
                return Err(Error::Command { machine, command, cause: last });
            }
            std::thread::sleep(Duration::from_millis(250));
        }
    }

    /// Waits until all our alerts were evaluated, twice.
    ///
    /// # Errors
    /// An alert can't be, or they weren't within `patience`.
    pub fn evaluate_alerts(&self, patience: Duration) -> Result<()> {
        self.answer("sum(prometheus_rule_group_iterations_total) >= 2", patience)?;
        let failures = self.answer("sum(prometheus_rule_evaluation_failures_total)", patience)?;
        if failures[0]["value"][1] == "0" {
            return Ok(());
        }
        Err(Error::file(rules(), format!("evaluations failed: {failures:?}")))
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What promtool says, of a text on its standard input if it reads that, and whether it likes it.
///
/// # Errors
/// It isn't installed.
pub fn judged(arguments: &[&str], input: &str) -> Result<(bool, String)> {
    let file = tempfile::NamedTempFile::new().map_err(|cause| Error::file(std::env::temp_dir(), cause))?;
    std::fs::write(file.path(), input).map_err(|cause| Error::file(file.path(), cause))?;
    let input = std::fs::File::open(file.path()).map_err(|cause| Error::file(file.path(), cause))?;
    let output = Command::new("promtool").args(arguments).stdin(input).output();
    let output = output.map_err(|cause| Error::Program { program: "promtool".into(), cause })?;
    let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    Ok((output.status.success(), text.concat()))
}

/// The file of our alerts.
pub fn rules() -> PathBuf {
    Path::new(TREE).join("packaging/prometheus/microslice.rules.yml")
}

/// All queries of the dashboard, of its panels and of its variables, as Grafana sends them where rates are
/// over `window` ("30s").
///
/// # Errors
/// There is no dashboard, or it is none.
pub fn dashboard_queries(window: &str) -> Result<Vec<String>> {
    let path = Path::new(TREE).join("packaging/grafana/microslice.json");
    let text = std::fs::read_to_string(&path).map_err(|cause| Error::file(&path, cause))?;
    let dashboard: Value = serde_json::from_str(&text).map_err(|cause| Error::file(&path, cause))?;
    let array = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let targets: Vec<Value> =
        array(&dashboard["panels"]).iter().flat_map(|panel| array(&panel["targets"])).collect();
    let panels = targets.iter().filter_map(|target| target["expr"].as_str());
    let variables = array(&dashboard["templating"]["list"]);
    let variables = variables.iter().filter_map(|variable| {
        let (metric, _) =
            variable["query"]["query"].as_str()?.strip_prefix("label_values(")?.rsplit_once(',')?;
        Some(metric)
    });
    let sent = |query: &str| {
        query.replace("$__rate_interval", window).replace("$instance", ".*").replace("$vm", ".*")
    };
    Ok(panels.chain(variables).map(sent).collect())
}

/// A port that was free a moment ago.
///
/// # Errors
/// There is none.
pub fn free_port() -> Result<u16> {
    let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
    address.map(|address| address.port()).map_err(|cause| Error::file("127.0.0.1", cause))
}
