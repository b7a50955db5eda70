//! Guests that stand still while something is done that takes several times as long beside them.

use crate::host::Host;
use crate::{Result, say};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(120);

/// Guests don't run while it is there.
pub struct Standstill<'h>(&'h Host);

impl<'h> Standstill<'h> {
    /// Of all guests on this host.
    pub fn of_guests(host: &'h Host) -> Result<Self> {
        let still = Self(host);
        still.signal("STOP")?;
        Ok(still)
    }

    fn signal(&self, name: &str) -> Result<()> {
        let command =
            format!("for guest in $(pidof qemu-system-x86_64 bare-guest); do kill -{name} $guest; done");
        self.0.must_run(&command, PATIENCE).map(drop)
    }
}

impl Drop for Standstill<'_> {
    fn drop(&mut self) {
        // That a host doesn't answer any more is found when it is asked next.
        if let Err(error) = self.signal("CONT") {
            say(error);
        }
    }
}
