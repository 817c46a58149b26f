//! What a client sees, over every kind of dataset that a node can keep.

mod append_read;
mod attempts;
mod drain;
mod errors;
mod leases;
mod lifecycle;
mod overload;
mod recovery;
mod security;
mod slow_clients;
