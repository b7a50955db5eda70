//! Stock Debian kernels, chosen by rule: "the newest of series X that passes the check".
//!
//! Versions come and go in the archive, so none is named here. Up to 6.18 one package holds a kernel; from
//! 6.19 on its `linux-image` package is empty and depends on `linux-binary-…` (the image) and
//! `linux-modules-…`. A kernel whose parts are not all in the archive any more is passed over.

use crate::cache::Cache;
use crate::packages::{Archive, Offer, is_complete};
use crate::{Error, Result, btf_check, say};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Debian's builds of each kernel: for any machine, with only what virtual machines have, and fully
/// preemptible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flavour {
    Generic,
    Cloud,
    RealTime,
}

impl Flavour {
    /// What a series' name and a release (before `-amd64`) end in.
    fn suffix(self) -> &'static str {
        match self {
            Self::Generic => "",
            Self::Cloud => "-cloud",
            Self::RealTime => "-rt",
        }
    }

    /// Flavour and the rest of a name that ends in its suffix.
    fn split(name: &str) -> (Self, &str) {
        let special = [Self::Cloud, Self::RealTime];
        let found =
            special.into_iter().find_map(|flavour| Some((flavour, name.strip_suffix(flavour.suffix())?)));
        found.unwrap_or((Self::Generic, name))
    }
}

/// What the BTF of an image must look like (docs/explanation/testbed.md: some builds describe a kfunc
/// wrongly).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Btf {
    /// Not looked at: a guest needs none.
    Any,
    /// sched_ext's kfuncs are described as callable: a scheduler that kicks can load.
    Good,
    /// They are not: for the test that such a host is refused.
    Broken,
}

/// Which kernel is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// `6.18`: the first two numbers of the version.
    pub series: (u32, u32),
    pub flavour: Flavour,
    pub btf: Btf,
}

/// A kernel that is unpacked in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    /// `6.18.15+deb13-amd64`, as `uname -r` says it.
    pub release: String,
    /// The bzImage.
    pub image: PathBuf,
    /// `lib/modules/RELEASE` of the unpacked packages.
    pub modules: PathBuf,
}

/// The series that the testbed's host runs unless told otherwise: long-term, newest stock one with sched_ext.
pub const DEFAULT_HOST: &str = "6.18";
/// Debian's kernels before this series are built without sched_ext.
const FIRST_WITH_SCHED_EXT: (u32, u32) = (6, 16);
/// The kernel that the guests run unless told otherwise.
pub const DEFAULT_GUEST: &str = "6.12-cloud";

/// Kernels of which only symbols are read, never booted: below 6.1, fully preemptible, newer than any that is
/// booted. Only their images are kept.
pub fn symbol_rules() -> Vec<Rule> {
    let names = ["5.10", "5.10-cloud", "6.12-rt", "7.2-rt", "7.3"];
    let rules: Result<Vec<Rule>> = names.into_iter().map(Rule::guest).collect();
    rules.expect("the names above are well formed")
}

/// Every kernel that tests and demo boot; `make kernels` fetches them all, and those of [`symbol_rules`].
pub fn all_rules() -> Vec<Rule> {
    let hosts = ["6.16", "6.18", "7.0", "7.2"].map(Rule::host);
    let guests = ["6.1", "6.1-cloud", "6.12", "6.12-cloud", "6.18-cloud", "7.2-cloud"].map(Rule::guest);
    let rules: Result<Vec<Rule>> =
        hosts.into_iter().chain([Rule::broken_host("7.2")]).chain(guests).collect();
    rules.expect("the names above are well formed")
}

impl Rule {
    /// A host kernel of `series` ("6.18"): one that can load a sched_ext scheduler, if Debian's kernels of
    /// that series have sched_ext at all.
    pub fn host(series: &str) -> Result<Self> {
        let rule: Self = series.parse()?;
        let btf = if rule.series >= FIRST_WITH_SCHED_EXT { Btf::Good } else { Btf::Any };
        Ok(Self { btf, ..rule })
    }

    /// A host kernel of `series` whose BTF is broken.
    pub fn broken_host(series: &str) -> Result<Self> {
        Ok(Self { btf: Btf::Broken, ..series.parse()? })
    }

    /// A guest kernel: "6.12" (generic) or "6.12-cloud".
    pub fn guest(name: &str) -> Result<Self> {
        name.parse()
    }

    /// The version numbers in `release` if this rule's series and flavour fit, for finding the newest.
    fn fits(&self, release: &str) -> Option<Vec<u32>> {
        let (flavour, version) = Flavour::split(release.strip_suffix("-amd64")?);
        version.starts_with(|first: char| first.is_ascii_digit()).then_some(())?;
        let numbers: Vec<u32> =
            version.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect();
        (flavour == self.flavour && numbers.starts_with(&[self.series.0, self.series.1])).then_some(numbers)
    }
}

