//! The simulator: a deterministic discrete-event model of host, guest kernels and workloads that runs the real policy code.
