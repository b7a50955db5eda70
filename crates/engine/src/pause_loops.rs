//! Pause loops: windows and exits alternate, and windows may grow from exit to exit.

use crate::guest::GuestVcpu;
use crate::simulation::Simulation;
use microslice_model::config::PleConfig;
use microslice_model::ids::VcpuId;
use microslice_model::machine::PauseWindows;
use std::hint::select_unpredictable;

pub(crate) struct PauseLoops {
    pub enabled: bool,
    /// Of those that don't grow.
    window_ns: u64,
    period_ns: u64,
    exit_ns: u64,
    /// What an exit that is asked about takes longer, at the most.
    pub jitter_ns: u32,
}

/// What a time of spinning was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Passed {
    pub exits: u64,
    /// Time inside exits.
    pub exits_ns: u64,
    /// Place in the cycle of window and exit, at its end.
    pub phase_ns: u64,
    /// The window of that cycle.
    pub window_ns: u64,
}

impl PauseLoops {
    pub fn new(config: &PleConfig, exit_ns: u64) -> Self {
        let window_ns = config.window_ns;
        Self { enabled: config.enabled, window_ns, period_ns: window_ns + exit_ns, exit_ns, jitter_ns: 0 }
    }

    pub fn with_jitter(self, jitter_ns: u64) -> Self {
        Self { jitter_ns: u32::try_from(jitter_ns).unwrap_or(u32::MAX), ..self }
    }

    /// Spins for so long, from this place in the cycle on.
    #[inline(always)]
    pub fn pass(&self, phase_ns: u64, elapsed_ns: u64) -> Passed {
        let (period, window) = (self.period_ns, self.window_ns);
        let to = phase_ns + elapsed_ns;
        // None or one are by far the most frequent; which of them can't be predicted.
        let mut cycles = u64::from(to >= period);
        let mut rest = to - select_unpredictable(to >= period, period, 0);
        if rest >= period {
            cycles += rest / period;
            rest %= period;
        }
        Passed {
            exits: cycles + u64::from(rest >= window) - u64::from(phase_ns >= window),
            // Whole ones, and what of the present one has passed.
            exits_ns: cycles * self.exit_ns + rest.saturating_sub(window) - phase_ns.saturating_sub(window),
            phase_ns: rest,
            window_ns: window,
        }
    }

    /// The same from a window that grows.
    #[inline(never)]
    pub fn pass_growing(
        &self,
        windows: &PauseWindows,
        mut window_ns: u64,
        phase_ns: u64,
        elapsed_ns: u64,
    ) -> Passed {
        let begun = (u64::from(phase_ns >= window_ns), phase_ns.saturating_sub(window_ns));
        let (mut cycles, mut rest) = (0, phase_ns + elapsed_ns);
        while rest >= window_ns + self.exit_ns {
            let next_ns = windows.after(window_ns);
            let period_ns = window_ns + self.exit_ns;
            // At its longest all that follow are alike.
            let alike = if next_ns == window_ns { rest / period_ns } else { 1 };
            cycles += alike;
            rest -= alike * period_ns;
            window_ns = next_ns;
        }
        Passed {
            exits: cycles + u64::from(rest >= window_ns) - begun.0,
            exits_ns: cycles * self.exit_ns + rest.saturating_sub(window_ns) - begun.1,
            phase_ns: rest,
            window_ns,
        }
    }

    /// Returns when the next exit happens that isn't before `until_ns`, of a vCPU that spins on at
    /// `start_ns`.
    #[inline(always)]
    pub fn next_exit(&self, phase_ns: u64, start_ns: u64, until_ns: u64) -> u64 {
        let (period, window) = (self.period_ns, self.window_ns);
        let first_ns = start_ns + window - phase_ns + select_unpredictable(phase_ns < window, 0, period);
        if until_ns <= first_ns {
            return first_ns;
        }
        if until_ns == u64::MAX {
            return u64::MAX;
        }
        first_ns + (until_ns - first_ns).div_ceil(period) * period
    }

    /// The same from a window that grows.
    #[inline(never)]
    fn next_growing_exit(
        &self,
        windows: &PauseWindows,
        mut window_ns: u64,
        phase_ns: u64,
        start_ns: u64,
        until_ns: u64,
    ) -> u64 {
        let mut exit_ns = start_ns + window_ns.saturating_sub(phase_ns);
        if phase_ns >= window_ns {
            exit_ns = start_ns + window_ns + self.exit_ns - phase_ns;
            window_ns = windows.after(window_ns);
            exit_ns = exit_ns.saturating_add(window_ns);
        }
        while exit_ns < until_ns {
            if until_ns == u64::MAX {
                return u64::MAX;
            }
            let next_ns = windows.after(window_ns);
            let period_ns = next_ns + self.exit_ns;
            let alike = if next_ns == window_ns { (until_ns - exit_ns).div_ceil(period_ns) } else { 1 };
            exit_ns = exit_ns.saturating_add(alike * period_ns);
            window_ns = next_ns;
        }
        exit_ns
    }

