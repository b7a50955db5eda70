//! The screen.

use super::app::App;
use super::rates::{VcpuRates, VmRates};
use crate::output;
use microslice_host::output::monitoring::LongWaitView;
use microslice_metrics::Unit;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Clear, Paragraph, Row, Sparkline, Table, TableState};

/// From here on there is room for all columns.
const WIDE: u16 = 110;
/// Operators of other hypervisors look closer from 5 % ready on, and act from 10 % on (`%RDY`).
const SOME_READY: f64 = 0.05;
const MUCH_READY: f64 = 0.10;

const HELP: &str = "up, down, j, k      another VM
Enter, Esc          open its vCPUs, and back
s, r                sort by the next column; the other way round
/                   filter by name or guest; Enter keeps it, Esc ends it
space               pause
q, Ctrl-C           end

ready   of the time, wanted to run and had no CPU (as %RDY)
p99     of waits for a CPU; share and due: of what VMs had, lately
longest wait of the last minute, and who had that CPU meanwhile
stopped turns that the host ended; crit: in critical guest code";

/// What others chose, on one line: it commands no terminal.
fn plain(text: &str) -> String {
    output::plain(text).replace(['\n', '\t'], " ")
}

pub fn draw(frame: &mut Frame<'_>, app: &App) {
    let pool_height = if app.rates.accelerations.is_some() { 3 } else { 0 };
    let rows = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(pool_height),
        Constraint::Min(1),
        Constraint::Length(1),
    ]);
    let [head, pool, body, foot] = rows.areas(frame.area());
    frame.render_widget(
        Paragraph::new(head_line(app)).style(Style::new().add_modifier(Modifier::REVERSED)),
        head,
    );
    draw_pool(frame, app, pool);
    match app.open_vm() {
        Some(vm) => draw_vcpus(frame, vm, body),
        None => draw_vms(frame, app, body),
    }
    frame.render_widget(Paragraph::new(foot_line(app)), foot);
    if app.has_help {
        draw_help(frame);
    }
}

fn head_line(app: &App) -> String {
    let paused = if app.is_paused { "  PAUSED" } else { "" };
    let source = match app.rates.source.as_str() {
        "beside" => "run",
        "" => "nothing yet",
        source => source,
    };
    format!(
        "microslice {source}  {}  up {:.0} s  {}{paused}",
        app.address,
        app.rates.seconds,
        microslice_metrics::counted(app.rates.vms.len(), "VM")
    )
}

fn foot_line(app: &App) -> Line<'_> {
    if let Some(trouble) = &app.trouble {
        let text = format!("{trouble}: trying again, q ends");
        return Line::styled(plain(&text), Style::new().fg(Color::Red));
    }
    if app.is_typing {
        return Line::raw(format!("filter: {}_", plain(&app.filter)));
    }
    let filter =
        if app.filter.is_empty() { String::new() } else { format!("  filter {}", plain(&app.filter)) };
    let order = if app.is_reversed { ", least first" } else { "" };
    let keys = if app.is_open { "Esc back" } else { "Enter vCPUs  s sort  r reverse  / filter" };
    Line::raw(format!("by {}{order}{filter}  {keys}  p pause  h help  q quit", app.sort.name()))
}

/// Micro-sliced pCPUs and their use over time; then what was accelerated, by cause.
fn draw_pool(frame: &mut Frame<'_>, app: &App, area: Rect) {
    let [words, line, causes] =
        Layout::vertical([Constraint::Length(1), Constraint::Length(1), Constraint::Length(1)]).areas(area);
    if let Some(pool) = app.rates.pool {
        let text = format!(
            "micro-sliced CPUs {}: {:.0} % accelerated, {:.0} % lent; accelerated over time:",
            pool.size,
            pool.accelerated * 100.0,
            pool.lent * 100.0
        );
        frame.render_widget(Paragraph::new(text), words);
        let width = usize::from(line.width);
        let latest = app.history.len().saturating_sub(width);
        let use_over_time: Vec<u64> =
            app.history.iter().skip(latest).map(|pool| (pool.accelerated * 100.0) as u64).collect();
        let sparkline =
            Sparkline::default().data(&use_over_time).max(100).style(Style::new().fg(Color::Green));
        frame.render_widget(sparkline, line);
    }
    if let Some(rates) = &app.rates.accelerations {
        let each: Vec<String> =
            rates.iter().map(|(cause, rate)| format!("{cause} {}", number(*rate))).collect();
        let text = if each.is_empty() { "none".to_owned() } else { each.join(", ") };
        frame.render_widget(Paragraph::new(format!("accelerations/s: {text}")), causes);
    }
}

