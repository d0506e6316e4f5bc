//! Operands of commands that take several sources and, behind them, a target.
//!
//! They are one list of the command line. Of two, clap would take an operand before an option, as
//! `b` in `get a b --quiet c`, for the last one.

use crate::failure::Failure;
use crate::remote::RemoteUrl;
use std::ffi::{OsStr, OsString};

/// Returns the sources, one at least, and the target.
pub(crate) fn sources_and_target<'a>(
    operands: &'a [OsString],
    target_name: &str,
) -> Result<(&'a [OsString], &'a OsStr), Failure> {
    match operands {
        [sources @ .., target] if !sources.is_empty() => Ok((sources, target)),
        _ => {
            let given = operands.first().map(|one| one.display().to_string()).unwrap_or_default();
            Err(Failure::Usage(format!(
                "the target is missing: write {target_name} behind the source {given}"
            )))
        }
    }
}

/// Parses an operand that must be a URL.
pub(crate) fn url(operand: &OsStr) -> Result<RemoteUrl, Failure> {
    let shown = operand.display();
    let text = operand.to_str().ok_or_else(|| {
        Failure::Usage(format!("{shown} is not UTF-8; write other bytes of a URL as %XX"))
    })?;
    RemoteUrl::parse(text).map_err(Failure::Usage)
}

/// Parses operands that must be URLs.
pub(crate) fn urls(operands: &[OsString]) -> Result<Vec<RemoteUrl>, Failure> {
    operands.iter().map(|operand| url(operand)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::{CommandFactory, Parser};
    use std::os::unix::ffi::OsStrExt;

    const COMMANDS: [&str; 4] = ["get", "put", "cp", "mv"];

    #[test]
    fn the_last_operand_is_the_target() {
        let operands = ["a", "b", "c"].map(OsString::from);
        let (sources, target) = sources_and_target(&operands, "LOCAL").unwrap();
        assert_eq!((sources, target), (&operands[..2], OsStr::new("c")));
        let Err(Failure::Usage(text)) = sources_and_target(&operands[..1], "LOCAL") else {
            panic!("a target of none")
        };
        assert_eq!(text, "the target is missing: write LOCAL behind the source a");
    }

    #[test]
    fn options_may_stand_between_operands() {
        for command in COMMANDS {
            let line =
                format!("dafs {command} dafs://h/a --verbose dafs://h/b --checksums dafs://h/c");
            let cli = Cli::try_parse_from(line.split(' ')).unwrap();
            assert!(cli.session.verbose && cli.session.checksums, "{command}");
            assert!(Cli::try_parse_from(["dafs", command]).is_err(), "{command} without operands");
        }
    }

    /// A list before a last operand is what clap cuts in the wrong place.
    #[test]
    fn no_command_has_a_list_before_its_last_operand() {
        fn check(command: &clap::Command) {
            let operands: Vec<_> =
                command.get_positionals().filter(|arg| !arg.is_last_set()).collect();
            if let [before @ .., _] = &operands[..] {
                let is_list = |arg: &&&clap::Arg| {
                    arg.get_num_args().is_some_and(|count| count.max_values() > 1)
                };
                assert!(before.iter().find(is_list).is_none(), "{}", command.get_name());
            }
            command.get_subcommands().for_each(check);
        }
        let mut cli = Cli::command();
        cli.build();
        check(&cli);
    }

    #[test]
    fn a_url_that_is_none_says_so() {
        let Err(Failure::Usage(text)) = url(OsStr::new("out")) else { panic!("a URL") };
        assert!(text.contains("dafs://HOST"), "{text}");
        let Err(Failure::Usage(text)) = url(OsStr::from_bytes(b"dafs://h/\xff")) else {
            panic!("a URL")
        };
        assert!(text.contains("%XX"), "{text}");
    }
}
