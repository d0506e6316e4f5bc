//! Completions for fish.

use super::{Entry, Value, quoted};

const HEAD: &str = "\
# Completions of dafs for fish, made by: dafs completions fish

# Prints the command that the words so far name, such as dafs cluster.
function __dafs_command
    set -l command dafs
    set -l words (commandline -opc)
    for word in $words[2..-1]
        switch \"$command $word\"
            case ";

const TAIL_OF_FUNCTION: &str = "
                set command \"$command $word\"
        end
    end
    echo $command
end

function __dafs_is
    test (__dafs_command) = $argv[1]
end

";

/// Returns the script.
pub(super) fn script(commands: &[Entry]) -> String {
    let mut script = HEAD.to_owned();
    let below = commands.iter().skip(1).map(|command| word(&command.words));
    script.push_str(&below.collect::<Vec<_>>().join(" \\\n                "));
    script.push_str(TAIL_OF_FUNCTION);
    for command in commands {
        let at = format!("complete -c dafs -n '__dafs_is \"{}\"'", command.words);
        for (name, about) in &command.below {
            script.push_str(&format!("{at} -f -a {name} -d {}\n", word(about)));
        }
        for option in &command.options {
            let short = option.short.map(|short| format!(" -s {short}")).unwrap_or_default();
            let long = option.long.as_ref().map(|long| format!(" -l {long}")).unwrap_or_default();
            let value = match &option.value {
                Value::None => String::new(),
                Value::OneOf(values) => format!(" -x -a {}", word(&values.join(" "))),
                Value::Path => " -r -F".to_owned(),
                Value::Text => " -x".to_owned(),
            };
            script.push_str(&format!("{at}{short}{long}{value} -d {}\n", word(&option.about)));
        }
    }
    script
}

fn word(text: &str) -> String {
    quoted(&text.replace('\\', "\\\\"), r"\'")
}
