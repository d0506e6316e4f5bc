//! ONC RPC for any program: server and client over TCP record marking.
//!
//! Nothing here knows what a program does.
