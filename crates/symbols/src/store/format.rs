//! A symbol table as bytes: what the store writes. Little-endian, arrays back to back, nothing to decode but
//! UTF-8.
//!
//! | bytes | what |
//! |---|---|
//! | 8 | magic `MSLSYM01` |
//! | 4 | CRC-32 of everything behind this field |
//! | 4 × 6 | counts: symbols, bytes of names, halt sites, bytes of release, build ID, banner |
//! | 8 × symbols | addresses, rising |
//! | 8 × halt sites | addresses, rising |
//! | 4 × symbols | end of each name in the names |
//! | symbols | types |
//! | … | release, build ID, banner, names |
//!
//! The CRC finds damage; forgery is met by checking everything that the table relies on.

use crate::table::{NAME_ARENA_BYTES_MAX, SYMBOLS_MAX, TableParts};
use crate::{Error, Identity, SymbolTable};

const MAGIC: &[u8; 8] = b"MSLSYM01";
const COUNTS: usize = 6;
const HEADER_BYTES: usize = MAGIC.len() + 4 + 4 * COUNTS;
pub const HALT_SITES_MAX: usize = 4096;
const IDENTITY_BYTES_MAX: usize = 4096;
/// Largest stored table.
pub const TABLE_BYTES_MAX: usize =
    HEADER_BYTES + SYMBOLS_MAX * 13 + HALT_SITES_MAX * 8 + NAME_ARENA_BYTES_MAX + 4096;

/// What stands in the checksum field of a table with `behind` behind it.
pub fn checksum(behind: &[u8]) -> u32 {
    crc32fast::hash(behind)
}

/// The bytes of `symbols` and `halt_sites` (linked addresses of `hlt` instructions, rising).
pub fn encode(symbols: &SymbolTable, halt_sites: &[u64]) -> Vec<u8> {
    let parts = symbols.parts();
    let identity = symbols.identity();
    let texts =
        [&identity.release, &identity.build_id, &identity.banner].map(|text| text.as_deref().unwrap_or(""));
    let mut bytes = Vec::with_capacity(HEADER_BYTES + parts.addresses.len() * 13 + parts.names.len() + 4096);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&[0; 4]);
    let counts = [parts.addresses.len(), parts.names.len(), halt_sites.len()].into_iter();
    for count in counts.chain(texts.map(str::len)) {
        bytes.extend_from_slice(&(count as u32).to_le_bytes());
    }
    bytes.extend(parts.addresses.iter().chain(halt_sites).flat_map(|address| address.to_le_bytes()));
    bytes.extend(parts.name_offsets.iter().skip(1).flat_map(|end| end.to_le_bytes()));
    bytes.extend_from_slice(parts.kinds);
    for text in texts.into_iter().chain([parts.names]) {
        bytes.extend_from_slice(text.as_bytes());
    }
    let checksum = checksum(&bytes[MAGIC.len() + 4..]);
    bytes[MAGIC.len()..MAGIC.len() + 4].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

/// The table and halt sites in `bytes`.
///
/// # Errors
/// Bytes that [`encode`] didn't write, or that changed since.
pub fn decode(bytes: &[u8]) -> Result<(SymbolTable, Vec<u64>), Error> {
    let mut input = Input { bytes, position: 0 };
    if input.take(MAGIC.len())? != MAGIC {
        return Err(Error::malformed(
            0,
            "isn't a stored symbol table (or one of another version): import the kernel again",
        ));
    }
    let stored_checksum = input.u32()?;
    if checksum(&bytes[input.position..]) != stored_checksum {
        return Err(Error::malformed(
            MAGIC.len() as u64,
            "the checksum doesn't match: import the kernel again",
        ));
    }
    let mut counts = [0usize; COUNTS];
    for count in &mut counts {
        *count = input.u32()? as usize;
    }
    let [symbols, names, halt_sites, release, build_id, banner] = counts;
    let within = symbols <= SYMBOLS_MAX && names <= NAME_ARENA_BYTES_MAX && halt_sites <= HALT_SITES_MAX;
    if !within || [release, build_id, banner].iter().any(|&length| length > IDENTITY_BYTES_MAX) {
        return Err(Error::malformed(12, "a count is above its limit"));
    }
    let addresses = input.words::<8>(symbols)?.iter().map(|&word| u64::from_le_bytes(word)).collect();
    let halts: Vec<u64> =
        input.words::<8>(halt_sites)?.iter().map(|&word| u64::from_le_bytes(word)).collect();
    let ends = input.words::<4>(symbols)?.iter().map(|&word| u32::from_le_bytes(word));
    let name_offsets = std::iter::once(0).chain(ends).collect();
    let kinds = input.take(symbols)?.to_vec();
    let identity = Identity {
        release: input.text(release)?,
        build_id: input.text(build_id)?,
        banner: input.text(banner)?,
    };
    let names_at = input.position as u64;
    let names = String::from_utf8(input.take(names)?.to_vec())
        .map_err(|_| Error::malformed(names_at, "names aren't UTF-8"))?;
    if input.position != bytes.len() {
        return Err(Error::malformed(input.position as u64, "bytes behind the end of the table"));
    }
    if !halts.is_sorted() {
        return Err(Error::malformed(HEADER_BYTES as u64, "halt sites out of order"));
    }
    let symbols = SymbolTable::from_parts(TableParts { addresses, name_offsets, kinds, names }, identity)?;
    Ok((symbols, halts))
}

