//! Debian packages from the archive that this machine already uses, without touching this machine's own apt.
//!
//! A private apt configuration (lists, downloads) under the cache asks the mirror that the system's own
//! sources name for further suites: newer kernels and QEMU live in backports. Signatures are checked against
//! Debian's archive keyring. Nothing is installed; packages are unpacked with `dpkg-deb`.

use crate::cache::Cache;
use crate::{Error, Result, say};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

pub(crate) const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Package lists older than this are fetched again before something new is chosen from them.
const LISTS_STALE_AFTER: Duration = Duration::from_secs(24 * 3600);

/// Suites of one mirror, oldest first. All of them are asked for kernels.
const SUITES: [&str; 6] = ["bookworm", "bookworm-backports", "trixie", "trixie-backports", "forky", "sid"];

/// Suites that have kernels below 6.1 and will leave the mirror one day: then it goes on without them.
const OLD_SUITES: [&str; 1] = ["bullseye"];

/// A package that left the archive's lists, while its file is still in the archive's pool.
struct Unlisted {
    package: &'static str,
    version: &'static str,
    path: &'static str,
    /// No list vouches for it any more: what it held when it was last seen.
    sha256: &'static str,
}

/// The modules of the last 7.0, and the headers of the last 6.18: the lists name their images, and neither of
/// any other 7.0 or 6.18.
const UNLISTED: [Unlisted; 4] = [
    Unlisted {
        package: "linux-modules-7.0.13+deb13-amd64",
        version: "7.0.13-1~bpo13+1",
        path: "pool/main/l/linux/linux-modules-7.0.13+deb13-amd64_7.0.13-1~bpo13+1_amd64.deb",
        sha256: "787ac652f5fac4805092ed951a6ae617d448684f5f399659f0e5dcfa544fabf4",
    },
    Unlisted {
        package: "linux-headers-6.18.15+deb13-cloud-amd64",
        version: "6.18.15-1~bpo13+1",
        path: "pool/main/l/linux/linux-headers-6.18.15+deb13-cloud-amd64_6.18.15-1~bpo13+1_amd64.deb",
        sha256: "3bd2a70ec82944d17b69824a428defb090708ec284c173f96a4171ba8aa271c2",
    },
    Unlisted {
        package: "linux-headers-6.18.15+deb13-common",
        version: "6.18.15-1~bpo13+1",
        path: "pool/main/l/linux/linux-headers-6.18.15+deb13-common_6.18.15-1~bpo13+1_all.deb",
        sha256: "a54ed9b3be5247fe2e003423e067cb8e8b06e4a44a09459b85cfec0afbcbd5ef",
    },
    Unlisted {
        package: "linux-kbuild-6.18.15+deb13",
        version: "6.18.15-1~bpo13+1",
        path: "pool/main/l/linux/linux-kbuild-6.18.15+deb13_6.18.15-1~bpo13+1_amd64.deb",
        sha256: "5e64129020cdb5effd6ed3895ca89608ef17bcf643eedfc8013dad89bab70a02",
    },
];

/// A package that the archive offers: what choosing needs to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    pub package: String,
    pub version: String,
    /// Names of the packages it depends on, alternatives included.
    pub depends: Vec<String>,
}

impl Offer {
    /// Whether only its file is left, which may be gone tomorrow.
    pub fn is_unlisted(&self) -> bool {
        UNLISTED.iter().any(|one| one.offer() == *self)
    }
}

impl Unlisted {
    fn offer(&self) -> Offer {
        Offer { package: self.package.into(), version: self.version.into(), depends: Vec::new() }
    }
}

/// The archive through a private apt.
#[derive(Debug)]
pub struct Archive {
    dir: PathBuf,
}

impl Archive {
    /// Prepares the private configuration. Touches no network.
    pub fn open(cache: &Cache) -> Result<Self> {
        if !Path::new(KEYRING).is_file() {
            return Err(Error::Sources(format!("{KEYRING} is missing: install debian-archive-keyring")));
        }
        let dir = cache.directory("apt")?;
        for part in ["lists/partial", "archives/partial"] {
            cache.directory(&format!("apt/{part}"))?;
        }
        Ok(Self { dir })
    }

