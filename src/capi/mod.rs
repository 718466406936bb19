//! The C ABI: one file per chapter of nccl.h. Every body runs inside `boundary`.
