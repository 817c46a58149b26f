//! Claims about the contract as a whole: budgets, offsets, stored forms, states and batches against
//! plain models.

mod budgets;
mod fetches;
mod offsets;
mod states;
mod stored_forms;
