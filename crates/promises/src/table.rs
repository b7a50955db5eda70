//! The rows.

use crate::{Limit, Load, Party, Promise, World};
use std::time::Duration;

const NO_TASKS: &str = "the simulator has no niced tasks of the host";
const NO_SUCH_LIMITS: &str =
    "the simulator has limits of VMs only; crates/policy/tests/decisions/cpu_limit.rs has them by the same C";
const NO_NEW_BOOT: &str = "the same C divides by any weight: no guests are booted for it";

/// Four pCPUs, as every host of the testbed has them.
const ROW: Promise = Promise {
    name: "",
    pcpus: 4,
    parties: &[],
    limit: None,
    longest_wait: None,
    simulator: World::within(0.05),
    testbed: World::within(0.05),
};

/// sched_ext's watchdog ends a scheduler under which a task waits for that long.
const WATCHDOG: Option<Duration> = Some(Duration::from_secs(10));

pub const EQUAL_HOGS: Promise = Promise {
    name: "hogs of equal weight have equal shares",
    parties: &[Party::hog("a", 4).share(1.0 / 2.0), Party::hog("b", 4).share(1.0 / 2.0)],
    simulator: World::within(0.025),
    testbed: World::within(0.05 * 1.0 / 2.0),
    ..ROW
};

pub const TWICE_THE_WEIGHT: Promise = Promise {
    name: "a hog of twice the weight has twice the share",
    parties: &[Party::hog("a", 4).weight(200).share(2.0 / 3.0), Party::hog("b", 4).share(1.0 / 3.0)],
    simulator: World::within(0.025),
    testbed: World::within(0.05 * 2.0 / 3.0),
    ..ROW
};

/// Weights are what those of nested cgroups amount to: `a` is alone in its slice.
pub const A_SLICE_OF_TWO_VMS: Promise = Promise {
    name: "a slice of two VMs has as much as a slice of one",
    parties: &[
        Party::hog("a", 4).weight(200).share(1.0 / 2.0),
        Party::hog("b", 4).share(1.0 / 4.0),
        Party::hog("c", 4).share(1.0 / 4.0),
    ],
    simulator: World::within(0.025),
    ..ROW
};

pub const A_SLICE_OF_THRICE_THE_WEIGHT: Promise = Promise {
    name: "a slice of thrice the weight has thrice as much as another one",
    parties: &[
        Party::hog("a", 4).weight(600).share(3.0 / 4.0),
        Party::hog("b", 4).share(1.0 / 8.0),
        Party::hog("c", 4).share(1.0 / 8.0),
    ],
    simulator: World::within(0.025),
    ..ROW
};

/// No way to spread three vCPUs over queues is right for long.
pub const UNEVEN_HOGS: Promise = Promise {
    name: "a VM of three vCPUs has as much as one of five",
    parties: &[Party::hog("a", 3).share(1.0 / 2.0), Party::hog("b", 5).share(1.0 / 2.0)],
    testbed: World::within(0.05 * 1.0 / 2.0),
    ..ROW
};

/// Where one pCPU is more contended than the others nobody there keeps up with the pool's clock.
pub const A_SLEEPER_PINNED_WITH_A_HOG: Promise = Promise {
    name: "a brief sleeper has half of the pCPU that it is pinned to with a hog",
    parties: &[
        Party::vm("a", 1, Load::Doze).on(&[0]).share(1.0 / 8.0),
        Party::hog("b", 1).on(&[0]).share(1.0 / 8.0),
        Party::hog("others", 6).on(&[1, 2, 3]).share(6.0 / 8.0),
    ],
    testbed: World::within(0.1),
    ..ROW
};

