//! Envoys as clients of a role: the routes that they get, and the control plane that serves them.

mod control_plane;
mod loads;
mod translate;

pub(crate) use control_plane::{EnvoyClients, EnvoyControlPlane, LISTENER};
pub(crate) use loads::EnvoyParking;
pub use translate::translate;
