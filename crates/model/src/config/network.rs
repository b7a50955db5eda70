//! What a guest receives.

use serde::Serialize;

/// A virtual NIC and the stream that arrives at it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NicConfig {
    /// vCPU that gets its interrupts.
    pub vcpu: usize,
    pub stream: Stream,
    pub irq_handler_ns: u64,
    /// Softirq time per packet (or aggregate).
    pub softirq_per_packet_ns: u64,
    /// User-space time of the reader per packet.
    pub reader_per_packet_ns: u64,
    /// Packets that the ring holds; further ones are dropped.
    pub ring_packets: usize,
    /// The tasks of the host that packets pass; none: they are in the ring as soon as they arrive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<NicWorker>,
}

/// The two channels that lead past a worker of the host, as `vhost` is.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NicWorker {
    /// What arrives waits here for the worker; what finds it full is dropped (`tun_net_xmit`,
    /// drivers/net/tun.c, Linux 6.12).
    pub from: String,
    /// The worker sends it here, into the guest's ring. It waits while that is full (`handle_rx`,
    /// drivers/vhost/net.c).
    pub to: String,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub enum Stream {
    /// The sender keeps at most `window_bytes` unacknowledged.
    Tcp { link_bits_per_s: u64, window_bytes: u64, packet_bytes: u64, round_trip_ns: u64 },
    /// Constant rate, jitter measured as RFC 3550.
    Udp { bits_per_s: u64, packet_bytes: u64 },
}
