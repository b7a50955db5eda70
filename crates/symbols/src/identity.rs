//! Which kernel a table belongs to.

/// Release, build ID and banner of a kernel, as far as the source tells.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Identity {
    /// `uname -r`, such as `6.12.43+deb13-cloud-amd64`.
    pub release: Option<String>,
    /// GNU build ID, lower-case hex.
    pub build_id: Option<String>,
    /// The line that the kernel prints first: `Linux version …`.
    pub banner: Option<String>,
}

impl Identity {
    /// The release inside a banner: its third word.
    pub fn release_of_banner(banner: &str) -> Option<&str> {
        banner.strip_prefix("Linux version ")?.split_whitespace().next()
    }

    /// Was it built for one processor? Behind its build number the banner says `SMP` if it wasn't (Linux,
    /// init/Makefile).
    pub fn is_uniprocessor(&self) -> bool {
        let flags = self.banner.as_ref().and_then(|banner| banner.split_once(" #"));
        flags.is_some_and(|(_, flags)| flags.split_whitespace().all(|word| word != "SMP"))
    }

    /// What `self` and `other` both know and see differently, one phrase a field; empty when they can be one
    /// kernel. The banner, which holds the release and when it was built, speaks only where nothing else did.
    pub fn disagreements(&self, other: &Identity) -> Vec<String> {
        let differ = |field: &str, ours: &Option<String>, theirs: &Option<String>| match (ours, theirs) {
            (Some(ours), Some(theirs)) if ours != theirs => Some(format!("{field} {ours} against {theirs}")),
            _ => None,
        };
        let build_id = differ("build ID", &self.build_id, &other.build_id);
        let release = differ("release", &self.release, &other.release);
        let phrases: Vec<String> = build_id.into_iter().chain(release).collect();
        if phrases.is_empty() {
            differ("banner", &self.banner, &other.banner).into_iter().collect()
        } else {
            phrases
        }
    }

    /// Fills what `self` lacks from `other`.
    pub fn complete_from(&mut self, other: Identity) {
        self.release = self.release.take().or(other.release);
        self.build_id = self.build_id.take().or(other.build_id);
        self.banner = self.banner.take().or(other.banner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_for_one_processor_has_no_smp_behind_its_build_number() {
        let of_banner =
            |banner: &str| Identity { banner: Some(banner.into()), ..Identity::default() }.is_uniprocessor();
        assert!(!of_banner(
            "Linux version 6.1.0-38-amd64 (a@b) (gcc-12) #1 SMP PREEMPT_DYNAMIC Debian 6.1.1"
        ));
        assert!(of_banner(
            "Linux version 6.12.4 (SMP@b) (gcc 14) #2 PREEMPT_DYNAMIC Mon Jan  1 00:00:00 UTC 2026"
        ));
        assert!(of_banner("Linux version 4.19.1 (a@b) (gcc 8) #1 Mon Jan 1 00:00:00 UTC 2026"));
        assert!(!of_banner("Linux version 6.1.0"), "nothing is said of it");
        assert!(!Identity::default().is_uniprocessor());
    }

    #[test]
    fn the_release_is_the_third_word_of_the_banner() {
        let banner = "Linux version 6.1.0-38-amd64 (debian-kernel@lists.debian.org) (gcc-12) #1 SMP";
        assert_eq!(Identity::release_of_banner(banner), Some("6.1.0-38-amd64"));
        assert_eq!(Identity::release_of_banner("Windows version 3"), None);
    }

    #[test]
    fn only_fields_that_both_know_can_disagree() {
        let image = Identity { release: Some("6.1.0".into()), build_id: Some("ab".into()), banner: None };
        let memory = Identity { release: Some("6.2.0".into()), build_id: None, banner: Some("x".into()) };
        assert_eq!(image.disagreements(&memory), ["release 6.1.0 against 6.2.0"]);
        assert!(image.disagreements(&Identity::default()).is_empty());
    }
}
