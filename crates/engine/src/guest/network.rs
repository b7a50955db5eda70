//! A virtual NIC: packets arrive, an interrupt goes to one vCPU, its softirq hands them to a reader that is
//! woken on another one.

use crate::guest::{Then, WaitsFor, pending};
use crate::report::NetworkReport;
use crate::simulation::Simulation;
use microslice_metrics::Histogram;
use microslice_model::config::{NicConfig, Stream};
use microslice_model::events::TraceEvent;
use microslice_model::ids::{QueueId, ThreadId, VcpuId, VmId};
use microslice_model::machine::VcpuState;
use microslice_model::scheduler::WokenBy;
use microslice_policy::InterruptKind;
use std::collections::VecDeque;

/// Packets that one softirq round takes (net_rx_action's NAPI weight).
const NAPI_WEIGHT: usize = 64;
/// After so many rounds in a row the rest is left to ksoftirqd (MAX_SOFTIRQ_RESTART), a thread like others:
/// as long as the rounds took, it is the threads' turn, or until none of them has anything to do. Else a
/// stream that is too fast would keep them from ever reading it.
const ROUNDS_MAX: u32 = 10;
/// What a UDP socket holds, of payload (net.core.rmem_default); more is dropped.
const SOCKET_BYTES: u64 = 212_992;

pub struct Nic {
    config: NicConfig,
    vcpu: VcpuId,
    /// A packet's time on the wire: whole nanoseconds, and so many of `bits_per_s` parts of another one.
    packet_ns: u64,
    packet_parts: u64,
    bits_per_s: u64,
    /// Parts that packets have taken so far and that weren't a whole nanosecond together.
    parts: u64,
    /// Time each packet in the ring was sent.
    ring: VecDeque<u64>,
    worker: Option<Worker>,
    /// Handed to the socket, not yet read.
    socket: VecDeque<u64>,
    /// Threads that sleep until there is a packet, the first to come in front.
    readers: VecDeque<ThreadId>,
    /// TCP: bytes sent and not yet acknowledged.
    in_flight_bytes: u64,
    /// TCP: acknowledgements under way, as (arrival at the sender, bytes).
    acks: VecDeque<(u64, u64)>,
    next_send_ns: u64,
    irq_masked: bool,
    polled: usize,
    /// Rounds without a pause, since when, and when polling goes on after one.
    rounds: u32,
    rounds_since_ns: u64,
    resumes_ns: u64,
    /// When the interrupt was raised that isn't handled yet.
    virq_since_ns: u64,
    pub counters: StreamCounters,
}

/// The way past a worker of the host.
struct Worker {
    from: QueueId,
    to: QueueId,
    /// What waits there, and may at most.
    waiting: usize,
    capacity: usize,
    /// Time each packet was sent that isn't in the ring yet: it waits, or the worker has it in hand.
    packets: VecDeque<u64>,
    /// Packets that have come, and of which the worker doesn't know yet.
    new: usize,
    /// One has come into the ring since the NIC was looked at.
    has_sent: bool,
}

/// What is counted of a NIC's stream. Its jitter begins anew when measuring does, as where a measured stream
/// begins (iPerf). Otherwise the start of the programs would be measured of a slow stream: at the default
/// rate a second passes until that is forgotten.
#[derive(Default)]
pub struct StreamCounters {
    bytes: u64,
    packets: u64,
    dropped: u64,
    jitter_sixteenth_ns: u64,
    jitter_sum_ns: u128,
    last_transit_ns: Option<u64>,
    irq_latency: Histogram,
}

