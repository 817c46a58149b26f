//! Tests of the planner as a whole.

mod scene;
mod static_regions;
mod vectors;
