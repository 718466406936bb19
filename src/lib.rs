//! OxCCL
