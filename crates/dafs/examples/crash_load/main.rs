//! A load that is killed at any moment, and the proof that no operation was lost or done twice.
//!
//! | command | does |
//! |---|---|
//! | `crash_load load URL HISTORIES NUMBER LIFE SECONDS` | works as client NUMBER in its LIFE-th life, until killed |
//! | `crash_load settle URL HISTORIES` | takes the lock once more, so that a lock that broke last is reported |
//! | `crash_load check DIRECTORY HISTORIES` | compares the exported directory with the histories |
//! | `crash_load cut DIRECTORY` | ends a mounted file system as a power failure would: unsynced data is lost |
//!
//! A client logs every operation before it sends it, and again when it is answered. At most the last
//! operation of a killed client is therefore in doubt.

mod check;
mod cut;
mod history;
mod load;
mod locked;

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match run(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("crash_load {}: {error}", words.join(" "));
            ExitCode::FAILURE
        }
    }
}

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn run(words: &[&str]) -> Result<()> {
    match *words {
        ["load", url, histories, number, life, seconds] => {
            let life = load::Life { number: number.parse()?, life: life.parse()? };
            load::run(url, Path::new(histories), life, Duration::from_secs(seconds.parse()?))
        }
        ["settle", url, histories] => load::settle(url, Path::new(histories)),
        ["check", directory, histories] => {
            let found = check::run(Path::new(directory), Path::new(histories))?;
            println!("{found}");
            Ok(())
        }
        ["cut", directory] => Ok(cut::power(Path::new(directory))?),
        _ => Err("usage: crash_load load|settle|check|cut ...".into()),
    }
}
