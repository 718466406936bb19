//! Every offset and size of the ABI, asserted at compile time (ctests/abi/layout.c does the same for the C header).

use std::mem::{offset_of, size_of};

use super::*;

macro_rules! layout {
    ($type:ident, $size:literal, { $($field:ident: $offset:literal),* $(,)? }) => {
        const _: () = {
            assert!(size_of::<$type>() == $size);
            $(assert!(offset_of!($type, $field) == $offset);)*
        };
    };
}

layout!(ncclUniqueId, 128, { internal: 0 });
layout!(ncclConfig_t, 120, {
    size: 0, magic: 8, version: 12, blocking: 16, cgaClusterSize: 20, minCTAs: 24, maxCTAs: 28, netName: 32, splitShare: 40,
    trafficClass: 44, commName: 48, collnetEnable: 56, CTAPolicy: 60, shrinkShare: 64, nvlsCTAs: 68, nChannelsPerNetPeer: 72,
    nvlinkCentricSched: 76, graphUsageMode: 80, numRmaCtx: 84, maxP2pPeers: 88, graphStreamOrdering: 92,
    launchOrderImplicit: 96, numRmaSig: 100, rmaEagerInit: 104, hostCftMode: 108, nvlsHostMode: 112,
});
layout!(ncclConfigExt_t, 24, { next: 0, key: 8, val: 16 });
layout!(ncclConfigExtKey, 8, { vendorId: 0, optionId: 4 });
layout!(ncclCollConfig_t, 72, {
    size: 0, magic: 8, version: 12, ext: 16, minCTAs: 24, maxCTAs: 28, nvlsCTAs: 32, cgaClusterSize: 36, algSelection: 40,
    forceAlgSelection: 48, CTAPolicy: 52, userProfilerTag: 56, launchCompletionEvent: 64,
});
layout!(ncclSimInfo_t, 24, { size: 0, magic: 8, version: 12, estimatedTime: 16 });
layout!(ncclWaitSignalDesc_t, 16, { opCnt: 0, peer: 4, sigIdx: 8, ctx: 12 });
layout!(ncclEncryptionConfig_t, 32, { size: 0, magic: 8, version: 12, mode: 16, psk: 24 });
layout!(ncclTeam, 12, { nRanks: 0, rank: 4, stride: 8 });
layout!(ncclMultimemHandle, 8, { mcBasePtr: 0 });
layout!(ncclLsaBarrierHandle, 8, { bufHandle: 0, nBarriers: 4 });
layout!(ncclGinBarrierHandle, 8, { signal0: 0, unused: 4 });
layout!(ncclCftBarrierHandle, 8, { bufHandle: 0, nBarriers: 4 });
layout!(ncclLLA2AHandle, 8, { bufHandle: 0, nSlots: 4 });
layout!(ncclWindow_vidmem, 96, {
    winHost: 0, lsaFlatBase: 8, lsaRank: 16, worldRank: 20, stride4G: 24, mcOffset4K: 28, ginOffset4K: 32, winFlags: 36,
    ginWinsDefaultBackend: 40, ginMultiSegmentWins: 72, numSegments: 80, cftFlatRank: 84, ucLeIdBase: 88,
});
layout!(ncclResourceWindow_vidmem, 16, { lsaFlatBase: 0, stride4G: 8, mcOffset4K: 12 });
layout!(ncclDevCommWindowTable, 776, { entries: 0, next: 768 });
layout!(ncclDevComm, 248, {
    magic: 0, version: 4, rank: 8, nRanks: 12, nRanks_rcp32: 16, lsaRank: 20, lsaSize: 24, lsaSize_rcp32: 28, windowTable: 32,
    resourceWindow: 40, resourceWindow_inlined: 48, hybridDenseGinBarrier: 64, lsaMultimem: 72, lsaBarrier: 80,
    railGinBarrier: 88, ginConnectionCount: 96, backendIndex: 97, ginNetDeviceTypes: 98, ginHandles: 104, ginSignalCount: 136,
    ginCounterCount: 140, ginSignalShadows: 144, ginContextCount: 152, ginConnectionStride: 156, ginContextStride: 160,
    ginStrongLegacySignals: 164, abortFlag: 168, hybridLsaBarrier: 176, hybridRailGinBarrier: 184, worldGinBarrier: 192,
    ginConnectionStride_rcp32: 200, cftRank: 204, cftSize: 208, cftMultimemRank: 212, cftMultimemSize: 216,
    cftMultimemSize_rcp32: 220, ucLeId: 224, mcLeId: 228, cftBarrier: 232, cftMultimemBarrier: 240,
});
layout!(ncclDevResourceRequirements, 56, {
    next: 0, bufferSize: 8, bufferAlign: 16, outBufferHandle: 24, ginSignalCount: 32, ginCounterCount: 36,
    outGinSignalStart: 40, outGinCounterStart: 48,
});
layout!(ncclTeamRequirements, 32, { next: 0, team: 8, multimem: 20, outMultimemHandle: 24 });
layout!(ncclDevCommRequirements, 120, {
    size: 0, magic: 8, version: 12, resourceRequirementsList: 16, teamRequirementsList: 24, lsaMultimem: 32, barrierCount: 36,
    lsaBarrierCount: 40, railGinBarrierCount: 44, lsaLLA2ABlockCount: 48, lsaLLA2ASlotCount: 52, ginForceEnable: 56,
    ginContextCount: 60, ginSignalCount: 64, ginCounterCount: 68, ginConnectionType: 72, ginExclusiveContexts: 76,
    ginQueueDepth: 80, ginTrafficClass: 84, worldGinBarrierCount: 88, ginStrongSignalsRequired: 92, ginVaSignalsRequired: 93,
    ginCustomStride: 96, ginType: 100, useRuntimeVersion: 104, cftCaps: 108, cftBarrierCount: 112,
});
layout!(ncclCommProperties, 152, {
    size: 0, magic: 8, version: 12, rank: 16, nRanks: 20, cudaDev: 24, nvmlDev: 28, deviceApiSupport: 32, multimemSupport: 33,
    ginType: 36, nLsaTeams: 40, hostRmaSupport: 44, railedGinType: 48, commHash: 56, ginMinStride: 64, ginConnectionType: 68,
    ginSupport: 72, devCommRuntimeVersionSize: 136, cftSupport: 144, cftMulticastSupport: 145, cftCountedSupport: 146,
});
