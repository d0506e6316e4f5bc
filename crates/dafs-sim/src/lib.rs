//! One seed, one world.

pub mod model;
pub mod pattern;
