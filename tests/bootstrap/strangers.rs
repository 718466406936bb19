//! Connections of strangers.
