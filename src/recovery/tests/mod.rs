//! Tests of the planner as a whole.

mod budget;
mod fencing;
mod field;
mod jobs;
mod minimum;
mod properties;
mod random;
mod scale;
mod scene;
mod static_regions;
mod vectors;
