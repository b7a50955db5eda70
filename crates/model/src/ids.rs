//! Numbers of things as types of their own: the compiler refuses a VM's number where a vCPU's is asked for.
//! Each counts over the whole host, from 0, in the order of the configuration.
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Index, IndexMut};

/// A number that an [`IdVec`] is indexed by.
pub trait Id: Copy + Eq {
    fn from_index(index: usize) -> Self;
    fn index(self) -> usize;
}

macro_rules! ids {
    ($($(#[$what:meta])* $name:ident)*) => {$(
        $(#[$what])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u32);

        impl $name {
            /// In the place of one where there is none: no vector has it.
            pub const NONE: Self = Self(u32::MAX);

            #[inline(always)]
            pub const fn new(number: u32) -> Self {
                Self(number)
            }

            #[inline(always)]
            pub const fn number(self) -> u32 {
                self.0
            }

            #[inline(always)]
            pub const fn index(self) -> usize {
                self.0 as usize
            }

            #[inline(always)]
            pub const fn from_index(index: usize) -> Self {
                Self(index as u32)
            }

            /// The one that is so many behind it.
            #[inline(always)]
            pub const fn plus(self, count: u32) -> Self {
                Self(self.0 + count)
            }

            /// How many it is behind another one.
            #[inline(always)]
            pub const fn since(self, first: Self) -> u32 {
                self.0 - first.0
            }

            /// Those from it on, before `end`.
            #[inline(always)]
            pub fn until(self, end: Self) -> impl DoubleEndedIterator<Item = Self> + Clone {
                (self.0..end.0).map(Self)
            }

            /// So many, from it on.
            #[inline(always)]
            pub fn span(self, count: u32) -> impl DoubleEndedIterator<Item = Self> + Clone {
                self.until(self.plus(count))
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self::NONE
            }
        }

        impl Id for $name {
            #[inline(always)]
            fn from_index(index: usize) -> Self {
                Self::from_index(index)
            }

            #[inline(always)]
            fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        /// Messages name it by its number.
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}

ids! {
    VmId
    /// Over all VMs: a VM's vCPUs follow one another.
    VcpuId
    PcpuId
    /// Of the real scheduler's queues: those of domains, then those of single pCPUs.
    DomainQueueId
    /// Over all VMs, as a VM's threads follow one another; likewise the others below.
    ThreadId
    LockId
    WorkloadId
    QueueId
    BarrierId
    /// A function of a guest kernel, in a trace.
    SymbolId
}

/// A vector that is indexed by the numbers of what it holds.
#[derive(Debug, Clone, PartialEq)]
pub struct IdVec<I, T> {
    items: Vec<T>,
    of: PhantomData<fn(I)>,
}

impl<I: Id, T> IdVec<I, T> {
    pub fn new() -> Self {
        Self::default()
    }

    /// The same for each of so many.
    pub fn of(item: T, count: usize) -> Self
    where
        T: Clone,
    {
        vec![item; count].into()
    }

    #[inline(always)]
    pub fn len(&self) -> usize {
        self.items.len()
    }

    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// The number that the next one will have.
    pub fn next_id(&self) -> I {
        I::from_index(self.items.len())
    }

    pub fn push(&mut self, item: T) -> I {
        let id = self.next_id();
        self.items.push(item);
        id
    }

    pub fn extend(&mut self, items: impl IntoIterator<Item = T>) {
        self.items.extend(items);
    }

    #[inline(always)]
    pub fn get(&self, id: I) -> Option<&T> {
        self.items.get(id.index())
    }

    pub fn get_mut(&mut self, id: I) -> Option<&mut T> {
        self.items.get_mut(id.index())
    }

    pub fn ids(&self) -> impl DoubleEndedIterator<Item = I> + Clone + use<I, T> {
        (0..self.items.len()).map(I::from_index)
    }

    /// All of them once, from `first` on (or, if there is no such one, from the first of all).
    pub fn round_from(&self, first: I) -> impl Iterator<Item = I> + use<I, T> {
        let count = self.items.len();
        let first = if first.index() < count { first.index() } else { 0 };
        (first..count).chain(0..first).map(I::from_index)
    }

    pub fn iter(&self) -> std::slice::Iter<'_, T> {
        self.items.iter()
    }

    pub fn iter_mut(&mut self) -> std::slice::IterMut<'_, T> {
        self.items.iter_mut()
    }

    /// Each with its number.
    pub fn enumerate(&self) -> impl DoubleEndedIterator<Item = (I, &T)> {
        self.items.iter().enumerate().map(|(index, item)| (I::from_index(index), item))
    }

    /// Those from a number on.
    pub fn from(&self, first: I) -> &[T] {
        &self.items[first.index()..]
    }

    pub fn from_mut(&mut self, first: I) -> &mut [T] {
        &mut self.items[first.index()..]
    }

    pub fn fill(&mut self, item: T)
    where
        T: Clone,
    {
        self.items.fill(item);
    }
}

impl<I, T> Default for IdVec<I, T> {
    fn default() -> Self {
        Self { items: Vec::new(), of: PhantomData }
    }
}

impl<I, T> From<Vec<T>> for IdVec<I, T> {
    fn from(items: Vec<T>) -> Self {
        Self { items, of: PhantomData }
    }
}

impl<I, T> FromIterator<T> for IdVec<I, T> {
    fn from_iter<Items: IntoIterator<Item = T>>(items: Items) -> Self {
        Vec::from_iter(items).into()
    }
}

impl<I: Id, T> Index<I> for IdVec<I, T> {
    type Output = T;

    #[inline(always)]
    fn index(&self, id: I) -> &T {
        &self.items[id.index()]
    }
}

impl<I: Id, T> IndexMut<I> for IdVec<I, T> {
    #[inline(always)]
    fn index_mut(&mut self, id: I) -> &mut T {
        &mut self.items[id.index()]
    }
}

impl<'a, I, T> IntoIterator for &'a IdVec<I, T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.items.iter()
    }
}

impl<'a, I, T> IntoIterator for &'a mut IdVec<I, T> {
    type Item = &'a mut T;
    type IntoIter = std::slice::IterMut<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.items.iter_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vector_is_indexed_by_the_numbers_that_it_gave() {
        let mut names: IdVec<VmId, &str> = IdVec::new();
        let [first, second] = ["first", "second"].map(|name| names.push(name));
        assert_eq!((names[first], names[second], names.next_id()), ("first", "second", VmId::new(2)));
        assert_eq!(names.ids().collect::<Vec<_>>(), [first, second]);
        assert!(names.get(VmId::NONE).is_none());
    }

    #[test]
    fn a_span_has_so_many_from_its_first_on() {
        let first = VcpuId::new(3);
        assert_eq!(first.span(2).map(VcpuId::number).collect::<Vec<_>>(), [3, 4]);
        assert_eq!((first.plus(2).since(first), first.span(0).count()), (2, 0));
    }
}
