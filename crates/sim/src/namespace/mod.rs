//! Names in a virtual file system. Requests change it and are logged. After a power cut, the remains of the file system
//! are made equal to the remains of the log. Files have no contents here: the worlds of the engine test those.

pub mod check;
pub mod choice;
pub mod exhaustive;
pub mod history;
mod identities;
pub mod request;
#[cfg(test)]
mod rows;
mod tree;
pub mod volume;
pub mod world;