impl FromStr for Rule {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let (flavour, series) = Flavour::split(name);
        let numbers = series
            .split_once('.')
            .and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
        let series = numbers.ok_or_else(|| Error::Kernel {
            wanted: name.into(),
            cause: "not a kernel series: write it as 6.18, 6.12-cloud or 6.12-rt".into(),
        })?;
        Ok(Self { series, flavour, btf: Btf::Any })
    }
}

impl std::fmt::Display for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (major, minor) = self.series;
        write!(f, "{major}.{minor}")?;
        f.write_str(self.flavour.suffix())?;
        f.write_str(match self.btf {
            Btf::Any => "",
            Btf::Good => " (host)",
            Btf::Broken => " (host with broken BTF)",
        })
    }
}

/// The newest kernel that `rule` allows: from the cache if it has one, else fetched.
pub fn obtain(cache: &Cache, rule: &Rule) -> Result<Kernel> {
    match cached(cache, rule)? {
        Some(kernel) => Ok(kernel),
        None => fetch(cache, rule),
    }
}

/// The newest fitting kernel in the cache. Touches no network.
pub fn cached(cache: &Cache, rule: &Rule) -> Result<Option<Kernel>> {
    let dir = cache.directory("kernels")?;
    let mut releases: Vec<(Vec<u32>, String)> = names(&dir)?
        .iter()
        .filter_map(|name| name.strip_prefix("linux-image-"))
        .filter_map(|release| Some((rule.fits(release)?, release.to_owned())))
        .collect();
    releases.sort();
    for (_, release) in releases.into_iter().rev() {
        let package = dir.join(format!("linux-image-{release}"));
        if is_complete(&package)
            && let Ok(kernel) = open(&package, &release)
            && passes(rule, &kernel)?
        {
            return Ok(Some(kernel));
        }
    }
    Ok(None)
}

/// Fetches the newest kernel of the archive that `rule` allows.
pub fn fetch(cache: &Cache, rule: &Rule) -> Result<Kernel> {
    let _lock = cache.lock("kernels", std::time::Duration::from_secs(1800))?;
    if let Some(kernel) = cached(cache, rule)? {
        return Ok(kernel); // another process fetched it while this one waited
    }
    let archive = Archive::open(cache)?;
    archive.refresh()?;
    let offers = archive.offers("linux-")?;
    let candidates = complete_candidates(rule, &offers);
    let mut last = "the archive has no complete kernel of this series (image and modules)".to_owned();
    for parts in candidates.iter().rev().take(4) {
        let release = parts[0].package.trim_start_matches("linux-image-");
        let dir = cache.directory("kernels")?.join(&parts[0].package);
        if !is_complete(&dir) {
            say(format_args!("fetching kernel {release} for {rule}"));
            match archive.unpack(parts, &dir) {
                Err(error) if parts.iter().any(|part| part.is_unlisted()) => {
                    last = format!("{release} is no longer complete: {error}");
                    continue;
                }
                result => result?,
            }
        }
        let kernel = open(&dir, release)?;
        if passes(rule, &kernel)? {
            return Ok(kernel);
        }
        last = format!("{release} doesn't pass: its BTF is {}", btf_check::of_image(&kernel.image)?);
    }
    Err(Error::Kernel { wanted: rule.to_string(), cause: last })
}

/// The newest image that `rule` allows, without modules: release and path. From the cache if it has one.
pub fn obtain_image(cache: &Cache, rule: &Rule) -> Result<(String, PathBuf)> {
    let _lock = cache.lock("kernels", std::time::Duration::from_secs(1800))?;
    let dir = cache.directory("kernels")?;
    let kept = names(&dir)?.into_iter().filter_map(|name| {
        let release = name.strip_prefix(IMAGE_ONLY)?;
        Some((rule.fits(release)?, release.to_owned()))
    });
    if let Some((_, release)) = kept.max() {
        let image = dir.join(format!("{IMAGE_ONLY}{release}/boot/vmlinuz-{release}"));
        return Ok((release, image));
    }
    let archive = Archive::open(cache)?;
    archive.refresh()?;
    let offers = archive.offers("linux-")?;
    let (offer, release) = newest_with_image(rule, &offers).ok_or_else(|| Error::Kernel {
        wanted: rule.to_string(),
        cause: "the archive has no image of this series".into(),
    })?;
    say(format_args!("fetching the image of kernel {release} for {rule}"));
    let unpacked = dir.join(format!("unpacked-{release}"));
    archive.unpack(&[offer], &unpacked)?;
    let image = keep_image(&dir, &unpacked, release)?;
    fs::remove_dir_all(&unpacked).map_err(|cause| Error::file(&unpacked, cause))?;
    Ok((release.to_owned(), image))
}

