//! Sessions of NFSv4.1, driven with hand-built compounds and without sockets.

mod back_channel;
mod clients;
mod compounds;
mod data_server;
mod proven;
mod sequence;
