//! All metrics of a server, and the page of the documentation that lists them.

use super::definition::Definition;
use super::{labelled, process};
use crate::sandbox;
use crate::server::metric_sources;

/// Returns the definition of each metric.
pub(crate) fn definitions() -> Vec<Definition> {
    let mut all = labelled();
    all.extend(process::ALL);
    all.extend(metric_sources());
    all.extend(sandbox::METRICS.iter().map(|source| source.definition));
    all.sort_by_key(|definition| definition.name);
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::definition::Kind;
    use std::collections::BTreeSet;
    use std::fmt::Write as _;
    use std::path::{Path, PathBuf};

    const HEAD: &str = "# Metrics\n\n    curl -s http://127.0.0.1:9469/metrics\n\n\
        These are all metrics of `dafs serve`, also with `--role data`, as their definitions in the code have \
        them.\n[Monitoring](monitoring.md) says how to scrape and to use them.\n\n\
        <!-- A test of dafs-server compares this page with the definitions. To write it again:\n\
        DAFS_WRITE_DOCS=1 cargo test -p dafs-server the_page_lists -->\n\n\
        | metric | type | labels | meaning |\n|---|---|---|---|\n";

    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
    }

    fn page() -> String {
        let mut page = HEAD.to_owned();
        for Definition { name, kind, help, labels } in definitions() {
            let kind = format!("{kind:?}").to_lowercase();
            let labels: Vec<_> = labels.iter().map(|label| format!("`{label}`")).collect();
            writeln!(page, "| `{name}` | {kind} | {} | {help} |", labels.join(", ")).unwrap();
        }
        page
    }

    #[test]
    fn the_page_lists_the_definitions() {
        let path = root().join("docs/metrics.md");
        if std::env::var_os("DAFS_WRITE_DOCS").is_some() {
            std::fs::write(&path, page()).unwrap();
        }
        let written = std::fs::read_to_string(&path).unwrap();
        assert_eq!(
            written,
            page(),
            "docs/metrics.md is stale; the comment in it says how to write it"
        );
    }

    #[test]
    fn names_follow_the_scheme_and_are_unique() {
        let all = definitions();
        let names: BTreeSet<_> = all.iter().map(|definition| definition.name).collect();
        assert_eq!(names.len(), all.len());
        for Definition { name, kind, help, .. } in all {
            assert!(name.starts_with("dafs_"), "{name}");
            assert_eq!(kind == Kind::Counter, name.ends_with("_total"), "{name}");
            assert!(kind != Kind::Histogram || name.ends_with("_seconds"), "{name}");
            assert!(!help.is_empty() && !help.contains(['|', '\n']), "{name}");
        }
    }

    /// Returns the names of metrics of this server in a text.
    fn named(text: &str) -> BTreeSet<&str> {
        let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        let words = text.split(|c: char| !is_part(c));
        words.filter(|word| word.starts_with("dafs_") && word.len() > "dafs_".len()).collect()
    }

    #[test]
    fn dashboards_and_alerts_name_metrics_that_exist() {
        let mut known = BTreeSet::new();
        for Definition { name, kind, .. } in definitions() {
            known.insert(name.to_owned());
            if kind == Kind::Histogram {
                known.extend(["bucket", "sum", "count"].map(|suffix| format!("{name}_{suffix}")));
            }
        }
        for file in ["dashboard.json", "alerts.yml"] {
            let text =
                std::fs::read_to_string(root().join("packaging/prometheus").join(file)).unwrap();
            let names = named(&text);
            assert!(names.len() > 5, "{file}: {names:?}");
            for name in names {
                assert!(known.contains(name), "{file} names {name}, which no server has");
            }
        }
    }
}