/// Folder of a kernel that has an image and nothing else.
const IMAGE_ONLY: &str = "image-only-";

/// The package that holds the newest fitting image: signed, or else as it was before signing.
fn newest_with_image<'a>(rule: &Rule, offers: &'a BTreeMap<String, Offer>) -> Option<(&'a Offer, &'a str)> {
    let holders = ["linux-binary-unsigned-", "linux-image-", "linux-binary-"];
    let found = offers.iter().flat_map(|(name, offer)| {
        holders.into_iter().enumerate().filter_map(move |(rank, prefix)| {
            let release = name.strip_prefix(prefix)?;
            let binary = format!("linux-binary-{release}");
            let is_empty = rank == 1 && offer.depends.contains(&binary);
            (!is_empty).then_some(())?;
            Some((rule.fits(release)?, rank, offer, release))
        })
    });
    let (_, _, offer, release) = found.max_by(|a, b| (&a.0, a.1).cmp(&(&b.0, b.1)))?;
    Some((offer, release))
}

/// Moves the image out of an unpacked package; the folder appears with the image in it.
fn keep_image(dir: &Path, unpacked: &Path, release: &str) -> Result<PathBuf> {
    let places = [
        format!("boot/vmlinuz-{release}"),
        format!("usr/lib/modules/{release}/vmlinuz"),
        format!("usr/lib/modules/{release}/vmlinuz.unsigned"),
    ];
    let found = places.iter().map(|place| unpacked.join(place)).find(|path| path.is_file());
    let found = found.ok_or_else(|| Error::file(unpacked, format_args!("holds no image of {release}")))?;
    let partial = unpacked.with_extension("image");
    let kept = dir.join(format!("{IMAGE_ONLY}{release}"));
    let image = format!("boot/vmlinuz-{release}");
    fs::create_dir_all(partial.join("boot"))
        .and_then(|()| fs::rename(&found, partial.join(&image)))
        .and_then(|()| fs::rename(&partial, &kept))
        .map_err(|cause| Error::file(&kept, cause))?;
    Ok(kept.join(image))
}

/// Per kernel that fits, oldest first: the packages that together hold image and modules, `linux-image`
/// first.
fn complete_candidates<'a>(rule: &Rule, offers: &'a BTreeMap<String, Offer>) -> Vec<Vec<&'a Offer>> {
    let mut found: Vec<(Vec<u32>, Vec<&Offer>)> = Vec::new();
    for (name, offer) in offers {
        let Some(release) = name.strip_prefix("linux-image-") else { continue };
        let Some(numbers) = rule.fits(release) else { continue };
        let mut parts = vec![offer];
        let split = [format!("linux-binary-{release}"), format!("linux-modules-{release}")];
        let mut complete = true;
        for part in split.iter().filter(|part| offer.depends.contains(part)) {
            match offers.get(part) {
                Some(part) => parts.push(part),
                None => complete = false,
            }
        }
        if complete {
            found.push((numbers, parts));
        }
    }
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found.into_iter().map(|(_, parts)| parts).collect()
}

fn passes(rule: &Rule, kernel: &Kernel) -> Result<bool> {
    Ok(match rule.btf {
        Btf::Any => true,
        Btf::Good => btf_check::of_image(&kernel.image)? == btf_check::Verdict::Good,
        Btf::Broken => btf_check::of_image(&kernel.image)? == btf_check::Verdict::Broken,
    })
}

/// Image and modules of an unpacked package.
fn open(package: &Path, release: &str) -> Result<Kernel> {
    let image = package.join(format!("boot/vmlinuz-{release}"));
    let modules = ["usr/lib/modules", "lib/modules"].map(|dir| package.join(dir).join(release));
    let modules = modules.into_iter().find(|dir| dir.is_dir());
    if let Some(beside_modules) = modules.as_ref().map(|dir| dir.join("vmlinuz"))
        && beside_modules.is_file()
        && !image.exists()
    {
        // Debian 14's kernels keep the image with their modules: readers of the cache find it in one place.
        let linked =
            fs::create_dir_all(package.join("boot")).and_then(|()| fs::hard_link(&beside_modules, &image));
        linked.map_err(|cause| Error::file(&image, cause))?;
    }
    match modules {
        Some(modules) if image.is_file() => Ok(Kernel { release: release.into(), image, modules }),
        _ => Err(Error::file(
            package,
            format_args!("holds no vmlinuz-{release} with its modules; delete it to fetch it again"),
        )),
    }
}

