//! What windows around the ends of turns did (`policy/delay_preemption.h`).

use crate::interface::DelayStats;
use serde_json::{Value, json};

/// Counts of a VM, or of all.
pub(crate) fn json(delays: &DelayStats) -> Value {
    json!({
        "put_off": delays.put_off,
        "ended_safe": delays.ended_safe,
        "ended_forced": delays.ended_forced,
        "ended_otherwise": delays.ended_otherwise,
        "turns": delays.turns,
        "beyond_ns": delays.beyond_ns,
        "short_ns": delays.short_ns,
        "looks": delays.looks,
        "penalised": delays.penalised,
    })
}

/// The same as a line, if any turn had a window.
pub(crate) fn line(delays: &DelayStats) -> String {
    if delays.turns + delays.put_off == 0 {
        return String::new();
    }
    format!(
        "windows         {} turns ended in theirs, {:.3} s beyond what was due and {:.3} s short of it; \
         {} put off: {} ended safe, {} forced, {} otherwise; {} looks{}\n",
        delays.turns,
        delays.beyond_ns as f64 / 1e9,
        delays.short_ns as f64 / 1e9,
        delays.put_off,
        delays.ended_safe,
        delays.ended_forced,
        delays.ended_otherwise,
        delays.looks,
        if delays.penalised > 0 { format!("; {} penalised", delays.penalised) } else { String::new() }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_json_account_for_turns_put_off() {
        let delays =
            DelayStats { put_off: 5, ended_safe: 3, ended_forced: 2, turns: 9, ..DelayStats::default() };
        assert!(
            line(&delays).contains("9 turns") && line(&delays).contains("5 put off: 3 ended safe, 2 forced")
        );
        assert_eq!(json(&delays)["ended_safe"], 3);
        assert_eq!(line(&DelayStats::default()), "");
    }
}
