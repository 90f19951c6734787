//! The rules of the house, and the stores under the schedules of a model checker.

mod rules;
mod schedules;