fn draw_vms(frame: &mut Frame<'_>, app: &App, area: Rect) {
    let is_wide = area.width >= WIDE;
    let vms = app.shown();
    if vms.is_empty() {
        let text = if app.rates.vms.is_empty() { "no VM has run here yet" } else { "no VM fits the filter" };
        frame.render_widget(Paragraph::new(text), area);
        return;
    }
    let columns = columns(app.rates.accelerations.is_some(), is_wide);
    let head: Vec<_> = columns.iter().map(|column| right_but_names(column.0)).collect();
    let rows = vms.iter().map(|vm| Row::new(columns.iter().map(|column| (column.2)(vm))));
    let widths: Vec<_> = columns.iter().map(|column| column.1).collect();
    let table = Table::new(rows, widths)
        .header(Row::new(head).style(Style::new().add_modifier(Modifier::BOLD)))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut state = TableState::new().with_selected(Some(app.cursor()));
    frame.render_stateful_widget(table, area, &mut state);
}

fn right_but_names(title: &'static str) -> Cell<'static> {
    if ["vm", "guest", "stopped in", "meanwhile ran"].contains(&title) {
        Cell::new(title)
    } else {
        right(title.to_owned())
    }
}

fn right(text: String) -> Cell<'static> {
    Cell::new(Line::raw(text).right_aligned())
}

/// A column of VMs: its title, its width, and what it has of one.
type Column = (&'static str, Constraint, fn(&VmRates) -> Cell<'static>);

/// Returns the columns that are shown. Shares and accelerations are of whoever schedules; an observer has
/// long waits in their place.
fn columns(schedules: bool, is_wide: bool) -> Vec<Column> {
    let all: [(bool, Column); 16] = [
        (true, ("vm", Constraint::Min(8), |vm| Cell::new(plain(&vm.name)))),
        (true, ("vcpus", Constraint::Length(5), |vm| right(vm.vcpu_count.to_string()))),
        (true, ("CPUs", Constraint::Length(6), |vm| right(format!("{:.2}", vm.cpus)))),
        (true, ("ready", Constraint::Length(7), |vm| ready_cell(vm.ready))),
        (schedules, ("share", Constraint::Length(6), |vm| part(vm.shares.map(|shares| shares.0)))),
        (schedules, ("due", Constraint::Length(6), |vm| part(vm.shares.map(|shares| shares.1)))),
        (true, ("p99", Constraint::Length(8), |vm| right(time(vm.p99_ns)))),
        (schedules, ("accel/s", Constraint::Length(7), |vm| rate(vm.accelerations))),
        (true, ("stopped/s", Constraint::Length(9), |vm| rate(Some(vm.preemptions)))),
        (!schedules, ("longest", Constraint::Length(8), longest_cell)),
        (!schedules, ("meanwhile ran", Constraint::Length(13), runner_cell)),
        (is_wide, ("skew", Constraint::Length(6), |vm| part(vm.skew))),
        (is_wide, ("p50", Constraint::Length(7), |vm| right(time(vm.p50_ns)))),
        (is_wide, ("crit/s", Constraint::Length(7), |vm| rate(Some(vm.critical)))),
        (is_wide, ("pid", Constraint::Length(8), |vm| right(vm.pid.to_string()))),
        (is_wide, ("guest", Constraint::Min(20), |vm| Cell::new(plain(&vm.guest)))),
    ];
    all.into_iter().filter(|(is_shown, _)| *is_shown).map(|(_, column)| column).collect()
}

fn part(of: Option<f64>) -> Cell<'static> {
    right(of.map_or("-".into(), percent))
}

fn rate(of: Option<f64>) -> Cell<'static> {
    right(of.map_or("-".into(), number))
}

fn longest_cell(vm: &VmRates) -> Cell<'static> {
    right(time(vm.longest_ns()))
}

