//! Tests of the planner as a whole.

mod fencing;
mod minimum;
mod random;
mod scale;
mod scene;
mod static_regions;
mod vectors;
