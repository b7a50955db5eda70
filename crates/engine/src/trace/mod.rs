//! Traces of a run: Perfetto's format for people, text lines for snapshot tests.
//!
//! Both are sinks that write as the run goes, so memory stays bounded however long the run is. An error of
//! the output stops the run at its next progress call and comes back from `finish`.

mod perfetto;
mod text;

pub use perfetto::PerfettoTrace;
pub use text::TextTrace;

use microslice_model::events::{IpiKind, StopReason, TraceNames};
use microslice_model::ids::{Id, IdVec, VcpuId, VmId};

/// `target/3`: the VM's name and the vCPU's number in it.
fn vcpu_name(names: &TraceNames, vcpu: VcpuId) -> String {
    let (vm, number) = names.vcpus.get(vcpu).copied().unwrap_or((VmId::NONE, vcpu.number()));
    format!("{}/{number}", names.vms.get(vm).map_or("?", String::as_str))
}

fn name_at<I: Id>(names: &IdVec<I, String>, id: I) -> &str {
    names.get(id).map_or("?", String::as_str)
}

fn stop_name(reason: StopReason) -> &'static str {
    match reason {
        StopReason::Ple => "ple",
        StopReason::IpiWait => "ipi_wait",
        StopReason::Hlt => "hlt",
        StopReason::LockHlt => "lock_hlt",
        StopReason::SliceExpired => "slice_expired",
        StopReason::Preempted => "preempted",
        StopReason::Throttled => "throttled",
    }
}

fn ipi_name(kind: IpiKind) -> &'static str {
    match kind {
        IpiKind::Reschedule => "resched",
        IpiKind::CallFunction => "call_function",
        IpiKind::LockKick => "lock_kick",
    }
}
