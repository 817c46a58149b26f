//! Claims about the store as a whole that its own files and index are needed for. What every store
//! promises is checked by the conformance suite.

mod crash;
mod faults;
mod fixture;
mod huge;
mod load;
mod memory;
mod publish;
mod random;
mod stored;
