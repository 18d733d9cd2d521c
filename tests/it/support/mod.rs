pub mod brain;
pub mod invariants;
pub mod people;
pub mod rng;
pub mod scenario;
pub mod sink;
pub mod world;
