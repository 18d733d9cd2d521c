//! tool
