//! All figures of the project, each defined once. Values of labels are the vocabulary of
//! `docs/reference/figures.md`.

use crate::figure::{Figure, Kind, Unit};

macro_rules! figures {
    ($($name:ident = $id:literal, $kind:ident, $unit:ident, [$($label:literal),*], $description:literal;)*) => {
        $(
            #[doc = $description]
            pub const $name: Figure = Figure {
                id: $id,
                kind: Kind::$kind,
                unit: Unit::$unit,
                labels: &[$($label),*],
                description: $description,
            };
        )*
        /// Every figure, in the order in which reports show them.
        pub const ALL: &[&Figure] = &[$(&$name),*];
    };
}

figures! {
    EXECUTION_TIME = "execution_time", Gauge, Nanoseconds, ["vm", "workload"],
        "Time that one run of a workload takes, at the throughput that was measured; open-ended workloads have none.";
    THROUGHPUT = "throughput", Gauge, PerSecond, ["vm", "workload"],
        "Units of work (jobs, messages, iterations) that a workload completed per second of host time.";
    BANDWIDTH = "bandwidth", Gauge, BitsPerSecond, ["vm", "flow"],
        "Payload that the reader of a network flow received per second of host time.";
    JITTER = "jitter", Gauge, Nanoseconds, ["vm", "flow"],
        "Smoothed difference of successive transit times of a datagram stream at its reader (RFC 3550, section 6.4.1).";
    PACKETS_DROPPED = "packets_dropped", Counter, Count, ["vm", "flow"],
        "Packets lost because the NIC's ring or the reader's socket was full.";
    CPU_TIME = "cpu_time", Counter, Nanoseconds, ["vm"],
        "Time that a VM's vCPUs ran on physical CPUs, entry and exit costs included.";
    VMM_TIME = "vmm_time", Counter, Nanoseconds, ["vm"],
        "Time that the threads of a VM's VMM ran that are no vCPUs.";
    READY_TIME = "ready_time", Counter, Nanoseconds, ["vm"],
        "Time that a VM's vCPUs could have run and had no pCPU; each second of it, per vCPU and second, is 100 % ready.";
    SKEW_TIME = "skew_time", Gauge, Nanoseconds, ["vm"],
        "How much longer the vCPU of a VM that waited most has waited than the one that waited least.";
    RESTED_TIME = "rested_time", Counter, Nanoseconds, ["vm"],
        "Time that a VM's vCPUs could have run but for what cpu.max allows them.";
    PAUSED_TIME = "paused_time", Counter, Nanoseconds, ["vm"],
        "Time in which a VM's VMM kept all of its vCPUs from running: stopped, migrating, in a snapshot.";
    STEAL_TIME = "steal_time", Counter, Nanoseconds, ["vm"],
        "Time that KVM has told a VM's guest its vCPUs had waited; none where the guest hasn't asked.";
    VCPUS = "vcpus", Gauge, Count, ["vm"],
        "vCPUs of a VM that were seen to run.";
    VM_WEIGHT = "vm_weight", Gauge, Count, ["vm"],
        "Weight by which a VM shares the host with the others.";
    SHARE_DUE = "share_due", Gauge, Ratio, ["vm"],
        "Share of the host's CPU time that a VM's weight entitles it to, limited by what it asked for.";
    SHARE_RECEIVED = "share_received", Gauge, Ratio, ["vm"],
        "Share of the host's CPU time that a VM received, normal and micro pool together.";
    FAIRNESS_ERROR = "fairness_error", Gauge, Ratio, [],
        "Largest difference between received and due share over all VMs, as a share of the host.";

    ACCELERATION_REQUESTS = "acceleration_requests", Counter, Count, ["cause"],
        "Decisions of the policy to accelerate one vCPU that waits for a pCPU, by the event that led to the decision.";
    ACCELERATIONS = "accelerations", Counter, Count, ["guest_class", "cause"],
        "Requests that queued a vCPU for a micro slice, by the class of its instruction pointer and the event that asked for it.";
    FAILED_PULLS = "failed_pulls", Counter, Count, ["reason"],
        "Requests that came to nothing, by reason; with accelerations they add up to all requests.";
    PENDING_REQUESTS = "pending_requests", Gauge, Count, [],
        "Requests that are neither an acceleration nor a failed pull yet.";
    ACCELERATION_RETURNS = "acceleration_returns", Counter, Count, ["reason"],
        "Micro slices that ended with the vCPU back in the normal pool, by what ended them.";
    STILL_ACCELERATED = "still_accelerated", Gauge, Count, [],
        "vCPUs that run or wait for a micro slice at the moment of reading; with returns they add up to all accelerations.";
    GRACES = "graces", Counter, Count, [],
        "Turns in the normal pool that would have ended at a bad moment and were made longer by a micro slice.";
    ASKED_AGAIN = "asked_again", Counter, Count, [],
        "Passes over a VM's vCPUs because a micro-sliced pCPU that had turned one of them away had room again.";
    HOME_SLICES = "home_slices", Counter, Count, [],
        "Micro slices on a CPU of the normal pool, because no micro-sliced one would have served the request at once.";
    CALLED_BACK = "called_back", Counter, Count, [],
        "Turns in the normal pool on a micro-sliced pCPU that was lent, ended because somebody asked for the pCPU.";
    OVERTAKES = "overtakes", Counter, Count, ["reason"],
        "Turns in the normal pool that began before those of vCPUs that had waited longer: by a directed yield, or for warm caches.";
    MICRO_SLICE = "micro_slice", Histogram, Nanoseconds, [],
        "How long an accelerated vCPU ran before it returned.";
    MICRO_POOL_SIZE = "micro_pool_size", Series, Count, [],
        "Number of micro-sliced pCPUs over time.";
    MICRO_POOL_MEAN = "micro_pool_mean", Gauge, Count, [],
        "Mean number of micro-sliced pCPUs, weighted by time.";
    MICRO_POOL_TIME = "micro_pool_time", Counter, Nanoseconds, [],
        "Time that micro-sliced pCPUs had, all together.";
    MICRO_POOL_USE = "micro_pool_use", Counter, Nanoseconds, ["use"],
        "Time that vCPUs ran in micro slices (accelerated), and in the normal pool on micro-sliced pCPUs (lent).";
    POOL_RESIZES = "pool_resizes", Counter, Count, ["reason"],
        "Changes of the number of micro-sliced pCPUs, by the reason that the policy gave.";

    YIELDS = "yields", Counter, Count, ["vm", "cause"],
        "Exits of a vCPU that can't go on, whether it keeps its pCPU or not: ple (on a lock), ipi_wait (for acknowledgements), hlt.";
    PREEMPTIONS = "preemptions", Counter, Count, ["vm", "guest_class"],
        "Times the host took a pCPU from a runnable vCPU, by the class of the vCPU's instruction pointer.";
    PREEMPTIONS_BY_COUNT = "preemptions_by_count", Counter, Count, ["vm", "held", "symbols"],
        "Times the host took a pCPU from a runnable vCPU, by what the guest's own count says it held, and by whether symbols say it holds a lock.";
    WAIT_TO_RUN = "wait_to_run", Histogram, Nanoseconds, ["vm"],
        "Delay from a vCPU becoming runnable to its running on a pCPU.";
    LONGEST_WAIT = "longest_wait", Histogram, Nanoseconds, ["vm"],
        "Longest wait of a VM's vCPU for a pCPU in each second.";
    LONGEST_WAIT_LATELY = "longest_wait_lately", Gauge, Nanoseconds, ["vm"],
        "Longest wait of a VM's vCPU for a pCPU in the last minute; 0 if none was of 1 ms.";
    WAIT_BOUND = "wait_bound", Gauge, Nanoseconds, ["vm"],
        "How long vCPUs of a VM may wait for a pCPU now: longer than was asked for where so many can't have that.";
    LATE_WAITS = "late_waits", Counter, Count, ["vm"],
        "Waits of a VM's vCPUs for a pCPU that were longer than its bound (max_wait).";
    LOCK_WAIT = "lock_wait", Histogram, Nanoseconds, ["vm", "lock"],
        "Time a guest thread waited for a contended kernel lock, by lock class (as Linux' lockstat counts).";
    SHOOTDOWN_WAIT = "shootdown_wait", Histogram, Nanoseconds, ["vm"],
        "Time the initiator of a TLB shootdown waited until every other vCPU had acknowledged.";
    GRACE_PERIOD = "grace_period", Histogram, Nanoseconds, ["vm"],
        "Time from the begin of a grace period of a guest's RCU until its end.";
    GRACE_HOLDOUTS = "grace_holdouts", Counter, Count, ["vm", "where"],
        "vCPUs without a pCPU that a grace period still waited for when a writer looked, by where they had been stopped.";
    WAKE_WAIT = "wake_wait", Histogram, Nanoseconds, ["vm"],
        "Time from a guest thread's wake-up, of one that slept from when its timer was due, until it runs.";
    THROTTLED_TIME = "throttled_time", Counter, Nanoseconds, ["vm"],
        "Time for which vCPUs rested because their VM had used up its cpu.max.";
    TIMER_LATENESS = "timer_lateness", Histogram, Nanoseconds, ["vm"],
        "Time from when a sleeping guest thread's timer was due until the thread runs.";
    PREEMPTED_SHOOTDOWN_WAIT = "preempted_shootdown_wait", Histogram, Nanoseconds, ["vm"],
        "Calls of siblings of which one had no pCPU: from the first interrupt until the last recipient has one.";
    INTERRUPT_WAIT = "interrupt_wait", Histogram, Nanoseconds, ["vm"],
        "Interrupts sent to a vCPU without a pCPU, timers aside: until it has one.";
    ANSWERS_OWED = "answers_owed", Counter, Count, ["vm"],
        "Turns that the host ended while the vCPU had a call of a sibling to answer.";
    LOCK_HALTS = "lock_halts", Counter, Count, ["vm"],
        "Halts with the guest's interrupts disabled: in the slow path of a paravirtual lock.";
    IPIS = "ipis", Counter, Count, ["vm"],
        "Reschedule and call-function interrupts from vCPU to vCPU of one VM, but for those that merge with a pending one.";
    VIRQS = "virqs", Counter, Count, ["vm"],
        "Device interrupts sent to a VM's vCPUs.";
    VIRQ_DELAY = "virq_delay", Histogram, Nanoseconds, ["vm"],
        "Delay from a device interrupt being sent to a vCPU to the guest's handler running.";

    CONTEXT_SWITCHES = "context_switches", Counter, Count, [],
        "Changes of the vCPU that a pCPU runs.";
    PCPU_TIME = "pcpu_time", Counter, Nanoseconds, ["state"],
        "Time of all pCPUs by state: run, idle, overhead; the states add up to elapsed time times pCPUs.";
    PCPU_TIME_TOTAL = "pcpu_time_total", Counter, Nanoseconds, [],
        "Elapsed time times the number of pCPUs.";
    QUEUE_OPERATIONS = "queue_operations", Counter, Count, [],
        "Operations on the scheduler's queues that took a lock.";
    QUEUE_LOCK_TIME = "queue_lock_time", Counter, Nanoseconds, ["part"],
        "Time that pCPUs held locks of the scheduler's queues, and waited for them.";
    QUEUE_LOCK_LONGEST_WAIT = "queue_lock_longest_wait", Gauge, Nanoseconds, [],
        "The longest wait for a lock of one of the scheduler's queues.";
    SCHEDULER_RESTARTS = "scheduler_restarts", Counter, Count, [],
        "Starts of the scheduler in place, because pCPUs came or went.";
    PROGRAM_RUNS_LEFT_OUT = "program_runs_left_out", Counter, Count, [],
        "Runs of BPF programs that the kernel left out, because an earlier one on that pCPU hadn't ended.";
    EVENTS = "events", Counter, Count, [],
        "Events that the simulator processed.";
}