    /// Fetches the package lists of all suites, unless they are fresh.
    pub fn refresh(&self) -> Result<()> {
        let stamp = self.dir.join("refreshed");
        let suites = [&OLD_SUITES[..], &SUITES[..]].concat().join(" ");
        let age = fs::metadata(&stamp)
            .and_then(|meta| meta.modified())
            .ok()
            .and_then(|at| SystemTime::now().duration_since(at).ok());
        let of_these_suites = fs::read_to_string(&stamp).is_ok_and(|asked| asked == suites);
        if of_these_suites && age.is_some_and(|age| age < LISTS_STALE_AFTER) {
            return Ok(());
        }
        say("fetching Debian's package lists");
        let mirror = mirror()?;
        if let Err(error) = self.update(&mirror, &[&OLD_SUITES[..], &SUITES[..]].concat()) {
            say(format_args!("without {}: {error}", OLD_SUITES.join(", ")));
            self.update(&mirror, &SUITES)?;
        }
        fs::write(&stamp, suites).map_err(|cause| Error::file(&stamp, cause))
    }

    fn update(&self, mirror: &str, suites: &[&str]) -> Result<()> {
        let sources: String =
            suites.iter().map(|suite| format!("deb [signed-by={KEYRING}] {mirror} {suite} main\n")).collect();
        let path = self.dir.join("sources.list");
        fs::write(&path, sources).map_err(|cause| Error::file(&path, cause))?;
        run(self.apt("apt-get").arg("update")).map(drop)
    }

    /// Every offered package whose name starts with `prefix`: its newest version.
    pub fn offers(&self, prefix: &str) -> Result<BTreeMap<String, Offer>> {
        let names = run(self.apt("apt-cache").args(["pkgnames", prefix]))?;
        let names: Vec<&str> = names.lines().filter(|name| !name.ends_with("-dbg")).collect();
        let mut offers = BTreeMap::new();
        if !names.is_empty() {
            // A name that is only mentioned in some other package's relations has no paragraph, and apt
            // complains of it.
            let paragraphs = self.apt("apt-cache").args(["show", "--no-all-versions"]).args(&names).output();
            let paragraphs =
                paragraphs.map_err(|cause| Error::Program { program: "apt-cache".into(), cause })?;
            offers = parse_offers(&String::from_utf8_lossy(&paragraphs.stdout));
        }
        for unlisted in UNLISTED.iter().filter(|unlisted| unlisted.package.starts_with(prefix)) {
            offers.entry(unlisted.package.to_owned()).or_insert_with(|| unlisted.offer());
        }
        Ok(offers)
    }

    /// Downloads exactly these packages and unpacks them, one over the other, into `into`. Tries it twice.
    ///
    /// The result appears at once and complete: an interrupted run leaves nothing that looks finished.
    pub fn unpack(&self, offers: &[&Offer], into: &Path) -> Result<()> {
        self.try_to_unpack(offers, into).or_else(|error| {
            say(format_args!("{error}; trying once more"));
            self.try_to_unpack(offers, into)
        })
    }

    fn try_to_unpack(&self, offers: &[&Offer], into: &Path) -> Result<()> {
        let downloads = self.scratch("download")?;
        let (unlisted, listed): (Vec<&Offer>, Vec<&Offer>) =
            offers.iter().copied().partition(|offer| offer.is_unlisted());
        let wanted = listed.iter().map(|offer| format!("{}={}", offer.package, offer.version));
        if !listed.is_empty() {
            run(self.apt("apt-get").current_dir(&downloads).arg("download").args(wanted))?;
        }
        for one in UNLISTED.iter().filter(|one| unlisted.iter().any(|offer| offer.package == one.package)) {
            self.download(one, &downloads).inspect_err(|_| drop(remove(&downloads)))?;
        }
        self.unpack_all(&downloads, into)
    }

