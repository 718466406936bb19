// Kernels for the conformance programs: PTX for a real driver, with the names and parameters of the probe kernels that
// are linked into the emulated one (emulator/src/kernel/probe.cpp).
#pragma once
#include "conformance.h"

typedef struct { CUdeviceptr data; uint64_t count; uint32_t value; } Fill;         // data[i] = value + i
typedef struct { CUdeviceptr flag; uint32_t until; CUdeviceptr started; } Spin;    // waits for flag == until
typedef struct { CUdeviceptr p; uint32_t block, read; } OutOfBounds;               // accesses *p

static const char kernels_ptx[] =
    ".version 7.0\n.target sm_80\n.address_size 64\n"
    ".visible .entry emu_probe_fill(.param .align 8 .b8 arg[24]) {\n"
    "  .reg .pred %p<2>; .reg .b32 %r<10>; .reg .b64 %d<10>;\n"
    "  ld.param.u64 %d1, [arg]; ld.param.u64 %d2, [arg+8]; ld.param.u32 %r1, [arg+16];\n"
    "  mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x; mov.u32 %r5, %nctaid.x;\n"
    "  mad.lo.u32 %r6, %r2, %r3, %r4; mul.lo.u32 %r7, %r5, %r3;\n"
    "  cvt.u64.u32 %d3, %r6; cvt.u64.u32 %d4, %r7;\n"
    "NEXT: setp.ge.u64 %p1, %d3, %d2; @%p1 bra DONE;\n"
    "  cvt.u32.u64 %r8, %d3; add.u32 %r8, %r8, %r1;\n"
    "  shl.b64 %d5, %d3, 2; add.u64 %d5, %d1, %d5; st.u32 [%d5], %r8;\n"
    "  add.u64 %d3, %d3, %d4; bra NEXT;\n"
    "DONE: ret;\n}\n"
    ".visible .entry emu_probe_spin(.param .align 8 .b8 arg[24]) {\n"
    "  .reg .pred %p<2>; .reg .b32 %r<4>; .reg .b64 %d<4>;\n"
    "  ld.param.u64 %d1, [arg]; ld.param.u32 %r1, [arg+8]; ld.param.u64 %d2, [arg+16];\n"
    "  setp.eq.u64 %p1, %d2, 0; @%p1 bra NEXT;\n"
    "  red.relaxed.sys.add.u32 [%d2], 1;\n"
    "NEXT: ld.acquire.sys.u32 %r2, [%d1]; setp.ne.u32 %p1, %r2, %r1; @%p1 bra NEXT;\n"
    "  ret;\n}\n"
    ".visible .entry emu_probe_out_of_bounds(.param .align 8 .b8 arg[16]) {\n"
    "  .reg .pred %p<2>; .reg .b32 %r<4>; .reg .b64 %d<4>;\n"
    "  ld.param.u64 %d1, [arg]; ld.param.u32 %r1, [arg+12];\n"
    "  setp.ne.u32 %p1, %r1, 0; @%p1 bra READ;\n"
    "  mov.u32 %r2, 1; st.volatile.u32 [%d1], %r2; ret;\n"
    "READ: ld.volatile.u32 %r3, [%d1]; ret;\n}\n"
    ".visible .entry emu_probe_trap() {\n  trap; ret;\n}\n";

static __attribute__((unused)) CUmodule kernels_load(void) {
  CUmodule module;
  MUST(cuModuleLoadData(&module, kernels_ptx));
  return module;
}

static __attribute__((unused)) CUfunction kernel(CUmodule module, const char* name) {
  CUfunction function;
  MUST(cuModuleGetFunction(&function, module, name));
  return function;
}

static __attribute__((unused)) CUresult launch(CUfunction function, unsigned blocks, unsigned threads, CUstream stream, void* arg) {
  void* parameters[] = {arg};
  return cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, stream, arg ? parameters : NULL, NULL);
}
