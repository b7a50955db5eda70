//! The real host: loads and configures the BPF scheduler, finds VMs, feeds symbols, reads statistics.
