//! A set of numbers (pCPUs, vCPUs) as bits: finding the next member costs a word for each 64, where a host has thousands.

pub struct Bits {
    words: Vec<u64>,
}

impl Bits {
    pub fn new(count: usize, member: bool) -> Self {
        let mut bits = Self { words: vec![0; count.div_ceil(64)] };
        (0..count).for_each(|at| bits.set(at, member));
        bits
    }

    #[inline]
    pub fn set(&mut self, at: usize, member: bool) {
        let word = &mut self.words[at / 64];
        *word = *word & !(1 << (at % 64)) | u64::from(member) << (at % 64);
    }

    #[inline]
    pub fn has(&self, at: usize) -> bool {
        self.words[at / 64] >> (at % 64) & 1 == 1
    }

    /// The first member from `from` to before `end`.
    #[inline]
    pub fn find_between(&self, from: usize, end: usize) -> Option<usize> {
        let mut at = from / 64;
        let mut word = self.words.get(at)? & u64::MAX << (from % 64);
        loop {
            if word != 0 {
                let member = at * 64 + word.trailing_zeros() as usize;
                return (member < end).then_some(member);
            }
            at += 1;
            if at * 64 >= end {
                return None;
            }
            word = *self.words.get(at)?;
        }
    }

    /// The members from `from` on, then those before it.
    #[inline]
    pub fn round_from(&self, from: usize) -> impl Iterator<Item = usize> {
        self.between(from, usize::MAX).chain(self.between(0, from))
    }

    #[inline]
    fn between(&self, mut from: usize, end: usize) -> impl Iterator<Item = usize> {
        std::iter::from_fn(move || {
            let member = self.find_between(from, end)?;
            from = member + 1;
            Some(member)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_visits_every_member_once_in_order() {
        let mut random = crate::random::Random::stream(3, 0);
        for count in [1, 12, 64, 65, 200] {
            let mut bits = Bits::new(count, true);
            for _ in 0..count {
                bits.set(random.below(count as u32) as usize, false);
            }
            for from in 0..count {
                let found: Vec<_> = bits.round_from(from).collect();
                let expected: Vec<_> =
                    (0..count).map(|step| (from + step) % count).filter(|&at| bits.has(at)).collect();
                assert_eq!(found, expected, "{count} from {from}");
                for end in 0..=count {
                    let found = bits.find_between(from, end);
                    let expected = (from..end).find(|&at| bits.has(at));
                    assert_eq!(found, expected, "{count} from {from} to {end}");
                }
            }
        }
    }
}
