//! The page of a command.

use super::Page;
use super::roff::{Roff, bold, italic};
use clap::{Arg, ArgAction, Command};

/// Adds the page of a command, and those of the commands below it. `parent` is the name of the page above.
pub(super) fn add(command: &mut Command, parent: Option<&str>, pages: &mut Vec<Page>) {
    let name = match parent {
        Some(parent) => format!("{parent}-{}", command.get_name()),
        None => command.get_name().to_owned(),
    };
    let usage = command.render_usage().to_string();
    let text = page(command, &name, parent, usage.trim_start_matches("Usage: "));
    pages.push(Page { file: format!("{name}.1"), text });
    for below in command.get_subcommands_mut().filter(|below| is_shown(below)) {
        add(below, Some(&name), pages);
    }
}

/// Returns whether a command has a page. clap adds the command `help`, which needs none.
pub(crate) fn is_shown(command: &Command) -> bool {
    !command.is_hide_set() && command.get_name() != "help"
}

/// Returns the options of a command that `--help` shows, with those that all commands have.
pub(crate) fn options_of(command: &Command) -> impl Iterator<Item = &Arg> {
    command.get_arguments().filter(|arg| !arg.is_positional() && !arg.is_hide_set())
}

fn page(command: &Command, name: &str, parent: Option<&str>, usage: &str) -> String {
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let mut page = Roff::new(name, 1, about.trim_end_matches('.'));
    page.section("Synopsis");
    page.paragraphs(&format!("`{usage}`"));
    let long = command.get_long_about().map(ToString::to_string).unwrap_or(about);
    page.section("Description");
    page.paragraphs(&long);
    let below: Vec<&Command> = command.get_subcommands().filter(|below| is_shown(below)).collect();
    if !below.is_empty() {
        page.section("Commands");
        for below in &below {
            let about = below.get_about().map(ToString::to_string).unwrap_or_default();
            let page_of = format!("{name}-{}", below.get_name());
            page.item(&format!("{}(1)", bold(&page_of)), &about);
        }
    }
    let operands: Vec<&Arg> = command.get_positionals().filter(|arg| !arg.is_hide_set()).collect();
    if !operands.is_empty() {
        page.section("Arguments");
        for operand in operands {
            page.item(&italic(&value_names(operand)), &described(operand));
        }
    }
    options(&mut page, command);
    if let Some(examples) = command.get_after_help() {
        page.section("Examples");
        page.verbatim(examples.to_string().trim_start_matches("Examples:\n"));
    }
    page.section("See also");
    let mut pages: Vec<(String, u8)> =
        parent.map(|parent| (parent.to_owned(), 1)).into_iter().collect();
    if parent.is_some_and(|parent| parent != "dafs") {
        pages.insert(0, ("dafs".to_owned(), 1));
    }
    pages.push(("dafs.toml".to_owned(), 5));
    page.references(&pages);
    page.finish()
}

/// Adds the options, under the headings that `--help` has.
fn options(page: &mut Roff, command: &Command) {
    let shown: Vec<&Arg> = options_of(command).collect();
    let mut headings: Vec<Option<&str>> = Vec::new();
    for option in &shown {
        if !headings.contains(&option.get_help_heading()) {
            headings.push(option.get_help_heading());
        }
    }
    headings.sort_by_key(Option::is_some);
    for heading in headings {
        page.section(&heading.map_or("Options".to_owned(), |heading| format!("{heading} options")));
        for option in shown.iter().filter(|option| option.get_help_heading() == heading) {
            page.item(&option_head(option), &described(option));
        }
    }
}

fn option_head(option: &Arg) -> String {
    let short = option.get_short().map(|short| bold(&format!("-{short}")));
    let long = option.get_long().map(|long| bold(&format!("--{long}")));
    let names: Vec<String> = short.into_iter().chain(long).collect();
    match option.get_action().takes_values() {
        true => format!("{} {}", names.join(", "), italic(&value_names(option))),
        false => names.join(", "),
    }
}

/// Returns the names of an argument's values, with dots where it may have several.
fn value_names(arg: &Arg) -> String {
    let names = arg.get_value_names().unwrap_or_default();
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    let is_repeated = arg.get_num_args().is_some_and(|count| count.max_values() > 1)
        || matches!(arg.get_action(), ArgAction::Append);
    let dots = if is_repeated { "..." } else { "" };
    format!("{}{dots}", names.join(" "))
}

/// Returns the text about an argument, its possible values and its default.
fn described(arg: &Arg) -> String {
    let text = arg.get_long_help().or(arg.get_help()).map(ToString::to_string);
    let mut text = vec![text.unwrap_or_default()];
    let values = arg.get_possible_values();
    if !values.is_empty() && !arg.is_hide_possible_values_set() && arg.get_action().takes_values() {
        let value = |value: &clap::builder::PossibleValue| match value.get_help() {
            Some(help) => format!("`{}`: {help}", value.get_name()),
            None => format!("`{}`", value.get_name()),
        };
        let values: Vec<String> =
            values.iter().filter(|value| !value.is_hide_set()).map(value).collect();
        text.push(format!("Values: {}.", values.join("; ")));
    }
    let defaults = arg.get_default_values();
    if !defaults.is_empty() && arg.get_action().takes_values() && !arg.is_hide_default_value_set() {
        let defaults: Vec<String> =
            defaults.iter().map(|value| value.to_string_lossy().into_owned()).collect();
        text.push(format!("Default: `{}`.", defaults.join(" ")));
    }
    text.join("\n\n")
}
