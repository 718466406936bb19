//! What the kernel compiler's log says about each function: registers, stack, spills.
//!
//! The build fails on a function with a stack frame or spills, because one kernel with a 4 KB frame makes the driver
//! reserve 792 MiB of GPU memory. The parser reads `ptxas --verbose` lines and refuses a log in which it finds no
//! kernel at all, so that a change of wording cannot switch the check off.

use std::fmt;

/// One function of one image, kernels and functions that were not inlined alike.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    pub name: String,
    pub registers: u32,
    pub stack: u32,
    pub spill_stores: u32,
    pub spill_loads: u32,
    pub shared: u32,
}

impl Function {
    /// Whether the function keeps to the rule: everything in registers.
    pub fn is_lean(&self) -> bool {
        self.stack == 0 && self.spill_stores == 0 && self.spill_loads == 0
    }
}

impl fmt::Display for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Function { name, registers, stack, spill_stores, spill_loads, shared } = self;
        write!(
            f,
            "{name}: {registers} registers, {stack} B stack, spills {spill_stores} B stored {spill_loads} B loaded, \
             {shared} B shared"
        )
    }
}

/// Reads the log of one compilation to machine code.
pub fn parse(log: &str) -> Result<Vec<Function>, String> {
    let mut functions: Vec<Function> = Vec::new();
    let mut entries = 0;
    for line in log.lines() {
        if line.contains("Compiling entry function") {
            entries += 1;
        } else if let Some(name) = line.split("Function properties for ").nth(1) {
            functions.push(Function {
                name: name.trim().to_string(),
                registers: 0,
                stack: 0,
                spill_stores: 0,
                spill_loads: 0,
                shared: 0,
            });
        } else if let Some(current) = functions.last_mut() {
            if let Some(n) = number_before(line, " bytes stack frame") {
                current.stack = n;
                current.spill_stores = number_before(line, " bytes spill stores").ok_or("no spill stores")?;
                current.spill_loads = number_before(line, " bytes spill loads").ok_or("no spill loads")?;
            } else if let Some(n) = number_before(line, " registers") {
                current.registers = n;
                current.shared = number_before(line, " bytes smem").unwrap_or(0);
            }
        }
    }
    if entries == 0 || functions.len() < entries {
        return Err(format!(
            "the compiler's log names {entries} kernels and the properties of {} functions; its format is not the one \
             this build script reads:\n{log}",
            functions.len()
        ));
    }
    Ok(functions)
}

/// The number that stands directly before `unit` in `line`.
fn number_before(line: &str, unit: &str) -> Option<u32> {
    let head = &line[..line.find(unit)?];
    let start = head.rfind(|c: char| !c.is_ascii_digit()).map_or(0, |i| i + 1);
    head[start..].parse().ok()
}