    /// By its address, with the system's transport settings; refused if its content isn't what it was.
    fn download(&self, unlisted: &Unlisted, into: &Path) -> Result<()> {
        let address = format!("{}/{}", mirror()?.trim_end_matches('/'), unlisted.path);
        let file = into.join(format!("{}.deb", unlisted.package));
        let mut helper = self.apt("/usr/lib/apt/apt-helper");
        helper.arg("download-file").arg(address).arg(file).arg(format!("SHA256:{}", unlisted.sha256));
        run(&mut helper).map(drop)
    }

    /// Downloads `packages` of `release` (backports included) with all they depend on, as if for an empty
    /// machine, and unpacks them into `into`.
    pub fn unpack_with_dependencies(&self, release: &str, packages: &[&str], into: &Path) -> Result<()> {
        let downloads = self.scratch("closure")?;
        fs::create_dir_all(downloads.join("partial")).map_err(|cause| Error::file(&downloads, cause))?;
        // Only this release may serve the dependencies, else a newer suite's libraries come along.
        let mirror = mirror()?;
        let sources: String = [release, &format!("{release}-backports")]
            .iter()
            .map(|suite| format!("deb [signed-by={KEYRING}] {mirror} {suite} main\n"))
            .collect();
        let list = self.dir.join(format!("sources-{release}.list"));
        fs::write(&list, sources).map_err(|cause| Error::file(&list, cause))?;
        let mut apt = self.apt("apt-get");
        apt.arg("-o").arg(format!("Dir::Etc::sourcelist={}", list.display()));
        apt.arg("-o").arg(format!("Dir::Cache::archives={}", downloads.display()));
        apt.args(["install", "--yes", "--download-only", "--no-install-recommends"]);
        apt.arg(format!("--target-release={release}-backports")).args(packages);
        run(&mut apt)?;
        self.unpack_all(&downloads, into)
    }

    fn unpack_all(&self, downloads: &Path, into: &Path) -> Result<()> {
        let mut partial = into.as_os_str().to_owned();
        partial.push(".partial");
        let partial = PathBuf::from(partial);
        remove(&partial)?;
        fs::create_dir_all(&partial).map_err(|cause| Error::file(&partial, cause))?;
        for package in list(downloads, "deb")? {
            run(Command::new("dpkg-deb").arg("--extract").arg(&package).arg(&partial))?;
        }
        let done = partial.join(COMPLETE);
        fs::write(&done, "").map_err(|cause| Error::file(&done, cause))?;
        remove(into)?;
        fs::rename(&partial, into).map_err(|cause| Error::file(into, cause))?;
        remove(downloads)
    }

    fn scratch(&self, name: &str) -> Result<PathBuf> {
        let path = self.dir.join(format!("{name}-{}", std::process::id()));
        remove(&path)?;
        fs::create_dir_all(&path).map_err(|cause| Error::file(&path, cause))?;
        Ok(path)
    }

    /// An apt program that sees only our directories, and the system's transport settings (proxies).
    fn apt(&self, program: &str) -> Command {
        let dir = self.dir.display();
        let mut command = Command::new(program);
        for setting in [
            format!("Dir::Etc::sourcelist={dir}/sources.list"),
            "Dir::Etc::sourceparts=/dev/null".into(),
            "Dir::Etc::preferences=/dev/null".into(),
            "Dir::Etc::preferencesparts=/dev/null".into(),
            format!("Dir::State::lists={dir}/lists"),
            "Dir::State::status=/dev/null".into(),
            format!("Dir::Cache={dir}"),
            format!("Dir::Cache::archives={dir}/archives"),
            // Container images switch them off, and each call reads all lists anew then.
            "Dir::Cache::pkgcache=pkgcache.bin".into(),
            "Dir::Cache::srcpkgcache=srcpkgcache.bin".into(),
            "APT::Architecture=amd64".into(),
            "APT::Architectures=amd64".into(),
            "APT::Sandbox::User=".into(),
            "APT::Update::Post-Invoke-Success=".into(),
            "Acquire::Languages=none".into(),
            "Acquire::Retries=3".into(),
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".into(),
            "Debug::NoLocking=1".into(),
        ] {
            command.arg("-o").arg(setting);
        }
        command.env("LC_ALL", "C").env("DEBIAN_FRONTEND", "noninteractive");
        command
    }
}

