//! DAFS 1.0 messages.
