//! Rows of the promise table (`crates/promises`). Who computes there needs no kernel for it.

use super::intervals::figure;
use microslice_promises::{Kind, Load, Promise};
use microslice_testbed::{GuestSpec, Process};
use std::time::Duration;

/// The VM of that name.
pub fn guest(row: &Promise, name: &str) -> GuestSpec {
    let party = row.party(name);
    let vcpus = vcpus(row, name);
    let spec = GuestSpec::new(name).vcpus(vcpus);
    let spec = match party.does {
        Load::Compute => spec.bare(),
        Load::Doze => spec.workload("dozer"),
        // One vCPU sends none.
        Load::Shootdowns => spec.workload(&format!("storm:{}", vcpus - 1)),
        Load::Fork => panic!("{name} is no guest"),
    };
    match party.pcpu_mask() {
        0 => spec,
        mask => spec.pinned(mask),
    }
}

pub fn vcpus(row: &Promise, name: &str) -> u32 {
    let Kind::Vm { vcpus, .. } = row.party(name).kind else { panic!("{name} is no VM") };
    vcpus
}

pub fn nice(row: &Promise, name: &str) -> u32 {
    let Kind::Tasks { nice, .. } = row.party(name).kind else { panic!("{name} are no tasks") };
    nice
}

/// Flags of `microslice run` for the weights of all VMs.
pub fn weight_flags(row: &Promise) -> String {
    let flags = row.parties.iter().map(|party| format!("--weight {}={}", party.name, party.weight));
    flags.collect::<Vec<_>>().join(" ")
}

/// Whether a share of what all have is what is due to `name`.
pub fn is_share(row: &Promise, name: &str) -> impl Fn(f64) -> bool + Clone {
    row.testbed.is_kept(row.share(name))
}

/// What the VM gets of what all VMs get from now on.
pub fn share_from_now(scheduler: &Process, row: &Promise, name: &str, time: Duration) -> f64 {
    figure(scheduler, time, |ran| ran.share(name), is_share(row, name))
}

pub fn assert_share(row: &Promise, name: &str, share: f64) {
    let due = row.share(name);
    println!("{}: {name} had {share:.3}, due was {due:.3}", row.name);
    assert!(is_share(row, name)(share), "{}: {name} had {share:.3}, due was {due:.3}", row.name);
}
