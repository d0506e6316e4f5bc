//! `dafs layout`: for the administrator of a server with striped files.

use super::admin::{Place, other_answer};
use crate::failure::Failure;
use crate::output::{say, say_json};
use dafs_server::{AdminReply, AdminRequest, LayoutReport};
use indicatif::BinaryBytes;

/// Most stripes that are drawn.
const STRIPES_DRAWN_MAX: u64 = 64;

/// Draw the layout of a file of a running server over its data servers
///
/// Each line is a data server, each column a stripe of the file, from its start on; # marks the
/// server of the stripe. A file that is not striped lies at the server itself. The last lines name the
/// nodes of the file that are missing.
#[derive(Debug, clap::Args)]
pub(crate) struct Layout {
    #[command(flatten)]
    place: Place,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
    /// The file, as clients name it: /EXPORT/PATH
    #[arg(value_name = "FILE")]
    path: String,
}

impl Layout {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let request = AdminRequest::Layout { path: self.path.clone() };
        let AdminReply::Layout(layout) = self.place.ask(&request)? else {
            return Err(other_answer());
        };
        if self.json {
            return say_json(&layout);
        }
        say!("{}: {}", self.path, summary(&layout))?;
        let names = layout.servers.iter().map(|addresses| addresses.join(", "));
        let names: Vec<_> = names.collect();
        let width = names.iter().map(String::len).max().unwrap_or(0);
        let rows = rows(&layout);
        for (name, row) in names.iter().zip(rows) {
            say!("{name:>width$} {row}")?;
        }
        layout.missing.iter().try_for_each(|node| say!("missing: {node}"))
    }
}

fn summary(layout: &LayoutReport) -> String {
    let size = BinaryBytes(layout.size_bytes);
    match layout.form.as_str() {
        "stripes" => {
            let unit = BinaryBytes(layout.unit_bytes.into());
            let count = layout.size_bytes.div_ceil(u64::from(layout.unit_bytes).max(1));
            let packing = if layout.dense { ", without holes" } else { "" };
            format!("{size} in {count} stripes of {unit}{packing}")
        }
        "copies" => format!("{size} in {} copies", layout.servers.len()),
        _ if !layout.nodes.is_empty() => {
            format!("{size} on {} nodes; clients go through the server for now", layout.nodes.len())
        }
        _ => format!("{size} at the server itself"),
    }
}

/// A line for each server.
fn rows(layout: &LayoutReport) -> Vec<String> {
    let places = layout.pattern.len() as u64;
    if places == 0 {
        let row = |server| match layout.stale.contains(&server) {
            true => "[#..#] out of date".to_owned(),
            false => "[####]".to_owned(),
        };
        return (0..).zip(&layout.servers).map(|(server, _)| row(server)).collect();
    }
    let count = layout.size_bytes.div_ceil(u64::from(layout.unit_bytes).max(1));
    let drawn = count.min(STRIPES_DRAWN_MAX);
    let server_of = |stripe: u64| {
        let place = (stripe + u64::from(layout.first_place)) % places;
        usize::try_from(place).ok().and_then(|place| layout.pattern.get(place))
    };
    let rest = if drawn < count { "..." } else { "" };
    let row = |server: usize| {
        let stripe = |stripe| match server_of(stripe) {
            Some(&at) if at as usize == server => '#',
            _ => '.',
        };
        format!("[{}]{rest}", (0..drawn).map(stripe).collect::<String>())
    };
    (0..layout.servers.len()).map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(stripes: u64) -> LayoutReport {
        LayoutReport {
            size_bytes: stripes * 65_536 - 1,
            form: "stripes".to_owned(),
            unit_bytes: 65_536,
            first_place: 2,
            pattern: vec![0, 1, 2],
            servers: vec![vec!["10.0.0.1:2051".to_owned()]; 3],
            dense: false,
            stale: vec![],
            nodes: vec![],
            missing: vec![],
        }
    }

    #[test]
    fn stripes_are_drawn_where_they_lie() {
        assert_eq!(rows(&layout(4)), ["[.#..]", "[..#.]", "[#..#]"]);
        assert_eq!(summary(&layout(4)), "256.00 KiB in 4 stripes of 64.00 KiB");
        let long = rows(&layout(100));
        assert!(long.iter().all(|row| row.len() == 64 + 5 && row.ends_with("]...")));
    }

    #[test]
    fn copies_are_whole_and_the_rest_is_at_the_server() {
        let copies = LayoutReport { form: "copies".to_owned(), pattern: vec![], ..layout(1) };
        assert_eq!(rows(&copies), ["[####]"; 3]);
        let stale = LayoutReport { stale: vec![1], ..copies.clone() };
        assert_eq!(rows(&stale), ["[####]", "[#..#] out of date", "[####]"]);
        assert_eq!(summary(&copies), "64.00 KiB in 3 copies");
        let here = LayoutReport { size_bytes: 5, ..LayoutReport::default() };
        assert_eq!((rows(&here).len(), summary(&here).as_str()), (0, "5 B at the server itself"));
        let away = LayoutReport { nodes: vec![1, 2], ..here };
        assert_eq!(summary(&away), "5 B on 2 nodes; clients go through the server for now");
    }
}
