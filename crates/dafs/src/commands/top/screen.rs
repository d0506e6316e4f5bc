//! The screen of `dafs top`: its state, the keys that change it, and its drawing into a buffer. The
//! terminal itself is the business of `display.rs`.
//!
//! Invariants
//! * Any size is drawn without a panic, also one without rows or columns. Lines and columns that have no
//!   room are left out, the least important first.
//! * The chosen row of a table stays within the table when that has become shorter.

use super::activity::{Activity, ServerActivity};
use super::tables::{Column, Kind, Sort, duration_text};
use crate::show::{human_size, readable};
use indicatif::FormattedDuration;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Widget;
use std::ops::ControlFlow;
use std::time::Duration;

const KEYS: &str = "q quit  tab table  s sort  r reverse  h help";

const HELP: [&str; 11] = [
    "q, Esc        quit",
    "Tab, Right    next table",
    "Left          table before",
    "s             sort by the next column",
    "r             reverse the order",
    "Up, Down      scroll by a line",
    "PgUp, PgDn    scroll by a page",
    "Home, End     first, last rows",
    "h, ?          this help, and back",
    "mean, p99     duration of requests of the interval",
    "credits       unanswered requests / allowed ones",
];

/// The state of the screen.
#[derive(Debug)]
pub(super) struct Screen {
    activity: Option<Activity>,
    /// The reason why the last counts are missing.
    trouble: Option<String>,
    /// The index in [`Kind::ALL`].
    table: usize,
    /// By table.
    sorts: [Sort; Kind::ALL.len()],
    /// The first row shown.
    first_row: usize,
    /// Rows of the table in the last drawing.
    page_rows: usize,
    is_helping: bool,
}

impl Screen {
    pub(super) fn new() -> Self {
        Self {
            activity: None,
            trouble: None,
            table: 0,
            sorts: [Sort::default(); Kind::ALL.len()],
            first_row: 0,
            page_rows: 1,
            is_helping: false,
        }
    }

    /// Shows another interval.
    pub(super) fn take(&mut self, activity: Activity) {
        (self.activity, self.trouble) = (Some(activity), None);
    }

    /// Shows why there are no counts. Those of the last interval stay.
    pub(super) fn fail(&mut self, reason: &str) {
        self.trouble = Some(readable(reason.as_bytes()));
    }

    /// Carries out a key. Breaks if it ends the program.
    pub(super) fn press(&mut self, key: KeyEvent) -> ControlFlow<()> {
        if key.kind == KeyEventKind::Release {
            return ControlFlow::Continue(());
        }
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        let page = self.page_rows.max(1);
        let sort = &mut self.sorts[self.table];
        match key.code {
            KeyCode::Char('c') if is_control => return ControlFlow::Break(()),
            KeyCode::Char(_) if is_control => {}
            KeyCode::Char('q') | KeyCode::Esc => return ControlFlow::Break(()),
            KeyCode::Char('h' | '?') => self.is_helping = !self.is_helping,
            KeyCode::Tab | KeyCode::Right => self.turn_to(self.table + 1),
            KeyCode::BackTab | KeyCode::Left => self.turn_to(self.table + Kind::ALL.len() - 1),
            KeyCode::Char('s') => {
                let columns = Kind::ALL[self.table].columns().len();
                *sort = Sort { column: (sort.column + 1) % columns, is_reversed: false };
            }
            KeyCode::Char('r') => sort.is_reversed = !sort.is_reversed,
            KeyCode::Up => self.first_row = self.first_row.saturating_sub(1),
            KeyCode::Down => self.first_row = self.first_row.saturating_add(1),
            KeyCode::PageUp => self.first_row = self.first_row.saturating_sub(page),
            KeyCode::PageDown => self.first_row = self.first_row.saturating_add(page),
            KeyCode::Home => self.first_row = 0,
            KeyCode::End => self.first_row = usize::MAX,
            _ => {}
        }
        ControlFlow::Continue(())
    }

    fn turn_to(&mut self, table: usize) {
        (self.table, self.first_row, self.is_helping) = (table % Kind::ALL.len(), 0, false);
    }

    /// Draws all of an area.
    pub(super) fn draw(&mut self, area: Rect, buffer: &mut Buffer) {
        let (width, height) = (usize::from(area.width), usize::from(area.height));
        // The last line has the keys.
        let mut lines = self.lines(width, height.saturating_sub(1));
        lines.resize_with(height.saturating_sub(1), Line::default);
        lines.push(match &self.trouble {
            Some(reason) => Line::styled(reason.clone(), Style::new().fg(Color::Red)),
            None => Line::raw(KEYS),
        });
        for (row, line) in area.rows().zip(lines) {
            line.render(row, buffer);
        }
    }

