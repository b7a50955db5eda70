//! The longest wait for a pCPU in each second: what operators set bounds to.

const SECOND_NS: u64 = 1_000_000_000;

/// A VM's longest wait of each second. A wait belongs to the second in which it ends, that one's very end
/// included.
#[derive(Debug, Clone, Default)]
pub struct LongestWaits {
    second_end_ns: u64,
    longest_ns: u64,
    seconds: Vec<u64>,
}

impl LongestWaits {
    /// Returns that of a VM whose first second begins at `since_ns`.
    pub fn since(since_ns: u64) -> Self {
        Self { second_end_ns: since_ns + SECOND_NS, ..Self::default() }
    }

    /// A vCPU has waited so long until now.
    #[inline]
    pub fn waited(&mut self, now_ns: u64, waited_ns: u64) {
        if now_ns > self.second_end_ns {
            self.end_seconds(now_ns);
        }
        self.longest_ns = self.longest_ns.max(waited_ns);
    }

    /// Returns one value for each second, the one that has begun included.
    pub fn seconds(&self) -> Vec<u64> {
        self.seconds.iter().copied().chain([self.longest_ns]).collect()
    }

    #[cold]
    fn end_seconds(&mut self, now_ns: u64) {
        while now_ns > self.second_end_ns {
            self.seconds.push(std::mem::take(&mut self.longest_ns));
            self.second_end_ns += SECOND_NS;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_second_has_its_longest_wait() {
        let mut waits = LongestWaits::since(SECOND_NS / 2);
        waits.waited(SECOND_NS, 3);
        waits.waited(SECOND_NS + SECOND_NS / 2, 2);
        waits.waited(SECOND_NS + SECOND_NS / 2 + 1, 1);
        // Nobody waits in the third.
        waits.waited(4 * SECOND_NS - SECOND_NS / 2 + 1, 7);
        assert_eq!(waits.seconds(), [3, 1, 0, 7]);
    }
}
