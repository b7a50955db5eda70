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
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub enum Stream {
    /// The sender keeps at most `window_bytes` unacknowledged.
    Tcp { link_bits_per_s: u64, window_bytes: u64, packet_bytes: u64, round_trip_ns: u64 },
    /// Constant rate, jitter measured as RFC 3550.
    Udp { bits_per_s: u64, packet_bytes: u64 },
}