    /// Returns at most so many lines of that width, and keeps the state within the table.
    fn lines(&mut self, width: usize, height: usize) -> Vec<Line<'static>> {
        if self.is_helping {
            return HELP.into_iter().take(height).map(Line::raw).collect();
        }
        let Some(activity) = &self.activity else {
            return vec![Line::raw("the first counts come soon")];
        };
        let mut lines: Vec<_> =
            facts(activity, width).into_iter().take(height / 2).map(Line::raw).collect();
        let (kind, sort) = (Kind::ALL[self.table], self.sorts[self.table]);
        lines.push(tabs(activity, kind, sort, width));
        lines.push(header(kind, sort, width));
        lines.truncate(height);
        self.page_rows = height - lines.len();
        let last = kind.len(activity).saturating_sub(self.page_rows);
        self.first_row = self.first_row.min(last);
        let shown = shown_columns(kind, width);
        for row in kind.rows(activity, sort).iter().skip(self.first_row).take(self.page_rows) {
            let mut text = String::new();
            for (cell, column) in row.iter().zip(shown) {
                text += &cell.padded(column.width);
                text.push(' ');
            }
            text += &row.last().map_or_else(String::new, |cell| cell.padded(0));
            lines.push(Line::raw(text));
        }
        lines
    }
}

/// Returns the columns that have room in a line, without the last one, which always has some.
fn shown_columns(kind: Kind, width: usize) -> &'static [Column] {
    let columns = kind.columns();
    let others = &columns[..columns.len().saturating_sub(1)];
    let mut left = width.saturating_sub((width / 4).clamp(8, 24));
    let fits = |column: &&Column| {
        let rest = left.checked_sub(column.width + 1);
        left = rest.unwrap_or(left);
        rest.is_some()
    };
    let count = others.iter().take_while(fits).count();
    &others[..count]
}

/// Returns the line above a table: its columns, with that of the order in bold letters.
fn header(kind: Kind, sort: Sort, width: usize) -> Line<'static> {
    let shown = shown_columns(kind, width);
    let last = kind.columns().len().saturating_sub(1);
    let titles = shown.iter().chain(kind.columns().last()).enumerate().map(|(index, column)| {
        let index = if index < shown.len() { index } else { last };
        let style = if index == sort.column { Modifier::BOLD } else { Modifier::empty() };
        Span::styled(column.heading() + " ", style)
    });
    titles.collect::<Line<'_>>().style(Modifier::REVERSED)
}

/// Returns the line of all tables, or of the shown one alone where there is no room.
fn tabs(activity: &Activity, shown: Kind, sort: Sort, width: usize) -> Line<'static> {
    let tab = |kind: Kind| {
        let title = format!("{} {}", kind.title(), kind.len(activity));
        if kind == shown {
            Span::styled(format!("[{title}]"), Modifier::BOLD)
        } else {
            Span::raw(format!(" {title} "))
        }
    };
    let column = shown.columns().get(sort.column).map_or("", |column| column.title);
    let reversed = if sort.is_reversed { ", reversed" } else { "" };
    let order = Span::raw(format!(" by {column}{reversed}"));
    let all: Line<'_> = Kind::ALL.into_iter().map(tab).chain([order.clone()]).collect();
    if all.width() <= width { all } else { Line::from(vec![tab(shown), order]) }
}

/// Returns the figures of the server, in lines of that width.
fn facts(activity: &Activity, width: usize) -> Vec<String> {
    let (server, optimistic) = (&activity.server, &activity.optimistic);
    let mut groups = vec![work_facts(server), server_facts(server), state_facts(server)];
    let files = optimistic.files.saturating_add(optimistic.small_files);
    if files.max(optimistic.frames_published).max(optimistic.frames_free) > 0 {
        groups.push(vec![
            format!("optimistic reads: {files} files"),
            format!("{} blocks shown", optimistic.frames_published),
            format!("{} free", optimistic.frames_free),
            format!("{:.0} requests/s for these files", optimistic.missed),
        ]);
    }
    groups.iter().flat_map(|group| wrap(group, width)).collect()
}

fn work_facts(server: &ServerActivity) -> Vec<String> {
    let work = &server.work;
    vec![
        format!("{:.0} requests/s", work.requests),
        format!("{}/s read", human_size(work.read_bytes as u64)),
        format!("{}/s written", human_size(work.written_bytes as u64)),
        format!("mean {}", duration_text(work.latency_mean_seconds)),
        format!("p99 {}", duration_text(work.latency_p99_seconds)),
    ]
}

