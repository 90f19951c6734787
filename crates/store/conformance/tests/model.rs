//! The oracle goes through its own suite.

use swarmkeep_conformance::{Model, suite};

suite!(model, Model::new);
