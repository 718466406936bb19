//! The operating system: memfd, fd passing, interfaces, affinity, clocks.
