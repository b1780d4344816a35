//! Clients: one that writes bytes as told, and real ones.

pub mod curl;
pub mod grpc;
pub mod load;
pub mod raw;
pub mod session;
pub mod websocket;