impl Nic {
    pub fn new(config: &NicConfig, first_vcpu: VcpuId) -> Self {
        let (bits_per_s, bytes) = match config.stream {
            Stream::Tcp { link_bits_per_s, packet_bytes, .. } => (link_bits_per_s, packet_bytes),
            Stream::Udp { bits_per_s, packet_bytes } => (bits_per_s, packet_bytes),
        };
        let (bits_per_s, packet_parts) = (bits_per_s.max(1), bytes * 8 * 1_000_000_000);
        Self {
            config: config.clone(),
            vcpu: first_vcpu.plus(config.vcpu as u32),
            packet_ns: packet_parts / bits_per_s,
            packet_parts: packet_parts % bits_per_s,
            bits_per_s,
            parts: 0,
            ring: VecDeque::new(),
            worker: None,
            socket: VecDeque::new(),
            readers: VecDeque::new(),
            in_flight_bytes: 0,
            acks: VecDeque::new(),
            next_send_ns: 0,
            irq_masked: false,
            polled: 0,
            rounds: 0,
            rounds_since_ns: 0,
            resumes_ns: u64::MAX,
            virq_since_ns: u64::MAX,
            counters: StreamCounters::default(),
        }
    }

    /// Packets pass a worker: they wait for it in one channel, of this capacity, and come by the other one.
    pub fn pass(&mut self, from: QueueId, to: QueueId, capacity: usize) {
        let packets = VecDeque::new();
        self.worker = Some(Worker { from, to, waiting: 0, capacity, packets, new: 0, has_sent: false });
    }

    pub fn irq_handler_ns(&self) -> u64 {
        self.config.irq_handler_ns
    }

    pub fn report(&self, measured_ns: u64) -> NetworkReport {
        let &StreamCounters { bytes, packets, dropped, jitter_sum_ns, .. } = &self.counters;
        NetworkReport {
            throughput_mbps: bytes as f64 * 8_000.0 / measured_ns.max(1) as f64,
            jitter_ms: jitter_sum_ns as f64 / packets.max(1) as f64 / 1e6,
            packets,
            dropped,
            irq_latency: self.counters.irq_latency.clone(),
        }
    }

    fn packet_bytes(&self) -> u64 {
        match self.config.stream {
            Stream::Tcp { packet_bytes, .. } | Stream::Udp { packet_bytes, .. } => packet_bytes,
        }
    }

    /// Sends what may be sent now; returns when to look again.
    fn pump(&mut self, now_ns: u64) -> u64 {
        while self.acks.front().is_some_and(|&(at, _)| at <= now_ns) {
            let (_, bytes) = self.acks.pop_front().expect("just seen");
            self.in_flight_bytes -= bytes;
        }
        let mut wait_ns = u64::MAX;
        if self.next_send_ns <= now_ns {
            let bytes = self.packet_bytes();
            let fits = match self.config.stream {
                Stream::Tcp { window_bytes, .. } => self.in_flight_bytes + bytes <= window_bytes.max(bytes),
                Stream::Udp { .. } => true,
            };
            if fits {
                self.arrive(now_ns, bytes);
                // Nothing comes more often than once a nanosecond, the clock's step.
                self.next_send_ns = now_ns + self.next_packet_ns().max(1);
            }
        }
        if self.next_send_ns > now_ns {
            wait_ns = self.next_send_ns;
        }
        if let Some(&(at, _)) = self.acks.front() {
            wait_ns = wait_ns.min(at.max(now_ns + 1));
        }
        wait_ns
    }

    /// Until the next packet may be sent: without the remainder small packets of a fast link would come too
    /// often.
    fn next_packet_ns(&mut self) -> u64 {
        self.parts += self.packet_parts;
        let carried = u64::from(self.parts >= self.bits_per_s);
        self.parts -= carried * self.bits_per_s;
        self.packet_ns + carried
    }

    fn arrive(&mut self, now_ns: u64, bytes: u64) {
        let tcp = matches!(self.config.stream, Stream::Tcp { .. });
        let (waiting, room) = match &self.worker {
            Some(worker) => (worker.waiting + worker.new, worker.capacity),
            None => (self.ring.len(), self.config.ring_packets),
        };
        if waiting >= room {
            // A TCP sender would retransmit; its window is far smaller than the ring in practice.
            self.counters.dropped += 1;
            return;
        }
        if tcp {
            self.in_flight_bytes += bytes;
        }
        match &mut self.worker {
            Some(worker) => {
                worker.packets.push_back(now_ns);
                worker.new += 1;
            }
            None => self.ring.push_back(now_ns),
        }
    }