fn server_facts(server: &ServerActivity) -> Vec<String> {
    vec![
        format!("CPU {:.0} %", server.cpu_percent),
        format!("host load {:.2}", server.host_load),
        format!("{}/{} credits", server.in_flight, server.credits),
        format!("{} connections", server.connections),
        format!("up {}", FormattedDuration(Duration::from_secs(server.uptime_seconds))),
        format!("dafs {}", readable(server.version.as_bytes())),
    ]
}

fn state_facts(server: &ServerActivity) -> Vec<String> {
    vec![
        format!("{} DAFS clients", server.dafs_clients),
        format!("{} of NFSv4", server.nfs_clients),
        format!("{} files open", server.open_files),
        format!("{} locks", server.locks),
        format!("{} waiting", server.lock_waiters),
        format!("{} delegations", server.delegations),
    ]
}

/// Puts texts into as few lines of that width as their order allows. A longer text has its own line.
fn wrap(texts: &[String], width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for text in texts {
        match lines.last_mut() {
            Some(line) if line.len() + 2 + text.len() <= width => {
                line.push_str("  ");
                line.push_str(text);
            }
            _ => lines.push(text.clone()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::super::activity::tests::{client, looks};
    use super::super::activity::{
        ClientActivity, ExportActivity, Holding, OptimisticActivity, Work,
    };
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use std::fs;

    fn drawn(screen: &mut Screen, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        let draw = |frame: &mut ratatui::Frame<'_>| screen.draw(frame.area(), frame.buffer_mut());
        terminal.draw(draw).unwrap();
        let content = terminal.backend().buffer().content();
        let lines = content.chunks(usize::from(width)).map(|line| {
            let text: String = line.iter().map(|cell| cell.symbol()).collect();
            text.trim_end().to_owned()
        });
        lines.collect()
    }

    fn press(screen: &mut Screen, keys: &[KeyCode]) {
        for &key in keys {
            assert!(screen.press(KeyEvent::from(key)).is_continue(), "{key:?} ends the program");
        }
    }

    fn work(requests: f64, read_bytes: f64, written_bytes: f64) -> Work {
        let (latency_mean_seconds, latency_p99_seconds) = (Some(71e-6), Some(240e-6));
        Work { requests, read_bytes, written_bytes, latency_mean_seconds, latency_p99_seconds }
    }

    /// A server with two clients and two exports.
    fn example() -> Activity {
        let (before, after) = looks(0, 0);
        let mut activity = Activity::between(&before, &after);
        let client = |client: &str, name: &str, transport: &str, work, credits, in_flight| {
            let (client, name) = (client.to_owned(), name.to_owned());
            let transport = transport.to_owned();
            let (opens, locks) = (6, 2);
            ClientActivity { client, name, transport, work, credits, in_flight, opens, locks }
        };
        activity.clients = vec![
            client("f4cd8a180b48f21f", "render-07", "shm", work(41_250.0, 1.7e8, 0.0), 64, 12),
            client("0b5e77d2c1a90e43", "build.example", "nfs4", work(880.0, 0.0, 3.1e7), 32, 1),
        ];
        let export =
            |name: &str, work| ExportActivity { name: name.to_owned(), work, refused: 0.0 };
        activity.exports = vec![
            export("projects", work(42_130.0, 1.7e8, 3.1e7)),
            export("scratch", Work::default()),
        ];
        let holding = "open read+write /projects inode 1311 by 00000001";
        activity.holdings =
            vec![Holding { client: "render-07".to_owned(), text: holding.to_owned() }];
        activity.server = ServerActivity {
            version: "0.1.0".to_owned(),
            work: work(42_130.0, 1.7e8, 3.1e7),
            refused: 0.0,
            cpu_percent: 131.0,
            credits: 96,
            in_flight: 13,
            ..activity.server
        };
        activity
    }

    fn screen(activity: Activity) -> Screen {
        let mut screen = Screen::new();
        screen.take(activity);
        screen
    }

    #[test]
    fn the_page_has_the_screen() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/monitoring.md");
        let (begin, end) = ("<!-- example: top -->\n```\n", "\n```\n");
        let shown = drawn(&mut screen(example()), 80, 9).join("\n");
        let page = fs::read_to_string(path).unwrap();
        let (before, rest) = page.split_once(begin).unwrap();
        let (written, after) = rest.split_once(end).unwrap();
        if std::env::var_os("DAFS_WRITE_DOCS").is_some() {
            fs::write(path, format!("{before}{begin}{shown}{end}{after}")).unwrap();
        } else {
            let text = "stale: DAFS_WRITE_DOCS=1 cargo test -p dafs the_page_has_the_screen";
            assert_eq!(written, shown, "{text}");
        }
    }

    #[test]
    fn narrow_screens_have_the_most_important_figures() {
        let lines = drawn(&mut screen(example()), 20, 12);
        assert_eq!(
            lines,
            [
                "42130 requests/s",
                "163M/s read",
                "30M/s written",
                "mean 71 us",
                "p99 240 us",
                "[clients 2] by reque",
                "requests/s name",
                "     41250 render-07",
                "       880 build.exa",
                "",
                "",
                "q quit  tab table  s",
            ]
        );
    }

    #[test]
    fn wide_screens_have_all_columns() {
        let lines = drawn(&mut screen(example()), 200, 24);
        let header = lines.iter().find(|line| line.starts_with("requests/s")).unwrap();
        let titles: Vec<_> = header.split_whitespace().collect();
        let all: Vec<_> = Kind::Clients.columns().iter().map(|column| column.title).collect();
        assert_eq!(titles, all);
        let busiest = lines.iter().find(|line| line.contains("render-07")).unwrap();
        let cells: Vec<_> = busiest.split_whitespace().collect();
        assert_eq!(
            cells,
            [
                "41250",
                "163M",
                "0",
                "71",
                "us",
                "240",
                "us",
                "12/64",
                "6",
                "2",
                "shm",
                "f4cd8a180b48f21f",
                "render-07"
            ]
        );
    }

    #[test]
    fn all_sizes_and_all_tables_are_drawn() {
        let (mut before, mut after) = looks(5, 9);
        before.clients = (0..40).map(|key| client(key, 10)).collect();
        after.clients = (0..40).map(|key| client(key, 10 + key)).collect();
        let mut screens = [Screen::new(), screen(Activity::between(&before, &after))];
        for screen in &mut screens {
            for key in [KeyCode::Down, KeyCode::Tab, KeyCode::Tab, KeyCode::Tab, KeyCode::Char('h')]
            {
                press(screen, &[key]);
                for (width, height) in (0..30).flat_map(|width| (0..14).map(move |h| (width, h))) {
                    let area = Rect::new(0, 0, width, height);
                    screen.draw(area, &mut Buffer::empty(area));
                }
            }
        }
    }

    #[test]
    fn keys_turn_sort_scroll_and_end() {
        let (mut before, mut after) = looks(5, 9);
        before.clients = (0..40).map(|key| client(key, 10)).collect();
        after.clients = (0..40).map(|key| client(key, 10 + key)).collect();
        let mut screen = screen(Activity::between(&before, &after));
        let first = |screen: &mut Screen| {
            let lines = drawn(screen, 80, 24);
            let header = lines.iter().position(|line| line.starts_with("requests/s")).unwrap();
            lines[header + 1].split_whitespace().next_back().unwrap().to_owned()
        };
        assert_eq!(first(&mut screen), "c39");
        press(&mut screen, &[KeyCode::Down, KeyCode::Down]);
        assert_eq!(first(&mut screen), "c37");
        press(&mut screen, &[KeyCode::End, KeyCode::Char('r'), KeyCode::Home]);
        assert_eq!(first(&mut screen), "c0", "the least busy comes first");
        press(&mut screen, &[KeyCode::Tab]);
        assert_eq!(first(&mut screen), "/two");
        press(&mut screen, &[KeyCode::BackTab, KeyCode::Char('?')]);
        assert_eq!(drawn(&mut screen, 80, 24)[0], HELP[0]);
        press(&mut screen, &[KeyCode::Char('h'), KeyCode::End]);
        drawn(&mut screen, 80, 24);
        assert_eq!(screen.first_row + screen.page_rows, 40, "the last rows fill the page");
        let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        for key in [KeyEvent::from(KeyCode::Char('q')), KeyEvent::from(KeyCode::Esc), control_c] {
            assert!(screen.press(key).is_break(), "{key:?}");
        }
    }

    #[test]
    fn a_server_that_is_gone_is_told_beside_its_last_counts() {
        let mut screen = screen(example());
        screen.fail("no server answers\x1b[2J");
        let lines = drawn(&mut screen, 80, 12);
        assert_eq!(lines[11], "no server answers\\u{1b}[2J");
        assert!(lines[0].starts_with("42130 requests/s"), "{lines:?}");
        screen.take(example());
        assert_eq!(drawn(&mut screen, 80, 12)[11], KEYS);
    }

    #[test]
    fn optimistic_reads_are_shown_where_there_are_any() {
        let mut activity = example();
        let shows = |activity: &Activity| facts(activity, 80).concat().contains("optimistic");
        assert!(!shows(&activity));
        activity.optimistic = OptimisticActivity { files: 3, ..activity.optimistic };
        assert!(shows(&activity));
    }
}
