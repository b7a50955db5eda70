//! Which limit has which place in the kernel side's table: VMs that lie in the same limited cgroup share its place.

use crate::cgroups::CpuLimit;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// `LIMITS_MAX` of `bpf/intf.h`.
pub const LIMITS_MAX: u32 = 1024;

/// By the file that says so.
#[derive(Debug, Default)]
pub struct LimitPlaces(BTreeMap<PathBuf, u32>);

impl LimitPlaces {
    /// The place of this limit, which it keeps as long as it is used; `None` if there is no room.
    pub fn place_of(&mut self, limit: &CpuLimit) -> Option<u32> {
        if let Some(place) = self.0.get(&limit.file) {
            return Some(*place);
        }
        let place = (0..LIMITS_MAX).find(|place| !self.0.values().any(|taken| taken == place))?;
        self.0.insert(limit.file.clone(), place);
        Some(place)
    }

    /// Forgets the limits that no VM has any more.
    pub fn keep(&mut self, used: &[&CpuLimit]) {
        self.0.retain(|file, _| used.iter().any(|limit| limit.file == *file));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(name: &str) -> CpuLimit {
        CpuLimit { quota_us: 1, period_us: 1, file: name.into() }
    }

    #[test]
    fn vms_of_one_cgroup_share_a_place_and_one_that_is_free_is_used_again() {
        let mut places = LimitPlaces::default();
        let [a, b, c] = ["a", "b", "c"].map(limit);
        assert_eq!(
            (places.place_of(&a), places.place_of(&b), places.place_of(&a)),
            (Some(0), Some(1), Some(0))
        );
        places.keep(&[&b]);
        assert_eq!((places.place_of(&c), places.place_of(&b)), (Some(0), Some(1)));
    }

    #[test]
    fn there_is_room_for_so_many_and_no_more() {
        let mut places = LimitPlaces::default();
        for number in 0..LIMITS_MAX {
            assert_eq!(places.place_of(&limit(&number.to_string())), Some(number));
        }
        assert_eq!(places.place_of(&limit("one more")), None);
    }
}