fn runner_cell(vm: &VmRates) -> Cell<'static> {
    Cell::new(vm.longest_wait_lately.as_ref().map_or("-".into(), |wait| plain(&wait.runner)))
}

fn ready_cell(part: f64) -> Cell<'static> {
    let style = match part {
        _ if part >= MUCH_READY => Style::new().fg(Color::Red),
        _ if part >= SOME_READY => Style::new().fg(Color::Yellow),
        _ => Style::new(),
    };
    Cell::new(Line::from(Span::styled(percent(part), style)).right_aligned())
}

fn draw_vcpus(frame: &mut Frame<'_>, vm: &VmRates, area: Rect) {
    let waits = [("longest wait", &vm.longest_wait), ("last minute", &vm.longest_wait_lately)];
    let waits = waits.iter().filter_map(|(of, wait)| Some(wait_lines(of, wait.as_ref()?)));
    let weight = vm.weight.map_or(String::new(), |weight| format!(", weight {weight}"));
    let bound = vm.bound_ns.map_or(String::new(), |ns| format!(", waits up to {}", time(Some(ns))));
    let holding = vm.holding.map_or(String::new(), |(holding, found)| {
        let (holding, found) = (number(holding), number(found));
        format!("; stopped holding something {holding}/s, {found}/s by symbols")
    });
    let first = format!("{}: pid {}{weight}{bound}{holding}", plain(&vm.name), vm.pid);
    let lines: Vec<String> = [first, plain(&vm.guest)].into_iter().chain(waits.flatten()).collect();
    let height = Constraint::Length(lines.len() as u16);
    let [name, body] = Layout::vertical([height, Constraint::Min(1)]).areas(area);
    frame.render_widget(Paragraph::new(lines.join("\n")), name);
    let head = ["vcpu", "tid", "ran", "ready", "p99", "stopped in"];
    let widths = [5, 8, 7, 7, 8].map(Constraint::Length).into_iter().chain([Constraint::Min(20)]);
    let table = Table::new(vm.vcpus.iter().map(vcpu_row), widths).header(
        Row::new(head.into_iter().map(right_but_names)).style(Style::new().add_modifier(Modifier::BOLD)),
    );
    frame.render_widget(table, body);
}

/// How long it was, when it began and who ran meanwhile.
fn wait_lines(of: &str, wait: &LongWaitView) -> Vec<String> {
    let mut lines = vec![format!("{of}: {} from {} on", time(Some(wait.length_ns)), wait.began)];
    if wait.ran_ns > 0 {
        lines.push(format!("  meanwhile ran for {}: {}", time(Some(wait.ran_ns)), plain(&wait.runner)));
    }
    lines
}

fn vcpu_row(vcpu: &VcpuRates) -> Row<'static> {
    Row::new([
        right(vcpu.id.to_string()),
        right(vcpu.tid.to_string()),
        right(vcpu.ran.map_or("-".into(), percent)),
        vcpu.ready.map_or_else(|| right("-".into()), ready_cell),
        right(time(vcpu.p99_ns)),
        Cell::new(plain(&vcpu.stopped_in)),
    ])
}

fn draw_help(frame: &mut Frame<'_>) {
    let lines = HELP.lines().count() as u16;
    let width = HELP.lines().map(|line| line.chars().count()).max().unwrap_or(0) as u16;
    let all = frame.area();
    let area = Rect {
        x: all.width.saturating_sub(width + 4) / 2,
        y: all.height.saturating_sub(lines + 2) / 2,
        width: (width + 4).min(all.width),
        height: (lines + 2).min(all.height),
    };
    frame.render_widget(Clear, area);
    let block = Block::bordered().title(" any key goes back ");
    frame.render_widget(Paragraph::new(HELP).block(block), area);
}

fn percent(part: f64) -> String {
    format!("{:.1}%", part * 100.0)
}

fn time(ns: Option<u64>) -> String {
    ns.map_or("-".into(), |ns| Unit::Nanoseconds.show(ns as f64).replace(' ', ""))
}