/// The mark of a directory whose packages are all unpacked.
const COMPLETE: &str = ".complete";

/// Whether `dir` was unpacked to its end.
pub fn is_complete(dir: &Path) -> bool {
    dir.join(COMPLETE).is_file()
}

/// The mirror that this machine's own sources name for Debian's main archive.
pub(crate) fn mirror() -> Result<String> {
    let format = "$(RELEASE) $(COMPONENT) $(REPO_URI)";
    let targets =
        run(Command::new("apt-get").args(["indextargets", "--format", format, "Created-By: Packages"]))?;
    parse_mirror(&targets).ok_or_else(|| {
        Error::Sources("no Debian suite among this machine's apt sources (apt-get indextargets)".into())
    })
}

/// The repository of the first plain Debian release in `indextargets`' output (not its updates or security
/// suites, which may live elsewhere).
fn parse_mirror(targets: &str) -> Option<String> {
    targets.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let (release, component, uri) = (words.next()?, words.next()?, words.next()?);
        (SUITES.contains(&release) && component == "main").then(|| uri.to_owned())
    })
}

fn parse_offers(paragraphs: &str) -> BTreeMap<String, Offer> {
    let mut offers = BTreeMap::new();
    for paragraph in paragraphs.split("\n\n") {
        let field = |name: &str| {
            paragraph
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
                .map(|value| value.trim().to_owned())
        };
        if let (Some(package), Some(version)) = (field("Package"), field("Version")) {
            let depends = field("Depends").unwrap_or_default();
            let depends =
                depends.split([',', '|']).filter_map(|one| one.split_whitespace().next()).map(str::to_owned);
            let offer = Offer { package: package.clone(), version, depends: depends.collect() };
            offers.insert(package, offer);
        }
    }
    offers
}

/// Runs `command` to its end and returns its standard output; a failure carries the end of what it said.
pub(crate) fn run(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|cause| Error::Program { program: program.clone(), cause })?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let last: Vec<&str> = said.lines().rev().filter(|line| !line.trim().is_empty()).take(3).collect();
        let output_end = last.into_iter().rev().collect::<Vec<_>>().join("; ");
        return Err(Error::Failed { program, status: output.status.to_string(), output: output_end });
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

pub(crate) fn remove(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(cause) if cause.kind() != std::io::ErrorKind::NotFound => Err(Error::file(path, cause)),
        _ => Ok(()),
    }
}

fn list(dir: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(dir).map_err(|cause| Error::file(dir, cause))?;
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.retain(|path| path.extension() == Some(OsStr::new(extension)));
    paths.sort();
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mirror_is_the_one_of_the_plain_release() {
        let targets = "bookworm-security main http://security.example/debian-security/\n\
                       nodistro main https://other.example/\n\
                       bookworm main http://mirror.example/debian/\n";
        assert_eq!(parse_mirror(targets).as_deref(), Some("http://mirror.example/debian/"));
        assert_eq!(parse_mirror("noble main http://elsewhere.example/\n"), None);
    }

    #[test]
    fn offers_keep_version_and_the_names_depended_on() {
        let text = "Package: linux-image-7.2.1-amd64\nVersion: 7.2.1-1\nDepends: dracut | initramfs-tools (>= 0.1), \
                    linux-modules-7.2.1-amd64 (= 7.2.1-1)\nDescription: x\n long\n\nPackage: other\nVersion: 2\n";
        let offers = parse_offers(text);
        assert_eq!(offers["linux-image-7.2.1-amd64"].version, "7.2.1-1");
        assert_eq!(
            offers["linux-image-7.2.1-amd64"].depends,
            ["dracut", "initramfs-tools", "linux-modules-7.2.1-amd64"]
        );
        assert!(offers["other"].depends.is_empty());
    }
}