/// An emulated guest gets its micro slices by tens: 0.107 were seen, and 0.129 without the rule.
pub const A_LIGHT_VM_THAT_ASKS_ALL_THE_TIME: Promise = Promise {
    name: "a light VM that asks for micro slices all the time has its share",
    parties: &[
        Party::vm("a", 8, Load::Shootdowns).weight(100).share(1.0 / 10.0),
        Party::hog("b", 4).weight(900).share(9.0 / 10.0),
    ],
    testbed: World::within(0.1),
    ..ROW
};

/// What the light one has it gets since nobody waits for long.
pub const A_LIGHT_VM_BESIDE_THE_HEAVIEST: Promise = Promise {
    name: "a light VM beside the heaviest never waits until the watchdog ends the scheduler",
    parties: &[
        Party::hog("a", 4).weight(10_000).share(10_000.0 / 10_001.0),
        Party::hog("b", 4).weight(1).share(1.0 / 10_001.0),
    ],
    longest_wait: WATCHDOG,
    testbed: World::within(0.2),
    ..ROW
};

pub const TASKS_BESIDE_A_VM: Promise = Promise {
    name: "host tasks as many as a VM's vCPUs leave it about half",
    parties: &[Party::hog("a", 4).share(1.0 / 2.0), Party::tasks("tasks", 4, Load::Compute).share(1.0 / 2.0)],
    testbed: World::Runs { less: 0.1, more: 0.2 },
    ..ROW
};

/// What the host itself does, some 8 %, counts as tasks' time. (It was 0.60 when niced tasks went first.)
pub const NICED_TASKS_BESIDE_A_VM: Promise = Promise {
    name: "niced host tasks leave nearly all to a VM",
    parties: &[
        Party::hog("a", 4).share(1024.0 / 1039.0),
        Party::tasks("tasks", 4, Load::Compute).nice(19).share(15.0 / 1039.0),
    ],
    simulator: World::Not(NO_TASKS),
    testbed: World::within(0.26),
    ..ROW
};

/// The first VM and the task have pCPUs of their own until the other VM comes. (It had 0.63 when its clock
/// stood far behind.)
pub const A_LATE_VM: Promise = Promise {
    name: "what ran while pCPUs were free is neither owed nor saved up",
    parties: &[
        Party::hog("early", 3).share(1.0 / 2.0),
        Party::hog("late", 4).share(1.0 / 2.0),
        Party::tasks("task", 1, Load::Compute).nice(19),
    ],
    simulator: World::Not(
        "the simulator's VMs are there from the beginning, and it has no niced tasks of the host",
    ),
    testbed: World::within(0.08),
    ..ROW
};

const fn services(of_vm: u32, vms_share: f64) -> [Party; 3] {
    [
        Party::hog("a", 4).weight(of_vm).share(vms_share),
        Party::tasks("light", 4, Load::Compute).weight(25).share((1.0 - vms_share) / 4.0),
        Party::tasks("heavy", 4, Load::Compute).weight(75).share((1.0 - vms_share) * 3.0 / 4.0),
    ]
}

pub const SERVICES_BESIDE_A_VM: Promise = Promise {
    name: "services share by their cgroups' weights and leave a VM what the outermost weights say",
    parties: &services(100, 1.0 / 2.0),
    testbed: World::within(0.1),
    ..ROW
};

pub const SERVICES_BESIDE_A_HEAVY_VM: Promise = Promise {
    name: "services leave three quarters to a VM of thrice their weight",
    parties: &services(300, 3.0 / 4.0),
    ..SERVICES_BESIDE_A_VM
};

pub const A_VMM_THAT_COMPUTES: Promise = Promise {
    name: "a VM whose VMM computes in threads of its own has no more than its equal",
    parties: &[
        Party::hog("plain", 4).share(1.0 / 2.0),
        Party::hog("working", 4).vmm_threads(8).share(1.0 / 2.0),
    ],
    simulator: World::Not("the simulator's VMs have no VMM"),
    testbed: World::within(0.025),
    ..ROW
};

