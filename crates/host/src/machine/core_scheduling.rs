//! Core scheduling: a task with a cookie hangs a host with SMT under any sched_ext scheduler (sched-ext/scx
//! issue 3715).
//!
//! While our scheduler is loaded no task gets one (`bpf/core/core_scheduling.bpf.h`). Here is what must hold
//! before.

use crate::HostError;
use crate::machine::proc::numbers;
use crate::machine::topology::Topology;
use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::Func;

/// The hook where cookies are denied: kernels with `CONFIG_SECURITY` have it.
const HOOK: &str = "security_task_prctl";

/// Can this kernel be made to deny cookies?
pub fn can_be_denied() -> bool {
    Btf::from_vmlinux().is_ok_and(|btf| btf.type_by_name::<Func<'_>>(HOOK).is_some())
}

/// Refuses a host with SMT where some task has a cookie, or could get one while our scheduler is loaded.
pub fn check(topology: &Topology) -> Result<(), HostError> {
    if !topology.smt || cookie_of(OWN_TASK).is_none() {
        return Ok(());
    }
    refusal(can_be_denied(), first_task_with_cookie()).map_or(Ok(()), |line| Err(HostError::refused(line)))
}

fn refusal(can_be_denied: bool, task_with_cookie: Option<u32>) -> Option<String> {
    if let Some(task) = task_with_cookie {
        return Some(format!(
            "task {task} uses core scheduling on a host with SMT, which hangs under any sched_ext scheduler \
             (sched-ext/scx issue 3715): start VMs without it (Cloud Hypervisor: --platform core_scheduling=off) or \
             turn SMT off"
        ));
    }
    (!can_be_denied).then(|| {
        format!(
            "this kernel has core scheduling, which hangs a host with SMT under any sched_ext scheduler (sched-ext/scx \
             issue 3715), and no {HOOK} to deny it at: it needs CONFIG_SECURITY=y, or turn SMT off"
        )
    })
}

/// To prctl(): the calling task.
const OWN_TASK: u32 = 0;

fn first_task_with_cookie() -> Option<u32> {
    numbers("/proc".as_ref())
        .flat_map(|pid| numbers(format!("/proc/{pid}/task").as_ref()))
        .find(|&task| cookie_of(task).is_some_and(|cookie| cookie != 0))
}

/// 0: it has none. `None`: the task has gone, or this kernel has no core scheduling.
fn cookie_of(task: u32) -> Option<u64> {
    const PR_SCHED_CORE: libc::c_int = 62;
    const PR_SCHED_CORE_GET: libc::c_ulong = 0;
    const ONE_TASK: libc::c_ulong = 0;
    let mut cookie: u64 = 0;
    // SAFETY: the kernel writes eight bytes to the last argument, which is a live u64.
    let result = unsafe {
        libc::prctl(PR_SCHED_CORE, PR_SCHED_CORE_GET, task as libc::c_ulong, ONE_TASK, &raw mut cookie)
    };
    (result == 0).then_some(cookie)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smt_with_core_scheduling_cookies_is_refused() {
        assert_eq!(refusal(true, None), None);
        let has_one = refusal(true, Some(4711)).unwrap();
        assert!(has_one.starts_with("task 4711 uses core scheduling on a host with SMT"), "{has_one}");
        let could = refusal(false, None).unwrap();
        assert!(could.contains("no security_task_prctl to deny it at"), "{could}");
        assert_eq!(refusal(false, Some(4711)), Some(has_one));
    }

    #[test]
    fn a_host_without_smt_is_never_refused() {
        let topology = Topology {
            pcpu_count: 2,
            micro_order: vec![1],
            slow: vec![],
            pinned: vec![],
            isolated: vec![],
            neighbourhoods: vec![],
            smt: false,
            hotplug_seq: 0,
        };
        assert!(check(&topology).is_ok());
    }
}