    /// The worker puts the next packet into the ring, if that has room.
    fn pass_on(&mut self) -> bool {
        let Some(worker) = self.worker.as_mut().filter(|_| self.ring.len() < self.config.ring_packets) else {
            return false;
        };
        // A worker that sends more than it has received sends nothing.
        self.ring.extend(worker.packets.pop_front());
        worker.has_sent = true;
        true
    }

    fn hand_to_socket(&mut self, sent_ns: u64) {
        let udp = matches!(self.config.stream, Stream::Udp { .. });
        if udp && (self.socket.len() as u64 + 1) * self.packet_bytes() > SOCKET_BYTES {
            self.counters.dropped += 1;
        } else {
            self.socket.push_back(sent_ns);
        }
    }

    /// The reader has consumed one packet.
    fn consume(&mut self, now_ns: u64, sent_ns: u64) {
        let bytes = self.packet_bytes();
        self.counters.bytes += bytes;
        self.counters.packets += 1;
        let transit_ns = now_ns - sent_ns;
        if let Some(last_ns) = self.counters.last_transit_ns.replace(transit_ns) {
            // RFC 3550, 6.4.1: J += (|D| - J) / 16.
            let difference_ns = last_ns.abs_diff(transit_ns);
            self.counters.jitter_sixteenth_ns =
                self.counters.jitter_sixteenth_ns - self.counters.jitter_sixteenth_ns / 16 + difference_ns;
        }
        self.counters.jitter_sum_ns += u128::from(self.counters.jitter_sixteenth_ns / 16);
        if let Stream::Tcp { round_trip_ns, .. } = self.config.stream {
            self.acks.push_back((now_ns + round_trip_ns, bytes));
        }
    }
}

