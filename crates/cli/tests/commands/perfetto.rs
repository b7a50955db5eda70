//! A simulated run's trace, opened by Perfetto's own trace processor.

use microslice_testbed::trace_processor::TraceProcessor;
use serde_json::json;
use std::io::Write;
use std::process::Command;

/// Slices of one track that lie over each other.
const OVERLAPS: &str = "select count(*) as overlaps from (
    select ts, lag(ts + dur) over (partition by track_id order by ts) as before from slice where dur > 0)
    where ts < before";

#[test]
fn perfettos_trace_processor_reads_a_simulated_run_without_a_complaint() {
    let processor = match TraceProcessor::locate() {
        Ok(processor) => processor,
        Err(cause) => {
            writeln!(
                std::io::stderr(),
                "SKIPPED: no trace was opened by Perfetto's trace processor: {cause}"
            )
            .expect("stderr");
            return;
        }
    };
    let folder = tempfile::tempdir().expect("a folder");
    let trace = folder.path().join("run.pftrace");
    let output = Command::new(env!("CARGO_BIN_EXE_microslice"))
        .args(["simulate", "dedup-swaptions", "--policy", "micro:2", "--set", "duration=20 ms"])
        .args(["--set", "warmup=0 ms", "--trace"])
        .arg(&trace)
        .output()
        .expect("the binary starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    assert_eq!(processor.complaints(&trace).expect("a trace"), Vec::<serde_json::Value>::new());
    let answers = processor.ask(
        &trace,
        &[
            OVERLAPS,
            "select distinct track.name as name from slice join track on slice.track_id = track.id
             where track.name glob 'pCPU*' and dur > 0 order by 1 limit 1",
            "select count(*) > 0 as accelerated from slice where name = 'accelerated'",
            "select count(*) > 0 as micro from slice where name = 'running (micro)' and dur > 0",
            "select count(*) > 0 as flows from flow",
        ],
    );
    let answers = answers.expect("answers");
    assert_eq!(answers[0], [json!({"overlaps": 0})]);
    assert_eq!(answers[1], [json!({"name": "pCPU 0"})]);
    assert_eq!(answers[2], [json!({"accelerated": 1})]);
    assert_eq!(answers[3], [json!({"micro": 1})]);
    assert_eq!(answers[4], [json!({"flows": 1})]);
}
