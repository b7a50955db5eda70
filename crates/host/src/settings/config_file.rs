//! `/etc/microslice.toml`: the flags' names as keys, a table per VM, and where each value stands.

use crate::HostError;
use crate::machine::domains;
use crate::settings::coordination::{Acts, Scheme};
use crate::settings::max_wait::MaxWait;
use crate::settings::{PoolChoice, Settings, allowed, rules, scheduler_named};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use toml::de::{DeTable, DeValue};

/// Read when it exists and no other file is named.
const DEFAULT_CONFIG: &str = "/etc/microslice.toml";
/// A host of a thousand VMs needs a tenth of it.
const BYTES_MAX: usize = 1 << 20;

/// The file's shape: the flags' names, and a table per VM.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Values {
    scheduler: Option<String>,
    resched_dp: Option<bool>,
    tlb_co: Option<bool>,
    resched_co: Option<OnOrAuto>,
    urgent_slice_us: Option<u64>,
    preemption_delay_us: Option<u64>,
    urgent_allowance_us: Option<u64>,
    urgent_answer_us: Option<u64>,
    micro_cpus: Option<Pool>,
    micro_cpus_limit: Option<u32>,
    normal_cpus: Option<String>,
    micro_slice_us: Option<u64>,
    boost_percent: Option<u32>,
    max_wait: Option<String>,
    pay_back: Option<bool>,
    slice_us: Option<u64>,
    queue_domain: Option<String>,
    rules: Option<String>,
    critical_by: Option<String>,
    delay_preemption: Option<u64>,
    delay_unsafe: Option<String>,
    delay_look_us: Option<u64>,
    guest_memory: Option<bool>,
    dry_run: Option<bool>,
    critical: Option<PathBuf>,
    record: Option<PathBuf>,
    stats: Option<f64>,
    metrics_listen: Option<String>,
    #[serde(default)]
    vm: BTreeMap<String, Vm>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Vm {
    kernel: Option<PathBuf>,
    weight: Option<u32>,
    accelerate: Option<bool>,
    max_wait: Option<String>,
    resched_dp: Option<bool>,
    tlb_co: Option<bool>,
    resched_co: Option<OnOrAuto>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Pool {
    Count(u32),
    Word(String),
}

/// `true`, `false`, or `"auto"`.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(untagged)]
enum OnOrAuto {
    Said(bool),
    Word(Auto),
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Auto {
    Auto,
}

impl From<OnOrAuto> for Acts {
    fn from(said: OnOrAuto) -> Self {
        match said {
            OnOrAuto::Said(acts) => acts.into(),
            OnOrAuto::Word(Auto::Auto) => Self::Auto,
        }
    }
}

/// How much of a wrong value is shown.
const SHOWN_CHARS: usize = 60;

impl Settings {
    /// The defaults, with what `path` says over them; with no path, `/etc/microslice.toml` if there is one.
    pub fn from_file(path: Option<&Path>) -> Result<Self, HostError> {
        let path = match path {
            Some(path) => path,
            None if Path::new(DEFAULT_CONFIG).exists() => Path::new(DEFAULT_CONFIG),
            None => return Ok(Self::default()),
        };
        let name = path.display().to_string();
        let text = read(path).map_err(|cause| HostError::refused(format!("{name}: {cause}")))?;
        Self::from_toml(&name, &text).map_err(HostError::refused)
    }

    /// Reads the text of the file called `name`. An error is one line with the place in it.
    fn from_toml(name: &str, text: &str) -> Result<Self, String> {
        let at = |offset: usize| format!("{name}:{}", Places::default().of(text, offset));
        let document = DeTable::parse(text).map_err(|error| {
            format!("{}: {}", at(error.span().map_or(0, |span| span.start)), error.message())
        })?;
        let places = places(name, text, document.get_ref());
        let values: Values = toml::from_str(text).map_err(|error| {
            let offset = error.span().map_or(0, |span| span.start);
            let place = at(offset);
            // An error about a value names its key, and what may stand there instead.
            match places.iter().find(|(_, known)| **known == place) {
                Some((key, _)) => {
                    let said = error.span().and_then(|span| text.get(span)).unwrap_or_default();
                    let said: String = said.chars().take(SHOWN_CHARS).collect();
                    format!("{place}: {key} {said}: {}", allowed(key).unwrap_or(error.message().to_owned()))
                }
                None => format!("{place}: {}", error.message()),
            }
        })?;
        if let Some(offset) = nameless_vm(document.get_ref()) {
            return Err(format!("{}: [vm.\"\"]: a VM needs a name", at(offset)));
        }
        values.settings(places)
    }
}

impl Values {
    fn settings(self, places: BTreeMap<String, String>) -> Result<Settings, String> {
        let mut settings = Settings { places, ..Settings::default() };
        if let Some(name) = self.scheduler {
            settings.scheduler = scheduler_named(&name)
                .map_err(|cause| format!("{}: {cause}", settings.called("scheduler")))?;
        }
        if let Some(name) = self.rules {
            settings.rules =
                name.parse().map_err(|cause| format!("{}: {cause}", settings.called("rules")))?;
        }
        if let Some(name) = self.critical_by {
            settings.critical_by = rules::critical_by_named(&name)
                .map_err(|cause| format!("{}: {cause}", settings.called("critical-by")))?;
        }
        if let Some(name) = self.queue_domain {
            let called = |cause| format!("{}: {cause}", settings.called("queue-domain"));
            settings.queue_domain = Some(domains::named(&name).map_err(called)?);
        }
        if let Some(list) = self.normal_cpus {
            settings.normal_cpus =
                list.parse().map_err(|cause| format!("{}: {cause}", settings.called("normal-cpus")))?;
        }
        if let Some(bound) = self.max_wait {
            let bound = bound.parse().map_err(|cause| format!("{}: {cause}", settings.called("max-wait")));
            settings.max_wait = Some(bound?);
        }
        if let Some(place) = self.delay_unsafe {
            settings.delay_unsafe =
                place.parse().map_err(|cause| format!("{} {cause}", settings.called("delay-unsafe")))?;
        }
        if let Some(address) = self.metrics_listen {
            let listen = address.parse();
            settings.metrics_listen =
                Some(listen.map_err(|cause| format!("{}: {cause}", settings.called("metrics-listen")))?);
        }
        for (scheme, acts) in schemes_said(self.resched_dp, self.tlb_co, self.resched_co) {
            settings.schemes.set(scheme, acts);
        }
        settings.micro_cpus = match self.micro_cpus {
            Some(Pool::Count(count)) => PoolChoice::Static(count),
            Some(Pool::Word(word)) => {
                word.parse().map_err(|cause| format!("{}: {cause}", settings.called("micro-cpus")))?
            }
            None => settings.micro_cpus,
        };
        macro_rules! take {
            ($($field:ident),*) => { $(if let Some(value) = self.$field { settings.$field = value; })* };
        }
        take!(
            urgent_slice_us,
            preemption_delay_us,
            urgent_allowance_us,
            urgent_answer_us,
            micro_slice_us,
            boost_percent,
            pay_back,
            slice_us,
            delay_preemption,
            delay_look_us,
            guest_memory,
            dry_run
        );
        settings.micro_cpus_limit = self.micro_cpus_limit;
        settings.critical = self.critical;
        settings.record = self.record;
        settings.stats = self.stats;
        self.vm.into_iter().try_for_each(|(name, vm)| vm.put_into(&mut settings, name))?;
        Ok(settings)
    }
}

impl Vm {
    fn put_into(self, settings: &mut Settings, name: String) -> Result<(), String> {
        if let Some(kernel) = self.kernel {
            settings.guests.insert(name.clone(), kernel);
        }
        if let Some(weight) = self.weight {
            settings.weights.insert(name.clone(), weight);
        }
        if let Some(accelerate) = self.accelerate {
            settings.vm_accelerate.insert(name.clone(), accelerate);
        }
        if let Some(bound) = self.max_wait {
            let key = format!("vm.{name}.max-wait");
            let bound = MaxWait::of_vm(&bound).map_err(|cause| format!("{}: {cause}", settings.called(&key)));
            settings.vm_max_wait.insert(name.clone(), bound?);
        }
        let schemes = schemes_said(self.resched_dp, self.tlb_co, self.resched_co);
        if !schemes.is_empty() {
            settings.vm_schemes.insert(name, schemes);
        }
        Ok(())
    }
}

/// Returns the schemes that the file sets.
fn schemes_said(
    resched_dp: Option<bool>,
    tlb_co: Option<bool>,
    resched_co: Option<OnOrAuto>,
) -> BTreeMap<Scheme, Acts> {
    let said = [
        (Scheme::ReschedDp, resched_dp.map(Acts::from)),
        (Scheme::TlbCo, tlb_co.map(Acts::from)),
        (Scheme::ReschedCo, resched_co.map(Acts::from)),
    ];
    said.into_iter().filter_map(|(scheme, acts)| Some((scheme, acts?))).collect()
}

/// No more of a file than a configuration may have, and nothing of a pipe that may never be written.
fn read(path: &Path) -> Result<String, String> {
    let cause = |error: std::io::Error| error.to_string();
    let mut bytes = Vec::new();
    let file = microslice_metrics::input::open(path).map_err(cause)?;
    file.take(BYTES_MAX as u64 + 1).read_to_end(&mut bytes).map_err(cause)?;
    if bytes.len() > BYTES_MAX {
        return Err(format!("larger than {} MiB, the limit for a configuration", BYTES_MAX >> 20));
    }
    String::from_utf8(bytes).map_err(|_| "not UTF-8 text".to_owned())
}

/// Returns where the table of a VM with an empty name begins.
fn nameless_vm(document: &DeTable<'_>) -> Option<usize> {
    let DeValue::Table(vms) = document.get("vm")?.get_ref() else { return None };
    vms.iter().find(|(key, _)| key.get_ref().is_empty()).map(|(key, _)| key.span().start)
}

/// `FILE:line:column` of every value, by its key (`slice-us`, `vm.web.weight`).
fn places(name: &str, text: &str, document: &DeTable<'_>) -> BTreeMap<String, String> {
    let mut offsets = Vec::new();
    collect(document, "", &mut offsets);
    offsets.sort_unstable();
    let mut places = Places::default();
    offsets.into_iter().map(|(offset, key)| (key, format!("{name}:{}", places.of(text, offset)))).collect()
}

/// Values of tables, and of tables within them; what lies deeper isn't a configuration's.
fn collect(table: &DeTable<'_>, above: &str, offsets: &mut Vec<(usize, String)>) {
    const DEEPEST: usize = 2;
    for (key, value) in table {
        let path = format!("{above}{}", key.get_ref());
        match value.get_ref() {
            DeValue::Table(inner) if above.matches('.').count() < DEEPEST => {
                collect(inner, &format!("{path}."), offsets);
                // Where a value should be; tables of VMs have keys.
                if path != "vm" && above != "vm." {
                    offsets.push((value.span().start, path));
                }
            }
            _ => offsets.push((value.span().start, path)),
        }
    }
}

/// Lines and columns, both from 1, of offsets that rise.
#[derive(Default)]
struct Places {
    offset: usize,
    line_start: usize,
    lines_before: usize,
}

impl Places {
    fn of(&mut self, text: &str, offset: usize) -> String {
        let passed = text.get(self.offset..offset).unwrap_or_default();
        self.lines_before += passed.matches('\n').count();
        if let Some(last) = passed.rfind('\n') {
            self.line_start = self.offset + last + 1;
        }
        self.offset = offset;
        let column = text.get(self.line_start..offset).map_or(0, |before| before.chars().count());
        format!("{}:{}", self.lines_before + 1, column + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::listen::{Address, Listen};
    use microslice_policy::QueueDomain;

    fn read_text(text: &str) -> Result<Settings, String> {
        Settings::from_toml("my.toml", text)
    }

    #[test]
    fn a_file_overrides_defaults_and_flags_names_are_its_keys() {
        let settings = read_text(
            "micro-cpus = 2\nmicro-slice-us = 3000\n[vm.web]\nkernel = \"/boot/vmlinuz\"\nweight = 200\n",
        )
        .unwrap();
        assert_eq!(settings.micro_cpus, PoolChoice::Static(2));
        assert_eq!(settings.micro_slice_us, 3000);
        assert_eq!(settings.slice_us, 10_000);
        assert_eq!(settings.guests["web"], Path::new("/boot/vmlinuz"));
        assert_eq!(settings.weights["web"], 200);
        assert_eq!(read_text("micro-cpus = \"auto\"").unwrap().micro_cpus, PoolChoice::Auto);
    }

    #[test]
    fn a_file_sets_scheduler_and_schemes_for_all_and_one() {
        let text = "scheduler = \"coordinated\"\ntlb-co = false\n[vm.web]\nresched-co = true\n";
        let settings = read_text(text).unwrap();
        let schemes_of_web = |settings: &Settings| settings.schemes_of(&settings.said_of("web"));
        assert_eq!(settings.scheduler_name(), "coordinated");
        assert_eq!(settings.schemes.to_string(), "resched-dp on, tlb-co off, resched-co off");
        assert_eq!(schemes_of_web(&settings).to_string(), "resched-dp on, tlb-co off, resched-co on");
        assert!(settings.check().is_ok() && settings.knows_vm("web"));
        let tried = read_text("scheduler = \"coordinated\"\nresched-co = \"auto\"").unwrap();
        assert!(schemes_of_web(&tried).tries_resched_co() && !schemes_of_web(&settings).tries_resched_co());
        assert_eq!(
            read_text("resched-co = 3").unwrap_err(),
            "my.toml:1:14: resched-co 3: must be true, false or \"auto\""
        );
        let error = read_text("scheduler = \"fifo\"").unwrap_err();
        assert_eq!(
            error,
            "my.toml:1:13: scheduler: no scheduler \"fifo\": must be beside, microslice or coordinated"
        );
        let error = read_text("[vm.web]\ntlb-co = true").unwrap().check().unwrap_err().to_string();
        assert_eq!(
            error,
            "my.toml:2:10: vm.web.tlb-co is a setting of the scheduler coordinated; here it is beside"
        );
    }

    #[test]
    fn a_file_chooses_the_queue_domain_by_its_name() {
        let settings = read_text("queue-domain = \"pcpu\"").unwrap();
        assert_eq!(settings.queue_domain, Some(QueueDomain::Pcpu));
        assert_eq!(
            read_text("queue-domain = \"node\"").unwrap_err(),
            "my.toml:1:16: queue-domain: no queue domain \"node\": must be pcpu, llc or host"
        );
    }

    #[test]
    fn a_file_has_windows_around_the_ends_of_turns() {
        let of_microslice = |text: &str| read_text(&format!("scheduler = \"microslice\"\n{text}"));
        let settings = of_microslice("delay-preemption = 500\ndelay-unsafe = \"critical\"\n").unwrap();
        assert!(settings.check().is_ok());
        assert_eq!((settings.delay_preemption, settings.delay_unsafe.name()), (500, "critical"));
        let error = read_text("delay-preemption = 500\ndelay-unsafe = \"user\"").unwrap_err();
        assert_eq!(error, "my.toml:2:16: delay-unsafe \"user\": must be kernel, critical or hinted");
        let error = of_microslice("delay-preemption = 500\ndelay-look-us = 0").unwrap().check().unwrap_err();
        assert_eq!(error.to_string(), "my.toml:3:17: delay-look-us 0: must be 10 to 300000 microseconds");
    }

    #[test]
    fn a_file_says_where_figures_are_served_or_off() {
        let listen = |text: &str| read_text(text).map(|settings| settings.metrics_listen.unwrap());
        assert_eq!(listen("metrics-listen = \"off\""), Ok(Listen::Off));
        let tcp: Address = "127.0.0.1:9477".parse().unwrap();
        assert_eq!(listen("metrics-listen = \"127.0.0.1:9477\""), Ok(Listen::At(tcp)));
        let error = listen("stats = 5.0\nmetrics-listen = \"9477\"").unwrap_err();
        assert!(
            error.starts_with("my.toml:2:18: metrics-listen: \"9477\" is no address: must be"),
            "{error}"
        );
        let error = listen("metrics-listen = 9477").unwrap_err();
        assert_eq!(error, "my.toml:1:18: metrics-listen 9477: must be text: unix:/PATH, IP:PORT, or off");
    }

    #[test]
    fn a_broken_file_is_one_line_with_the_place() {
        let error = read_text("slice-us = 30000\nmicro-cpu = 1\n").unwrap_err();
        assert!(error.starts_with("my.toml:2:1: unknown field `micro-cpu`"), "{error}");
        let error = read_text("dry-run = true\nslice-us = = 1\n").unwrap_err();
        assert!(error.starts_with("my.toml:2:12: "), "{error}");
    }

    #[test]
    fn a_value_of_a_wrong_kind_names_the_allowed() {
        for (text, expected) in [
            ("micro-cpus = \"many\"", "my.toml:1:14: micro-cpus: \"many\" is neither a number nor `auto`"),
            ("micro-cpus = -1", "my.toml:1:14: micro-cpus -1: must be a number or `auto`"),
            ("\nslice-us = \"x\"", "my.toml:2:12: slice-us \"x\": must be 500 to 300000 microseconds"),
            ("[vm.web]\nweight = -5", "my.toml:2:10: vm.web.weight -5: must be 1 to 10000"),
            ("[vm.web]\naccelerate = 1", "my.toml:2:14: vm.web.accelerate 1: must be true or false"),
            (
                "[vm.web]\nmax-wait = 10",
                "my.toml:2:12: vm.web.max-wait 10: must be a time such as 10ms, or none",
            ),
            (
                "[vm]\nmax-wait = \"5ms\"",
                "my.toml:2:12: vm.max-wait \"5ms\": must be one table, such as [vm.web]",
            ),
            (
                "[[vm.web]]\nmax-wait = \"5ms\"",
                "my.toml:1:1: vm.web [[vm.web]]: must be one table, such as [vm.web]",
            ),
            ("max-wait = {}", "my.toml:1:12: max-wait {}: must be a time such as 10ms, auto or none"),
            ("vm = 3", "my.toml:1:6: vm 3: must be a table for each VM, such as [vm.web]"),
            (
                "[vm.web]\nkernel = 3",
                "my.toml:2:10: vm.web.kernel 3: must be the path of an image, in quotes",
            ),
            ("\n[vm.\"\"]\nweight = 3", "my.toml:2:5: [vm.\"\"]: a VM needs a name"),
            ("[vm.web]\nmax-wait = \"9us\"", "my.toml:2:12: vm.web.max-wait: \"9us\" isn't 1ms to 1s"),
        ] {
            assert_eq!(read_text(text).unwrap_err(), expected);
        }
    }

    #[test]
    fn an_unreadable_image_is_named_with_its_place() {
        let mut settings = read_text("[vm.web]\nkernel = \"/none\"").unwrap();
        let cause = HostError::refused("/none: gone");
        assert_eq!(
            settings.refuse_kernel("web", &cause).to_string(),
            "my.toml:2:10: vm.web.kernel: /none: gone"
        );
        settings.guests_must_run.push("web".into());
        assert_eq!(settings.refuse_kernel("web", &cause).to_string(), "--guest web: /none: gone");
    }

    #[test]
    fn a_value_out_of_bounds_is_refused_with_its_place() {
        for (text, expected) in [
            ("# é\nmicro-slice-us = 1", "my.toml:2:18: micro-slice-us 1: must be 10 to 30000 microseconds"),
            ("stats = 0.0", "my.toml:1:9: stats 0: must be 0.1 to 86400 seconds"),
            (
                "scheduler = \"coordinated\"\n[vm]\nweb = { weight = 0 }",
                "my.toml:3:18: vm.web.weight 0: must be 1 to 10000",
            ),
        ] {
            assert_eq!(read_text(text).unwrap().check().unwrap_err().to_string(), expected);
        }
        let limit = read_text("micro-cpus-limit = 9").unwrap().pool_limit(3).unwrap_err().to_string();
        assert!(limit.starts_with("my.toml:1:20: micro-cpus-limit 9: this host has 3 CPUs"), "{limit}");
    }

    /// The package's file, in which every key is a comment.
    const PACKAGED: &str = include_str!("../../../../packaging/microslice.toml");

    /// A comment's words begin with a space, a key doesn't.
    fn uncommented() -> String {
        let is_value =
            |rest: &str| rest.starts_with(|first: char| first.is_ascii_lowercase() || first == '[');
        let line = |line: &'static str| line.strip_prefix('#').filter(|rest| is_value(rest)).unwrap_or(line);
        PACKAGED.lines().map(line).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn the_packages_file_changes_nothing_as_it_is() {
        let packaged = format!("{:?}", read_text(PACKAGED).unwrap());
        assert_eq!(packaged, format!("{:?}", Settings::default()));
    }

    #[test]
    fn the_packages_file_has_every_key_with_its_default() {
        let settings = read_text(&uncommented()).unwrap();
        let defaults = Settings {
            places: settings.places.clone(),
            // Examples: these have no default, or one that depends on the host.
            micro_cpus_limit: Some(3),
            normal_cpus: settings.normal_cpus.clone(),
            // Nothing was said, or what is meant then.
            max_wait: Some(MaxWait::Auto),
            queue_domain: Some(QueueDomain::Llc),
            critical: settings.critical.clone(),
            record: settings.record.clone(),
            stats: Some(60.0),
            metrics_listen: Some(Address::DEFAULT.parse().unwrap()),
            guests: settings.guests.clone(),
            weights: settings.weights.clone(),
            vm_accelerate: settings.vm_accelerate.clone(),
            vm_max_wait: settings.vm_max_wait.clone(),
            vm_schemes: settings.vm_schemes.clone(),
            ..Settings::default()
        };
        assert_eq!(format!("{settings:?}"), format!("{defaults:?}"));
        // serde names all keys that there are.
        for (text, above) in [("none-such = 1", ""), ("[vm.web]\nnone-such = 1", "vm.web.")] {
            let error = read_text(text).unwrap_err();
            let keys: Vec<&str> = error.split('`').skip(3).step_by(2).filter(|key| *key != "vm").collect();
            assert!(keys.len() >= 5, "{error}");
            for key in keys {
                let key = format!("{above}{key}");
                assert!(settings.places.contains_key(&key), "packaging/microslice.toml lacks {key}");
            }
        }
    }

    #[test]
    fn no_more_is_read_than_a_configuration_may_have() {
        let error = Settings::from_file(Some(Path::new("/dev/zero"))).unwrap_err().to_string();
        assert_eq!(error, "/dev/zero: larger than 1 MiB, the limit for a configuration");
    }
}