impl Simulation<'_> {
    fn nic(&mut self, vcpu: VcpuId) -> &mut Nic {
        let vm = self.machine.vcpus[vcpu].vm;
        self.vms[vm].nic.as_mut().expect("only a VM with a NIC gets here")
    }

    pub(crate) fn start_nic(&mut self, vm: VmId) {
        if self.vms[vm].nic.is_some() {
            self.timeline.set(self.slots.nic(vm), 1);
        }
    }

    pub(crate) fn nic_event(&mut self, vm: VmId) {
        let now_ns = self.machine.now_ns;
        let nic = self.vms[vm].nic.as_mut().expect("the slot belongs to a NIC");
        if let Some(worker) = &mut nic.worker {
            worker.waiting = self.queues[worker.from].items;
        }
        let before = nic.ring.len();
        let resumes = nic.resumes_ns <= now_ns;
        if resumes {
            nic.resumes_ns = u64::MAX;
        }
        let next_ns = nic.pump(now_ns).min(nic.resumes_ns);
        let (new, sent) = nic.worker.as_mut().map_or((None, false), |worker| {
            let new = Some((worker.from, std::mem::take(&mut worker.new)));
            (new, std::mem::take(&mut worker.has_sent))
        });
        let arrived = nic.ring.len() > before || sent;
        let raise = !nic.ring.is_empty() && !nic.irq_masked;
        let vcpu = nic.vcpu;
        let slot = self.slots.nic(vm);
        if next_ns == u64::MAX {
            self.timeline.cancel(slot)
        } else {
            self.timeline.set(slot, next_ns)
        }
        if let Some((from, new)) = new {
            (0..new).for_each(|_| self.come_from_outside(from));
        }
        if resumes {
            self.send_interrupt(vcpu, pending::VIRQ, InterruptKind::Timer);
        } else if raise {
            let nic = self.vms[vm].nic.as_mut().expect("as above");
            nic.irq_masked = true;
            nic.virq_since_ns = now_ns;
            self.machine.emit(TraceEvent::VirqRaised { vcpu });
            self.send_interrupt(vcpu, pending::VIRQ, InterruptKind::Virq);
        } else if arrived && self.machine.vcpus[vcpu].state == VcpuState::Runnable {
            // The device's own interrupt reaches the host all the same: a hint that the vCPU is still waited
            // for (EuroSys'18, 4.1). The guest gets none, so by the paper's rules Algorithm 1 counts none: it
            // counts "virtual IRQs for I/O devices" (4.3).
            self.wake_by(vcpu, Some(WokenBy::Interrupt(InterruptKind::Virq)));
        }
    }

    pub(crate) fn virq_delivered(&mut self, vcpu: VcpuId) {
        let now_ns = self.machine.now_ns;
        let nic = self.nic(vcpu);
        nic.rounds += 1;
        if nic.rounds > 1 {
            // Another round of the same interrupt.
            return;
        }
        nic.rounds_since_ns = now_ns;
        if nic.virq_since_ns != u64::MAX {
            let since_ns = std::mem::replace(&mut nic.virq_since_ns, u64::MAX);
            nic.counters.irq_latency.record(now_ns - since_ns);
            self.machine.emit(TraceEvent::VirqHandled { vcpu });
        }
    }

    /// The handler only raises the softirq.
    pub(crate) fn virq_handled(&mut self, vcpu: VcpuId) {
        let nic = self.nic(vcpu);
        nic.polled = nic.ring.len().min(NAPI_WEIGHT);
        let work_ns = nic.polled as u64 * nic.config.softirq_per_packet_ns;
        let vm = self.machine.vcpus[vcpu].vm;
        let symbol = self.texts[self.vms[vm].text].fixed.softirq;
        self.timed(vcpu, Then::SoftirqDone, symbol, work_ns.max(1));
    }

    pub(crate) fn softirq_done(&mut self, vcpu: VcpuId) {
        let nic = self.nic(vcpu);
        for _ in 0..nic.polled {
            let sent_ns = nic.ring.pop_front().expect("polled packets are in the ring");
            nic.hand_to_socket(sent_ns);
        }
        self.ring_has_room(vcpu);
        let nic = self.nic(vcpu);
        let more = !nic.ring.is_empty();
        if !more {
            nic.irq_masked = false;
            nic.rounds = 0;
        }
        // One for each packet: a thread that finds that another was faster sleeps again.
        let woken = nic.readers.len().min(nic.socket.len());
        let woken: Vec<ThreadId> = nic.readers.drain(..woken).collect();
        self.guest[vcpu].wake_later(1, woken);
        if more && !self.leaves_rest_to_ksoftirqd(vcpu) {
            self.guest[vcpu].pending |= pending::VIRQ;
        }
        self.continue_frame(vcpu);
    }

    /// A worker sends a packet into the ring, or waits for room there. Returns whether it waits.
    pub(crate) fn send_into_ring(
        &mut self,
        vcpu: VcpuId,
        thread: ThreadId,
        channel: QueueId,
        vm: VmId,
    ) -> bool {
        if !self.vms[vm].nic.as_mut().is_some_and(Nic::pass_on) {
            self.queues[channel].senders.push_back(thread);
            self.block_thread(vcpu, thread, WaitsFor::Network);
            return true;
        }
        self.timeline.set(self.slots.nic(vm), self.machine.now_ns + 1);
        false
    }

    /// The packets of workers that wait for room come into the ring, and the workers go on.
    fn ring_has_room(&mut self, vcpu: VcpuId) {
        let Some(to) = self.nic(vcpu).worker.as_ref().map(|worker| worker.to) else { return };
        while !self.queues[to].senders.is_empty() && self.nic(vcpu).pass_on() {
            let sender = self.queues[to].senders.pop_front().expect("it isn't empty");
            self.notify(vcpu, sender);
        }
    }

    /// Enough rounds, and threads wait: their turn.
    fn leaves_rest_to_ksoftirqd(&mut self, vcpu: VcpuId) -> bool {
        let (now_ns, idle) = (self.machine.now_ns, self.guest[vcpu].is_idle());
        let nic = self.nic(vcpu);
        if nic.rounds < ROUNDS_MAX || (idle && nic.socket.is_empty()) {
            return false;
        }
        nic.resumes_ns = now_ns + (now_ns - nic.rounds_since_ns).max(1);
        nic.rounds = 0;
        // The slot is never later than that: packets keep coming.
        let (resumes_ns, vm) = (nic.resumes_ns, self.machine.vcpus[vcpu].vm);
        let slot = self.slots.nic(vm);
        if !self.timeline.is_set(slot) {
            self.timeline.set(slot, resumes_ns);
        }
        true
    }

    /// Nobody else wants this vCPU: if packets were left to ksoftirqd it goes on with them at once.
    pub(crate) fn ksoftirqd_goes_on(&mut self, vcpu: VcpuId) -> bool {
        let vm = self.machine.vcpus[vcpu].vm;
        let is_running = self.is_running(vcpu);
        let Some(nic) = &mut self.vms[vm].nic else { return false };
        if nic.vcpu != vcpu || nic.resumes_ns == u64::MAX || !is_running {
            return false;
        }
        nic.resumes_ns = u64::MAX;
        self.guest[vcpu].pending |= pending::VIRQ;
        self.deliver(vcpu)
    }

    /// A reader takes a packet, or sleeps until there is one.
    pub(crate) fn network_receive(&mut self, vcpu: VcpuId, thread: ThreadId) -> bool {
        let now_ns = self.machine.now_ns;
        let nic = self.nic(vcpu);
        let Some(sent_ns) = nic.socket.pop_front() else {
            nic.readers.push_back(thread);
            // It looks again when it is woken.
            self.threads[thread].pc -= 1;
            self.block_thread(vcpu, thread, WaitsFor::Network);
            return true;
        };
        nic.consume(now_ns, sent_ns);
        let work_ns = nic.config.reader_per_packet_ns;
        let vm = self.machine.vcpus[vcpu].vm;
        let slot = self.slots.nic(vm);
        // An acknowledgement may open the sender's window.
        if !self.timeline.is_set(slot) {
            self.timeline.set(slot, now_ns + 1);
        }
        self.timed(vcpu, Then::NextOp, crate::text::USER, work_ns.max(1));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn udp(bits_per_s: u64, packet_bytes: u64) -> Nic {
        let config = NicConfig {
            vcpu: 0,
            stream: Stream::Udp { bits_per_s, packet_bytes },
            irq_handler_ns: 1_000,
            softirq_per_packet_ns: 1_000,
            reader_per_packet_ns: 1_000,
            ring_packets: 1_000_000,
            worker: None,
        };
        Nic::new(&config, VcpuId::new(0))
    }

    #[test]
    fn small_packets_of_a_fast_stream_come_at_its_rate() {
        // 64 bytes at 40 Gbit/s: one in 12.8 ns.
        let mut nic = udp(40_000_000_000, 64);
        let mut now_ns = 1;
        while now_ns <= 1_280_000 {
            now_ns = nic.pump(now_ns);
        }
        assert_eq!(nic.ring.len(), 100_000);
    }

    #[test]
    fn jitter_of_the_warm_up_is_forgotten() {
        let mut nic = udp(1_000_000, 1_470);
        nic.consume(100_000, 0);
        nic.consume(9_000_000, 200_000);
        nic.counters = StreamCounters::default();
        for sent_ns in [10_000_000, 20_000_000] {
            nic.consume(sent_ns + 5_000, sent_ns);
        }
        assert_eq!(nic.report(1_000_000_000).jitter_ms, 0.0);
    }
}
