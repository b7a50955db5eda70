//! What is looked at, and what keys do to that.

use super::rates::{PoolRates, Rates, VmRates};
use microslice_host::output::monitoring::View;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use std::collections::VecDeque;

/// Of the micro pool's use: more than any terminal is wide.
const HISTORY_MAX: usize = 512;
/// Of a filter, in characters.
const FILTER_MAX: usize = 60;

/// Does it go on?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    GoOn,
    Quit,
}

/// By which column VMs are sorted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sort {
    Ready,
    Cpus,
    Wait,
    Longest,
    Accelerations,
    Stopped,
    Name,
}

impl Sort {
    const ALL: [Self; 7] =
        [Self::Ready, Self::Cpus, Self::Wait, Self::Longest, Self::Accelerations, Self::Stopped, Self::Name];

    pub fn name(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Cpus => "CPUs",
            Self::Wait => "p99",
            Self::Longest => "longest",
            Self::Accelerations => "accel/s",
            Self::Stopped => "stopped/s",
            Self::Name => "vm",
        }
    }

    fn next(self) -> Self {
        let at = Self::ALL.iter().position(|sort| *sort == self).unwrap_or(0);
        Self::ALL[(at + 1) % Self::ALL.len()]
    }

    /// Least first, as numbers are; names in the order of the alphabet come first when "most" does.
    fn compare(self, a: &VmRates, b: &VmRates) -> std::cmp::Ordering {
        match self {
            Self::Ready => a.ready.total_cmp(&b.ready),
            Self::Cpus => a.cpus.total_cmp(&b.cpus),
            Self::Wait => a.p99_ns.cmp(&b.p99_ns),
            Self::Longest => a.longest_ns().cmp(&b.longest_ns()),
            Self::Accelerations => a.accelerations.unwrap_or(0.0).total_cmp(&b.accelerations.unwrap_or(0.0)),
            Self::Stopped => a.preemptions.total_cmp(&b.preemptions),
            Self::Name => b.name.cmp(&a.name),
        }
    }
}

pub struct App {
    /// The address that it reads.
    pub address: String,
    pub rates: Rates,
    /// What was read last, for the next interval.
    before: Option<View>,
    /// The micro pool's use, oldest first.
    pub history: VecDeque<PoolRates>,
    pub sort: Sort,
    pub is_reversed: bool,
    pub filter: String,
    pub is_typing: bool,
    pub is_paused: bool,
    pub has_help: bool,
    /// Why the latest view couldn't be read.
    pub trouble: Option<String>,
    /// The VM that the cursor is on, and whether it is open.
    selected: Option<(String, u32)>,
    pub is_open: bool,
}

impl App {
    pub fn new(address: String) -> Self {
        Self {
            address,
            rates: Rates::default(),
            before: None,
            history: VecDeque::new(),
            sort: Sort::Ready,
            is_reversed: false,
            filter: String::new(),
            is_typing: false,
            is_paused: false,
            has_help: false,
            trouble: None,
            selected: None,
            is_open: false,
        }
    }

    /// The next view, or why there is none.
    pub fn hear(&mut self, view: Result<View, String>) {
        match view {
            Ok(view) if !self.is_paused && !self.is_known(&view) => {
                self.trouble = None;
                self.rates = Rates::between(self.before.as_ref(), &view);
                self.before = Some(view);
                if let Some(pool) = self.rates.pool {
                    self.history.push_back(pool);
                    let surplus = self.history.len().saturating_sub(HISTORY_MAX);
                    self.history.drain(..surplus);
                }
            }
            // The one before stays, so that a pause is part of the next interval.
            Ok(_) => self.trouble = None,
            Err(cause) => self.trouble = Some(cause),
        }
    }

    /// Nothing new was published since.
    fn is_known(&self, view: &View) -> bool {
        let before = self.before.as_ref();
        before.is_some_and(|before| (&before.source, before.seconds) == (&view.source, view.seconds))
    }

    /// VMs as they are shown: filtered and sorted.
    pub fn shown(&self) -> Vec<&VmRates> {
        let filter = self.filter.to_lowercase();
        let fits = |vm: &&VmRates| {
            filter.is_empty()
                || vm.name.to_lowercase().contains(&filter)
                || vm.guest.to_lowercase().contains(&filter)
        };
        let mut vms: Vec<&VmRates> = self.rates.vms.iter().filter(fits).collect();
        vms.sort_by(|a, b| {
            let order = self.sort.compare(a, b);
            let order = if self.is_reversed { order } else { order.reverse() };
            order.then_with(|| a.key().cmp(&b.key()))
        });
        vms
    }

    /// Where the cursor is among those.
    pub fn cursor(&self) -> usize {
        let is_selected = |vm: &&VmRates| {
            self.selected.as_ref().is_some_and(|(name, pid)| vm.key() == (name.as_str(), *pid))
        };
        self.shown().iter().position(is_selected).unwrap_or(0)
    }

    /// The VM whose vCPUs are shown.
    pub fn open_vm(&self) -> Option<&VmRates> {
        let (name, pid) = self.selected.as_ref().filter(|_| self.is_open)?;
        self.rates.vms.iter().find(|vm| vm.key() == (name.as_str(), *pid))
    }

    fn move_cursor(&mut self, to: impl FnOnce(usize, usize) -> usize) {
        let (shown, at) = (self.shown(), self.cursor());
        let Some(last) = shown.len().checked_sub(1) else { return };
        let (name, pid) = shown[to(at, last).min(last)].key();
        self.selected = Some((name.to_owned(), pid));
    }

