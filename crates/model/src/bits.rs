//! A set of numbers (pCPUs, vCPUs) as bits: finding the next member costs a word for each 64, where a host
//! has thousands.

use crate::ids::Id;
use std::hint::select_unpredictable;
use std::marker::PhantomData;

pub struct Bits<I> {
    words: Vec<u64>,
    of: PhantomData<fn(I)>,
}

impl<I: Id> Bits<I> {
    pub fn new(count: usize, member: bool) -> Self {
        // One word more: `next_round` reads two.
        let mut bits = Self { words: vec![0; count / 64 + 2], of: PhantomData };
        (0..count).for_each(|at| bits.set(I::from_index(at), member));
        bits
    }

    #[inline]
    pub fn set(&mut self, at: I, member: bool) {
        let at = at.index();
        let word = &mut self.words[at / 64];
        *word = *word & !(1 << (at % 64)) | u64::from(member) << (at % 64);
    }

    #[inline]
    pub fn has(&self, at: I) -> bool {
        let at = at.index();
        self.words[at / 64] >> (at % 64) & 1 == 1
    }

    /// The first member from `from` to before `end`.
    #[inline]
    pub fn find_between(&self, from: I, end: I) -> Option<I> {
        self.find(from.index(), end.index()).map(I::from_index)
    }

    #[inline]
    fn find(&self, from: usize, end: usize) -> Option<usize> {
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

    /// The next member behind `last`, round the `count` numbers from `first` on; `last`, one of them, comes
    /// last.
    #[inline]
    pub fn next_round(&self, first: I, count: u32, last: I) -> Option<I> {
        let (first, count, last) = (first.index(), count as usize, last.index());
        if count > 64 {
            let behind = self.find(last + 1, first + count);
            return behind.or_else(|| self.find(first, last + 1)).map(I::from_index);
        }
        let (at, shift) = (first / 64, first % 64);
        let upper = self.words[at + 1].checked_shl(64 - shift as u32).unwrap_or(0);
        let members = (self.words[at] >> shift | upper) & (u64::MAX >> (64 - count));
        let behind = members & (u64::MAX - 1) << (last - first);
        // Which it is can't be predicted.
        let next = select_unpredictable(behind != 0, behind, members).trailing_zeros() as usize;
        (next < 64).then(|| I::from_index(first + next))
    }

    /// The members from `from` on, then those before it.
    #[inline]
    pub fn round_from(&self, from: I) -> impl Iterator<Item = I> {
        self.between(from.index(), usize::MAX).chain(self.between(0, from.index()))
    }

    /// The members from `from` to before `end`, in their order.
    #[inline]
    pub fn span(&self, from: I, end: I) -> impl Iterator<Item = I> {
        self.between(from.index(), end.index())
    }

    #[inline]
    fn between(&self, mut from: usize, end: usize) -> impl Iterator<Item = I> {
        std::iter::from_fn(move || {
            let member = self.find(from, end)?;
            from = member + 1;
            Some(I::from_index(member))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::VcpuId;

    #[test]
    fn a_round_visits_every_member_once_in_order() {
        let mut random = crate::random::Random::stream(3, 0);
        for count in [1, 12, 64, 65, 200] {
            let mut bits: Bits<VcpuId> = Bits::new(count, true);
            let id = VcpuId::from_index;
            for _ in 0..count {
                bits.set(VcpuId::new(random.below(count as u32)), false);
            }
            for from in 0..count {
                let found: Vec<_> = bits.round_from(id(from)).map(VcpuId::index).collect();
                let expected: Vec<_> =
                    (0..count).map(|step| (from + step) % count).filter(|&at| bits.has(id(at))).collect();
                assert_eq!(found, expected, "{count} from {from}");
                for (first, last) in [(0, from), (from / 2, from), (from, from)] {
                    let found =
                        bits.next_round(id(first), (count - first) as u32, id(last)).map(VcpuId::index);
                    let expected = (last + 1..count).chain(first..=last).find(|&at| bits.has(id(at)));
                    assert_eq!(found, expected, "{count} behind {last} from {first}");
                }
                for end in 0..=count {
                    let found = bits.find_between(id(from), id(end)).map(VcpuId::index);
                    let expected = (from..end).find(|&at| bits.has(id(at)));
                    assert_eq!(found, expected, "{count} from {from} to {end}");
                    let found = bits.span(id(from), id(end)).map(VcpuId::index);
                    assert!(
                        found.eq((from..end).filter(|&at| bits.has(id(at)))),
                        "{count} from {from} to {end}"
                    );
                }
            }
        }
    }
}