    /// Returns how long so much spinning takes with the exits on its way, if there are any and their windows
    /// don't grow: a guest counts its loops, and makes none during an exit.
    pub fn with_exits(&self, spinning_ns: u64, windows: &PauseWindows) -> u64 {
        if !self.enabled || windows.grow() {
            return spinning_ns;
        }
        let (window, period) = (u128::from(self.window_ns), u128::from(self.period_ns));
        u64::try_from(u128::from(spinning_ns) * period / window.max(1)).unwrap_or(u64::MAX)
    }

    /// Returns how long the exits take on the way of so much spinning, from a window that grows.
    fn growing_exits(&self, windows: &PauseWindows, mut window_ns: u64, spinning_ns: u64) -> u64 {
        let (mut exits, mut left_ns) = (0u64, spinning_ns);
        while left_ns >= window_ns {
            let next_ns = windows.after(window_ns);
            let alike = if next_ns == window_ns { left_ns / window_ns } else { 1 };
            exits += alike;
            left_ns -= alike * window_ns;
            window_ns = next_ns;
        }
        exits.saturating_mul(self.exit_ns)
    }
}

impl Simulation<'_> {
    /// Returns when the next pause-loop exit happens that must be asked about.
    #[inline(always)]
    pub(crate) fn next_exit(&self, vcpu: VcpuId, guest: &GuestVcpu, start_ns: u64) -> u64 {
        let loops = &self.pause_loops;
        if !loops.enabled {
            return u64::MAX;
        }
        let (phase_ns, until_ns) = (guest.ple_phase_ns, guest.ple_batch_until_ns);
        let windows = &self.machine.pause_windows;
        if windows.grow() {
            return loops.next_growing_exit(windows, windows.of(vcpu), phase_ns, start_ns, until_ns);
        }
        loops.next_exit(phase_ns, start_ns, until_ns)
    }

    /// A vCPU's pause loop begins anew. The exit that it may be in lengthens its next window.
    pub(crate) fn begin_pause_loop(&mut self, vcpu: VcpuId) {
        let guest = &mut self.guest[vcpu];
        let windows = &mut self.machine.pause_windows;
        let window_ns = windows.of(vcpu);
        if windows.grow() && guest.ple_phase_ns >= window_ns {
            windows.set(vcpu, windows.after(window_ns));
        }
        guest.ple_phase_ns = 0;
        guest.ple_batch_until_ns = 0;
    }

    /// A spinning vCPU sees its condition fulfilled; an exit under way has to end first.
    pub(crate) fn leave_spin(&mut self, vcpu: VcpuId) {
        let guest = &mut self.guest[vcpu];
        let in_exit_ns = guest.ple_phase_ns.saturating_sub(self.machine.pause_windows.of(vcpu));
        if self.pause_loops.enabled && in_exit_ns > 0 {
            guest.overhead_ns += self.pause_loops.exit_ns - in_exit_ns;
        }
        self.begin_pause_loop(vcpu);
    }

    /// Returns how long the exits take on the way of so much spinning, beyond what
    /// [`PauseLoops::with_exits`] says of it.
    pub(crate) fn growing_exits_ns(&self, vcpu: VcpuId, spinning_ns: u64) -> u64 {
        let windows = &self.machine.pause_windows;
        if !windows.grow() || spinning_ns == u64::MAX {
            return 0;
        }
        self.pause_loops.growing_exits(windows, windows.of(vcpu), spinning_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use microslice_model::random::Random;

    const HOUR_NS: u64 = 3_600_000_000_000;

    fn loops(enabled: bool, window_ns: u64, exit_ns: u64) -> (PauseLoops, PauseWindows) {
        growing(PleConfig { enabled, window_ns, ..PleConfig::CONSTANT }, exit_ns)
    }

    fn growing(config: PleConfig, exit_ns: u64) -> (PauseLoops, PauseWindows) {
        (PauseLoops::new(&config, exit_ns), PauseWindows::new(&config, 1))
    }

    /// Windows of 1, 2, 4 and 5 µs, and exits of half a µs.
    fn doubling() -> (PauseLoops, PauseWindows) {
        let config = PleConfig { enabled: true, window_ns: 1_000, window_grow: 2, window_max_ns: 5_000 };
        growing(config, 500)
    }

    #[test]
    fn a_spinner_spends_the_time_of_its_pause_loop_exits_beside_that_of_its_loops() {
        let with_exits = |(loops, windows): (PauseLoops, PauseWindows)| loops.with_exits(300_000, &windows);
        assert_eq!(with_exits(loops(true, 1_500, 500)), 400_000);
        assert_eq!(with_exits(loops(false, 1_500, 500)), 300_000, "there are no exits");
        assert_eq!(with_exits(loops(false, 0, 500)), 300_000);
        let (loops, windows) = doubling();
        // Windows of 1, 2, 4 and 5 µs are 12 µs; 57 of 5 µs follow, and 3 µs of another one.
        assert_eq!(loops.growing_exits(&windows, 1_000, 300_000), (4 + 57) * 500);
    }

    #[test]
    fn spinning_for_an_hour_between_exits_that_take_as_long_is_no_overflow() {
        let (hours, windows) = loops(true, HOUR_NS, HOUR_NS);
        assert_eq!(hours.with_exits(HOUR_NS, &windows), 2 * HOUR_NS);
        let (short, windows) = loops(true, 1, 10_000_000);
        assert_eq!(short.with_exits(HOUR_NS, &windows), u64::MAX);
        let config = PleConfig { enabled: true, window_ns: 1_000, window_grow: 16, window_max_ns: u64::MAX };
        let (loops, windows) = growing(config, 500);
        assert!(loops.next_growing_exit(&windows, HOUR_NS, 0, HOUR_NS, 100 * HOUR_NS) >= 100 * HOUR_NS);
    }

    #[test]
    fn windows_double_at_each_exit_up_to_their_limit() {
        let (loops, windows) = doubling();
        // Exits begin 1, 3.5, 8, 13.5 and 19 µs after the loop, and take half a µs each.
        let starts_ns = [1_000, 3_500, 8_000, 13_500, 19_000];
        for (before, start_ns) in starts_ns.into_iter().enumerate() {
            let passed = loops.pass_growing(&windows, 1_000, 0, start_ns);
            assert_eq!((passed.exits, passed.phase_ns), (before as u64 + 1, passed.window_ns));
            assert_eq!(loops.pass_growing(&windows, 1_000, 0, start_ns - 1).exits, before as u64);
            assert_eq!(loops.next_growing_exit(&windows, 1_000, 0, 0, start_ns), start_ns);
            assert_eq!(loops.next_growing_exit(&windows, 1_000, 0, 0, start_ns - 1), start_ns);
        }
    }

    /// However the time is cut, and where windows don't grow as where they do.
    #[test]
    fn parts_of_a_time_are_as_much_as_the_whole() {
        let mut random = Random::stream(1, 0);
        for factor in (1..4).cycle().take(3_000) {
            let config =
                PleConfig { enabled: true, window_ns: 1_707, window_grow: factor, window_max_ns: 40_000 };
            let (loops, windows) = growing(config, 500);
            let [first_ns, second_ns] = [0; 2].map(|_: u64| u64::from(random.below(200_000)));
            let pass = |window_ns, phase_ns, elapsed_ns| {
                loops.pass_growing(&windows, window_ns, phase_ns, elapsed_ns)
            };
            let whole = pass(1_707, 0, first_ns + second_ns);
            let first = pass(1_707, 0, first_ns);
            let second = pass(first.window_ns, first.phase_ns, second_ns);
            assert_eq!(first.exits + second.exits, whole.exits);
            assert_eq!(first.exits_ns + second.exits_ns, whole.exits_ns);
            assert_eq!((second.phase_ns, second.window_ns), (whole.phase_ns, whole.window_ns));
            let (start_ns, until_ns) = (1_000_000, 1_000_000 + second_ns);
            let next_ns =
                loops.next_growing_exit(&windows, first.window_ns, first.phase_ns, start_ns, until_ns);
            let at_next = pass(first.window_ns, first.phase_ns, next_ns - start_ns);
            assert_eq!(at_next.phase_ns, at_next.window_ns, "an exit begins");
            if factor == 1 {
                assert_eq!(loops.pass(0, first_ns), first);
                assert_eq!(loops.next_exit(first.phase_ns, start_ns, until_ns), next_ns);
            }
        }
    }
}
