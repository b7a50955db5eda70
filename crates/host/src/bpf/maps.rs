//! Values of BPF maps, one at a time.

use crate::HostError;
use libbpf_rs::{MapCore, MapFlags, MapMut};
use zerocopy::FromBytes;

/// Reads one value of an array map.
pub(crate) fn lookup<T: FromBytes>(map: &impl MapCore, key: u32) -> Option<T> {
    let value = map.lookup(&key.to_le_bytes(), MapFlags::ANY).ok()??;
    T::read_from_prefix(&value).ok().map(|(value, _)| value)
}

/// Writes one value of an array map.
pub(crate) fn update(map: &MapMut<'_>, key: u32, value: &[u8]) -> Result<(), HostError> {
    write(map, &key.to_le_bytes(), value)
}

/// Writes one value of a map.
pub(crate) fn write(map: &MapMut<'_>, key: &[u8], value: &[u8]) -> Result<(), HostError> {
    map.update(key, value, MapFlags::ANY)
        .map_err(|error| HostError::broken(format!("map {}: {error}", map.name().to_string_lossy())))
}