/// (It had a half when it went before vCPUs.)
pub const A_VM_WITHOUT_A_PLACE: Promise = Promise {
    name: "a VM without a place has what others have",
    parties: &[
        Party::hog("without", 4).share(1.0 / 3.0),
        Party::hog("one", 4).share(1.0 / 3.0),
        Party::hog("other", 4).share(1.0 / 3.0),
    ],
    simulator: World::Not("the simulator has a place for every VM"),
    testbed: World::Runs { less: 1.0 / 3.0 - 0.27, more: 0.4 - 1.0 / 3.0 },
    ..ROW
};

/// Limits are kept within a twentieth, over seconds: a burst of one period, and what the last turns took
/// beyond.
const LIMITED: Promise = Promise { simulator: World::Not(NO_SUCH_LIMITS), ..ROW };

pub const A_VM_LIMITED_TO_ONE_AND_A_HALF: Promise = Promise {
    name: "a VM gets the CPU and a half that its cgroup allows",
    parties: &[Party::hog("a", 4).limit(Limit::of(150_000, 100_000))],
    simulator: World::within(0.05 * 1.5),
    testbed: World::within(0.05 * 1.5),
    ..LIMITED
};

pub const A_VM_LIMITED_TO_A_FIFTH: Promise = Promise {
    name: "a VM gets the fifth of a CPU that its cgroup allows",
    parties: &[Party::hog("a", 4).limit(Limit::of(20_000, 100_000))],
    simulator: World::within(0.05 * 0.2),
    testbed: World::within(0.05 * 0.2),
    ..LIMITED
};

pub const VMS_IN_ONE_LIMITED_CGROUP: Promise = Promise {
    name: "VMs in one limited cgroup get together what it allows",
    parties: &[Party::hog("a", 4), Party::hog("b", 4)],
    limit: Some(Limit::of(100_000, 50_000)),
    testbed: World::within(0.05 * 2.0),
    ..LIMITED
};

pub const SHARES_OF_A_LIMITED_CGROUP: Promise = Promise {
    name: "VMs in one limited cgroup share what it allows",
    parties: &[Party::hog("a", 4).share(1.0 / 2.0), Party::hog("b", 4).share(1.0 / 2.0)],
    testbed: World::within(0.15),
    ..VMS_IN_ONE_LIMITED_CGROUP
};

pub const EACH_VCPU_LIMITED: Promise = Promise {
    name: "each vCPU gets what its own cgroup allows",
    parties: &[Party::hog("a", 4).limit(Limit { of_each: true, ..Limit::of(25_000, 100_000) })],
    testbed: World::within(0.05 * 1.0),
    ..LIMITED
};

const SERVICE: Limit = Limit::of(40_000, 100_000);

pub const A_LIMITED_TASK: Promise = Promise {
    name: "a host task gets what its cgroup allows",
    parties: &[Party::tasks("task", 1, Load::Compute).limit(SERVICE)],
    testbed: World::within(0.05 * 0.4),
    ..LIMITED
};

pub const A_NICED_LIMITED_TASK: Promise = Promise {
    name: "a niced host task gets what its cgroup allows",
    parties: &[Party::tasks("task", 1, Load::Compute).nice(10).limit(SERVICE)],
    ..A_LIMITED_TASK
};

pub const A_LIMITED_TASK_ON_THE_MICRO_PCPU: Promise = Promise {
    name: "a host task that may run on the micro pCPU only gets what its cgroup allows",
    parties: &[Party::tasks("task", 1, Load::Compute).on(&[3]).limit(SERVICE)],
    ..A_LIMITED_TASK
};

/// Twice as many where tests may take long.
pub const A_LIMITED_CROWD: Promise = Promise {
    name: "many threads that share a limit get no more than few",
    parties: &[Party::tasks("crowd", 32, Load::Compute).limit(Limit::of(10_000, 100_000))],
    testbed: World::within(0.05 * 0.1),
    ..LIMITED
};

