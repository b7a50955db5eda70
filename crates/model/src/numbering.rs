//! Numbers in place of values: the same value has the same number, counted from 0 in the order of first
//! mention.

use std::collections::BTreeMap;

pub struct Numbering<T> {
    numbers: BTreeMap<T, u32>,
}

impl<T> Default for Numbering<T> {
    fn default() -> Self {
        Self { numbers: BTreeMap::new() }
    }
}

impl<T: Ord> Numbering<T> {
    /// The value's number, and whether it wasn't mentioned before.
    pub fn number(&mut self, value: T) -> (u32, bool) {
        let next = self.numbers.len() as u32;
        let number = *self.numbers.entry(value).or_insert(next);
        (number, number == next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::cmp::Ordering;

    #[derive(PartialEq, Eq)]
    struct Counted<'a>(u32, &'a Cell<u64>);

    impl Ord for Counted<'_> {
        fn cmp(&self, other: &Self) -> Ordering {
            self.1.set(self.1.get() + 1);
            self.0.cmp(&other.0)
        }
    }

    impl PartialOrd for Counted<'_> {
        fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
            Some(self.cmp(other))
        }
    }

    #[test]
    fn twice_as_many_values_take_hardly_more_than_twice_as_many_comparisons() {
        let comparisons = |count: u32| {
            let compared = Cell::new(0);
            let mut numbering = Numbering::default();
            for round in 0..2 {
                for value in 0..count {
                    // Neither rising nor falling: the multiplier is odd, so no value comes twice in a round.
                    let scattered = value.wrapping_mul(2_654_435_761);
                    let found = numbering.number(Counted(scattered, &compared));
                    assert_eq!(found, (value, round == 0));
                }
            }
            compared.get()
        };
        let (few, many) = (comparisons(20_000), comparisons(40_000));
        assert!(many < few * 5 / 2, "{few}, then {many}");
    }
}
