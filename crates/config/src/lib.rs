//! Parses configuration into checked values. [`document`] reads JSON and YAML into trees with line and column; [`field`] reads
//! one value of such a tree and reports problems; [`duration`] and [`size`] parse units; [`settings`] resolves the settings of
//! a command from flags, variables and a file.

pub mod document;
pub mod duration;
pub mod errors;
pub mod field;
pub mod settings;
pub mod size;
