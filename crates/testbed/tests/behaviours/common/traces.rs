//! Traces of a host, opened by Perfetto's own trace processor.

use super::run;
use microslice_testbed::Host;
use microslice_testbed::trace_processor::TraceProcessor;
use serde_json::Value;
use std::process::{Command, Stdio};
use tempfile::NamedTempFile;

pub struct Trace {
    processor: TraceProcessor,
    file: NamedTempFile,
}

impl Trace {
    /// Takes it from the host, and opens it: the trace processor has nothing to complain about.
    pub fn take(host: &Host, path: &str) -> Self {
        let text = run(host, &format!("gzip -c {path} | base64 && rm {path}"));
        let file = NamedTempFile::new().expect("a file");
        let mut unpacking = Command::new("sh")
            .args(["-c", "base64 -d | gzip -dc"])
            .stdin(Stdio::piped())
            .stdout(file.reopen().expect("the same file"))
            .spawn()
            .expect("a shell");
        std::io::copy(&mut text.as_bytes(), &mut unpacking.stdin.take().expect("a pipe")).expect("unpacked");
        assert!(unpacking.wait().expect("it ends").success());
        let processor = TraceProcessor::locate().unwrap_or_else(|error| panic!("{error}"));
        let complaints = processor.complaints(file.path()).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(complaints, Vec::<Value>::new());
        let trace = Self { processor, file };
        trace.assert_that_slices_dont_overlap();
        trace
    }

    pub fn rows(&self, sql: &str) -> Vec<Value> {
        let answers = self.processor.ask(self.file.path(), &[sql]);
        answers.unwrap_or_else(|error| panic!("{error}")).concat()
    }

    /// The only value of the only row.
    pub fn number(&self, sql: &str) -> i64 {
        let rows = self.rows(sql);
        let only = rows.first().and_then(|row| row.as_object()?.values().next()?.as_i64());
        only.unwrap_or_else(|| panic!("{sql}: {rows:?}"))
    }

    /// Of a pCPU, one task after the other; of a vCPU, one state.
    fn assert_that_slices_dont_overlap(&self) {
        let overlaps = self.rows(
            "select * from (
                select track.name as track, slice.name, ts, lag(ts + dur) over (partition by track_id order by ts) as before
                from slice join track on slice.track_id = track.id where dur > 0)
             where ts < before limit 3",
        );
        assert_eq!(overlaps, Vec::<Value>::new());
        let pcpus = self.number(
            "select count(distinct track.id) from slice join track on slice.track_id = track.id
             where track.name glob 'pCPU *' and dur > 0",
        );
        assert!(pcpus >= 2, "{pcpus} pCPUs ran somebody");
    }

    /// How many vCPUs of this VM were seen running.
    pub fn vcpus_that_ran(&self, vm: &str) -> i64 {
        self.number(&format!(
            "select count(distinct track.id) from slice join track on slice.track_id = track.id
             join track as vm on track.parent_id = vm.id
             where vm.name = 'VM {vm}' and slice.name glob 'running*' and dur > 0"
        ))
    }
}
