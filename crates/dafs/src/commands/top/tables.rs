//! The tables of `dafs top`: their columns, the cells of each row, and the order of the rows.
//!
//! Invariants
//! * No cell has a control character: names come from clients.

use super::activity::{Activity, ClientActivity, ExportActivity, Holding, NodeActivity, Work};
use crate::show::{human_size, readable};
use std::cmp::Ordering;

/// A table of the screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Clients,
    Exports,
    Files,
    Nodes,
}

impl Kind {
    /// In the order of the tabs.
    pub(super) const ALL: [Self; 4] = [Self::Clients, Self::Exports, Self::Files, Self::Nodes];

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Clients => "clients",
            Self::Exports => "exports",
            Self::Files => "files",
            Self::Nodes => "data servers",
        }
    }

    /// The columns, the most important first. The last one takes the rest of a line.
    pub(super) fn columns(self) -> &'static [Column] {
        match self {
            Self::Clients => &CLIENTS,
            Self::Exports => &EXPORTS,
            Self::Files => &FILES,
            Self::Nodes => &NODES,
        }
    }

    /// The number of rows.
    pub(super) fn len(self, activity: &Activity) -> usize {
        match self {
            Self::Clients => activity.clients.len(),
            Self::Exports => activity.exports.len(),
            Self::Files => activity.holdings.len(),
            Self::Nodes => activity.nodes.len(),
        }
    }

    /// The rows in the order of a column. Each has a cell for each column.
    pub(super) fn rows(self, activity: &Activity, sort: Sort) -> Vec<Vec<Cell>> {
        let mut rows: Vec<_> = match self {
            Self::Clients => activity.clients.iter().map(client).collect(),
            Self::Exports => activity.exports.iter().map(export).collect(),
            Self::Files => activity.holdings.iter().map(holding).collect(),
            Self::Nodes => activity.nodes.iter().map(node).collect(),
        };
        rows.sort_by(|one, other| {
            let order = match (one.get(sort.column), other.get(sort.column)) {
                (Some(one), Some(other)) => one.compare(other),
                _ => Ordering::Equal,
            };
            if sort.is_reversed { order.reverse() } else { order }
        });
        rows
    }
}

/// A column of a table.
#[derive(Debug)]
pub(super) struct Column {
    pub(super) title: &'static str,
    /// Characters on the screen. The last column has 0, and takes the rest of the line.
    pub(super) width: usize,
    is_text: bool,
}

impl Column {
    const fn number(title: &'static str, width: usize) -> Self {
        Self { title, width, is_text: false }
    }

    const fn text(title: &'static str, width: usize) -> Self {
        Self { title, width, is_text: true }
    }

    /// The title, above the text of the cells.
    pub(super) fn heading(&self) -> String {
        let (title, width) = (self.title, self.width);
        if self.is_text { format!("{title:<width$}") } else { format!("{title:>width$}") }
    }
}

static CLIENTS: [Column; 11] = [
    Column::number("requests/s", 10),
    Column::number("read/s", 6),
    Column::number("written/s", 9),
    Column::number("mean", 8),
    Column::number("p99", 8),
    Column::number("credits", 9),
    Column::number("opens", 6),
    Column::number("locks", 6),
    Column::text("transport", 9),
    Column::text("client", 16),
    Column::text("name", 0),
];

static EXPORTS: [Column; 7] = [
    Column::number("requests/s", 10),
    Column::number("read/s", 6),
    Column::number("written/s", 9),
    Column::number("mean", 8),
    Column::number("p99", 8),
    Column::number("refused/s", 9),
    Column::text("export", 0),
];

static FILES: [Column; 2] =
    [Column::text("client", 24), Column::text("open, locked or delegated", 0)];

static NODES: [Column; 6] = [
    Column::number("read/s", 6),
    Column::number("written/s", 9),
    Column::number("free", 6),
    Column::number("to repair", 9),
    Column::text("state", 8),
    Column::text("data server", 0),
];

/// The order of the rows of a table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Sort {
    /// The index of the column.
    pub(super) column: usize,
    pub(super) is_reversed: bool,
}

/// A cell of a table.
#[derive(Debug, PartialEq)]
pub(super) enum Cell {
    Text(String),
    Number { value: f64, text: String },
}

impl Cell {
    /// The cell's text in a column of that width. The column without a width takes all of it.
    pub(super) fn padded(&self, width: usize) -> String {
        match self {
            Self::Text(text) if width == 0 => text.clone(),
            Self::Text(text) => format!("{text:<width$.width$}"),
            Self::Number { text, .. } => format!("{text:>width$}"),
        }
    }

    /// Large numbers come first, and texts in the order of their letters.
    fn compare(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Text(one), Self::Text(other)) => one.cmp(other),
            (Self::Number { value: one, .. }, Self::Number { value: other, .. }) => {
                other.total_cmp(one)
            }
            _ => Ordering::Equal,
        }
    }
}

fn text(text: &str) -> Cell {
    Cell::Text(readable(text.as_bytes()))
}

fn number(value: f64) -> Cell {
    Cell::Number { value, text: format!("{value:.0}") }
}

