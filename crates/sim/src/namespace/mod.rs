//! Names in a virtual file system: requests change it and are logged, the power goes, and what is left of it is made equal
//! to what is left of the log. No file has contents here: those are the engine's business, in the other worlds.

pub mod check;
pub mod choice;
pub mod exhaustive;
pub mod history;
pub mod request;
#[cfg(test)]
mod rows;
mod tree;
pub mod volume;
pub mod world;
