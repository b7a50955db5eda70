//! Documentation as a test: links lead somewhere, commands exist, lines and sentences are short, walks name
//! files that are there.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

const COLUMNS_MAX: usize = 110;
const WORDS_MAX: usize = 25;

/// How many sentences of a page are longer than `WORDS_MAX`, at the most. Other pages have none. Numbers only
/// fall. Pages of the lab are notebooks, kept as they were written.
const LONG_SENTENCES: &[(&str, usize)] = &[
    ("docs/lab/beside.md", 1),
    ("docs/lab/reproduction.md", 14),
    ("docs/lab/rules.md", 26),
    ("docs/lab/simulator-speed.md", 8),
    ("docs/lab/testbed.md", 15),
];

/// Names that are gone: flags and figures of former versions. Only the changelog and the lab may say them.
const OLD_WORDS: [&str; 9] = [
    "--patience",
    "--second-looks",
    "--grow-when-busy",
    "--no-lend",
    "--no-home-slices",
    "--pool-limit",
    "micro_cpus_busy",
    "recursion_misses",
    "queue_full",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("repository")
}

/// Files below a folder of the repository, by their paths in it.
fn files_below(folder: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(root().join(folder)).expect(folder) {
        let entry = entry.expect(folder);
        let path = format!("{folder}/{}", entry.file_name().to_string_lossy());
        match entry.file_type().expect(folder).is_dir() {
            true => found.extend(files_below(&path)),
            false => found.push(path),
        }
    }
    found
}

/// Each page with its text.
fn pages() -> BTreeMap<String, String> {
    let named = ["README.md".to_owned(), "CHANGELOG.md".to_owned()];
    let all = named.into_iter().chain(files_below("docs")).filter(|path| path.ends_with(".md"));
    all.map(|path| (path.clone(), std::fs::read_to_string(root().join(&path)).expect(&path))).collect()
}

/// What stands behind the fence of a block of code, and its lines.
type Block<'a> = (&'a str, Vec<&'a str>);

/// Lines outside of blocks of code, with their numbers; and those blocks, each with what stands behind its
/// fence.
fn split(text: &str) -> (Vec<(usize, &str)>, Vec<Block<'_>>) {
    let (mut prose, mut blocks) = (Vec::new(), Vec::new());
    let mut block: Option<Block<'_>> = None;
    for (index, line) in text.lines().enumerate() {
        match (line.trim_start().strip_prefix("```"), block.take()) {
            (Some(language), None) => block = Some((language.trim(), Vec::new())),
            (Some(_), Some(ended)) => blocks.push(ended),
            (None, Some((language, mut lines))) => {
                lines.push(line);
                block = Some((language, lines));
            }
            (None, None) => prose.push((index + 1, line)),
        }
    }
    (prose, blocks)
}

/// Paths behind `](`, without those of the web and without anchors.
fn links(line: &str) -> impl Iterator<Item = &str> {
    let targets = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets.filter(|target| !target.contains("://")).filter_map(|target| target.split('#').next())
}

/// A line without what stands between backticks, and without the targets of links.
fn words_only(line: &str) -> String {
    let spans: Vec<&str> = line.split('`').collect();
    let text: Vec<&str> =
        spans.iter().enumerate().map(|(index, span)| if index % 2 == 0 { *span } else { "code" }).collect();
    let text = text.concat();
    let mut parts = text.split("](");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, rest| text + rest.split_once(')').map_or("", |(_, behind)| behind))
}

/// Paragraphs and list entries, each as one line; tables and headings are left out.
fn paragraphs(prose: &[(usize, &str)]) -> Vec<String> {
    let mut all = vec![String::new()];
    for (_, line) in prose {
        let text = line.trim();
        let numbered = text.split_once(". ").is_some_and(|(number, _)| number.parse::<u32>().is_ok());
        if text.is_empty() || text.starts_with(['#', '|']) {
            all.push(String::new());
        } else if let Some(entry) = text.strip_prefix("- ") {
            all.push(entry.to_owned());
        } else if numbered {
            all.push(text.split_once(". ").map_or(text, |(_, entry)| entry).to_owned());
        } else if let Some(last) = all.last_mut() {
            *last = format!("{last} {text}");
        }
    }
    all
}

