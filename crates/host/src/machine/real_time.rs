//! Real-time tasks and sched_ext: those of the host, which starve its tasks, and our own thread while a
//! scheduler comes and goes.
//!
//! Problem.   The deadline server for sched_ext tasks (7.0) gives them some of a pCPU that real-time tasks
//!            keep busy. Before it, a kernel thread of that pCPU waits until sched_ext's watchdog ends the
//!            scheduler.
//! Mechanism. None: such a task isn't ours to stop. The operator is told at the start which it could be.

use crate::machine::proc::of_threads;
use crate::machine::refused_kernels::numbers;
use std::path::Path;

const DEADLINE_SERVER_SINCE: [u32; 3] = [7, 0, 0];
const RT_RUNTIME: &str = "/proc/sys/kernel/sched_rt_runtime_us";
/// Fields of `/proc/PID/stat`, counted from the state on, which is the third field.
const FLAGS: usize = 9 - 3;
const POLICY: usize = 41 - 3;
const PF_KTHREAD: u64 = 0x0020_0000;
const SCHED_FIFO: u64 = 1;
const SCHED_RR: u64 = 2;

/// Returns the warning that is due at the start, if there is one. `release` is as `uname -r` says it.
pub fn warning(release: &str) -> Option<String> {
    if numbers(release) >= DEADLINE_SERVER_SINCE {
        return None;
    }
    let unlimited = std::fs::read_to_string(RT_RUNTIME).is_ok_and(|text| text.trim() == "-1");
    line(&real_time_tasks(Path::new("/proc")), unlimited)
}

fn line(tasks: &[String], unlimited: bool) -> Option<String> {
    let who = match tasks {
        [] if unlimited => "sched_rt_runtime_us is -1".to_owned(),
        [] => return None,
        [task] => format!("{task} has a real-time policy"),
        [task, ..] => format!("{} tasks have a real-time policy, {task} among them", tasks.len()),
    };
    Some(format!(
        "{who}: before Linux 7.0 a real-time task that never sleeps starves kernel threads of its CPU, until the kernel \
         ends this scheduler"
    ))
}

/// `comm (PID)` of each, kernel threads aside: those sleep.
fn real_time_tasks(proc: &Path) -> Vec<String> {
    of_threads(proc, "stat").filter_map(|stat| real_time_task(&stat)).collect()
}

fn real_time_task(stat: &str) -> Option<String> {
    // A name may hold anything, parentheses and spaces too.
    let (start, rest) = stat.rsplit_once(')')?;
    let (pid, name) = start.split_once('(')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let number = |field: usize| fields.get(field)?.parse::<u64>().ok();
    let is_real_time = [SCHED_FIFO, SCHED_RR].contains(&number(POLICY)?);
    (is_real_time && number(FLAGS)? & PF_KTHREAD == 0).then(|| format!("{name} ({})", pid.trim()))
}

/// Does `work` in this thread while it is real-time, so that nothing but real-time tasks may come before it.
///
/// While the kernel enables a scheduler it makes the calling thread one of sched_ext's, behind all ordinary
/// tasks. Before b06ccbabe250 (7.0-rc3, tagged for 6.12 and later) a saturated host could leave it there
/// for ever, with the host half switched (`scx_enable`, CVE-2026-43392). While it disables one the thread
/// could be preempted between two steps, and never run again (`scx_claim_exit`, CVE-2026-43482). A real-time
/// thread stays in its class. Without the right to be real-time the work is done all the same.
pub fn while_real_time<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: takes and returns integers.
    let former = unsafe { libc::sched_getscheduler(0) };
    // The kernel reports the policy with this flag in it.
    let policy = former & !libc::SCHED_RESET_ON_FORK;
    let is_ordinary = [libc::SCHED_OTHER, libc::SCHED_BATCH, libc::SCHED_IDLE].contains(&policy);
    let raised = is_ordinary && set_policy(libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, 1);
    let done = work();
    if raised {
        // Its nice value is still what it was (`__setscheduler_params`).
        set_policy(former, 0);
    }
    done
}

/// Sets the calling thread's policy; false: the kernel refuses it.
fn set_policy(policy: i32, sched_priority: i32) -> bool {
    let parameters = libc::sched_param { sched_priority };
    // SAFETY: the kernel reads `parameters`, which lives until the call returns.
    unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(name: &str, flags: u64, policy: u64) -> String {
        let zeros = |count: usize| vec!["0"; count].join(" ");
        format!("12 ({name}) S {} {flags} {} {policy} {}", zeros(5), zeros(31), zeros(11))
    }

    #[test]
    fn real_time_tasks_are_found_but_not_kernel_threads() {
        assert_eq!(real_time_task(&stat("audio) x", 0x400, SCHED_RR)).as_deref(), Some("audio) x (12)"));
        assert_eq!(real_time_task(&stat("audio", 0, SCHED_FIFO)).as_deref(), Some("audio (12)"));
        assert_eq!(real_time_task(&stat("migration/0", PF_KTHREAD, SCHED_FIFO)), None);
        assert_eq!(real_time_task(&stat("sh", 0, 0)), None);
        assert_eq!(real_time_task("12 (sh"), None);
        let own = std::fs::read_to_string("/proc/self/stat").unwrap();
        assert_eq!(real_time_task(&own), None);
    }

    #[test]
    fn a_thread_is_real_time_for_its_work_alone() {
        // A thread of its own, for other tests share the pool's.
        std::thread::spawn(|| {
            // SAFETY: takes and returns integers.
            let policy = || unsafe { libc::sched_getscheduler(0) };
            let before = policy();
            let may = set_policy(libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, 1);
            assert!(!may || set_policy(before, 0));
            let during = while_real_time(policy);
            let expected = if may { libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK } else { before };
            assert_eq!((during, policy()), (expected, before));
        })
        .join()
        .unwrap();
    }

    #[test]
    fn the_operator_hears_of_them_where_nothing_protects_kernel_threads() {
        assert_eq!(line(&[], false), None);
        assert!(line(&[], true).unwrap().starts_with("sched_rt_runtime_us is -1: before"));
        assert!(
            line(&["audio (12)".into()], false).unwrap().starts_with("audio (12) has a real-time policy: ")
        );
        let two = line(&["a (1)".into(), "b (2)".into()], true).unwrap();
        assert!(two.starts_with("2 tasks have a real-time policy, a (1) among them: "));
        assert_eq!(warning("7.0.13+deb13-amd64"), None);
    }
}
