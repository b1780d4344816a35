//! Clients for tests: raw bytes, hyper, gRPC, WebSocket, curl, and a load generator.

pub mod curl;
pub mod grpc;
pub mod load;
pub mod raw;
pub mod session;
pub mod websocket;
