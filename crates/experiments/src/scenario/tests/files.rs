//! Which files a scenario is read from.

use super::*;

#[test]
fn an_unknown_file_lists_what_is_built_in() {
    let error = refuse_with("\"linux-4.4\"", "\"linux-9\"");
    assert!(
        error.starts_with("bad.toml:8:10: no kernel `linux-9`; built in: linux-2.4, linux-3.2, linux-4.0, linux-4.4, linux-6.12-nopv, linux-6.18, linux-modern, bare"),
        "{error}"
    );
}

#[test]
fn files_that_extend_each_other_in_a_circle_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).expect("written");
    file("a.toml", "extends = \"b.toml\"\n");
    file("b.toml", "\nextends = \"a.toml\"\n");
    let error = load(&folder.path().join("a.toml").display().to_string(), &Overrides::default())
        .expect_err("a circle");
    assert!(error.to_string().contains("b.toml:2:11: `extends` leads back to itself"), "{error}");
}

#[test]
fn a_circle_is_recognised_by_whatever_path_it_comes_back() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(folder.path().join("hosts")).expect("a folder");
    let file = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).expect("written");
    file("a.toml", "extends = \"hosts/b.toml\"\n");
    file("hosts/b.toml", "extends = \"../a.toml\"\n");
    let error = load(&folder.path().join("a.toml").display().to_string(), &Overrides::default())
        .expect_err("a circle")
        .to_string();
    assert!(error.contains("hosts/b.toml:1:11: `extends` leads back to itself: "), "{error}");
    assert_eq!(error.matches(" -> ").count(), 2, "{error}");
}

#[test]
fn a_scenario_finds_workloads_next_to_it_on_the_disk() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(folder.path().join("workloads")).expect("folder");
    let file = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).expect("written");
    file("workloads/mine.toml", "threads = \"per vcpu\"\nprogram = [{ compute = \"1 ms\" }]\n");
    file(
        "mine.toml",
        "host = 'xeon-e5645'\nduration = '1 ms'\n[[vm]]\nname = 'v'\nvcpus = 3\nkernel = 'linux-4.4'\nworkloads = ['mine']\n",
    );
    let scenario =
        load(&folder.path().join("mine.toml").display().to_string(), &Overrides::default()).expect("valid");
    assert_eq!(scenario.config.vms[0].workloads[0].threads, 3);
}

#[test]
fn a_file_that_is_not_utf_8_is_told_where() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("latin1.toml");
    std::fs::write(&path, b"host = 'x'\n# caf\xe9\n").expect("written");
    let error = load(&path.display().to_string(), &Overrides::default()).expect_err("not UTF-8").to_string();
    assert!(error.ends_with("latin1.toml:2:6: not UTF-8 text"), "{error}");
}

#[test]
fn a_path_on_the_command_line_is_one_from_the_working_directory_and_a_name_is_looked_up_next_to_the_scenario()
{
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let policy = file("mine.toml", "extends = \"credit\"\nslice = \"7 ms\"\n");
    file("policies/near.toml", "extends = \"credit\"\nslice = \"8 ms\"\n");
    let host = file("host.toml", "extends = \"xeon-e5645\"\npcpus = 24\n");
    let scenario = file("small.toml", SMALL);
    let slice_of = |scenario: &str, policy: &str| {
        let settings = vec![("host".to_owned(), host.clone())];
        let overrides = Overrides { policy: Some(policy.to_owned()), settings, ..Overrides::default() };
        let config = load(scenario, &overrides).unwrap().config;
        assert_eq!(config.host.pcpus, 24);
        let SchedulerKind::Credit(credit) = config.scheduler else { panic!("credit") };
        credit.slice_ns
    };
    assert_eq!(slice_of("gmake-swaptions", &policy), 7_000_000);
    assert_eq!(slice_of(&scenario, &policy), 7_000_000);
    assert_eq!(slice_of(&scenario, "near"), 8_000_000);
}

#[test]
fn a_file_that_cannot_be_read_is_named_once() {
    let error = load("/", &Overrides::default()).unwrap_err().to_string();
    assert_eq!(error, "/: Is a directory (os error 21)");
}

#[test]
fn one_large_file_that_many_vms_name_is_refused_before_it_fills_the_memory() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = "{ compute = '1 ms' },".repeat(10_000);
    std::fs::write(folder.path().join("large.toml"), format!("threads = 1\nprogram = [{program}]\n"))
        .expect("written");
    let workloads: String =
        (0..60).map(|at| format!("{{ use = 'large.toml', name = 'w{at}' }},\n")).collect();
    let text = SMALL.replace("workloads = [{", &format!("workloads = [\n{workloads}{{"));
    let path = folder.path().join("scenario.toml");
    std::fs::write(&path, text).expect("written");
    let error =
        load(path.to_str().expect("a name"), &Overrides::default()).expect_err("too large").to_string();
    assert!(
        error.contains("scenario.toml:") && error.contains(" take more than 256 MiB of memory"),
        "{error}"
    );
}

#[test]
fn a_scenario_knows_the_files_it_was_read_from() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, host) = (folder.path().join("scenario.cfg"), folder.path().join("own.toml"));
    std::fs::write(&host, "extends = 'xeon-e5645'").expect("written");
    std::fs::write(&path, SMALL.replace("xeon-e5645", "own.toml")).expect("written");
    let scenario = load(path.to_str().expect("a name"), &Overrides::default()).expect("valid");
    assert_eq!(scenario.files, [path, host]);
}

#[test]
fn what_a_way_to_balance_cannot_have_is_refused() {
    let refused =
        |keys: &str| refuse_with("\"linux-4.4\"", &format!("{{ extends = \"linux-4.4\", {keys} }}"));
    let error = refused("balance = \"queue-length\", plans = true");
    assert!(error.ends_with("`plans` needs `balance = \"work-stealing\"`"), "{error}");
    let error = refused("balloons = true");
    assert!(
        error.ends_with("`balloons` needs `balance = \"queue-length\"` or `\"work-stealing\"`"),
        "{error}"
    );
    let error = refused("balance = \"work-stealing\", thread_scheduler = \"eevdf\"");
    assert!(error.contains("`balance` = \"work-stealing\" is a scheduler of its own"), "{error}");
}