fn names(dir: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(dir).map_err(|cause| Error::file(dir, cause))?;
    Ok(entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offers(list: &[(&str, &[&str])]) -> BTreeMap<String, Offer> {
        let offer = |(package, depends): &(&str, &[&str])| Offer {
            package: (*package).into(),
            version: "1".into(),
            depends: depends.iter().map(|name| (*name).into()).collect(),
        };
        list.iter().map(offer).map(|offer| (offer.package.clone(), offer)).collect()
    }

    fn newest(rule: &str, list: &[(&str, &[&str])]) -> Option<Vec<String>> {
        let offers = offers(list);
        let rule = Rule::guest(rule).expect("rule");
        complete_candidates(&rule, &offers)
            .last()
            .map(|parts| parts.iter().map(|part| part.package.clone()).collect())
    }

    #[test]
    fn the_newest_of_a_series_is_found_by_number_not_by_letter() {
        let list: [(&str, &[&str]); 3] = [
            ("linux-image-6.18.9+deb13-amd64", &[]),
            ("linux-image-6.18.15+deb13-amd64", &[]),
            ("linux-image-6.1.0-50-amd64", &[]),
        ];
        assert_eq!(newest("6.18", &list), Some(vec!["linux-image-6.18.15+deb13-amd64".into()]));
        assert_eq!(newest("6.1", &list), Some(vec!["linux-image-6.1.0-50-amd64".into()]));
    }

    #[test]
    fn flavours_are_told_apart_and_real_time_builds_are_left_out() {
        let list: [(&str, &[&str]); 3] = [
            ("linux-image-6.12.9+deb13-amd64", &[]),
            ("linux-image-6.12.8+deb13-cloud-amd64", &[]),
            ("linux-image-6.12.10+deb13-rt-amd64", &[]),
        ];
        assert_eq!(newest("6.12", &list), Some(vec!["linux-image-6.12.9+deb13-amd64".into()]));
        assert_eq!(newest("6.12-cloud", &list), Some(vec!["linux-image-6.12.8+deb13-cloud-amd64".into()]));
        assert_eq!(newest("6.12-rt", &list), Some(vec!["linux-image-6.12.10+deb13-rt-amd64".into()]));
    }

    #[test]
    fn the_newest_image_is_taken_from_the_package_that_holds_it_signed_if_it_is() {
        let list: [(&str, &[&str]); 6] = [
            ("linux-image-5.10.0-32-amd64", &[]),
            ("linux-image-5.10.0-32-amd64-unsigned", &[]),
            ("linux-image-7.2.9-amd64", &["linux-binary-7.2.9-amd64"]),
            ("linux-binary-7.2.9-amd64", &[]),
            ("linux-binary-unsigned-7.2.9-amd64", &[]),
            ("linux-binary-unsigned-7.3.4-amd64", &[]),
        ];
        let offers = offers(&list);
        let newest = |rule: &str| {
            let rule = Rule::guest(rule).expect("rule");
            newest_with_image(&rule, &offers)
                .map(|(offer, release)| (offer.package.clone(), release.to_owned()))
        };
        let of = |package: &str, release: &str| Some((package.to_owned(), release.to_owned()));
        assert_eq!(newest("5.10"), of("linux-image-5.10.0-32-amd64", "5.10.0-32-amd64"));
        assert_eq!(newest("7.2"), of("linux-binary-7.2.9-amd64", "7.2.9-amd64"));
        assert_eq!(newest("7.3"), of("linux-binary-unsigned-7.3.4-amd64", "7.3.4-amd64"));
        assert_eq!(newest("7.4"), None);
    }

    #[test]
    fn a_split_kernel_whose_modules_left_the_archive_is_passed_over() {
        let image = "linux-image-7.2.9-amd64";
        let list: [(&str, &[&str]); 5] = [
            (image, &["linux-binary-7.2.9-amd64", "linux-modules-7.2.9-amd64"]),
            ("linux-binary-7.2.9-amd64", &[]),
            ("linux-modules-7.2.9-amd64", &[]),
            ("linux-image-7.2.13-amd64", &["linux-binary-7.2.13-amd64", "linux-modules-7.2.13-amd64"]),
            ("linux-binary-7.2.13-amd64", &[]),
        ];
        let parts = vec![image.into(), "linux-binary-7.2.9-amd64".into(), "linux-modules-7.2.9-amd64".into()];
        assert_eq!(newest("7.2", &list), Some(parts));
    }

    #[test]
    fn a_name_that_is_no_series_is_refused_with_an_example() {
        let error = Rule::guest("six").expect_err("not a series");
        assert!(error.to_string().contains("6.12-cloud"), "{error}");
    }
}
