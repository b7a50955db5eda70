//! ELF notes: the GNU build ID among them.

const NT_GNU_BUILD_ID: u32 = 3;
/// SHA-1 has 20 bytes; linkers allow any hex string.
const BUILD_ID_BYTES_MAX: usize = 64;

/// The GNU build ID in a run of ELF notes, as lower-case hex.
pub fn build_id(mut notes: &[u8]) -> Option<String> {
    while let Some(note) = Note::first_of(notes) {
        let is_build_id = note.name == b"GNU\0" && note.kind == NT_GNU_BUILD_ID;
        if is_build_id && (1..=BUILD_ID_BYTES_MAX).contains(&note.description.len()) {
            return Some(hex(note.description));
        }
        notes = note.rest;
    }
    None
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

struct Note<'b> {
    name: &'b [u8],
    kind: u32,
    description: &'b [u8],
    /// What follows.
    rest: &'b [u8],
}

impl<'b> Note<'b> {
    /// Sizes and type first, then name and description, each padded to 4 bytes.
    fn first_of(notes: &'b [u8]) -> Option<Self> {
        let word = |index: usize| Some(u32::from_le_bytes(*notes.get(4 * index..)?.first_chunk()?));
        let (name_bytes, description_bytes, kind) = (word(0)? as usize, word(1)? as usize, word(2)?);
        let name = notes.get(12..12usize.checked_add(name_bytes)?)?;
        let start = 12usize.checked_add(name_bytes.checked_next_multiple_of(4)?)?;
        let description = notes.get(start..start.checked_add(description_bytes)?)?;
        let end = start.checked_add(description_bytes.checked_next_multiple_of(4)?)?;
        Some(Self { name, kind, description, rest: notes.get(end..).unwrap_or_default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn note(name: &[u8], kind: u32, description: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for word in [name.len() as u32, description.len() as u32, kind] {
            bytes.extend(word.to_le_bytes());
        }
        for part in [name, description] {
            bytes.extend(part);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        bytes
    }

    #[test]
    fn the_build_id_is_found_behind_other_notes() {
        let mut notes = note(b"Linux\0", 0x101, b"6.1");
        notes.extend(note(b"GNU\0", 5, &[1; 16]));
        notes.extend(note(b"GNU\0", NT_GNU_BUILD_ID, &[0xab, 0x01]));
        assert_eq!(build_id(&notes).as_deref(), Some("ab01"));
        assert_eq!(build_id(&notes[..notes.len() - 3]), None);
    }

    proptest! {
        #[test]
        fn any_bytes_end_the_walk(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = build_id(&bytes);
        }
    }
}