/// How many words each sentence has. A colon ends one, since an example or a list follows; so does a
/// semicolon.
fn sentence_lengths(paragraph: &str) -> Vec<usize> {
    let mut lengths = vec![0];
    for word in words_only(paragraph).split_whitespace() {
        *lengths.last_mut().expect("one") += 1;
        if word.trim_end_matches([')', '*', '"']).ends_with(['.', '!', '?', ':', ';']) {
            lengths.push(0);
        }
    }
    lengths
}

fn fail_if_any(faults: Vec<String>) {
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn every_link_between_pages_leads_to_a_file() {
    let mut faults = Vec::new();
    for (page, text) in pages() {
        let folder = root().join(&page).parent().expect("a folder").to_owned();
        for (number, line) in split(&text).0 {
            let dead = links(line).filter(|target| !target.is_empty() && !folder.join(target).exists());
            faults.extend(dead.map(|target| format!("{page}:{number}: {target}")));
        }
    }
    fail_if_any(faults);
}

/// Anchors of a page's headings, as GitHub and mdBook make them.
fn anchors(text: &str) -> BTreeSet<String> {
    let kept = |c: char| c.is_alphanumeric() || "-_ ".contains(c);
    let anchor =
        |title: &str| title.to_lowercase().chars().filter(|c| kept(*c)).collect::<String>().replace(' ', "-");
    let headings = split(text).0.into_iter().filter(|(_, line)| line.starts_with('#'));
    headings.map(|(_, line)| anchor(line.trim_start_matches('#').trim())).collect()
}

#[test]
fn every_anchor_that_a_page_links_to_is_a_heading() {
    let pages = pages();
    let (mut faults, mut seen) = (Vec::new(), 0);
    for (page, text) in &pages {
        let folder = Path::new(page).parent().expect("a folder");
        for (number, line) in split(text).0 {
            let targets = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
            for (file, anchor) in targets.filter(|to| !to.contains("://")).filter_map(|to| to.split_once('#'))
            {
                let path = if file.is_empty() { root().join(page) } else { root().join(folder).join(file) };
                let text = std::fs::read_to_string(path).unwrap_or_default();
                seen += 1;
                if !anchors(&text).contains(anchor) {
                    faults.push(format!("{page}:{number}: {file}#{anchor}"));
                }
            }
        }
    }
    assert!(seen > 10, "{seen} anchors");
    fail_if_any(faults);
}

/// The list of pages as mdBook reads it: what docs/README.md links to, by the pages' own titles.
fn summary() -> String {
    let list = std::fs::read_to_string(root().join("docs/README.md")).expect("docs/README.md");
    let mut summary = "# Summary\n\n[All pages](README.md)\n".to_owned();
    for line in list.lines() {
        if let Some(part) = line.strip_prefix("## ") {
            summary.push_str(&format!("\n# {part}\n\n"));
        }
        for page in links(line).filter(|target| target.ends_with(".md")) {
            let text = std::fs::read_to_string(root().join("docs").join(page)).expect(page);
            let title = text.lines().find_map(|line| line.strip_prefix("# ")).expect(page);
            summary.push_str(&format!("- [{title}]({page})\n"));
        }
    }
    summary
}

#[test]
fn the_book_has_every_page_once() {
    let path = root().join("docs/SUMMARY.md");
    let summary = summary();
    if std::env::var_os("MICROSLICE_WRITE_DOCS").is_some() {
        std::fs::write(&path, &summary).expect("written");
    }
    assert_eq!(
        std::fs::read_to_string(&path).expect("docs/SUMMARY.md"),
        summary,
        "MICROSLICE_WRITE_DOCS=1 writes it"
    );
    for page in files_below("docs").iter().filter(|page| page.ends_with(".md")) {
        let name = page.trim_start_matches("docs/");
        let times = summary.matches(&format!("]({name})")).count();
        assert!(times == 1 || name == "SUMMARY.md", "{page}: {times} times in docs/README.md");
    }
}

#[test]
fn every_alert_has_a_section_that_it_links_to() {
    let rules =
        std::fs::read_to_string(root().join("packaging/prometheus/microslice.rules.yml")).expect("rules");
    let sections = anchors(&std::fs::read_to_string(root().join("docs/how-to/alerts.md")).expect("a page"));
    let alerts: Vec<&str> = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(alerts.len() > 5, "{alerts:?}");
    for alert in alerts {
        let anchor = alert.to_lowercase();
        assert!(
            rules.contains(&format!("/docs/how-to/alerts.md#{anchor}\n")) && sections.contains(&anchor),
            "{alert}"
        );
    }
}

#[test]
fn every_page_that_sources_name_is_there() {
    let folders =
        ["bpf", "crates", "critical", "guest", "packaging", "policy", "scenarios", "scripts", "testbed"];
    let mut faults = Vec::new();
    for path in folders.iter().flat_map(|folder| files_below(folder)) {
        let Ok(text) = std::fs::read_to_string(root().join(&path)) else { continue };
        for rest in text.split("docs/").skip(1) {
            let named: String =
                rest.chars().take_while(|c| c.is_ascii_alphanumeric() || "-_/.".contains(*c)).collect();
            let Some((stem, _)) = named.split_once(".md") else { continue };
            if !root().join(format!("docs/{stem}.md")).exists() {
                faults.push(format!("{path}: docs/{stem}.md"));
            }
        }
    }
    fail_if_any(faults);
}

#[test]
fn no_line_of_prose_is_longer_than_a_screen() {
    let mut faults = Vec::new();
    for (page, text) in pages() {
        for (number, line) in split(&text).0 {
            let is_free = line.trim_start().starts_with('|') || line.contains("://");
            // Code and links stay in one piece: a line that is hardly more can't be broken.
            let is_one_piece = words_only(line).split_whitespace().count() <= 3;
            if line.chars().count() > COLUMNS_MAX && !is_free && !is_one_piece {
                faults.push(format!("{page}:{number}: {} columns", line.chars().count()));
            }
        }
    }
    fail_if_any(faults);
}

#[test]
fn sentences_are_short_but_on_pages_that_are_named_here_with_a_number_that_only_falls() {
    let allowed: BTreeMap<_, _> = LONG_SENTENCES.iter().copied().collect();
    let mut faults = Vec::new();
    for (page, text) in pages() {
        let paragraphs = paragraphs(&split(&text).0);
        let long: Vec<&String> = paragraphs
            .iter()
            .filter(|paragraph| sentence_lengths(paragraph).iter().any(|words| *words > WORDS_MAX))
            .collect();
        let limit = allowed.get(page.as_str()).copied().unwrap_or(0);
        if long.len() > limit {
            faults.push(format!("{page}: {} of {limit}, such as: {}", long.len(), long[0].trim()));
        }
    }
    fail_if_any(faults);
}

#[test]
fn no_page_but_the_changelog_and_the_lab_says_a_name_that_is_gone() {
    let is_notebook = |page: &str| page == "CHANGELOG.md" || page.starts_with("docs/lab/");
    let mut faults = Vec::new();
    for (page, text) in pages().iter().filter(|(page, _)| !is_notebook(page)) {
        let said = OLD_WORDS.iter().filter(|word| text.contains(**word));
        faults.extend(said.map(|word| format!("{page}: {word}")));
    }
    fail_if_any(faults);
}

#[test]
fn the_walks_of_how_to_pages_name_files_that_are_there() {
    const WALKS: [&str; 5] =
        ["add-a-critical-symbol", "add-a-figure", "add-a-guest-kernel", "add-a-lock", "add-a-scheduler"];
    for walk in WALKS {
        let path = format!("docs/how-to/{walk}.md");
        let text = std::fs::read_to_string(root().join(&path)).expect(&path);
        let lines = text.lines().filter(|line| line.starts_with("- `"));
        let files: BTreeSet<&str> = lines
            .flat_map(|line| line.split('`').skip(1).step_by(2))
            .filter(|name| name.contains('/') && !name.contains(' '))
            .collect();
        assert!(files.len() > 2, "{path}: {files:?}");
        let gone: Vec<_> = files.iter().filter(|file| !root().join(file).is_file()).collect();
        assert!(gone.is_empty(), "{path}: {gone:?}");
    }
}

/// What a command says of itself.
fn help(words: &[&str]) -> Option<String> {
    let output = Command::new(env!("CARGO_BIN_EXE_microslice")).args(words).arg("--help").output();
    let output = output.expect("microslice runs");
    output.status.success().then(|| String::from_utf8(output.stdout).expect("UTF-8"))
}

/// Commands of a block of code, one a line, each from `microslice` on; what a shell does behind them is left
/// out.
fn commands(lines: &[&str]) -> Vec<String> {
    let joined = lines.join("\n").replace("\\\n", " ");
    let lines = joined.lines().filter_map(|line| {
        let line = line.trim().trim_start_matches("target/release/");
        line.starts_with("microslice ").then(|| line.split(" # ").next().unwrap_or(line).to_owned())
    });
    lines.collect()
}

/// What isn't accepted of one command: its subcommand, or a flag.
fn unknown_part(command: &str) -> Option<String> {
    // Quoted values may hold anything; flags never stand in them.
    let spans: Vec<&str> = command.split(['\'', '"']).collect();
    let bare = spans.iter().step_by(2).copied().collect::<Vec<_>>().join(" ");
    let words: Vec<&str> = bare.split_whitespace().skip(1).take_while(|word| *word != "--").collect();
    let depth = if matches!(words.first(), Some(&"symbols" | &"testbed")) { 2 } else { 1 };
    let names = &words[..depth.min(words.len())];
    let Some(text) = help(names) else { return Some(format!("no command {names:?}")) };
    let flags = words.iter().filter(|word| word.starts_with("--") && word.len() > 2);
    let mut flags =
        flags.map(|word| word.split('=').next().unwrap_or(word).trim_end_matches([',', ';', ')']));
    flags.find(|flag| !text.contains(*flag)).map(|flag| format!("no {flag}"))
}

#[test]
fn every_command_in_a_block_of_code_is_accepted() {
    let (mut faults, mut seen) = (Vec::new(), 0);
    for (page, text) in pages() {
        // Notebooks have commands of their time.
        if page == "CHANGELOG.md" || page.starts_with("docs/lab/") || page == "docs/reference/commands.md" {
            continue;
        }
        for command in split(&text).1.iter().flat_map(|(_, lines)| commands(lines)) {
            seen += 1;
            faults.extend(unknown_part(&command).map(|fault| format!("{page}: {command}: {fault}")));
        }
    }
    assert!(seen > 50, "{seen} commands found");
    fail_if_any(faults);
}

#[test]
fn blocks_of_code_that_are_marked_so_run() {
    let mut ran = 0;
    for (page, text) in pages() {
        for (_, lines) in split(&text).1.iter().filter(|(language, _)| *language == "sh run") {
            let folder = tempfile::tempdir().expect("a folder");
            let program = Path::new(env!("CARGO_BIN_EXE_microslice")).parent().expect("a folder");
            let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap_or_default());
            let script = format!("set -e\n{}", lines.join("\n"));
            let shell =
                Command::new("sh").arg("-c").arg(&script).current_dir(&folder).env("PATH", path).output();
            let output = shell.expect("sh");
            assert!(output.status.success(), "{page}: {script}\n{}", String::from_utf8_lossy(&output.stderr));
            ran += 1;
        }
    }
    assert!(ran > 1, "{ran} blocks ran");
}

