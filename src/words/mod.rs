//! Small shared words: time, ids, digests, limits. No behaviour of the product lives here.
