//! The platform, and nothing else: bindings, objects, queues, time and randomness of Cloudflare
//! Workers behind the traits of [`crate::ports`] and [`crate::flow::home`]. Exists only in the wasm
//! build. Every import from JavaScript that can throw is declared to, because one that throws
//! undeclared takes everything in flight with it.

mod caller_ai;
mod caller_fetch;
mod config;
mod entry;
mod guard;
mod js;
mod kv;
mod live;
mod queues;
mod run_do;
#[cfg(feature = "test-seams")]
mod seams;
mod storage;
mod tenant_do;
mod world;
