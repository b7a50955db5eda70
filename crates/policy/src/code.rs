//! Codes of enumerations. They cross the language border as plain `u32` ([`Code`]), because a kernel or a
//! recording may hand over any number; [`Code::get`] says which value it is. The values themselves are
//! generated.

use std::fmt;
use std::marker::PhantomData;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A value of enumeration `E` as C stores it.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct Code<E> {
    value: u32,
    meaning: PhantomData<E>,
}

impl<E> Code<E> {
    pub const fn raw(value: u32) -> Self {
        Self { value, meaning: PhantomData }
    }

    pub const fn value(self) -> u32 {
        self.value
    }
}

impl<E> Clone for Code<E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<E> Copy for Code<E> {}

impl<E> Default for Code<E> {
    fn default() -> Self {
        Self::raw(0)
    }
}

impl<E> PartialEq for Code<E> {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

impl<E> Eq for Code<E> {}

/// An enumeration whose values C knows by number.
pub trait Coded: Sized + Copy + 'static {
    /// Every value, at the index of its code.
    const ALL: &'static [Self];

    /// The name that counters and reports use.
    fn name(self) -> &'static str;

    /// The value of a code that policy code returned; an unknown code would be a fault of the build.
    fn of(code: u32) -> Self {
        Self::ALL[code as usize]
    }
}

impl<E: Coded> Code<E> {
    /// The value, or `None` for a number that the enumeration doesn't have.
    pub fn get(self) -> Option<E> {
        E::ALL.get(self.value as usize).copied()
    }
}

impl<E: Coded> fmt::Debug for Code<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.get() {
            Some(value) => f.write_str(value.name()),
            None => write!(f, "unknown code {}", self.value),
        }
    }
}

/// What `crates/border` writes for an enumeration: each value and its name, in the order of their codes.
#[macro_export]
macro_rules! coded {
    ($enumeration:ident { $($value:ident = $word:literal),+ }) => {
        impl $crate::Coded for $enumeration {
            const ALL: &'static [Self] = &[$($enumeration::$value),+];

            fn name(self) -> &'static str {
                match self { $($enumeration::$value => $word),+ }
            }
        }

        impl $enumeration {
            /// The value of a code that policy code returned.
            pub fn of(code: u32) -> Self {
                $crate::Coded::of(code)
            }
        }

        impl From<$enumeration> for $crate::Code<$enumeration> {
            fn from(value: $enumeration) -> Self {
                $crate::Code::raw(value as u32)
            }
        }

        impl std::fmt::Display for $enumeration {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str($crate::Coded::name(*self))
            }
        }
    };
}
