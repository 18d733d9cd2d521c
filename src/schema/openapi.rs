//! stub
pub fn openapi() -> &'static str { "" }
