//! Properties of the DAFS codec: an encoded value decodes to the same value, and no bytes make a
//! decoder panic. Values are generated from a string of bytes, so that a failing case shrinks to a
//! short one.

mod bodies;
mod damage;
mod make;
mod round_trip;
