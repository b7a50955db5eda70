//! Where what the kernel side traces waits for the tracer, between two looks.

use crate::interface::TraceEvent;
use std::cell::RefCell;
use std::rc::Rc;
use zerocopy::FromBytes;

/// 44 MB: the kernel's ring holds 170,000, and is emptied every 20 ms.
const EVENTS_MAX: usize = 500_000;

/// A clone is the same queue: the ring's callback has one.
#[derive(Clone, Default)]
pub(crate) struct TraceQueue(Rc<RefCell<Waiting>>);

#[derive(Default)]
struct Waiting {
    events: Vec<TraceEvent>,
    left_out: u64,
}

impl TraceQueue {
    /// One entry of the kernel's ring.
    pub fn hear(&self, bytes: &[u8]) {
        let mut waiting = self.0.borrow_mut();
        match TraceEvent::read_from_prefix(bytes) {
            Ok((event, _)) if waiting.events.len() < EVENTS_MAX => waiting.events.push(event),
            Ok(_) => waiting.left_out += 1,
            Err(_) => {}
        }
    }

    /// Takes the events that have come since the last look, and the count of those that found no room.
    pub fn take(&self) -> (Vec<TraceEvent>, u64) {
        let Waiting { events, left_out } = std::mem::take(&mut *self.0.borrow_mut());
        (events, left_out)
    }
}