/// The wait is that of the host's own forks. A rest lasts for six seconds, and tasks that wait for one
/// another's locks rest one after the other.
pub const A_LIMITED_CROWD_THAT_FORKS: Promise = Promise {
    name: "tasks that fork under a limit never rest with what forks of the host wait for",
    parties: &[Party::tasks("crowd", 64, Load::Fork).limit(Limit::of(2_000, 100_000))],
    longest_wait: Some(Duration::from_secs(5)),
    ..LIMITED
};

pub const A_LIMIT_BELOW_A_TICK: Promise = Promise {
    name: "a limit below what a tick takes never brings the watchdog",
    parties: &[Party::hog("a", 4).limit(Limit::of(1_000, 1_000_000))],
    simulator: World::within(0.1),
    longest_wait: WATCHDOG,
    testbed: World::within(0.1),
    ..LIMITED
};

const fn two_weights(name: &'static str, parties: &'static [Party]) -> Promise {
    Promise { name, pcpus: 2, parties, testbed: World::Not(NO_NEW_BOOT), ..ROW }
}

pub const WEIGHTS_5_TO_1: Promise = two_weights(
    "weights of 5 to 1",
    &[Party::hog("a", 2).weight(5).share(5.0 / 6.0), Party::hog("b", 2).weight(1).share(1.0 / 6.0)],
);
pub const WEIGHTS_7_TO_5: Promise = two_weights(
    "weights of 7 to 5",
    &[Party::hog("a", 2).weight(7).share(7.0 / 12.0), Party::hog("b", 2).weight(5).share(5.0 / 12.0)],
);
pub const WEIGHTS_512_TO_256: Promise = two_weights(
    "weights of 512 to 256",
    &[Party::hog("a", 2).weight(512).share(2.0 / 3.0), Party::hog("b", 2).weight(256).share(1.0 / 3.0)],
);
pub const WEIGHTS_60000_TO_30000: Promise = two_weights(
    "weights of 60,000 to 30,000",
    &[Party::hog("a", 2).weight(60_000).share(2.0 / 3.0), Party::hog("b", 2).weight(30_000).share(1.0 / 3.0)],
);

/// The table, each row with its name here.
macro_rules! table {
    ($($row:ident),* $(,)?) => {
        pub const ALL: &[(&str, Promise)] = &[$((stringify!($row), $row)),*];
    };
}

table![
    EQUAL_HOGS,
    TWICE_THE_WEIGHT,
    A_SLICE_OF_TWO_VMS,
    A_SLICE_OF_THRICE_THE_WEIGHT,
    UNEVEN_HOGS,
    A_SLEEPER_PINNED_WITH_A_HOG,
    A_LIGHT_VM_THAT_ASKS_ALL_THE_TIME,
    A_LIGHT_VM_BESIDE_THE_HEAVIEST,
    TASKS_BESIDE_A_VM,
    NICED_TASKS_BESIDE_A_VM,
    A_LATE_VM,
    SERVICES_BESIDE_A_VM,
    SERVICES_BESIDE_A_HEAVY_VM,
    A_VMM_THAT_COMPUTES,
    A_VM_WITHOUT_A_PLACE,
    A_VM_LIMITED_TO_ONE_AND_A_HALF,
    A_VM_LIMITED_TO_A_FIFTH,
    VMS_IN_ONE_LIMITED_CGROUP,
    SHARES_OF_A_LIMITED_CGROUP,
    EACH_VCPU_LIMITED,
    A_LIMITED_TASK,
    A_NICED_LIMITED_TASK,
    A_LIMITED_TASK_ON_THE_MICRO_PCPU,
    A_LIMITED_CROWD,
    A_LIMITED_CROWD_THAT_FORKS,
    A_LIMIT_BELOW_A_TICK,
    WEIGHTS_5_TO_1,
    WEIGHTS_7_TO_5,
    WEIGHTS_512_TO_256,
    WEIGHTS_60000_TO_30000,
];
