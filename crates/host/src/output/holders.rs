//! Stops by what the vCPU held: by its guest's own count, and by the function that it was stopped in.

use crate::bpf::counters::add_up;
use crate::interface::VmStats;
use crate::output::words::{merge, named, names};
use microslice_metrics::{Snapshot, figures};
use microslice_policy::{Coded, GuestClass, Held, class_is_critical};
use serde_json::{Value, json};

const CLASSES: usize = GuestClass::ALL.len();
const HELDS: usize = Held::ALL.len();

/// Times that the host took a pCPU from a runnable vCPU, by [`Held`] and by the class of its code.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stops([[u64; CLASSES]; HELDS]);

impl Stops {
    pub fn of(stats: &VmStats) -> Self {
        Self(stats.stops)
    }

    #[cfg(test)]
    pub(crate) fn of_each(count: u64) -> Self {
        Self([[count; CLASSES]; HELDS])
    }

    /// Returns the stops since `before`.
    pub fn since(&self, before: &Self) -> Self {
        let less = |held: usize, class: usize| self.0[held][class].saturating_sub(before.0[held][class]);
        Self(std::array::from_fn(|held| std::array::from_fn(|class| less(held, class))))
    }

    /// Returns the stops of which the guest's count told what was held.
    pub fn known(&self) -> u64 {
        self.rows(Held::Nothing).map(add_up_row).sum()
    }

    /// Returns those of them that held something.
    pub fn holding(&self) -> u64 {
        self.rows(Held::Preemption).map(add_up_row).sum()
    }

    /// Returns those that held something in a function that is critical by symbols, too.
    pub fn found_by_symbols(&self) -> u64 {
        let critical = |row: &[u64; CLASSES]| -> u64 {
            let by_class = GuestClass::ALL.iter().zip(row);
            by_class.filter(|(class, _)| class_is_critical(**class)).map(|(_, count)| count).sum()
        };
        self.rows(Held::Preemption).map(critical).sum()
    }

    /// Returns those in a function that symbols say holds a lock.
    pub fn listed(&self) -> u64 {
        self.rows(Held::Nothing).map(|row| row[GuestClass::LockHolder as usize]).sum()
    }

    /// Returns those of them that held nothing.
    pub fn in_vain_by_symbols(&self) -> u64 {
        self.0[Held::Nothing as usize][GuestClass::LockHolder as usize]
    }

    /// Returns those that held something, and those of them that symbols find, if anything is known.
    pub fn shown(&self) -> Option<(u64, u64)> {
        (self.known() > 0).then(|| (self.holding(), self.found_by_symbols()))
    }

    fn rows(&self, from: Held) -> impl Iterator<Item = &[u64; CLASSES]> {
        self.0.iter().skip(from as usize)
    }

    pub fn to_json(self) -> Value {
        let by_count: Vec<u64> = self.0.iter().map(add_up_row).collect();
        let mut object = json!({
            "known": self.known(),
            "holding": self.holding(),
            "found_by_symbols": self.found_by_symbols(),
            "listed": self.listed(),
            "in_vain_by_symbols": self.in_vain_by_symbols(),
        });
        merge(&mut object, json!({"preemptions_by_count": named(names::<Held>(), &by_count)}));
        object
    }

    /// Returns one line, if anything is known.
    pub fn line(&self) -> Option<String> {
        (self.known() > 0).then(|| {
            format!(
                "holders         {} of {} stops held something by the guests' own counts; symbols find {} of these, \
                 and {} that held nothing\n",
                self.holding(),
                self.known(),
                self.found_by_symbols(),
                self.in_vain_by_symbols(),
            )
        })
    }

    /// Puts what is known of a VM.
    pub fn put(&self, snapshot: &mut Snapshot, vm: &str) {
        for (held, row) in names::<Held>().zip(&self.0).skip(Held::Nothing as usize) {
            let listed = row[GuestClass::LockHolder as usize];
            for (by_symbols, count) in [("holder", listed), ("other", add_up_row(row) - listed)] {
                if count > 0 {
                    snapshot.counter(&figures::PREEMPTIONS_BY_COUNT, &[vm, held, by_symbols], count);
                }
            }
        }
    }
}

fn add_up_row(row: &[u64; CLASSES]) -> u64 {
    add_up(row)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stops() -> Stops {
        let mut stops = Stops::default();
        let mut set = |held: Held, class: GuestClass, count| stops.0[held as usize][class as usize] = count;
        set(Held::Unknown, GuestClass::LockHolder, 1000);
        set(Held::Nothing, GuestClass::LockHolder, 3);
        set(Held::Nothing, GuestClass::User, 50);
        set(Held::Preemption, GuestClass::LockHolder, 4);
        set(Held::Preemption, GuestClass::KernelOther, 20);
        set(Held::Hardirq, GuestClass::IrqHandler, 5);
        stops
    }

    #[test]
    fn what_symbols_find_and_take_in_vain_is_counted() {
        let json = stops().to_json();
        let keys = ["known", "holding", "found_by_symbols", "listed", "in_vain_by_symbols"];
        assert_eq!(keys.map(|key| &json[key]), [&json!(82), &json!(29), &json!(9), &json!(7), &json!(3)]);
        assert_eq!(json["preemptions_by_count"]["preemption"], 24);
        assert_eq!(json["preemptions_by_count"]["unknown"], 1000);
        let line = stops().line().expect("something is known");
        assert!(line.contains("29 of 82 stops") && line.contains("find 9 of these, and 3"), "{line}");
        assert_eq!((stops().shown(), Stops::default().shown()), (Some((29, 9)), None));
        assert_eq!(Stops::default().line(), None);
        assert_eq!(stops().since(&stops()), Stops::default());
    }

    #[test]
    fn unknown_stops_are_no_time_series() {
        let mut snapshot = Snapshot::new();
        stops().put(&mut snapshot, "web");
        assert_eq!(snapshot.of(&figures::PREEMPTIONS_BY_COUNT).count(), 5);
        let listed = snapshot.get(&figures::PREEMPTIONS_BY_COUNT, &["web", "preemption", "holder"]);
        assert_eq!(listed, Some(&microslice_metrics::Value::Counter(4)));
    }
}
