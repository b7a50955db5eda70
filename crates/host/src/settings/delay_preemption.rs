//! Windows around the ends of turns (`policy/delay_preemption.h`; Uhlig et al., VM'04, section 3): what may
//! be said of them, and what they did.

use crate::HostError;
use crate::settings::Settings;
use microslice_policy::{DelayConfig, DelayUnsafe};

/// The window that the other settings are about.
pub(crate) const WINDOW: &str = "delay-preemption";
/// The settings about that window.
const ABOUT_IT: [&str; 2] = ["delay-unsafe", "delay-look-us"];
/// Windows of microseconds are over before a look.
const WINDOW_US_MIN: u64 = 10;

/// Where a vCPU isn't preempted while its window lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unsafe {
    /// Everywhere but in user mode and where it halts: the guest's kernel may hold locks. Needs no symbols.
    Kernel,
    /// In the classes of `critical/linux.toml`, and before it has answered a call of its siblings.
    Critical,
    /// Where the guest says so, in its hint page. Needs no symbols, but a module in the guest
    /// (docs/how-to/guest-modules.md).
    Hinted,
}

impl Unsafe {
    pub const ALL: [Self; 3] = [Self::Kernel, Self::Critical, Self::Hinted];

    pub fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Critical => "critical",
            Self::Hinted => "hinted",
        }
    }
}

impl std::str::FromStr for Unsafe {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|place| place.name() == text);
        known.ok_or_else(|| {
            let [kernel, critical, hinted] = Self::ALL.map(Self::name);
            format!("{text:?}: must be {kernel}, {critical} or {hinted}")
        })
    }
}

impl Settings {
    /// Windows around the ends of turns, or else grace: micro slices behind them. `has_grace`: the scheduler
    /// has a micro pool.
    pub(crate) fn delay_config(&self, has_grace: bool) -> DelayConfig {
        if self.delay_preemption == 0 {
            let micro_slices = if has_grace { self.accelerate_config().grace_max } else { 0 };
            return DelayConfig::of_grace(micro_slices, self.micro_slice_us * 1000);
        }
        let unsafe_where = match self.delay_unsafe {
            Unsafe::Kernel => DelayUnsafe::InKernel,
            Unsafe::Critical => DelayUnsafe::InCriticalCode,
            Unsafe::Hinted => DelayUnsafe::WhereHinted,
        };
        DelayConfig {
            window_ns: self.delay_preemption * 1000,
            look_ns: self.delay_look_us * 1000,
            history: DelayConfig::HISTORY,
            unsafe_where: unsafe_where.into(),
        }
    }

    /// Are hint pages looked for?
    pub(crate) fn hears_hints(&self) -> bool {
        self.delay_preemption > 0 && self.delay_unsafe == Unsafe::Hinted
    }

    pub(crate) fn is_said(&self, key: &str) -> bool {
        self.flags_given.contains(key) || self.places.contains_key(key)
    }

    /// Nothing is said of a window that there isn't, nor of one that can't be, nor against it.
    pub(crate) fn check_windows(&self) -> Result<(), HostError> {
        let refused = |key: &str, rest: String| Err(HostError::refused(self.called(key) + &rest));
        let window_us = self.delay_preemption;
        if window_us == 0 {
            return match ABOUT_IT.into_iter().find(|key| self.is_said(key)) {
                Some(key) => refused(key, format!(" needs --{WINDOW}, the window that it is about")),
                None => Ok(()),
            };
        }
        if window_us < WINDOW_US_MIN {
            return refused(WINDOW, format!(" {window_us}: a window shorter than {WINDOW_US_MIN} us"));
        }
        if window_us > self.turn_us() {
            let turn = format!("which is {} us ({})", self.turn_us(), self.called("slice-us"));
            return refused(WINDOW, format!(" {window_us}: a window longer than a turn, {turn}"));
        }
        if self.delay_look_us > window_us && self.is_said("delay-look-us") {
            let look_us = self.delay_look_us;
            return refused("delay-look-us", format!(" {look_us}: longer than the window, {window_us} us"));
        }
        if self.delay_unsafe == Unsafe::Hinted && !self.guest_memory {
            let without = format!(" hinted with {}", self.called("no-guest-memory"));
            return refused("delay-unsafe", without + ": hints are in the guest's memory");
        }
        if self.dry_run {
            let with = format!(" with {} {window_us}", self.called(WINDOW));
            return refused("dry-run", with + ": in a dry run no turn ends elsewhere");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::SchedulerChoice;

    /// With these flags, whose values are set by `set`.
    fn error(flags: &[&str], set: impl FnOnce(&mut Settings)) -> String {
        let mut settings = Settings::of_microslice();
        settings.flags_given.extend(flags.iter().map(|flag| (*flag).to_owned()));
        set(&mut settings);
        settings.check().unwrap_err().to_string()
    }

    #[test]
    fn windows_too_long_or_too_short_are_refused() {
        assert_eq!(
            error(&["delay-preemption"], |it| it.delay_preemption = 10_001),
            "--delay-preemption 10001: a window longer than a turn, which is 10000 us (--slice-us)"
        );
        assert_eq!(
            error(&["delay-preemption"], |it| it.delay_preemption = 9),
            "--delay-preemption 9: a window shorter than 10 us"
        );
    }

    #[test]
    fn what_contradicts_a_window_or_is_about_none_is_refused() {
        for key in ABOUT_IT {
            let said = error(&[key], |_| ());
            assert_eq!(said, format!("--{key} needs --delay-preemption, the window that it is about"));
        }
        let windows = |it: &mut Settings| it.delay_preemption = 1000;
        assert_eq!(
            error(&["delay-preemption", "delay-look-us"], |it| {
                windows(it);
                it.delay_look_us = 1001;
            }),
            "--delay-look-us 1001: longer than the window, 1000 us"
        );
        assert_eq!(
            error(&["delay-preemption", "dry-run"], |it| {
                windows(it);
                it.dry_run = true;
            }),
            "--dry-run with --delay-preemption 1000: in a dry run no turn ends elsewhere"
        );
        assert_eq!(
            error(&["delay-preemption", "delay-unsafe", "no-guest-memory"], |it| {
                windows(it);
                it.delay_unsafe = Unsafe::Hinted;
                it.guest_memory = false;
            }),
            "--delay-unsafe hinted with --no-guest-memory: hints are in the guest's memory"
        );
        let mut settings = Settings { delay_preemption: 20_000, ..Settings::of_microslice() };
        settings.places.insert(WINDOW.into(), "my.toml:2:20".into());
        let said = settings.check().unwrap_err().to_string();
        assert!(said.starts_with("my.toml:2:20: delay-preemption 20000: a window longer"), "{said}");
    }

    #[test]
    fn both_schedulers_have_windows_and_allow_shorter_looks() {
        for scheduler in SchedulerChoice::ALL {
            let settings =
                Settings { scheduler: Some(scheduler), delay_preemption: 50, ..Settings::default() };
            assert!(settings.check().is_ok());
            assert!(settings.delay_config(true).window_slides());
        }
    }

    #[test]
    fn without_a_window_a_micro_pool_gives_grace() {
        let grace = Settings::default().delay_config(true);
        assert_eq!((grace.window_ns, grace.look_ns, grace.window_slides()), (1_000_000, 100_000, false));
        assert_eq!(Settings::default().delay_config(false).window_ns, 0);
    }
}
