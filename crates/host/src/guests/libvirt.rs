//! libvirt's domains: UUID and policy of a VM, from the file in which libvirt has a running domain's state.
//!
//! Problem.   What is to hold for one VM belongs to its domain, and may change while it runs. A call to
//!            libvirt waits for a daemon that may hang, or be upgraded, while VMs run. A hook of libvirt's
//!            must never wait for us.
//! Mechanism. libvirt writes `/run/libvirt/qemu/NAME.xml` at a domain's start and with each change of it, by
//!            renaming a whole file (`virDomainObjSave`). A VM's file is found by the name that libvirt gave
//!            the VMM. It is looked at once a second, and read when it is another one than before. The policy
//!            is the element `vm` of our namespace in `<metadata>`.
//! Trust.     The folder is root's: a tenant can't write there. The file has to be root's and regular, of 1
//!            MiB and bounded parts. It has to name the process that runs the VM, and be XML without a DTD.
//!            What it says wrong costs that VM its policy.
//! Limits.    Domains of a user's own daemon, and of one in a container, have their files elsewhere: their
//!            VMs are called by their names, without UUID and metadata.
//!
//! A file of a tmpfs can't hang. It is looked at, one `lstat` a second, because a queue of its events could
//! overflow.

use crate::settings::vm_policy::VmPolicy;
use roxmltree::{Document, Node, ParsingOptions};
use rustix::fs::{FileType, Mode, OFlags, fstat};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Where libvirt's daemon keeps the state of domains.
pub const STATE_FOLDER: &str = "/run/libvirt/qemu";
/// The XML namespace of a domain's policy; docs/how-to/libvirt.md has its schema.
pub const NAMESPACE: &str = "https://github.com/microslice/microslice/libvirt/1";

/// Far more than a domain has.
const BYTES_MAX: u64 = 1 << 20;
const NODES_MAX: u32 = 100_000;
/// Declared in the whole file, and of one element. Far more than a domain has; the parser takes the square of
/// them in time, and of namespaces in memory.
const NAMESPACES_MAX: usize = 200;
const ATTRIBUTES_MAX: usize = 1000;
/// No file has a longer name.
const NAME_BYTES_MAX: usize = 255;

/// A running VM by libvirt's state file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Domain {
    pub uuid: Option<String>,
    pub policy: VmPolicy,
}

/// A change of what it says.
#[derive(Debug, PartialEq, Eq)]
pub struct News {
    /// One for the operator, if there is something to be said.
    pub line: Option<String>,
}

/// The file of one VM, and what it said when it was looked at last.
#[derive(Debug, Default)]
pub struct StateFile {
    /// `None`: no domain can have such a name.
    path: Option<PathBuf>,
    pid: u32,
    stamp: Option<Stamp>,
    domain: Option<Domain>,
    /// The fault that was found in it.
    trouble: Option<String>,
}

/// Tells one file from the next under the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    bytes: u64,
    changed: (i64, i64),
}

/// The content of a file.
#[derive(Debug, Default, PartialEq, Eq)]
struct Said {
    /// `None`: it is no domain's that this process runs.
    domain: Option<Domain>,
    /// A policy that doesn't hold: where and why.
    trouble: Option<String>,
}

impl StateFile {
    /// Names the state file of the VM `name` that process `pid` runs. `folder` is [`STATE_FOLDER`], but for
    /// tests.
    pub fn of(folder: &Path, name: &str, pid: u32) -> Self {
        let file = format!("{name}.xml");
        let can_be = !name.is_empty() && !name.contains(['/', '\0']) && file.len() <= NAME_BYTES_MAX;
        Self { path: can_be.then(|| folder.join(file)), pid, ..Self::default() }
    }

    pub fn uuid(&self) -> Option<&str> {
        self.domain.as_ref()?.uuid.as_deref()
    }

    /// Returns the policy that its metadata give it.
    pub fn policy(&self) -> VmPolicy {
        self.domain.as_ref().map(|domain| domain.policy.clone()).unwrap_or_default()
    }

