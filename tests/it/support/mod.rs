pub mod invariants;
pub mod rng;
pub mod scenario;
pub mod sink;
pub mod world;
