//! A volume against the plain tree below it.
