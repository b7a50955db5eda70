//! Workloads of one process.

use super::*;

#[test]
fn a_process_and_an_address_space_exclude_each_other() {
    let error =
        refuse_with("threads = 2,", "threads = 2, process = \"server\", address_space = \"separate\",");
    assert!(error.contains("`process` and `address_space` exclude each other"), "{error}");
}

#[test]
fn a_process_has_a_name_as_a_workload_has() {
    let error = refuse_with("threads = 2,", "threads = 2, process = \"a server\",");
    assert!(error.contains("can't name a process"), "{error}");
}