/// A promise that the counters keep: `total`, over all labels, equals the sum of `parts` over all labels.
#[derive(Debug)]
pub struct Sum {
    pub total: &'static Figure,
    pub parts: &'static [&'static Figure],
}

/// The sums that every complete snapshot must satisfy; see [`crate::Snapshot::unbalanced_sums`].
pub const SUMS: &[Sum] = &[
    Sum { total: &ACCELERATION_REQUESTS, parts: &[&ACCELERATIONS, &FAILED_PULLS, &PENDING_REQUESTS] },
    Sum { total: &ACCELERATIONS, parts: &[&ACCELERATION_RETURNS, &STILL_ACCELERATED] },
    Sum { total: &PCPU_TIME_TOTAL, parts: &[&PCPU_TIME] },
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn ids_are_unique_lower_case_and_described_in_a_sentence() {
        let ids: BTreeSet<_> = ALL.iter().map(|figure| figure.id).collect();
        assert_eq!(ids.len(), ALL.len());
        for figure in ALL {
            assert!(figure.id.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{}", figure.id);
            assert!(figure.description.ends_with('.') && figure.description.len() > 20, "{}", figure.id);
        }
    }

    #[test]
    fn the_handbook_describes_every_figure() {
        let handbook = include_str!("../../../docs/reference/figures.md");
        for figure in ALL {
            assert!(
                handbook.contains(&format!("`{}`", figure.id)),
                "docs/reference/figures.md lacks {}",
                figure.id
            );
        }
    }
}
