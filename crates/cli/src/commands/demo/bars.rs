//! Bars of text, for a terminal: an eighth of a character is the least that one shows.

/// From nothing to a whole character.
const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];

/// As much of `width` characters as `value` is of `longest`; nothing where either is no positive number.
pub fn bar(value: f64, longest: f64, width: usize) -> String {
    let share = value / longest;
    if !share.is_finite() || share <= 0.0 || longest <= 0.0 {
        return String::new();
    }
    let eighths = (share.min(1.0) * width as f64 * 8.0).round().max(1.0) as usize;
    format!("{}{}", "█".repeat(eighths / 8), EIGHTHS[eighths % 8])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_as_long_as_its_value_and_never_longer_than_its_place() {
        assert_eq!(bar(10.0, 10.0, 4), "████");
        assert_eq!(bar(5.0, 10.0, 3), "█▌");
        assert_eq!(bar(1e9, 10.0, 2), "██");
        assert_eq!(bar(1e-9, 10.0, 2), "▏", "what is there is seen");
    }

    #[test]
    fn what_is_no_number_has_no_bar() {
        for (value, longest) in
            [(0.0, 1.0), (1.0, 0.0), (f64::NAN, 1.0), (1.0, f64::NAN), (-1.0, 1.0), (-1.0, -1.0)]
        {
            assert_eq!(bar(value, longest, 10), "", "{value} of {longest}");
        }
    }
}
