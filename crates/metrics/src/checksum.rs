//! JSON objects that tell whether they are as they were written: their last key is a checksum.
//!
//! It counts neither white space nor what stands behind it. So a file may be indented anew.

const KEY: &[u8] = b"\"crc32\":\"";
const DIGITS: usize = 8;

/// What a text's checksum says of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seal<'o> {
    /// The object without the checksum and without its end.
    Whole(&'o [u8]),
    Broken,
    /// The object has none as its last key.
    Missing,
}

/// Adds the checksum to an object that isn't empty. Only who knows `context` can check it.
pub fn seal(object: &str, context: &[u8]) -> String {
    let body = object.trim_end();
    let body = body.strip_suffix('}').unwrap_or(body).trim_end();
    let is_indented = body.starts_with("{\n");
    let (before, colon, end) = if is_indented { (",\n  ", ": ", "\n}\n") } else { (",", ":", "}") };
    format!("{body}{before}\"crc32\"{colon}\"{:08x}\"{end}", checksum(body.as_bytes(), context))
}

/// Whether an object is what [`seal`] returned with the same `context`.
pub fn check<'o>(object: &'o [u8], context: &[u8]) -> Seal<'o> {
    let Some((body, digits)) = split(object) else { return Seal::Missing };
    let expected = format!("{:08x}", checksum(body, context));
    if expected.as_bytes() == digits { Seal::Whole(body) } else { Seal::Broken }
}

fn split(object: &[u8]) -> Option<(&[u8], &[u8])> {
    let text = object.trim_ascii_end().strip_suffix(b"}")?.trim_ascii_end().strip_suffix(b"\"")?;
    let (text, digits) = text.split_at_checked(text.len().checked_sub(DIGITS)?)?;
    // The key with its colon and quotes, white space among them.
    let text = KEY.iter().rev().try_fold(text, |text, byte| text.trim_ascii_end().strip_suffix(&[*byte]))?;
    Some((text.trim_ascii_end().strip_suffix(b",")?, digits))
}

fn checksum(body: &[u8], context: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(context);
    body.split(u8::is_ascii_whitespace).for_each(|text| hasher.update(text));
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const OBJECT: &str = r#"{"name":"a b","counts":[1,20]}"#;

    #[test]
    fn a_sealed_object_is_json_and_may_be_indented_anew() {
        let sealed = seal(OBJECT, b"here");
        let json: serde_json::Value = serde_json::from_str(&sealed).expect("JSON");
        let indented = format!("{json:#}\n");
        assert_eq!(check(sealed.as_bytes(), b"here"), Seal::Whole(&OBJECT.as_bytes()[..OBJECT.len() - 1]));
        assert!(matches!(check(indented.as_bytes(), b"here"), Seal::Whole(_)), "{indented}");
        assert_eq!(check(sealed.as_bytes(), b"there"), Seal::Broken);
        assert_eq!(check(OBJECT.as_bytes(), b"here"), Seal::Missing);
        let anew =
            seal(&format!("{:#}", serde_json::from_str::<serde_json::Value>(OBJECT).unwrap()), b"here");
        assert_eq!(anew, indented);
    }

    proptest! {
        #[test]
        fn a_flipped_bit_never_leaves_a_whole_object(at: proptest::sample::Index, bit in 0..8) {
            let mut bytes = seal(OBJECT, b"").into_bytes();
            let at = at.index(bytes.len());
            bytes[at] ^= 1u8 << bit;
            prop_assert!(!matches!(check(&bytes, b""), Seal::Whole(_)));
        }

        #[test]
        fn whatever_is_checked_there_is_no_panic(bytes: Vec<u8>) {
            prop_assert!(!matches!(check(&bytes, b""), Seal::Whole(_)));
        }
    }
}
