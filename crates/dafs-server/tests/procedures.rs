//! The table of procedures in the documentation names each, its class, and a test that
//! there is.

use dafs_wire::dafs::{Class, Procedure};
use std::path::Path;

fn class(class: Class) -> &'static str {
    match class {
        Class::Special => "special",
        Class::BulkFetch => "bulk fetch",
        Class::Simple => "simple",
        Class::FsModifying => "fs-modifying",
        Class::LockModifying => "lock-modifying",
        Class::Callback => "callback",
    }
}

#[test]
fn the_table_of_procedures_is_whole_and_true() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let table = std::fs::read_to_string(root.join("docs/protocol.md")).unwrap();
    let rows: Vec<Vec<&str>> = table
        .lines()
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .filter(|cells: &Vec<&str>| cells.len() == 5 && cells[0].parse::<u32>().is_ok())
        .collect();
    assert_eq!(rows.len(), Procedure::ALL.len());
    for (row, procedure) in rows.iter().zip(Procedure::ALL) {
        assert_eq!(row[0], (procedure as u32).to_string());
        assert_eq!(row[1], procedure.name());
        assert_eq!(row[2], class(procedure.class()), "{}", row[1]);
        let (file, test) = row[4].split_once(": ").unwrap();
        let file = root.join("crates").join(file.trim_matches('`'));
        let source = std::fs::read_to_string(&file).unwrap_or_default();
        let test = format!("fn {}(", test.trim_matches('`'));
        assert!(source.contains(&test), "{}: there is no {test}) in {}", row[1], file.display());
    }
}
