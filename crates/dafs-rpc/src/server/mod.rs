//! Serving programs to peers that connect.

mod config;

pub use config::{Config, Wake};