/// A rate: as many digits as say something.
fn number(rate: f64) -> String {
    if rate == 0.0 || rate >= 10.0 { format!("{rate:.0}") } else { format!("{rate:.1}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::rates::tests::run_view;
    use microslice_host::output::monitoring::View;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

    fn app(view: fn(u64) -> View) -> App {
        let mut app = App::new("unix:/run/microslice/metrics.sock".into());
        (10..14).for_each(|second| app.hear(Ok(view(second))));
        app
    }

    fn observe_view(seconds: u64) -> View {
        let mut view =
            View { source: "observe".into(), pool: None, accelerations: None, ..run_view(seconds) };
        for vm in &mut view.vms {
            (vm.shares, vm.weight, vm.accelerations, vm.bound_ns) = (None, None, None, None);
            let wait = |length_ns, began: &str, runner: &str, ran_ns| {
                let (began, runner) = (began.into(), runner.into());
                Some(LongWaitView { length_ns, began, runner, ran_ns })
            };
            vm.longest_wait = wait(130_000_000, "2026-11-29 23:59:58 UTC", "db", 65_000_000);
            vm.longest_wait_lately =
                wait(20_110_000, "2026-11-30 03:36:05 UTC", "system.slice/backup (rz)", 12_140_000);
            vm.vcpus.iter_mut().for_each(|vcpu| {
                vcpu.stopped_in = None;
                vcpu.preemptions =
                    [("tlb_shootdown".to_owned(), seconds * 3), ("user".to_owned(), seconds * 9)].into();
            });
        }
        view
    }

    fn screen(app: &App, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, app)).unwrap();
        terminal.backend().to_string()
    }

    /// `MICROSLICE_UPDATE_SNAPSHOTS=1` writes them anew.
    fn assert_is(name: &str, screen: &str) {
        let path = format!("{}/src/top/snapshots/{name}.txt", env!("CARGO_MANIFEST_DIR"));
        if std::env::var_os("MICROSLICE_UPDATE_SNAPSHOTS").is_some() {
            std::fs::write(&path, screen).unwrap();
        }
        let recorded = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        assert_eq!(screen, recorded, "{name}; the screen:\n{screen}");
    }

    fn press(app: &mut App, codes: &[KeyCode]) {
        codes.iter().for_each(|code| {
            app.press(KeyEvent::new(*code, KeyModifiers::NONE));
        });
    }

    #[test]
    fn vms_of_a_scheduler_fit_into_eighty_columns() {
        assert_is("run_80x24", &screen(&app(run_view), 80, 24));
    }

    #[test]
    fn a_wide_terminal_has_guests_too() {
        assert_is("run_140x20", &screen(&app(run_view), 140, 20));
    }

    #[test]
    fn an_observer_has_no_pool_and_no_shares() {
        assert_is("observe_80x24", &screen(&app(observe_view), 80, 24));
    }

    #[test]
    fn a_vm_opens_its_vcpus_and_what_they_were_doing() {
        let mut run = app(run_view);
        press(&mut run, &[KeyCode::Enter]);
        assert_is("run_vcpus_80x24", &screen(&run, 80, 24));
        let mut observe = app(observe_view);
        press(&mut observe, &[KeyCode::Enter]);
        assert_is("observe_vcpus_80x24", &screen(&observe, 80, 24));
    }

    #[test]
    fn help_lies_over_it() {
        let mut app = app(run_view);
        press(&mut app, &[KeyCode::Char('h')]);
        assert_is("help_80x24", &screen(&app, 80, 24));
    }

    #[test]
    fn what_is_wrong_stands_below_and_a_tiny_terminal_is_drawn_all_the_same() {
        let mut app = app(run_view);
        app.hear(Err("Connection refused".into()));
        assert!(screen(&app, 80, 24).contains("Connection refused: trying again, q ends"));
        app.has_help = true;
        for (width, height) in [(1, 1), (5, 3), (40, 2)] {
            screen(&app, width, height);
        }
    }

    #[test]
    fn names_that_tenants_choose_command_no_terminal() {
        let mut view = run_view(3);
        view.vms[0].name = "\x1b[2Jevil\n".into();
        let mut app = App::new("x".into());
        app.hear(Ok(view));
        let screen = screen(&app, 80, 24);
        assert!(!screen.contains('\x1b') && screen.contains("[2Jevil"), "{screen}");
    }
}
