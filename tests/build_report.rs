//! The build script's reading of the kernel compiler's log: the rule on stack frames stands and falls with it.

#[path = "../build/report.rs"]
mod report;

const LEAN: &str = "\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'all_reduce_ll' for 'sm_90a'
ptxas info    : Function properties for all_reduce_ll
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 38 registers, used 1 barriers, 2048 bytes smem
ptxas info    : Compile time = 12.345 ms
";

#[test]
fn a_lean_kernel_passes_with_its_figures() {
    let functions = report::parse(LEAN).expect("a log of the known form");
    assert_eq!(functions.len(), 1);
    assert_eq!(
        (functions[0].name.as_str(), functions[0].registers, functions[0].shared),
        ("all_reduce_ll", 38, 2048)
    );
    assert!(functions[0].is_lean());
    assert!(functions[0].to_string().contains("38 registers"));
}

#[test]
fn stack_and_spills_are_seen_in_kernels_and_in_functions_that_were_not_inlined() {
    for (old, new) in [
        ("0 bytes stack frame", "16 bytes stack frame"),
        ("0 bytes spill stores", "4 bytes spill stores"),
        ("0 bytes spill loads", "8 bytes spill loads"),
    ] {
        let functions = report::parse(&LEAN.replace(old, new)).expect("a log of the known form");
        assert!(!functions[0].is_lean(), "{new}");
    }
    let called = "ptxas info    : Function properties for helper\n    \
                  32 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n";
    let functions = report::parse(&format!("{LEAN}{called}")).expect("a log of the known form");
    assert_eq!(
        functions.iter().filter(|f| !f.is_lean()).map(|f| f.name.as_str()).collect::<Vec<_>>(),
        ["helper"]
    );
}

#[test]
fn a_log_of_another_form_is_refused() {
    assert!(report::parse("").is_err());
    assert!(report::parse(&LEAN.replace("Function properties for", "Properties of")).is_err());
}
