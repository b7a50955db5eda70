//! The testbed: an emulated sched_ext host that runs real, unmodified KVM guests on a machine without virtualization.