/// A number that the server may not know.
fn count(value: Option<u64>) -> Cell {
    value.map_or(Cell::Number { value: -1.0, text: "-".to_owned() }, |value| number(value as f64))
}

fn bytes(value: f64) -> Cell {
    Cell::Number { value, text: human_size(value as u64) }
}

fn duration(seconds: Option<f64>) -> Cell {
    Cell::Number { value: seconds.unwrap_or(-1.0), text: duration_text(seconds) }
}

/// A duration with a unit, in at most eight characters below a day.
pub(super) fn duration_text(seconds: Option<f64>) -> String {
    match seconds {
        None => "-".to_owned(),
        Some(seconds) if seconds < 999.5e-6 => format!("{:.0} us", seconds * 1e6),
        Some(seconds) if seconds < 999.95e-3 => format!("{:.1} ms", seconds * 1e3),
        Some(seconds) => format!("{seconds:.1} s"),
    }
}

/// The cells that clients and exports share.
fn work(work: &Work) -> Vec<Cell> {
    vec![
        number(work.requests),
        bytes(work.read_bytes),
        bytes(work.written_bytes),
        duration(work.latency_mean_seconds),
        duration(work.latency_p99_seconds),
    ]
}

fn client(client: &ClientActivity) -> Vec<Cell> {
    let mut cells = work(&client.work);
    cells.extend([
        Cell::Number {
            value: client.in_flight as f64,
            text: format!("{}/{}", client.in_flight, client.credits),
        },
        number(client.opens as f64),
        number(client.locks as f64),
        text(&client.transport),
        text(&client.client),
        text(&client.name),
    ]);
    cells
}

fn export(export: &ExportActivity) -> Vec<Cell> {
    let mut cells = work(&export.work);
    cells.extend([number(export.refused), text(&format!("/{}", export.name))]);
    cells
}

fn holding(holding: &Holding) -> Vec<Cell> {
    vec![text(&holding.client), text(&holding.text)]
}

fn node(node: &NodeActivity) -> Vec<Cell> {
    let state = match (node.connected, node.leaving) {
        _ if node.empty => "empty",
        (false, _) if node.silent => "silent",
        (false, _) => "missing",
        (true, true) => "draining",
        (true, false) => "ready",
    };
    vec![
        bytes(node.read_bytes),
        bytes(node.written_bytes),
        bytes(node.available_bytes as f64),
        count(node.files_to_mend),
        text(state),
        text(&format!("/{} node {} at {}", node.export, node.number, node.place)),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::activity::tests::looks;
    use super::*;

    #[test]
    fn durations_have_units() {
        let cases = [
            (None, "-"),
            (Some(0.0), "0 us"),
            (Some(84.4e-6), "84 us"),
            (Some(999.6e-6), "1.0 ms"),
            (Some(0.9999), "999.9 ms"),
            (Some(0.999_96), "1.0 s"),
            (Some(75.0), "75.0 s"),
        ];
        for (seconds, text) in cases {
            assert_eq!(duration_text(seconds), text);
        }
    }

    #[test]
    fn rows_have_a_cell_for_each_column_and_the_order_of_the_chosen_one() {
        let (before, after) = looks(10, 14);
        let activity = Activity::between(&before, &after);
        for kind in Kind::ALL {
            let rows = kind.rows(&activity, Sort::default());
            assert_eq!(rows.len(), kind.len(&activity));
            assert!(rows.iter().all(|row| row.len() == kind.columns().len()), "{kind:?}");
        }
        let names = |column, is_reversed| -> Vec<_> {
            let rows = Kind::Exports.rows(&activity, Sort { column, is_reversed });
            rows.iter().map(|row| row[6].padded(0)).collect()
        };
        assert_eq!(names(0, false), ["/two", "/one"], "the busiest comes first");
        assert_eq!(names(6, false), ["/one", "/two"]);
        assert_eq!(names(6, true), ["/two", "/one"]);
    }

    #[test]
    fn a_node_has_the_word_of_cluster_status_for_its_state() {
        let state = |connected, silent, leaving, empty| {
            let activity = NodeActivity {
                export: "a".to_owned(),
                number: 0,
                place: String::new(),
                connected,
                silent,
                leaving,
                empty,
                available_bytes: 0,
                files_to_mend: None,
                read_bytes: 0.0,
                written_bytes: 0.0,
            };
            node(&activity).swap_remove(4)
        };
        assert_eq!(state(true, false, false, false), text("ready"));
        assert_eq!(state(true, false, true, false), text("draining"));
        assert_eq!(state(true, false, true, true), text("empty"));
        assert_eq!(state(false, true, false, false), text("silent"));
        assert_eq!(state(false, false, false, false), text("missing"));
    }

    #[test]
    fn names_cannot_control_the_terminal() {
        assert_eq!(text("a\x1b[2J\r\n"), Cell::Text("a\\u{1b}[2J\\r\\n".to_owned()));
        assert_eq!(text("abc").padded(2), "ab");
        assert_eq!(number(7.0).padded(3), "  7");
    }
}