/// Names below "Commands:" in a help text.
fn subcommands(help: &str) -> Vec<&str> {
    let listed = help.split_once("\nCommands:\n").map_or("", |(_, rest)| rest);
    let lines = listed.lines().take_while(|line| line.starts_with("  "));
    let names =
        lines.filter(|line| !line.starts_with("   ")).filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help").collect()
}

fn describe(words: &[&str], page: &mut String) {
    let text = help(words).expect("help");
    let text: Vec<&str> = text.lines().map(str::trim_end).collect();
    let text = text.join("\n");
    let title = [&["microslice"], words].concat().join(" ");
    page.push_str(&format!("\n## {title}\n\n```\n{}\n```\n", text.trim()));
    for name in subcommands(&text) {
        describe(&[words, &[name]].concat(), page);
    }
}

#[test]
fn the_page_of_commands_is_what_they_say_of_themselves() {
    let mut page =
        "# Commands\n\nWhat each command says of itself (`--help`). A test keeps this page fresh;\n\
         `MICROSLICE_WRITE_DOCS=1 cargo test --workspace --locked --test commands docs` writes it anew.\n"
            .to_owned();
    describe(&[], &mut page);
    let path = root().join("docs/reference/commands.md");
    if std::env::var_os("MICROSLICE_WRITE_DOCS").is_some() {
        std::fs::write(&path, &page).expect("written");
    }
    let there = std::fs::read_to_string(&path).expect("docs/reference/commands.md");
    assert!(there == page, "docs/reference/commands.md isn't fresh: see its second line");
}

