//! Text → checked values. [`document`] reads JSON and YAML into trees that know line and column; [`field`] reads one value of
//! such a tree and reports what is wrong; [`duration`] and [`size`] have the units; [`settings`]
//! reads the settings of a command from flags, variables and a file.

pub mod document;
pub mod duration;
pub mod errors;
pub mod field;
pub mod settings;
pub mod size;
