//! What several test suites share. Never a dependency of the product.

pub mod fakes;
pub mod requests;
pub mod vectors;
