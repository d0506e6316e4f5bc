//! Properties of the DAFS codec: what is encoded decodes to the same, and no bytes make a decoder
//! panic. Values are grown from a string of bytes, so that a failing case shrinks to a short one.

#![allow(clippy::unwrap_used, reason = "helpers of tests stand outside of test functions")]

mod bodies;
mod damage;
mod make;
mod round_trip;
