//! Which symbols a page holds: narrows a lookup from 200,000 symbols to a dozen before the binary search.

use std::ops::Range;

const PAGE_BITS: u32 = 12;
/// The kernel image spans at most 1 GiB (`KERNEL_IMAGE_SIZE`): an index of 1 MiB.
const PAGES_MAX: usize = 1 << (30 - PAGE_BITS);
/// Below are per-CPU offsets and absolute values, which the index leaves out.
const KERNEL_HALF: u64 = 1 << 47;

/// For each page from the first kernel address on, the first symbol at or behind its start.
#[derive(Debug, Default, Clone)]
pub(crate) struct PageIndex {
    first_page: u64,
    starts: Vec<u32>,
}

impl PageIndex {
    /// The index of `addresses` (sorted); empty if they span more than a kernel does.
    pub fn of(addresses: &[u64]) -> Self {
        let kernel = addresses.partition_point(|&address| address < KERNEL_HALF);
        let (Some(&first), Some(&last)) = (addresses.get(kernel), addresses.last()) else {
            return Self::default();
        };
        let first_page = first >> PAGE_BITS;
        let pages = (last >> PAGE_BITS) - first_page + 1;
        if pages > PAGES_MAX as u64 {
            return Self::default();
        }
        let mut starts = Vec::with_capacity(pages as usize + 1);
        for (symbol, &address) in addresses.iter().enumerate().skip(kernel) {
            let page = ((address >> PAGE_BITS) - first_page) as usize;
            while starts.len() <= page {
                starts.push(symbol as u32);
            }
        }
        starts.push(addresses.len() as u32);
        Self { first_page, starts }
    }

    /// Where the first symbol behind `address` can be, at most one past either end; `None` outside of the
    /// index.
    pub fn around(&self, address: u64) -> Option<Range<usize>> {
        let page = usize::try_from((address >> PAGE_BITS).checked_sub(self.first_page)?).ok()?;
        let (&start, &end) = (self.starts.get(page)?, self.starts.get(page + 1)?);
        Some(start as usize..end as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn addresses_further_apart_than_a_kernel_have_no_index() {
        assert!(PageIndex::of(&[KERNEL_HALF, u64::MAX]).starts.is_empty());
        assert!(PageIndex::of(&[1, 2, 3]).starts.is_empty());
        assert!(PageIndex::of(&[]).starts.is_empty());
    }

    proptest! {
        #[test]
        fn the_first_symbol_behind_an_address_is_in_its_page_or_starts_the_next(
            mut addresses in proptest::collection::vec(0u64..60_000, 1..80), probe in 0u64..70_000,
        ) {
            addresses.iter_mut().for_each(|address| *address += KERNEL_HALF + 0x7_f123);
            addresses.sort_unstable();
            let probe = probe + KERNEL_HALF + 0x7_f123;
            let expected = addresses.partition_point(|&address| address <= probe);
            if let Some(range) = PageIndex::of(&addresses).around(probe) {
                let found = range.start + addresses[range].partition_point(|&address| address <= probe);
                prop_assert_eq!(found, expected);
            }
        }
    }
}
