//! The log of commands that run for long: servers and mounts.

use crate::failure::Failure;
use crate::log_limit::Limited;
use clap::{Args, ValueEnum};
use std::fs::File;
use std::io::IsTerminal;
use std::path::Path;
use std::sync::Arc;
use tracing_subscriber::EnvFilter;

/// The options of a log.
#[derive(Debug, Clone, Args)]
pub(crate) struct LogOptions {
    /// The log filter: error, warn, info, debug, trace, or a filter as in $RUST_LOG, its default
    #[arg(long = "log", value_name = "FILTER")]
    log_filter: Option<String>,
    /// The form of the log's lines
    #[arg(long, value_name = "FORM", default_value = "text")]
    log_format: LogFormat,
}

/// The form of a log's lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    /// Words and values
    Text,
    /// A JSON object for each line
    Json,
}

impl LogOptions {
    /// Starts the log, in a file if one is named, else on standard error.
    ///
    /// # Errors
    /// The filter is wrong, or the file cannot be opened.
    pub(crate) fn start(&self, file: Option<&Path>) -> Result<(), Failure> {
        let filter = match &self.log_filter {
            Some(text) => EnvFilter::try_new(text).map_err(|error| {
                Failure::Usage(format!("--log {text}: {error}; write info, or dafs_engine=debug"))
            })?,
            None => EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info")),
        };
        let format = match self.log_format {
            LogFormat::Text => Limited::text(),
            LogFormat::Json => Limited::json(),
        };
        match file {
            None => tracing_subscriber::fmt()
                .with_env_filter(filter)
                .with_writer(std::io::stderr)
                .with_ansi(std::io::stderr().is_terminal())
                .event_format(format)
                .init(),
            Some(path) => {
                let opened = File::options().append(true).create(true).open(path);
                let opened = opened.map_err(|error| Failure::local(path.display(), &error))?;
                tracing_subscriber::fmt()
                    .with_env_filter(filter)
                    .with_writer(Arc::new(opened))
                    .with_ansi(false)
                    .event_format(format)
                    .init();
            }
        }
        Ok(())
    }
}
