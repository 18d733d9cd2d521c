//! Dormouse runs AI agents durably on Cloudflare.
//!
//! ```text
//!  HTTP · queue · alarm ─► edge ─► http · flow ─► decide ─► run     the log, and what it adds up to
//!                           ▲            │          │
//!                           │            │          └─ agent · tool · plan · expression · retry
//!                           └────────────┴─ ports: what the flow needs of the world
//! ```
//!
//! The modules stand in reading order, and a module uses only what stands above it. Everything down
//! to `outbox` is pure: no clock, no randomness, no I/O. `flow` puts effects in order over `ports`.
//! Only `edge` knows the platform, and it exists only in the wasm build.

pub mod words;
pub mod json;
pub mod schema;
pub mod retry;
pub mod fields;
pub mod expression;
pub mod plan;
pub mod tool;
pub mod outward;
pub mod signed;
pub mod agent;
pub mod model;
pub mod envelope;
pub mod run;
pub mod decide;
pub mod outbox;
pub mod ports;
pub mod sql;
pub mod tenant;
pub mod flow;
pub mod http;
#[cfg(target_arch = "wasm32")]
mod edge;
