//! A peer of an iWARP connection and the adapter that it talks to.

pub mod peer;
pub mod stream;
pub mod world;
