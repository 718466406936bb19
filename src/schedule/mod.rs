//! What each rank and block does, as plain data.
