//! Configuration structs as programs of every version since 2.14 pass them.

use std::ffi::c_uint;

use super::*;
use crate::error::Code;

/// Size and version of the struct by the header's version.
const FORMS: &[(usize, u32)] = &[
    (24, 21403),
    (24, 21602),
    (40, 21701),
    (48, 21801),
    (48, 22505),
    (48, 22602),
    (72, 22703),
    (72, 22707),
    (80, 22809),
    (88, 22902),
    (96, 23003),
    (96, 23007),
    (112, 23102),
    (120, 23203),
];

/// A caller's struct: `form` bytes of `config`, then bytes that are not the caller's own.
fn parse(config: ncclConfig_t) -> Result<Config> {
    // SAFETY: the struct lives through the call and its texts are NULL or literals.
    unsafe { communicator(&raw const config) }
}

fn form(size: usize, version: u32) -> ncclConfig_t {
    ncclConfig_t { size, version, ..UNSET }
}

#[test]
fn null_and_untouched_configs_are_the_defaults() {
    // SAFETY: NULL is allowed.
    let default = unsafe { communicator(ptr::null()) }.expect("NULL stands for the defaults");
    assert_eq!(format!("{default:?}"), format!("{:?}", Config::default()));
    for &(size, version) in FORMS {
        let config = parse(form(size, version)).expect("an untouched config is valid");
        assert_eq!(format!("{config:?}"), format!("{:?}", Config::default()), "{size} {version}");
    }
}

#[test]
fn fields_count_from_the_version_that_brought_them() {
    for &(size, version) in FORMS {
        let config = parse(ncclConfig_t {
            blocking: 1,
            minCTAs: 2,
            maxCTAs: 3,
            netName: c"Socket".as_ptr(),
            splitShare: 1,
            trafficClass: 7,
            commName: c"world".as_ptr(),
            CTAPolicy: 1,
            ..form(size, version)
        })
        .expect("all values are allowed");
        assert_eq!(config.blocking, Some(true));
        assert_eq!(config.min_ctas, (version >= 21700).then_some(2), "{size} {version}");
        assert_eq!(config.max_ctas, (version >= 21700).then_some(3), "{size} {version}");
        assert_eq!(config.net_name.as_deref(), (version >= 21700).then_some("Socket"), "{size} {version}");
        assert_eq!(config.split_share, (version >= 21800).then_some(true), "{size} {version}");
        assert_eq!(config.traffic_class, (version >= 22600).then_some(7), "{size} {version}");
        assert_eq!(config.name.as_deref(), (version >= 22700).then_some("world"), "{size} {version}");
        assert_eq!(config.cta_policy, (version >= 22700).then_some(1), "{size} {version}");
    }
}

#[test]
fn garbage_beyond_the_callers_version_is_never_looked_at() {
    // Every field that a version lacks holds a value that is not allowed, as uninitialised padding or other memory might.
    for &(size, version) in FORMS {
        let mut config = form(size, version);
        macro_rules! spoil {
            ($($field:ident: $since:literal),* $(,)?) => {
                $(if version < $since { config.$field = -77; })*
            };
        }
        spoil!(
            cgaClusterSize: 21700, splitShare: 21800, collnetEnable: 22700, nvlsCTAs: 22700, nChannelsPerNetPeer: 22800,
            graphUsageMode: 22900, maxP2pPeers: 23000, graphStreamOrdering: 23007, numRmaSig: 23100, nvlsHostMode: 23200,
        );
        if version < 22700 {
            config.commName = ptr::without_provenance(8);
        }
        parse(config).unwrap_or_else(|error| panic!("{size} {version}: {error}"));
    }
}

#[test]
fn a_newer_caller_is_cut_to_what_is_known() {
    let mut memory = [0xffu8; 200];
    let config = ncclConfig_t { size: 200, version: 23900, maxCTAs: 5, ..UNSET };
    // SAFETY: both are plain bytes, and the struct is smaller than the memory.
    unsafe {
        ptr::copy_nonoverlapping(
            (&raw const config).cast::<u8>(),
            memory.as_mut_ptr(),
            size_of::<ncclConfig_t>(),
        );
    }
    // Not aligned: a caller's struct may lie anywhere.
    memory.copy_within(0..199, 1);
    // SAFETY: 199 bytes of a struct that says 200; what is read ends long before.
    let parsed = unsafe { communicator(memory.as_ptr().add(1).cast()) }.expect("a newer struct is valid");
    assert_eq!(parsed.max_ctas, Some(5));
}