    /// A key was pressed.
    pub fn press(&mut self, key: KeyEvent) -> Flow {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return if key.code == KeyCode::Char('c') { Flow::Quit } else { Flow::GoOn };
        }
        if self.is_typing {
            self.type_filter(key.code);
            return Flow::GoOn;
        }
        if self.has_help {
            self.has_help = false;
            return if key.code == KeyCode::Char('q') { Flow::Quit } else { Flow::GoOn };
        }
        match key.code {
            KeyCode::Char('q') => return Flow::Quit,
            KeyCode::Char('h' | '?') | KeyCode::F(1) => self.has_help = true,
            KeyCode::Char(' ' | 'p') => self.is_paused = !self.is_paused,
            KeyCode::Char('s') => self.sort = self.sort.next(),
            KeyCode::Char('r') => self.is_reversed = !self.is_reversed,
            KeyCode::Char('/') => (self.is_typing, self.is_open) = (true, false),
            KeyCode::Down | KeyCode::Char('j') => self.move_cursor(|at, _| at + 1),
            KeyCode::Up | KeyCode::Char('k') => self.move_cursor(|at, _| at.saturating_sub(1)),
            KeyCode::PageDown => self.move_cursor(|at, _| at + 10),
            KeyCode::PageUp => self.move_cursor(|at, _| at.saturating_sub(10)),
            KeyCode::Home => self.move_cursor(|_, _| 0),
            KeyCode::End => self.move_cursor(|_, last| last),
            KeyCode::Enter | KeyCode::Right => {
                self.move_cursor(|at, _| at);
                self.is_open = self.selected.is_some();
            }
            KeyCode::Esc | KeyCode::Backspace | KeyCode::Left if self.is_open => self.is_open = false,
            KeyCode::Esc => self.filter.clear(),
            _ => {}
        }
        Flow::GoOn
    }

    fn type_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                self.filter.clear();
                self.is_typing = false;
            }
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(letter) if self.filter.chars().count() < FILTER_MAX => self.filter.push(letter),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::rates::tests::run_view;

    fn app() -> App {
        let mut app = App::new("unix:/run/microslice/metrics.sock".into());
        app.hear(Ok(run_view(10)));
        app.hear(Ok(run_view(12)));
        app
    }

    fn press(app: &mut App, keys: &str) -> Flow {
        keys.chars().fold(Flow::GoOn, |_, letter| {
            let code = match letter {
                '\n' => KeyCode::Enter,
                '\x1b' => KeyCode::Esc,
                letter => KeyCode::Char(letter),
            };
            app.press(KeyEvent::new(code, KeyModifiers::NONE))
        })
    }

    fn names(app: &App) -> Vec<&str> {
        app.shown().iter().map(|vm| vm.name.as_str()).collect()
    }

    #[test]
    fn the_vm_that_waits_most_is_first_until_another_order_is_asked_for() {
        let mut app = app();
        assert_eq!(names(&app), ["web", "db"]);
        press(&mut app, "r");
        assert_eq!(names(&app), ["db", "web"]);
        press(&mut app, "rssssss");
        assert_eq!((app.sort, names(&app)), (Sort::Name, vec!["db", "web"]));
        press(&mut app, "s");
        assert_eq!(app.sort, Sort::Ready);
    }

    #[test]
    fn a_filter_is_typed_until_enter_and_taken_back_by_escape() {
        let mut app = app();
        press(&mut app, "/DBq\x1b");
        assert_eq!((names(&app).len(), app.is_typing), (2, false));
        press(&mut app, "/DB\n");
        assert_eq!(names(&app), ["db"]);
        press(&mut app, "\x1b");
        assert_eq!(names(&app).len(), 2);
    }

    #[test]
    fn the_cursor_stays_with_its_vm_and_enter_opens_it() {
        let mut app = app();
        press(&mut app, "j");
        assert_eq!(app.cursor(), 1);
        press(&mut app, "r");
        assert_eq!(app.cursor(), 0, "db is first now");
        press(&mut app, "\n");
        assert_eq!(app.open_vm().map(|vm| vm.name.as_str()), Some("db"));
        press(&mut app, "\x1b");
        assert!(app.open_vm().is_none());
    }

    #[test]
    fn a_pause_keeps_what_is_shown_and_what_came_meanwhile_is_of_the_next_interval() {
        let mut app = app();
        press(&mut app, " ");
        app.hear(Ok(run_view(14)));
        assert_eq!(app.rates.seconds, 12.0);
        press(&mut app, " ");
        app.hear(Ok(run_view(16)));
        assert_eq!((app.rates.seconds, app.rates.vms[0].cpus), (16.0, 1.5));
    }

    #[test]
    fn what_is_read_twice_is_shown_once() {
        let mut app = app();
        app.hear(Ok(run_view(12)));
        assert_eq!((app.rates.vms[0].cpus, app.history.len()), (1.5, 2));
    }

    #[test]
    fn a_daemon_that_is_read_may_go_and_come_back() {
        let mut app = app();
        app.hear(Err("Connection refused".into()));
        assert_eq!((app.trouble.as_deref(), app.rates.vms.len()), (Some("Connection refused"), 2));
        app.hear(Ok(run_view(2)));
        assert_eq!((app.trouble.as_deref(), app.rates.seconds), (None, 2.0));
    }

    #[test]
    fn q_and_control_c_end_it_wherever_one_is() {
        for before in ["", "h", "\n"] {
            let mut app = app();
            press(&mut app, before);
            assert_eq!(press(&mut app, "q"), Flow::Quit, "{before:?}");
        }
        let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        let mut typing = app();
        assert_eq!(press(&mut typing, "/q"), Flow::GoOn, "a letter of the filter");
        assert_eq!(typing.press(control_c), Flow::Quit);
    }
}
