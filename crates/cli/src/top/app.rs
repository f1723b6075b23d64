//! The state of the live view, and what keys do. It knows no terminal.

use std::collections::VecDeque;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use forebay_control::{Activity, StatSample, Status};

use super::list::{List, Sort};
use super::lists::Span;
use super::moments::{MOST, Moment};
use crate::rates::Rates;

/// The rows by which the keys for pages move.
const PAGE: usize = 10;

/// A tab.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tab {
    Overview,
    Clients,
    Exports,
    Files,
    Devices,
}

impl Tab {
    pub(super) const ALL: [Tab; 5] = [Tab::Overview, Tab::Clients, Tab::Exports, Tab::Files, Tab::Devices];

    /// Returns the title of the tab.
    pub(super) fn name(self) -> &'static str {
        match self {
            Tab::Overview => "Overview",
            Tab::Clients => "Clients",
            Tab::Exports => "Exports",
            Tab::Files => "Files",
            Tab::Devices => "Devices",
        }
    }

    /// Returns the number of the tab's list; `None` for the overview.
    fn list(self) -> Option<usize> {
        (self as usize).checked_sub(1)
    }
}

/// The effect of a key on the loop.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    Continue,
    Quit,
}

/// The figures of the last update.
pub(super) struct Shown {
    pub(super) status: Status,
    pub(super) rates: Rates,
    /// The activity of clients; the last answer if the tab did not need a new one.
    activity: Option<Activity>,
    lists: [List; 4],
}

/// The live view.
pub(super) struct App {
    pub(super) tab: Tab,
    sorts: [Sort; 4],
    pub(super) filter: String,
    /// True while keys are a part of the filter.
    pub(super) is_typing: bool,
    pub(super) is_paused: bool,
    pub(super) has_help: bool,
    /// Rows that are left out at the top of a list.
    pub(super) scroll: usize,
    pub(super) moments: VecDeque<Moment>,
    pub(super) shown: Option<Shown>,
    sample: Option<StatSample>,
    /// The error of the last request; `None` if the server answered.
    pub(super) silent: Option<String>,
}

impl App {
    /// Returns a view with the figures of the past, oldest first.
    pub(super) fn new(past: Vec<Moment>) -> Self {
        // Clients and files are sorted by their operations, exports and devices by their names.
        let sorts = [1, 0, 1, 0].map(|column| Sort { column, is_reversed: false });
        App {
            tab: Tab::Overview,
            sorts,
            filter: String::new(),
            is_typing: false,
            is_paused: false,
            has_help: false,
            scroll: 0,
            moments: past.into(),
            shown: None,
            sample: None,
            silent: None,
        }
    }

    pub(super) fn is_paused(&self) -> bool {
        self.is_paused
    }

    pub(super) fn set_silent(&mut self, silent: Option<String>) {
        self.silent = silent;
    }

    /// Returns true if the tab shows what clients do by export, file and device.
    pub(super) fn wants_activity(&self) -> bool {
        matches!(self.tab, Tab::Exports | Tab::Files | Tab::Devices)
    }

    /// Returns true if the tab has to wait for what it shows.
    pub(super) fn lacks_activity(&self) -> bool {
        self.wants_activity() && self.shown.as_ref().is_none_or(|shown| shown.activity.is_none())
    }

    /// Takes new figures of the server. `activity` is absent if the tab does not show it.
    pub(super) fn take(&mut self, sample: StatSample, status: Status, activity: Option<Activity>) {
        let rates = Rates::between(self.sample.as_ref(), &sample);
        let earlier = self.shown.take();
        let did = earlier.as_ref().and_then(|shown| shown.activity.as_ref());
        let span = Span {
            earlier: earlier.as_ref().map(|shown| &shown.status),
            status: &status,
            did,
            activity: activity.as_ref(),
        };
        let lists = span.lists();
        let activity = activity.or_else(|| did.cloned());
        // The first rates are those since the start of the server, which are no part of a curve.
        if self.sample.is_some() {
            self.moments.push_back(Moment::from(&rates));
            self.moments.drain(..self.moments.len().saturating_sub(MOST));
        }
        self.sample = Some(sample);
        self.shown = Some(Shown { status, rates, activity, lists });
    }

    /// Returns the list of the tab, and its order.
    pub(super) fn list(&self) -> Option<(&List, Sort)> {
        let number = self.tab.list()?;
        Some((&self.shown.as_ref()?.lists[number], self.sorts[number]))
    }

    /// Carries out a key.
    pub(super) fn key(&mut self, key: KeyEvent) -> Step {
        if key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL) {
            return Step::Quit;
        }
        if self.is_typing {
            self.type_filter(key.code);
            return Step::Continue;
        }
        match key.code {
            KeyCode::Esc if self.has_help => self.has_help = false,
            KeyCode::Char('q' | 'Q') | KeyCode::Esc => return Step::Quit,
            KeyCode::Char('?' | 'h') => self.has_help = !self.has_help,
            KeyCode::Tab | KeyCode::Right => self.turn(1),
            KeyCode::BackTab | KeyCode::Left => self.turn(Tab::ALL.len() - 1),
            KeyCode::Char(digit @ '1'..='5') => self.open(Tab::ALL[digit as usize - '1' as usize]),
            KeyCode::Char('p' | ' ') => self.is_paused = !self.is_paused,
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Char('s') => self.sort(1),
            KeyCode::Char('S') => self.sort(-1),
            KeyCode::Char('r') => self.change_sort(|sort, _| sort.is_reversed = !sort.is_reversed),
            KeyCode::Down | KeyCode::Char('j') => self.scroll += 1,
            KeyCode::Up | KeyCode::Char('k') => self.scroll = self.scroll.saturating_sub(1),
            KeyCode::PageDown => self.scroll += PAGE,
            KeyCode::PageUp => self.scroll = self.scroll.saturating_sub(PAGE),
            KeyCode::Home => self.scroll = 0,
            _ => {}
        }
        let rows = self.list().map_or(0, |(list, sort)| list.chosen(&self.filter, sort).len());
        self.scroll = self.scroll.min(rows.saturating_sub(1));
        Step::Continue
    }

    /// Takes a key while the user types a filter. Enter keeps the filter, Escape removes it.
    fn type_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                self.is_typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(letter) => self.filter.push(letter),
            _ => {}
        }
        self.scroll = 0;
    }

    fn turn(&mut self, by: usize) {
        self.open(Tab::ALL[(self.tab as usize + by) % Tab::ALL.len()]);
    }

    fn open(&mut self, tab: Tab) {
        (self.tab, self.scroll) = (tab, 0);
    }

    /// Sorts by another column: the next (1) or the one before (-1).
    fn sort(&mut self, by: isize) {
        self.change_sort(|sort, columns| {
            let column = (sort.column as isize + by).rem_euclid(columns as isize);
            *sort = Sort { column: column as usize, is_reversed: false };
        });
    }

    /// Changes the order of the list in this tab. Does nothing in a tab without a list.
    fn change_sort(&mut self, change: impl FnOnce(&mut Sort, usize)) {
        let columns = self.list().map_or(0, |(list, _)| list.columns.len());
        if let (Some(number), 1..) = (self.tab.list(), columns) {
            change(&mut self.sorts[number], columns);
        }
    }
}