/// Flags at the beginning of lines of a command's help.
fn flags_of_help(text: &str) -> BTreeSet<&str> {
    let of_options = text.lines().filter(|line| line.trim_start().starts_with('-'));
    let flags = of_options.filter_map(|line| line.split_whitespace().find(|word| word.starts_with("--")));
    flags.map(|flag| flag.trim_end_matches(['.', ','])).collect()
}

#[test]
fn every_flag_of_run_names_who_turns_it() {
    let help = help(&["run"]).expect("there is such a command");
    let page = std::fs::read_to_string(root().join("docs/reference/configuration.md")).expect("the page");
    let rows = page.lines().filter(|line| line.starts_with("| `--")).map(|line| line.replace("\\|", "/"));
    let rows: Vec<Vec<String>> =
        rows.map(|row| row.split('|').map(|cell| cell.trim().to_owned()).collect()).collect();
    let nobody = rows.iter().filter(|row| row.len() != 6 || row[4].is_empty()).count();
    assert_eq!(nobody, 0, "rows of docs/reference/configuration.md without a reader: {rows:#?}");
    let cells = rows.iter().flat_map(|row| row[1].split('`'));
    let named: BTreeSet<&str> =
        cells.filter_map(|cell| cell.split(' ').next()).filter(|flag| flag.starts_with("--")).collect();
    let flags: BTreeSet<&str> = flags_of_help(&help).into_iter().filter(|flag| *flag != "--help").collect();
    assert_eq!(flags, named, "flags of `run --help`, and rows of docs/reference/configuration.md");
}

#[test]
fn faults_of_pages_are_found() {
    assert_eq!(sentence_lengths("One two. Three `a b c` (four)."), [2, 3, 0]);
    assert_eq!(links("[a](x.md#b), [c](https://d)").collect::<Vec<_>>(), ["x.md"]);
    assert_eq!(words_only("see [the page](a/b.md), `x y`"), "see [the page, code");
    assert_eq!(commands(&["microslice run \\", "  --stats 5 # so"]), ["microslice run    --stats 5"]);
    assert_eq!(unknown_part("microslice run --stats 5"), None);
    assert_eq!(unknown_part("microslice run --fly 'x --y'"), Some("no --fly".to_owned()));
    assert!(unknown_part("microslice fly").is_some());
}
