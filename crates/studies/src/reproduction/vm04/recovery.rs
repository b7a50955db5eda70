//! Figure 9's end: what the guest does once its slow vCPU has its pCPU again.

use super::{Guest, MS, balloon};
use crate::reproduction::runs::{RunTable, mean};
use crate::reproduction::study::Shape;
use microslice_engine::report::{BalanceSample, RunReport};

/// B is done at about 35 s, and two seconds have passed.
const RECOVERED_NS: u64 = 37_000 * MS;

/// Once B has done its work, A's balloons go and its threads are spread evenly again.
pub fn shape(runs: &RunTable) -> Shape {
    let after = |report: &RunReport| -> Vec<BalanceSample> {
        let samples = report.vms[0].balance.iter();
        samples.filter(|sample| sample.time_ns >= RECOVERED_NS).cloned().collect()
    };
    let threads = mean(&runs.of(&balloon(Guest::Balloons), |report| {
        let samples = after(report);
        samples.iter().map(|sample| sample.threads[0] as f64).sum::<f64>() / samples.len() as f64
    }));
    let share = mean(&runs.of(&balloon(Guest::Balloons), |report| {
        let samples = after(report);
        let (Some(first), Some(last)) = (samples.first(), samples.last()) else { return f64::NAN };
        (last.run_ns[0] - first.run_ns[0]) as f64 / (last.time_ns - first.time_ns) as f64
    }));
    let seen = threads.zip(share);
    Shape {
        claim: "Figure 9: two seconds after the other VM is done, the slow vCPU has its pCPU and half the threads again"
            .to_owned(),
        holds: seen.map(|(threads, share)| (4.5..=5.5).contains(&threads) && share > 0.95),
        seen: seen.map_or(String::new(), |(threads, share)| {
            format!("{threads:.1} threads, {share:.2} of the pCPU")
        }),
    }
}
