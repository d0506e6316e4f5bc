//! Mounts that read and write at data servers themselves (pNFS): the placement of data, the failure
//! of a data server, the recall of a layout, and invalid answers of a server.

mod commits;
mod dafs;
mod drivers;
mod failures;
mod fences;
mod harness;
mod hostile;
mod io;
mod late;
mod tamper;
mod use_reports;
