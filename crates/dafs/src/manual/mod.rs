//! Manual pages, made from the definitions of the command line and of the configuration file.
//!
//! Invariants
//! * Each command, each of its options that `--help` shows, and each key has its place in a page.
//! * The same definitions give the same bytes: no page has a date.

mod command;
mod configuration;
mod roff;

pub(crate) use command::{is_shown, options_of};
pub(crate) use configuration::CONFIG_FILE;

use crate::cli::Cli;
use clap::CommandFactory;

/// A manual page.
#[derive(Debug)]
pub(crate) struct Page {
    /// The name of its file, such as `dafs-ls.1`.
    pub(crate) file: String,
    /// Its text, in the macros of man(7).
    pub(crate) text: String,
}

/// Returns all pages: dafs(1), one for each command below it, and dafs.toml(5).
pub(crate) fn pages() -> Vec<Page> {
    let mut root = Cli::command();
    root.build();
    let mut pages = Vec::new();
    command::add(&mut root, None, &mut pages);
    pages.push(configuration::page());
    pages
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::walk;
    use std::collections::BTreeMap;

    #[test]
    fn every_option_of_every_command_is_in_its_page() {
        let pages = pages().into_iter().map(|page| (page.file, page.text));
        let pages: BTreeMap<_, _> = pages.collect();
        let mut options = 0;
        walk(&mut |path, command| {
            let file = format!("{}.1", path.join("-"));
            let text = &pages[&file];
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            assert!(!about.is_empty(), "{path:?} does not say what it is for");
            let arguments = || command.get_arguments().filter(|argument| !argument.is_hide_set());
            for option in arguments().filter(|argument| !argument.is_positional()) {
                let long = option.get_long().map(|long| format!("\\-\\-{}", roff::escaped(long)));
                let short = option.get_short().map(|short| format!("\\-{short}"));
                for name in [long, short].into_iter().flatten() {
                    assert!(text.contains(&format!("\\fB{name}\\fR")), "{file} has no {name}");
                    options += 1;
                }
            }
            for argument in arguments() {
                assert!(
                    argument.get_help().is_some(),
                    "{file}: {:?} has no text",
                    argument.get_id()
                );
            }
        });
        assert!(options > 500, "{options} options: the list of commands was not followed");
    }

    #[test]
    fn no_text_is_a_request_of_roff() {
        for page in pages() {
            for line in page.text.lines().filter(|line| line.starts_with(['.', '\''])) {
                let request = line.split(' ').next().unwrap_or_default();
                let known = [".TH", ".SH", ".SS", ".PP", ".TP", ".IP", ".BR", ".nf", ".fi"];
                assert!(known.contains(&request), "{}: {line}", page.file);
            }
            assert!(page.text.is_ascii(), "{}", page.file);
        }
    }
}