struct Input<'b> {
    bytes: &'b [u8],
    position: usize,
}

impl<'b> Input<'b> {
    fn take(&mut self, length: usize) -> Result<&'b [u8], Error> {
        let taken = self.bytes.get(self.position..self.position.saturating_add(length));
        let taken =
            taken.ok_or_else(|| Error::malformed(self.position as u64, "the stored table is cut off"))?;
        self.position += length;
        Ok(taken)
    }

    fn words<const N: usize>(&mut self, count: usize) -> Result<&'b [[u8; N]], Error> {
        Ok(self.take(N * count)?.as_chunks::<N>().0)
    }

    fn u32(&mut self) -> Result<u32, Error> {
        Ok(u32::from_le_bytes(self.words::<4>(1)?[0]))
    }

    fn text(&mut self, length: usize) -> Result<Option<String>, Error> {
        let at = self.position as u64;
        let text = std::str::from_utf8(self.take(length)?)
            .map_err(|_| Error::malformed(at, "the identity isn't UTF-8"))?;
        Ok((!text.is_empty()).then(|| text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SymbolTableBuilder;
    use proptest::prelude::*;

    fn example(symbols: &[(u64, &str)]) -> SymbolTable {
        let mut builder = SymbolTableBuilder::new();
        for &(address, name) in symbols {
            builder.push(address, 't', name).unwrap();
        }
        builder.finish(Identity {
            release: Some("6.1".into()),
            build_id: None,
            banner: Some("Linux version 6.1".into()),
        })
    }

    /// Recomputes the checksum: a forger can.
    fn forge(bytes: &mut [u8]) {
        let checksum = crc32fast::hash(&bytes[12..]);
        bytes[8..12].copy_from_slice(&checksum.to_le_bytes());
    }

    #[test]
    fn a_flipped_bit_anywhere_is_refused() {
        let bytes = encode(&example(&[(0x10, "one"), (0x20, "two")]), &[0x15]);
        for position in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[position] ^= 1;
            assert!(decode(&damaged).is_err(), "byte {position}");
        }
        assert!(decode(&bytes[..bytes.len() - 1]).is_err());
    }

    #[test]
    fn forged_counts_are_refused_without_allocating_for_them() {
        let bytes = encode(&example(&[(0x10, "one")]), &[]);
        for count in 0..COUNTS {
            let mut forged = bytes.clone();
            forged[12 + 4 * count..16 + 4 * count].copy_from_slice(&u32::MAX.to_le_bytes());
            forge(&mut forged);
            assert!(decode(&forged).is_err(), "count {count}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(
            symbols in proptest::collection::vec((any::<u64>(), "[a-z_.]{1,20}|é"), 0..50),
            halts in proptest::collection::btree_set(any::<u64>(), 0..5),
        ) {
            let symbols: Vec<(u64, &str)> = symbols.iter().map(|(address, name)| (*address, name.as_str())).collect();
            let (table, halts) = (example(&symbols), halts.into_iter().collect::<Vec<_>>());
            let (read, read_halts) = decode(&encode(&table, &halts)).unwrap();
            prop_assert_eq!(read.iter().collect::<Vec<_>>(), table.iter().collect::<Vec<_>>());
            prop_assert_eq!(read.identity(), table.identity());
            prop_assert_eq!(read_halts, halts);
        }

        #[test]
        fn forged_bytes_give_an_error_or_a_sound_table(position in 12usize..90, value: u8) {
            let mut bytes = encode(&example(&[(0x10, "one"), (0x20, "two"), (0x20, "three")]), &[0x15]);
            let position = position.min(bytes.len() - 1);
            bytes[position] = value;
            forge(&mut bytes);
            if let Ok((table, _)) = decode(&bytes) {
                for symbol in table.iter() {
                    prop_assert!(!symbol.name.is_empty());
                    prop_assert!(table.lookup(symbol.address).is_some());
                }
            }
        }
    }
}
