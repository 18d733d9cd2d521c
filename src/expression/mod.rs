//! `{{ … }}`: what a plan may say about its input, its steps' results and its run.
//!
//! ```text
//! input.order.lines[0].sku     a member, an index          input["odd key"]    any name
//! steps.quote.result.price     a step's result             run.tags.order      the run itself
//! 'text'  "text"  12.50  true  false  null                 literals; numbers keep their digits
//! !a   a ?? b   == != < <= > >=   &&   ||   ( … )          from the tightest to the loosest
//! ```
//!
//! There is no arithmetic and there are no functions: an expression picks and compares values, and
//! a tool computes them. `a ?? b` is `b` where `a` is null or names something that is not there, and
//! it binds tighter than a comparison, so `input.count ?? 0 > 3` asks about the count.
//! A step's id may hold dots: its segments run up to `.result`, and `steps["a.result"].result` is
//! there for the id that holds that word itself.
//!
//! [`Expression`] is one of them, without its braces. [`Template`] is a JSON value whose strings
//! hold any number of them. Evaluation is pure, bounded, and never guesses: what is missing is an
//! error that says what was there instead.

mod compare;
mod eval;
mod parse;
mod template;
mod tree;

pub use eval::{EvalError, Scope};
pub use parse::{EXPRESSION_BYTES_MAX, EXPRESSION_DEPTH_MAX, Expression, ExpressionError};
pub use template::Template;
