//! Completions for shells, made from the definitions of the command line.
//!
//! Invariants
//! * Each command and each of its options that `--help` shows is in the script of each shell.
//! * A script asks no server and starts no program.

mod bash;
mod fish;
mod zsh;

use crate::cli::Cli;
use crate::manual::{is_shown, options_of};
use clap::{Arg, Command, CommandFactory, ValueEnum, ValueHint};

/// A shell with completions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shell {
    /// GNU bash
    Bash,
    /// The Z shell
    Zsh,
    /// fish
    Fish,
}

/// Returns the script of a shell.
pub(crate) fn script(shell: Shell) -> String {
    let mut root = Cli::command();
    root.build();
    let mut commands = Vec::new();
    collect(&root, None, &mut commands);
    match shell {
        Shell::Bash => bash::script(&commands),
        Shell::Zsh => zsh::script(&commands),
        Shell::Fish => fish::script(&commands),
    }
}

/// A command, as the scripts see it.
struct Entry {
    /// All of its words, such as `dafs cluster add`.
    words: String,
    /// The commands below it, with the text about each.
    below: Vec<(String, String)>,
    options: Vec<Choice>,
}

/// An option of a command.
struct Choice {
    short: Option<char>,
    long: Option<String>,
    about: String,
    value: Value,
}

/// The value of an option.
enum Value {
    /// The option has none.
    None,
    /// One of these.
    OneOf(Vec<String>),
    /// The path of a file or of a folder.
    Path,
    /// Text that no script can guess.
    Text,
}

impl Choice {
    /// Returns the names of the option, with their hyphens.
    fn names(&self) -> impl Iterator<Item = String> {
        let short = self.short.map(|short| format!("-{short}"));
        let long = self.long.as_ref().map(|long| format!("--{long}"));
        short.into_iter().chain(long)
    }

    fn has_value(&self) -> bool {
        !matches!(self.value, Value::None)
    }
}

fn collect(command: &Command, above: Option<&str>, commands: &mut Vec<Entry>) {
    let words = match above {
        Some(above) => format!("{above} {}", command.get_name()),
        None => command.get_name().to_owned(),
    };
    let shown = || command.get_subcommands().filter(|below| is_shown(below));
    let below = shown().map(|below| (below.get_name().to_owned(), first_line(below.get_about())));
    commands.push(Entry {
        words: words.clone(),
        below: below.collect(),
        options: options_of(command).map(choice).collect(),
    });
    for below in shown() {
        collect(below, Some(&words), commands);
    }
}

fn choice(option: &Arg) -> Choice {
    let values: Vec<String> =
        option.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
    let is_path = matches!(
        option.get_value_hint(),
        ValueHint::AnyPath | ValueHint::FilePath | ValueHint::DirPath
    );
    Choice {
        short: option.get_short(),
        long: option.get_long().map(str::to_owned),
        about: first_line(option.get_help()),
        value: match values.is_empty() {
            _ if !option.get_action().takes_values() => Value::None,
            false => Value::OneOf(values),
            true if is_path => Value::Path,
            true => Value::Text,
        },
    }
}

/// Returns the first paragraph of a text on one line.
fn first_line(text: Option<&clap::builder::StyledStr>) -> String {
    let text = text.map(ToString::to_string).unwrap_or_default();
    let first = text.split("\n\n").next().unwrap_or_default();
    first.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns text as a word in single quotes. `quote` is the form of a quote inside of it.
fn quoted(text: &str, quote: &str) -> String {
    format!("'{}'", text.replace('\'', quote))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::walk;

    /// Returns the part of a script that is about one command: from its name to the end of the arm.
    fn arm<'a>(script: &'a str, head: &str) -> &'a str {
        let from = script.find(head).unwrap_or_else(|| panic!("there is no {head}"));
        let rest = &script[from..];
        rest.split_once(";;").map_or(rest, |(arm, _)| arm)
    }

    #[test]
    fn every_option_of_every_command_is_completed() {
        let (bash, zsh) = (script(Shell::Bash), script(Shell::Zsh));
        let fish = script(Shell::Fish);
        let mut options = 0;
        walk(&mut |path, command| {
            let words = path.join(" ");
            let in_bash = arm(&bash, &format!("    '{words}')\n"));
            let in_zsh = arm(&zsh, &format!("    ('{words}')\n"));
            let at = format!("'__dafs_is \"{words}\"'");
            let in_fish: Vec<&str> = fish.lines().filter(|line| line.contains(&at)).collect();
            for option in options_of(command) {
                options += 1;
                let short = option.get_short().map(|short| format!("-{short}"));
                let long = option.get_long().map(|long| format!("--{long}"));
                for name in short.into_iter().chain(long) {
                    let word = |text: &str, before: &[char], behind: &[char]| {
                        text.match_indices(&name).any(|(at, _)| {
                            text[..at].ends_with(before)
                                && text[at + name.len()..].starts_with(behind)
                        })
                    };
                    assert!(word(in_bash, &[' ', '\''], &[' ', '\'']), "bash: {words} {name}");
                    assert!(word(in_zsh, &['\''], &[':', '\'']), "zsh: {words} {name}");
                }
                let short = option.get_short().map(|short| format!(" -s {short} "));
                let long = option.get_long().map(|long| format!(" -l {long} "));
                for name in short.into_iter().chain(long) {
                    assert!(in_fish.iter().any(|line| line.contains(&name)), "fish: {words}{name}");
                }
            }
            for below in command.get_subcommands().filter(|below| is_shown(below)) {
                let name = below.get_name();
                assert!(in_bash.contains(name) && in_zsh.contains(name), "{words} {name}");
                let name = format!(" -a {name} ");
                assert!(in_fish.iter().any(|line| line.contains(&name)), "fish: {words}{name}");
            }
        });
        assert!(options > 300, "{options} options: the list of commands was not followed");
    }

    #[test]
    fn values_of_options_are_completed() {
        let bash = script(Shell::Bash);
        assert!(bash.contains("'dafs ls --transport'"), "{bash}");
        assert!(bash.contains("choices='auto iwarp shm verbs'"), "{bash}");
        assert!(script(Shell::Zsh).contains("choices=(auto iwarp shm verbs)"));
        let fish = script(Shell::Fish);
        assert!(fish.contains(" -l transport -x -a 'auto iwarp shm verbs' "), "{fish}");
        assert!(fish.contains(" -l password-file -r -F "), "{fish}");
    }
}
