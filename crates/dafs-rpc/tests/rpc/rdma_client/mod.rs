//! The client on RDMA against a scripted server, over the simulated network.

mod back;
mod calls;
mod hostile;
mod real;
mod world;
