//! Native tests of the whole core: one binary.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod crash;
mod golden;
mod log_table;
mod schemas;
mod sim;
mod support;
mod tidy;
