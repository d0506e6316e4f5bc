//! Completions for bash.

use super::{Entry, Value, quoted};
use std::collections::BTreeMap;

const HEAD: &str = "\
# Completions of dafs for bash, made by: dafs completions bash

# Sets below, options and valued for a command: the commands below it, its options, and those with a value.
_dafs_table() {
    below='' options='' valued=''
    case $1 in
";

const BETWEEN: &str = "    esac
}

# Sets choices for a command and one of its options: the values that the option may have.
_dafs_choices() {
    choices=''
    case \"$1 $2\" in
";

const TAIL: &str = "    esac
}

_dafs() {
    local word=$2 before=$3 command=dafs at=1 below options valued choices
    COMPREPLY=()
    _dafs_table \"$command\"
    while [[ $at -lt $COMP_CWORD ]]; do
        if [[ \" $valued \" == *\" ${COMP_WORDS[at]} \"* ]]; then
            at=$((at + 2))
            continue
        fi
        if [[ \" $below \" == *\" ${COMP_WORDS[at]} \"* ]]; then
            command+=\" ${COMP_WORDS[at]}\"
            _dafs_table \"$command\"
        fi
        at=$((at + 1))
    done
    # In --option=value bash takes the sign for a word of its own.
    [[ $before != '=' || $COMP_CWORD -lt 2 ]] || before=${COMP_WORDS[COMP_CWORD - 2]}
    if [[ \" $valued \" == *\" $before \"* ]]; then
        _dafs_choices \"$command\" \"$before\"
        mapfile -t COMPREPLY < <(compgen -W \"$choices\" -- \"$word\")
    elif [[ $word == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W \"$options\" -- \"$word\")
    elif [[ $below ]]; then
        mapfile -t COMPREPLY < <(compgen -W \"$below\" -- \"$word\")
    fi
}

# Where no command and no option fits, bash completes the names of files.
complete -o default -F _dafs dafs
";

/// Returns the script.
pub(super) fn script(commands: &[Entry]) -> String {
    let word = |text: &str| quoted(text, r"'\''");
    let mut script = HEAD.to_owned();
    let mut choices: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for command in commands {
        let below: Vec<&str> = command.below.iter().map(|(name, _)| &**name).collect();
        let all = command.options.iter().flat_map(super::Choice::names).collect::<Vec<_>>();
        let valued = command.options.iter().filter(|option| option.has_value());
        let valued = valued.flat_map(super::Choice::names).collect::<Vec<_>>();
        script.push_str(&format!("    {})\n", word(&command.words)));
        script.push_str(&format!("        below={}\n", word(&below.join(" "))));
        script.push_str(&format!("        options={}\n", word(&all.join(" "))));
        script.push_str(&format!("        valued={}\n        ;;\n", word(&valued.join(" "))));
        for option in &command.options {
            let Value::OneOf(values) = &option.value else { continue };
            let rows = choices.entry(values.join(" ")).or_default();
            rows.extend(option.names().map(|name| word(&format!("{} {name}", command.words))));
        }
    }
    script.push_str(BETWEEN);
    for (values, rows) in &choices {
        script.push_str(&format!("    {})\n", rows.join(" |\\\n        ")));
        script.push_str(&format!("        choices={}\n        ;;\n", word(values)));
    }
    script.push_str(TAIL);
    script
}
