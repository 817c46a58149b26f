//! The cases, by subject. Each is a claim of the docs of [`store_api::PartitionStore`]; the list
//! that says which exist and what they need is [`crate::each_case`].

pub mod append;
pub mod attempt;
pub mod concurrency;
pub mod lifecycle;
pub mod limits;
pub mod pipelined;
pub mod random;
pub mod read;
pub mod recovery;
pub mod release;
pub mod seal;
