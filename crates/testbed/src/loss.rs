//! What emulation takes away now and then: a guest, a CPU, a host (docs/explanation/testbed.md).

use crate::console;
use crate::host::Host;

impl Host {
    /// What emulation may have taken away of it, if it did, since it had lost `guests_before` guests. Never
    /// what its kernel complains of otherwise.
    pub fn loss(&self, guests_before: u32) -> Option<&'static str> {
        let text = self.console();
        let loss = if !self.answers() {
            "the host doesn't answer any more"
        } else if console::tells_of_a_stall(&text) {
            "a CPU of the host stood still"
        } else if console::tells_of_a_stale_breakpoint(&text) {
            "the host met a breakpoint that nobody set"
        } else if self.lost_guests() != guests_before {
            "a guest was lost"
        } else {
            return None;
        };
        console::may_be_emulations_end(&text).then_some(loss)
    }
}