    /// Looks at it again. `None`: as before.
    pub fn look(&mut self) -> Option<News> {
        let path = self.path.clone()?;
        match std::fs::symlink_metadata(&path) {
            Ok(found) if self.stamp == Some(Stamp::of(&found)) => None,
            Ok(found) => {
                self.stamp = Some(Stamp::of(&found));
                match read(&path) {
                    Ok(text) => self.hear(said(&text, self.pid), &path),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {
                        self.hear(Said::default(), &path)
                    }
                    Err(error) => self.keep(error.to_string(), &path),
                }
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                self.stamp = None;
                self.hear(Said::default(), &path)
            }
            Err(error) => self.keep(error.to_string(), &path),
        }
    }

    fn hear(&mut self, said: Said, path: &Path) -> Option<News> {
        let before = (self.policy(), self.trouble.take());
        let is_same_domain = self.domain == said.domain;
        self.domain = said.domain;
        self.trouble = said.trouble.map(|cause| format!("{}:{cause}", path.display()));
        if is_same_domain && self.trouble == before.1 {
            return None;
        }
        let policy = self.policy();
        let line = match &self.trouble {
            Some(trouble) if before.1.as_ref() != Some(trouble) => {
                Some(format!("{trouble}: none of its metadata holds"))
            }
            Some(_) => None,
            None if policy == before.0 && before.1.is_none() => None,
            None if policy == VmPolicy::default() => {
                Some("its libvirt metadata say nothing of it".to_owned())
            }
            None => Some(format!("its libvirt metadata say: {policy}")),
        };
        Some(News { line })
    }

    /// It can't be read now: what was heard holds. Tried again with the next look.
    fn keep(&mut self, cause: String, path: &Path) -> Option<News> {
        self.stamp = None;
        let trouble = format!("{}: {cause}", path.display());
        if self.trouble.as_ref() == Some(&trouble) {
            return None;
        }
        let line = Some(format!("{trouble}: its libvirt metadata stay as they were"));
        self.trouble = Some(trouble);
        Some(News { line })
    }
}

impl Stamp {
    fn of(found: &std::fs::Metadata) -> Self {
        Self { inode: found.ino(), bytes: found.size(), changed: (found.ctime(), found.ctime_nsec()) }
    }
}

fn read(path: &Path) -> io::Result<String> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let found = fstat(&file)?;
    if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
        return Err(io::Error::other("isn't a regular file"));
    }
    if found.st_uid != 0 {
        return Err(io::Error::other(format!("is of user {}, not root's", found.st_uid)));
    }
    let mut bytes = Vec::new();
    file.take(BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > BYTES_MAX {
        return Err(io::Error::other(format!("larger than {} MiB: no domain's", BYTES_MAX >> 20)));
    }
    String::from_utf8(bytes).map_err(|_| io::Error::other("not UTF-8 text"))
}

/// Reads the text of a state file of the VM of process `pid`.
fn said(text: &str, pid: u32) -> Said {
    if !has_bounds(text) {
        return Said {
            domain: None,
            trouble: Some("1:1: more namespaces or attributes than a domain has".to_owned()),
        };
    }
    let options = ParsingOptions { nodes_limit: NODES_MAX, ..ParsingOptions::default() };
    let document = match Document::parse_with_options(text, options) {
        Ok(document) => document,
        Err(error) => {
            // The place comes first, as with all bad input.
            let (place, cause) = (error.pos().to_string(), error.to_string().replace(char::is_control, " "));
            let cause = cause.strip_suffix(&format!(" at {place}")).unwrap_or(&cause);
            return Said { domain: None, trouble: Some(format!("{place}: {cause}")) };
        }
    };
    let root = document.root_element();
    let is_of_process = root.has_tag_name("domstatus")
        && root.attribute("pid").and_then(|number| number.parse().ok()) == Some(pid);
    let Some(domain) = child(root, "domain").filter(|_| is_of_process) else { return Said::default() };
    let is_uuid =
        |text: &&str| text.len() == 36 && text.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit());
    let uuid = child(domain, "uuid").and_then(|uuid| uuid.text()).filter(is_uuid).map(str::to_owned);
    let (policy, trouble) = match policy_in(domain) {
        Ok(policy) => (policy, None),
        Err((offset, cause)) => {
            (VmPolicy::default(), Some(format!("{}: {cause}", document.text_pos_at(offset))))
        }
    };
    Said { domain: Some(Domain { uuid, policy }), trouble }
}

/// A declaration has `xmlns` in it, an attribute has `=`, and no attribute has a bare `<`.
fn has_bounds(text: &str) -> bool {
    let is_short = |element: &str| element.matches('=').count() <= ATTRIBUTES_MAX;
    text.matches("xmlns").count() <= NAMESPACES_MAX && text.split('<').all(is_short)
}

