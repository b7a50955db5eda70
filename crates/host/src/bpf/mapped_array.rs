//! Array maps of BPF programs, mapped into memory.
//!
//! Problem.   While the kernel looks up a value for a process it runs no BPF program of a tracepoint on that
//!            pCPU (`bpf_disable_instrumentation`, `kernel/bpf/syscall.c`). A process preempted there keeps
//!            them off until its next turn. 1,008 HLT exits were left out beside 26,272 hints (host_kernels,
//!            7.0), because the daemon reads all slots five times a second.
//! Mechanism. Maps that the daemon reads all the time are `BPF_F_MMAPABLE`, and read without a call.
//! Races.     Words are read one by one, while programs write them: as with a call, which copies without a
//!            lock, too.

use crate::HostError;
use libbpf_rs::MapCore;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use zerocopy::{FromBytes, IntoBytes};

const WORD: usize = size_of::<u64>();

/// Values of one array map, for as long as this lives.
pub(crate) struct MappedArray {
    words: NonNull<[AtomicU64]>,
    words_per_value: usize,
}

// SAFETY: all that the pointer leads to is atomic, and stays mapped while this lives.
unsafe impl Send for MappedArray {}

impl MappedArray {
    /// # Errors
    /// The map isn't `BPF_F_MMAPABLE`, or there is no memory.
    pub fn of(map: &impl MapCore) -> Result<Self, HostError> {
        // The kernel rounds values up to words (kernel/bpf/arraymap.c).
        let words_per_value = (map.value_size() as usize).div_ceil(WORD);
        let words = words_per_value * map.max_entries() as usize;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping of as many bytes as the map's values have; nobody else knows its address.
        let memory = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                words * WORD,
                access,
                libc::MAP_SHARED,
                map.as_fd().as_raw_fd(),
                0,
            )
        };
        match NonNull::new(memory.cast()) {
            Some(start) if memory != libc::MAP_FAILED => {
                Ok(Self { words: NonNull::slice_from_raw_parts(start, words), words_per_value })
            }
            _ => {
                let name = map.name().to_string_lossy().into_owned();
                let cause = std::io::Error::last_os_error();
                Err(HostError::broken(format!("BPF map {name} can't be mapped into memory: {cause}")))
            }
        }
    }

    fn value(&self, key: u32) -> Option<&[AtomicU64]> {
        // SAFETY: mapped, aligned to a page, of this size, and atomic throughout.
        let words = unsafe { self.words.as_ref() };
        words.chunks_exact(self.words_per_value).nth(key as usize)
    }

    /// Reads the beginning of a value.
    pub fn get<T: FromBytes + IntoBytes>(&self, key: u32) -> Option<T> {
        read(self.value(key)?)
    }

    /// Reads what stands in a value so many bytes from its beginning, a multiple of a word.
    pub fn get_at<T: FromBytes + IntoBytes>(&self, key: u32, offset: usize) -> Option<T> {
        read(self.value(key)?.get(offset / WORD..)?)
    }

    /// Reads the end of a value: mechanisms keep their state behind the core's.
    pub fn get_last<T: FromBytes + IntoBytes>(&self, key: u32) -> Option<T> {
        let words = self.value(key)?;
        read(&words[words.len().checked_sub(size_of::<T>().div_ceil(WORD))?..])
    }

    /// Sets the first word of a value.
    pub fn set(&self, key: u32, word: u64) {
        if let Some(first) = self.value(key).and_then(<[_]>::first) {
            first.store(word, Ordering::Relaxed);
        }
    }
}

/// Reads a value from where it begins. Takes no memory: a real-time thread reads thousands a second.
fn read<T: FromBytes + IntoBytes>(words: &[AtomicU64]) -> Option<T> {
    let mut value = T::new_zeroed();
    let parts = value.as_mut_bytes().chunks_mut(WORD);
    if parts.len() > words.len() {
        return None;
    }
    for (part, word) in parts.zip(words) {
        part.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes()[..part.len()]);
    }
    Some(value)
}

impl Drop for MappedArray {
    fn drop(&mut self) {
        // SAFETY: the mapping that of() made, which nobody has a reference into any more.
        unsafe { libc::munmap(self.words.as_ptr().cast(), self.words.len() * WORD) };
    }
}