#[test]
fn each_bad_field_is_named() {
    let cases: &[(ncclConfig_t, &str)] = &[
        (ncclConfig_t { magic: 0, ..UNSET }, "config->magic"),
        (ncclConfig_t { magic: c_uint::MAX, ..UNSET }, "config->magic"),
        (ncclConfig_t { size: 0, ..UNSET }, "config->size"),
        (ncclConfig_t { size: 19, ..UNSET }, "config->size"),
        (ncclConfig_t { size: usize::MAX, ..UNSET }, "config->size"),
        (ncclConfig_t { size: LARGEST + 1, ..UNSET }, "config->size"),
        (ncclConfig_t { version: 0, ..UNSET }, "config->version"),
        (ncclConfig_t { version: -22809i32 as c_uint, ..UNSET }, "config->version is -22809"),
        (ncclConfig_t { blocking: 2, ..UNSET }, "config->blocking"),
        (ncclConfig_t { splitShare: -1, ..UNSET }, "config->splitShare"),
        (ncclConfig_t { shrinkShare: 2, ..UNSET }, "config->shrinkShare"),
        (ncclConfig_t { collnetEnable: 2, ..UNSET }, "config->collnetEnable"),
        (ncclConfig_t { nvlinkCentricSched: 2, ..UNSET }, "config->nvlinkCentricSched"),
        (ncclConfig_t { graphStreamOrdering: 2, ..UNSET }, "config->graphStreamOrdering"),
        (ncclConfig_t { cgaClusterSize: -1, ..UNSET }, "config->cgaClusterSize"),
        (ncclConfig_t { minCTAs: 0, ..UNSET }, "config->minCTAs"),
        (ncclConfig_t { maxCTAs: -1, ..UNSET }, "config->maxCTAs"),
        (ncclConfig_t { nvlsCTAs: 0, ..UNSET }, "config->nvlsCTAs"),
        (ncclConfig_t { maxP2pPeers: 0, ..UNSET }, "config->maxP2pPeers"),
        (ncclConfig_t { nChannelsPerNetPeer: 65, ..UNSET }, "config->nChannelsPerNetPeer"),
        (ncclConfig_t { graphUsageMode: 3, ..UNSET }, "config->graphUsageMode"),
        (ncclConfig_t { numRmaCtx: -1, ..UNSET }, "config->numRmaCtx"),
        (ncclConfig_t { CTAPolicy: 4, ..UNSET }, "config->CTAPolicy"),
        (ncclConfig_t { hostCftMode: 0, ..UNSET }, "config->hostCftMode"),
        (ncclConfig_t { nvlsHostMode: 4, ..UNSET }, "config->nvlsHostMode"),
        (ncclConfig_t { minCTAs: 3, maxCTAs: 2, ..UNSET }, "config->minCTAs is 3"),
    ];
    for (config, field) in cases {
        let error = parse(*config).expect_err(field);
        assert_eq!(error.code(), Code::InvalidArgument, "{field}: {error}");
        assert!(error.message().starts_with(field), "{field}: {error}");
    }
}

#[test]
fn nonblocking_is_refused_as_unfinished() {
    let error = parse(ncclConfig_t { blocking: 0, ..UNSET }).expect_err("nonblocking is not finished");
    assert_eq!(error.code(), Code::InvalidUsage);
    assert!(error.message().contains("nonblocking"), "{error}");
}

#[test]
fn calls_with_settings_are_plain_only_without_settings() {
    let check = |config: ncclCollConfig_t| {
        // SAFETY: the struct lives through the call and its texts are NULL or literals.
        unsafe { plain_call(&raw const config) }
    };
    // SAFETY: NULL is allowed.
    unsafe { plain_call(ptr::null()) }.expect("NULL is a plain call");
    check(UNSET_CALL).expect("untouched settings are a plain call");
    check(ncclCollConfig_t { algSelection: c"".as_ptr(), userProfilerTag: 9, ..UNSET_CALL })
        .expect("an empty selection and a tag change nothing");
    // 2.31 had no event: what lies there is not the caller's.
    let event = ptr::without_provenance_mut(8);
    check(ncclCollConfig_t { size: 64, version: 23102, launchCompletionEvent: event, ..UNSET_CALL })
        .expect("beyond the size");
    let error =
        check(ncclCollConfig_t { launchCompletionEvent: event, ..UNSET_CALL }).expect_err("not finished");
    assert_eq!(error.code(), Code::InvalidUsage);
    assert!(error.message().contains("config->launchCompletionEvent"), "{error}");
    let error = check(ncclCollConfig_t { magic: 1, ..UNSET_CALL }).expect_err("no magic");
    assert_eq!(error.code(), Code::InvalidArgument);
}
