//! Tests of ACLs and mappings.

mod file_system;
mod model;
mod pairs;
mod properties;
mod text;
