//! The data plane against pods that a test holds in its hand.

mod rig;
mod smoke;
