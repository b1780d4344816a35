//! The HTTP data plane, part by part: which route a request takes ([`route`]), what is told about its
//! journey ([`headers`]), and what a client hears when there is no answer ([`error`]).

pub mod error;
pub mod headers;
pub mod route;
