//! The log of commands that run for long: servers and mounts.

use crate::failure::Failure;
use crate::log_limit::Limited;
use std::fs::File;
use std::io::IsTerminal;
use std::path::Path;
use std::sync::Arc;
use tracing_subscriber::EnvFilter;

/// Starts the log, in a file if one is named, else on standard error. `--log` gives the filter.
///
/// # Errors
/// The filter is wrong, or the file cannot be opened.
pub(crate) fn start(filter: Option<&str>, file: Option<&Path>) -> Result<(), Failure> {
    let filter = match filter {
        Some(text) => EnvFilter::try_new(text).map_err(|error| {
            Failure::Usage(format!("--log {text}: {error}; write info, or dafs_engine=debug"))
        })?,
        None => EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info")),
    };
    match file {
        None => tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(std::io::stderr)
            .with_ansi(std::io::stderr().is_terminal())
            .event_format(Limited::new())
            .init(),
        Some(path) => {
            let opened = File::options().append(true).create(true).open(path);
            let opened = opened.map_err(|error| Failure::local(path.display(), &error))?;
            tracing_subscriber::fmt()
                .with_env_filter(filter)
                .with_writer(Arc::new(opened))
                .with_ansi(false)
                .event_format(Limited::new())
                .init();
        }
    }
    Ok(())
}
