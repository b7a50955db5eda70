//! The host's clocks.

/// Returns the nanoseconds of `CLOCK_MONOTONIC`, which BPF programs read, too.
pub(crate) fn monotonic_ns() -> u64 {
    read_ns(libc::CLOCK_MONOTONIC)
}

/// Returns the nanoseconds since 1970.
pub(crate) fn real_time_ns() -> u64 {
    read_ns(libc::CLOCK_REALTIME)
}

/// Returns this time, of nanoseconds since 1970, as a date and a time of day in UTC, to the second: as RFC
/// 3339 has it, without the zone.
pub(crate) fn utc(since_1970_ns: u64) -> String {
    let (days, seconds) = (since_1970_ns / 86_400_000_000_000, since_1970_ns / 1_000_000_000 % 86_400);
    // Eras of 400 years, which begin in March: so leap days are at their ends.
    let day = days + 719_468;
    let (era, of_era) = (day / 146_097, day % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let of_month = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute, second) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{of_month:02}T{hour:02}:{minute:02}:{second:02}")
}

fn read_ns(clock: libc::clockid_t) -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec to a live one.
    unsafe { libc::clock_gettime(clock, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_has_its_date() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00"),
            (951_782_399, "2000-02-28T23:59:59"),
            (951_782_400, "2000-02-29T00:00:00"),
            (951_868_800, "2000-03-01T00:00:00"),
            (1_798_761_599, "2026-12-31T23:59:59"),
            (1_798_761_600, "2027-01-01T00:00:00"),
            (4_107_542_400, "2100-03-01T00:00:00"),
        ] {
            assert_eq!(utc(seconds * 1_000_000_000 + 999_999_999), expected);
        }
    }
}
