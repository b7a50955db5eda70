//! One error for every source: which file, where in it, why. Its `Display` is one line.

use std::fmt;

/// Where in a source something is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The source as a whole.
    Whole,
    /// A line of a text source, counted from 1.
    Line(u64),
    /// A byte offset into the source (for a compressed image: into what came out of it, see the cause).
    Offset(u64),
}

/// What is wrong with a source.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// Debian and Ubuntu ship a one-line `System.map`.
    #[error("is a stub: {0}; give the kernel image (vmlinuz) of the same version instead")]
    Stub(String),
    /// `/proc/kallsyms` read without the right to see addresses.
    #[error("every address is zero: the kernel hides them (kptr_restrict); read it as root")]
    HiddenAddresses,
    /// Not one of the formats that this crate reads.
    #[error(
        "is none of bzImage, EFI zboot, unified kernel image, ELF, memory dump with kallsyms, System.map, \
         kallsyms text"
    )]
    UnknownFormat,
    /// An x86 or ARM kernel for 32-bit processors: its guests have no classes.
    #[error("a 32-bit kernel, and only 64-bit ones are read")]
    ThirtyTwoBit,
    /// A kernel for other processors, by their Linux name. KVM on x86-64 can't run it.
    #[error("{article} {0} kernel, and only x86-64 ones are read", article = if .0.starts_with('a') { "an" } else { "a" })]
    OtherArchitecture(&'static str),
    /// No symbol in it, for the reason given.
    #[error("no symbols: {0}")]
    NoSymbols(String),
    /// A field points outside the source or contradicts another.
    #[error("{0}")]
    Malformed(String),
    /// A limit that keeps a hostile source from eating memory or time.
    #[error("more than {limit} {what}: refused")]
    TooLarge { what: &'static str, limit: u64 },
    /// Two sources that should be one kernel are not.
    #[error("{0}")]
    Disagreement(String),
    /// The operating system said no.
    #[error("{0}")]
    Io(String),
}

/// Why a source gave no symbols: `source: place: cause`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Error {
    source_name: Option<String>,
    /// The place is in what the source's payload unpacks to.
    in_payload: bool,
    pub place: Place,
    pub cause: Cause,
}

impl Error {
    pub fn new(place: Place, cause: Cause) -> Self {
        Self { source_name: None, in_payload: false, place, cause }
    }

    /// A field at `offset` that can't be what it says.
    pub fn malformed(offset: u64, cause: impl Into<String>) -> Self {
        Self::new(Place::Offset(offset), Cause::Malformed(cause.into()))
    }

    pub fn too_large(what: &'static str, limit: u64) -> Self {
        Self::new(Place::Whole, Cause::TooLarge { what, limit })
    }

    pub fn no_symbols(why: impl Into<String>) -> Self {
        Self::new(Place::Whole, Cause::NoSymbols(why.into()))
    }

    pub fn io(error: &std::io::Error) -> Self {
        let cause = match error.kind() {
            std::io::ErrorKind::WouldBlock => "isn't a file that ends: more may come".to_owned(),
            _ => error.to_string(),
        };
        Self::new(Place::Whole, Cause::Io(cause))
    }

    /// Says that the place is in the unpacked payload, not in the file.
    #[must_use]
    pub fn in_payload(mut self) -> Self {
        self.in_payload = true;
        self
    }

    /// Names the file or process that the bytes came from. The first name given stays: it is the innermost.
    #[must_use]
    pub fn of(mut self, source_name: impl fmt::Display) -> Self {
        self.source_name.get_or_insert_with(|| source_name.to_string());
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = &self.source_name {
            write!(out, "{}: ", name.escape_debug())?;
        }
        if self.in_payload {
            write!(out, "inside the unpacked payload: ")?;
        }
        match self.place {
            Place::Whole => {}
            Place::Line(line) => write!(out, "line {line}: ")?,
            Place::Offset(offset) => write!(out, "offset {offset:#x}: ")?,
        }
        write!(out, "{}", self.cause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_line_with_file_place_and_cause() {
        let error = Error::malformed(0x2a, "the token index points past its table").of("vmlinuz").of("outer");
        assert_eq!(error.to_string(), "vmlinuz: offset 0x2a: the token index points past its table");
        let newline = Error::no_symbols("empty").of("a\nb");
        assert_eq!(newline.to_string().lines().count(), 1);
    }
}
