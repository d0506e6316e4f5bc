//! Completions for the Z shell.

use super::{Choice, Entry, Value, quoted};
use std::collections::BTreeMap;

const HEAD: &str = "\
#compdef dafs
# Completions of dafs for zsh, made by: dafs completions zsh

# Sets below, flags and valued for a command: the commands below it, its options, and those with a value.
_dafs_table() {
    below=() flags=() valued=()
    case $1 in
";

const BETWEEN: &str = "    esac
}

# Sets choices for a command and one of its options: the values that the option may have.
_dafs_choices() {
    choices=()
    case \"$1 $2\" in
";

const TAIL: &str = "    esac
}

_dafs() {
    local command=dafs word
    local -a below flags valued choices names
    local -i at=2
    _dafs_table \"$command\"
    while (( at < CURRENT )); do
        word=${words[at]}
        if (( ${valued[(Ie)$word]} )); then
            (( at += 2 ))
            continue
        fi
        names=(${below%%:*})
        if (( ${names[(Ie)$word]} )); then
            command+=\" $word\"
            _dafs_table \"$command\"
        fi
        (( at += 1 ))
    done
    word=${words[CURRENT - 1]}
    if (( ${valued[(Ie)$word]} )); then
        _dafs_choices \"$command\" \"$word\"
        if (( ${#choices} )); then
            compadd -- $choices
        else
            _files
        fi
    elif [[ ${words[CURRENT]} == -* ]]; then
        _describe -o option flags
    elif (( ${#below} )); then
        _describe command below
    else
        _files
    fi
}

_dafs \"$@\"
";

/// Returns the script.
pub(super) fn script(commands: &[Entry]) -> String {
    let mut script = HEAD.to_owned();
    let mut choices: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for command in commands {
        script.push_str(&format!("    ({})\n", word(&command.words)));
        let below = command.below.iter().map(|(name, about)| described(name, about));
        list(&mut script, "below", below);
        let all = command.options.iter().flat_map(|option| {
            option.names().map(|name| described(&name, &option.about)).collect::<Vec<_>>()
        });
        list(&mut script, "flags", all);
        let valued = command.options.iter().filter(|option| option.has_value());
        list(&mut script, "valued", valued.flat_map(Choice::names).map(|name| word(&name)));
        script.push_str("        ;;\n");
        for option in &command.options {
            let Value::OneOf(values) = &option.value else { continue };
            let rows = choices.entry(values.join(" ")).or_default();
            rows.extend(option.names().map(|name| word(&format!("{} {name}", command.words))));
        }
    }
    script.push_str(BETWEEN);
    for (values, rows) in &choices {
        script.push_str(&format!("    ({})\n", rows.join(" |\\\n        ")));
        script.push_str(&format!("        choices=({values})\n        ;;\n"));
    }
    script.push_str(TAIL);
    script
}

/// Adds the assignment of an array, one element on a line.
fn list(script: &mut String, name: &str, elements: impl Iterator<Item = String>) {
    script.push_str(&format!("        {name}=(\n"));
    for element in elements {
        script.push_str(&format!("            {element}\n"));
    }
    script.push_str("        )\n");
}

/// Returns a name with the text about it, as `_describe` takes them.
fn described(name: &str, about: &str) -> String {
    word(&format!("{name}:{}", about.replace('\\', "\\\\").replace(':', "\\:")))
}

fn word(text: &str) -> String {
    quoted(text, r"'\''")
}