fn child<'a, 'input>(node: Node<'a, 'input>, name: &str) -> Option<Node<'a, 'input>> {
    node.children().find(|child| child.has_tag_name(name))
}

/// The element `vm` of our namespace, or the offset of what is wrong with it, and the cause.
fn policy_in(domain: Node<'_, '_>) -> Result<VmPolicy, (usize, String)> {
    const SHOWN: usize = 40;
    let shown = |text: &str| format!("{:?}", text.chars().take(SHOWN).collect::<String>());
    let mut policy = VmPolicy::default();
    let Some(metadata) = child(domain, "metadata") else { return Ok(policy) };
    let mut ours = metadata.children().filter(|node| node.tag_name().namespace() == Some(NAMESPACE));
    let Some(element) = ours.next() else { return Ok(policy) };
    if element.tag_name().name() != "vm" {
        let name = shown(element.tag_name().name());
        return Err((element.range().start, format!("element {name}: only `vm` is known there")));
    }
    if let Some(second) = ours.next() {
        return Err((second.range().start, "a second element of this namespace".to_owned()));
    }
    let is_content =
        |node: &Node<'_, '_>| node.is_element() || node.text().is_some_and(|text| !text.trim().is_empty());
    if let Some(content) = element.children().find(|node| !node.is_comment() && is_content(node)) {
        return Err((content.range().start, "`vm` has attributes only, and nothing within".to_owned()));
    }
    for attribute in element.attributes() {
        let (name, value) = (attribute.name(), attribute.value());
        let set = match attribute.namespace() {
            None => policy.set(name, value),
            Some(_) => Err("an attribute of another namespace".to_owned()),
        };
        set.map_err(|cause| {
            (attribute.range().start, format!("{} {}: {cause}", shown(name).trim_matches('"'), shown(value)))
        })?;
    }
    Ok(policy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::fs::symlink;

    const PID: u32 = 4711;
    const UUID: &str = "4dea22b3-1d52-d8f3-2516-782e98ab3fa0";

    /// As libvirt 9.0 writes it, shortened.
    fn state(metadata: &str) -> String {
        format!(
            "<!--\nWARNING: THIS IS AN AUTO-GENERATED FILE.\n-->\n\n\
             <domstatus state='running' reason='booted' pid='{PID}'>\n  <taint flag='high-privileges'/>\n  \
             <vcpus>\n    <vcpu id='0' pid='4720'/>\n  </vcpus>\n  <domain type='kvm' id='1'>\n    \
             <name>web</name>\n    <uuid>{UUID}</uuid>\n    {metadata}\n    <memory unit='KiB'>1024</memory>\n  \
             </domain>\n</domstatus>\n"
        )
    }

    fn vm(attributes: &str) -> String {
        format!("<metadata><ms:vm xmlns:ms='{NAMESPACE}' {attributes}/></metadata>")
    }

    /// Where an attribute of [`vm`] stands.
    fn place() -> String {
        format!("13:{}", format!("    {}", vm("")).find("/>").unwrap() + 1)
    }

    fn trouble(metadata: &str) -> String {
        let said = said(&state(metadata), PID);
        assert_eq!(
            said.domain,
            Some(Domain { uuid: Some(UUID.into()), policy: VmPolicy::default() }),
            "the defaults"
        );
        said.trouble.expect("trouble")
    }

    #[test]
    fn uuid_and_policy_are_found_beside_foreign_metadata() {
        let metadata = format!(
            "<metadata>\n<nova:instance xmlns:nova='http://openstack.org/xmlns/libvirt/nova/1.1'><nova:name>vm</nova:name>\
             </nova:instance><ms:vm xmlns:ms='{NAMESPACE}' weight='200' accelerate='false'> <!-- quiet --> </ms:vm></metadata>"
        );
        let said = said(&state(&metadata), PID);
        assert_eq!(said.trouble, None);
        let domain = said.domain.unwrap();
        assert_eq!(domain.uuid.as_deref(), Some(UUID));
        assert_eq!(domain.policy.to_string(), "weight 200, accelerate false");
    }

    #[test]
    fn a_domain_without_our_metadata_has_the_defaults() {
        for metadata in ["", "<metadata/>", "<metadata><a:vm xmlns:a='urn:a' weight='x'/></metadata>"] {
            let said = said(&state(metadata), PID);
            let expected = Domain { uuid: Some(UUID.into()), policy: VmPolicy::default() };
            assert_eq!((said.domain, said.trouble), (Some(expected), None), "{metadata}");
        }
    }

    #[test]
    fn another_processs_file_says_nothing_of_this_one() {
        assert_eq!(said(&state(&vm("weight='200'")), PID + 1), Said::default());
        assert_eq!(
            said("<domain><name>web</name></domain>", PID),
            Said::default(),
            "a domain that doesn't run"
        );
    }

    #[test]
    fn a_bad_value_is_one_line_with_place_and_bounds() {
        assert_eq!(trouble(&vm("weight='0'")), format!("{}: weight \"0\": must be 1 to 10000", place()));
        let unknown = trouble(&vm("wieght='1'"));
        let expected =
            format!("{}: wieght \"1\": no such key; there are weight, accelerate, max-wait, ", place());
        assert!(unknown.starts_with(&expected), "{unknown}");
        let long = trouble(&vm(&format!("accelerate='{}'", "no\n".repeat(1000))));
        assert!(long.lines().count() == 1 && long.len() < 200, "{long}");
        for (metadata, expected) in [
            (
                format!("<metadata><v xmlns='{NAMESPACE}'/></metadata>"),
                "element \"v\": only `vm` is known there",
            ),
            (
                format!("<metadata><vm xmlns='{NAMESPACE}'/><vm xmlns='{NAMESPACE}'/></metadata>"),
                "a second element",
            ),
            (
                format!("<metadata><vm xmlns='{NAMESPACE}'><weight>1</weight></vm></metadata>"),
                "attributes only",
            ),
            (format!("<metadata><vm xmlns='{NAMESPACE}'>200</vm></metadata>"), "attributes only"),
            (vm("xmlns:b='urn:b' b:weight='1'"), "another namespace"),
        ] {
            let said = trouble(&metadata);
            assert!(said.contains(expected) && said.starts_with("13:"), "{said}");
        }
    }

    #[test]
    fn broken_or_unbounded_xml_is_refused_with_its_place() {
        let fault = |text: &str| said(text, PID).trouble.expect("trouble");
        let error = fault(&state("<metadata>"));
        assert!(error.starts_with("15:"), "{error}");
        let bomb =
            "<!DOCTYPE d [<!ENTITY a 'aaaaaaaa'><!ENTITY b '&a;&a;&a;&a;'>]><domstatus>&b;</domstatus>";
        assert!(fault(bomb).contains("DTD"), "{}", fault(bomb));
        let many = format!("<domstatus pid='{PID}'>{}</domstatus>", "<a/>".repeat(NODES_MAX as usize));
        assert!(fault(&many).contains("limit"), "{}", fault(&many));
        let deep = "<a>".repeat(NODES_MAX as usize / 2);
        assert!(!fault(&deep).is_empty());
        let attributes: String = (0..=ATTRIBUTES_MAX).map(|at| format!(" a{at}='>'")).collect();
        let namespaces: String =
            (0..=NAMESPACES_MAX).map(|at| format!("<a xmlns:a{at}='urn:{at}'/>")).collect();
        for grown in [format!("<a{attributes}/>"), namespaces] {
            let said = fault(&format!("<domstatus pid='{PID}'>{grown}</domstatus>"));
            assert_eq!(said, "1:1: more namespaces or attributes than a domain has");
        }
    }

    /// As libvirt does it: a whole file takes the place of the one before.
    fn write(folder: &Path, text: &str) {
        std::fs::write(folder.join("web.xml.new"), text).unwrap();
        std::fs::rename(folder.join("web.xml.new"), folder.join("web.xml")).unwrap();
    }

    fn line(news: Option<News>) -> String {
        news.expect("news").line.expect("a line")
    }

    #[test]
    fn a_change_is_news_once() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = StateFile::of(folder.path(), "web", PID);
        assert_eq!(file.look(), None, "no domain");
        write(folder.path(), &state(""));
        assert_eq!(file.look(), Some(News { line: None }), "a domain without a policy");
        assert_eq!(file.uuid(), Some(UUID));
        write(folder.path(), &state(&vm("weight='200'")));
        assert_eq!(line(file.look()), "its libvirt metadata say: weight 200");
        assert_eq!(file.look(), None);
        write(folder.path(), &format!("{}\n", state(&vm("weight='200'"))));
        assert_eq!(file.look(), None, "libvirt has written it for another reason");
        write(folder.path(), &state(&vm("weight='x'")));
        let said = line(file.look());
        let expected =
            format!("web.xml:{}: weight \"x\": must be 1 to 10000: none of its metadata holds", place());
        assert!(said.ends_with(&expected), "{said}");
        assert_eq!((file.policy(), file.uuid()), (VmPolicy::default(), Some(UUID)));
        write(folder.path(), &format!("{}\n", state(&vm("weight='x'"))));
        assert_eq!(file.look(), None, "that was said");
        write(folder.path(), &state(&vm("accelerate='false'")));
        assert_eq!(line(file.look()), "its libvirt metadata say: accelerate false");
        write(folder.path(), &state(""));
        assert_eq!(line(file.look()), "its libvirt metadata say nothing of it");
        std::fs::remove_file(folder.path().join("web.xml")).unwrap();
        assert_eq!(file.look(), Some(News { line: None }));
        assert_eq!(file.uuid(), None);
    }

    #[test]
    fn an_unreadable_file_changes_nothing_and_is_reported_once() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = StateFile::of(folder.path(), "web", PID);
        write(folder.path(), &state(&vm("weight='200'")));
        assert!(file.look().is_some());
        let (path, elsewhere) = (folder.path().join("web.xml"), folder.path().join("elsewhere.xml"));
        let huge = File::create(folder.path().join("web.xml.new")).unwrap();
        huge.set_len(BYTES_MAX + 1).unwrap();
        std::fs::rename(folder.path().join("web.xml.new"), &path).unwrap();
        let said = line(file.look());
        assert!(said.contains("larger than 1 MiB") && said.ends_with("stay as they were"), "{said}");
        assert_eq!(file.look(), None);
        std::fs::rename(&path, &elsewhere).unwrap();
        symlink(&elsewhere, &path).unwrap();
        assert!(file.look().is_some(), "a link isn't followed");
        std::fs::remove_file(&path).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::Fifo, Mode::RUSR, 0).unwrap();
        assert!(line(file.look()).contains("isn't a regular file"), "and nothing blocks");
        assert_eq!(file.policy().weight, Some(200));
        std::fs::remove_file(&path).unwrap();
        write(folder.path(), &state(&vm("weight='300'")));
        assert_eq!(line(file.look()), "its libvirt metadata say: weight 300");
    }

    #[test]
    fn a_user_that_is_not_root_says_nothing() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), &state(&vm("weight='200'")));
        std::os::unix::fs::chown(folder.path().join("web.xml"), Some(1000), None).unwrap();
        let mut file = StateFile::of(folder.path(), "web", PID);
        assert!(line(file.look()).contains("is of user 1000, not root's"));
        assert_eq!(file.policy(), VmPolicy::default());
    }

    #[test]
    fn a_name_that_no_file_can_have_leads_nowhere() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), &state(""));
        let below = folder.path().join("below");
        std::fs::create_dir(&below).unwrap();
        for name in ["../web", "", "/web", "a/../web", &"w".repeat(300)] {
            assert_eq!(StateFile::of(&below, name, PID).look(), None, "{name}");
        }
    }

    proptest! {
        #[test]
        fn any_content_brings_one_line_at_worst(
            text in prop::collection::vec(
                prop::sample::select(vec![
                    "<domstatus pid='4711'>", "</domstatus>", "<domain>", "</domain>", "<metadata>", "</metadata>", "<uuid>",
                    "<m:vm xmlns:m='https://github.com/microslice/microslice/libvirt/1' ", "weight='", "accelerate='", "'", "/>",
                    "</m:vm>", "7", "true", "&lt;", "&#0;", "<!--", "-->", "<![CDATA[", "]]>", "<!DOCTYPE a>", "<?x ?>", "é", "\n",
                ]),
                0..40,
            ),
        ) {
            let said = said(&text.concat(), PID);
            prop_assert!(said.trouble.is_none_or(|line| line.lines().count() == 1));
            let weight = said.domain.and_then(|domain| domain.policy.weight);
            prop_assert!(weight.is_none_or(|weight| (1..=10_000).contains(&weight)));
        }

        #[test]
        fn any_text_at_all_is_parsed_or_refused(text in "\\PC{0,200}") {
            said(&text, PID);
        }
    }
}
