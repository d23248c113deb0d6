//! The integration tests, one binary; tidy.rs fails when a file beside this one is not named here.

mod tidy;
