//! The controller's side of scaling: which workloads are scaled, and what is written when.

mod envoys;
mod idle;
mod leadership;
mod load;
mod owners;
pub(crate) mod rig;
mod status;
mod targets;
