//! Dormouse runs AI agents durably on Cloudflare.
//!
//! The modules stand in reading order, and a module uses only what stands above it:
//!
//! ```text
//!  HTTP · queue · alarm ─► edge ─► flow ─► decide ─► run    the log, and what it adds up to
//!                           ▲        │        │
//!                           │        │        └─ plan · tool · envelope · retry · expression
//!                           └────────┴─ ports: what the flow needs of the world
//! ```
//!
//! Everything down to `decide` is pure: no clock, no randomness, no I/O. `flow` puts effects in
//! order over `ports`. Only `edge` knows the platform, and it exists only in the wasm build.

pub mod words;
pub mod json;
pub mod retry;
pub mod expression;
pub mod plan;
pub mod tool;
pub mod schema;
