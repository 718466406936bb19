//! How rank A reaches rank B: memory of one rank that another rank's kernels can write.
