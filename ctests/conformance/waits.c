// Which calls wait for a kernel that runs in their context, and whether other threads can launch meanwhile.
#include "kernels.h"

enum { SIZE = 2 << 20 };

static CUcontext context;
static CUfunction spin, fill;
static CUstream spinning, beside;
static CUdeviceptr words;
static Gate gate;

static void prepare(void) {
  context = start();
  CUmodule module = kernels_load();
  spin = kernel(module, "emu_probe_spin");
  fill = kernel(module, "emu_probe_fill");
  MUST(cuFuncLoad(spin));
  MUST(cuFuncLoad(fill));
  MUST(cuStreamCreate(&spinning, STREAM_NON_BLOCKING));
  MUST(cuStreamCreate(&beside, STREAM_NON_BLOCKING));
  words = device_memory(SIZE);
  gate = gate_make();
}

// What a call is about. `make` prepares it, `call` makes it, beside the kernel.
typedef struct { CUdeviceptr address; CUmemGenericAllocationHandle handle; void* host; CUmodule module; CUstream stream; CUevent event; CUgraphExec exec; } Thing;
typedef struct { const char* name; void (*make)(Thing*); CUresult (*call)(Thing*); } Case;

static const CUmemAllocationProp property = {.type = MEM_PINNED, .location = {LOCATION_DEVICE, 0}};
static void make_handle(Thing* t) { MUST(cuMemCreate(&t->handle, SIZE, &property, 0)); }
static void make_range(Thing* t) {
  make_handle(t);
  MUST(cuMemAddressReserve(&t->address, SIZE, 0, 0, 0));
}
static void make_mapped(Thing* t) {
  make_range(t);
  MUST(cuMemMap(t->address, SIZE, 0, t->handle, 0));
}
static CUresult allow(Thing* t) {
  const CUmemAccessDesc access = {{LOCATION_DEVICE, 0}, ACCESS_READ_WRITE};
  return cuMemSetAccess(t->address, SIZE, &access, 1);
}
static void make_allowed(Thing* t) {
  make_mapped(t);
  MUST(allow(t));
}
static void make_unmapped(Thing* t) {
  make_allowed(t);
  MUST(cuMemUnmap(t->address, SIZE));
}
static void make_memory(Thing* t) { t->address = device_memory(SIZE); }
static void make_pinned(Thing* t) { MUST(cuMemHostAlloc(&t->host, SIZE, HOST_DEVICEMAP)); }
static void make_pages(Thing* t) {
  t->host = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  memset(t->host, 1, SIZE);
}
static void make_registered(Thing* t) {
  make_pages(t);
  MUST(cuMemHostRegister(t->host, SIZE, HOST_DEVICEMAP));
}
static void make_module(Thing* t) { t->module = kernels_load(); }
static void make_stream(Thing* t) { MUST(cuStreamCreate(&t->stream, STREAM_NON_BLOCKING)); }
static void make_event(Thing* t) { MUST(cuEventCreate(&t->event, EVENT_DISABLE_TIMING)); }
static void make_exec(Thing* t) {
  CUgraph graph;
  Fill arg = {words, 4, 1};
  MUST(cuStreamBeginCapture(beside, CAPTURE_RELAXED));
  MUST(launch(fill, 1, 4, beside, &arg));
  MUST(cuStreamEndCapture(beside, &graph));
  MUST(cuGraphInstantiate(&t->exec, graph, 0));
}
static void make_nothing(Thing* t) { (void)t; }

static CUresult call_alloc(Thing* t) { return cuMemAlloc(&t->address, SIZE); }
static CUresult call_free(Thing* t) { return cuMemFree(t->address); }
static CUresult call_host_alloc(Thing* t) { return cuMemHostAlloc(&t->host, SIZE, HOST_DEVICEMAP); }
static CUresult call_free_host(Thing* t) { return cuMemFreeHost(t->host); }
static CUresult call_register(Thing* t) { return cuMemHostRegister(t->host, SIZE, HOST_DEVICEMAP); }
static CUresult call_unregister(Thing* t) { return cuMemHostUnregister(t->host); }
static CUresult call_create(Thing* t) { return cuMemCreate(&t->handle, SIZE, &property, 0); }
static CUresult call_map(Thing* t) { return cuMemMap(t->address, SIZE, 0, t->handle, 0); }
static CUresult call_unmap(Thing* t) { return cuMemUnmap(t->address, SIZE); }
static CUresult call_release(Thing* t) { return cuMemRelease(t->handle); }
static CUresult call_address_free(Thing* t) { return cuMemAddressFree(t->address, SIZE); }
static CUresult call_load(Thing* t) { return cuModuleLoadData(&t->module, kernels_ptx); }
static CUresult call_unload(Thing* t) { return cuModuleUnload(t->module); }
static CUresult call_destroy_stream(Thing* t) { return cuStreamDestroy(t->stream); }
static CUresult call_destroy_event(Thing* t) { return cuEventDestroy(t->event); }
static CUresult call_destroy_exec(Thing* t) { return cuGraphExecDestroy(t->exec); }
static CUresult call_copy_idle(Thing* t) { return cuMemcpyDtoHAsync(t->host, words, 1024, beside); }
static CUresult call_copy_behind(Thing* t) { return cuMemcpyDtoHAsync(t->host, words, 1024, spinning); }
static CUresult call_synchronize(Thing* t) { (void)t; return cuStreamSynchronize(spinning); }
static CUresult call_synchronize_context(Thing* t) { (void)t; return cuCtxSynchronize(); }

static const Case cases[] = {
    {"cuMemAlloc", make_nothing, call_alloc}, {"cuMemFree", make_memory, call_free},
    {"cuMemHostAlloc", make_nothing, call_host_alloc}, {"cuMemFreeHost", make_pinned, call_free_host},
    {"cuMemHostRegister", make_pages, call_register}, {"cuMemHostUnregister", make_registered, call_unregister},
    {"cuMemCreate", make_nothing, call_create}, {"cuMemMap", make_range, call_map},
    {"cuMemSetAccess", make_mapped, allow}, {"cuMemUnmap", make_allowed, call_unmap},
    {"cuMemRelease", make_unmapped, call_release}, {"cuMemAddressFree", make_unmapped, call_address_free},
    {"cuModuleLoadData of PTX", make_nothing, call_load}, {"cuModuleUnload", make_module, call_unload},
    {"cuStreamDestroy", make_stream, call_destroy_stream}, {"cuEventDestroy", make_event, call_destroy_event},
    {"cuGraphExecDestroy", make_exec, call_destroy_exec},
    {"cuMemcpyDtoHAsync on another stream", make_pages, call_copy_idle},
    {"cuMemcpyDtoHAsync behind the kernel", make_pages, call_copy_behind},
    {"cuStreamSynchronize", make_nothing, call_synchronize}, {"cuCtxSynchronize", make_nothing, call_synchronize_context},
};

typedef struct { CUresult (*call)(Thing*); Thing* thing; CUresult result; atomic_int done; } Caller;

static void* make_call(void* argument) {
  Caller* caller = argument;
  MUST(cuCtxSetCurrent(context));
  caller->result = caller->call(caller->thing);
  caller->done = 1;
  return NULL;
}

static CUresult launch_beside(Thing* t) {
  (void)t;
  Fill arg = {words, 4, 5};
  return launch(fill, 1, 4, beside, &arg);
}

// Starts the kernel, makes the call on a thread and the other calls on threads of their own, and says what each did before the
// kernel was let go.
static void beside_a_kernel(const Case* c, CUresult (*const others[])(Thing*), const char* const names[], size_t count) {
  Thing thing = {0};
  c->make(&thing);
  MUST(cuCtxSynchronize());
  *gate.word = 0;
  Spin arg = {gate.address, 1, 0};
  MUST(launch(spin, 1, 1, spinning, &arg));
  sleep_ms(20);
  Caller caller = {c->call, &thing, 0, 0}, other[8] = {{0}};
  pthread_t thread, threads[8];
  pthread_create(&thread, NULL, make_call, &caller);
  sleep_ms(100);
  for (size_t i = 0; i < count; ++i) {
    other[i].call = others[i];
    other[i].thing = &thing;
    pthread_create(&threads[i], NULL, make_call, &other[i]);
  }
  sleep_ms(300);
  say("%s: %s", c->name, caller.done ? "returns" : "waits");
  for (size_t i = 0; i < count; ++i) say("  %s: %s", names[i], other[i].done ? "goes on" : "is held up");
  gate_open(gate, 1);
  pthread_join(thread, NULL);
  for (size_t i = 0; i < count; ++i) {
    pthread_join(threads[i], NULL);
    if (other[i].result != 0) say("  %s: %s", names[i], result_name(other[i].result));
  }
  say("  %s", result_name(caller.result));
  MUST(cuCtxSynchronize());
}

static void calls(void) {
  prepare();
  CUresult (*const others[])(Thing*) = {launch_beside};
  const char* const names[] = {"a launch by another thread"};
  for (size_t i = 0; i < COUNT(cases); ++i) beside_a_kernel(&cases[i], others, names, 1);
}

static CUevent event;
static CUgraphExec exec;
static CUresult set_beside(Thing* t) { (void)t; return cuMemsetD8Async(words, 1, 64, beside); }
static CUresult record_beside(Thing* t) { (void)t; return cuEventRecord(event, beside); }
static CUresult query(Thing* t) { (void)t; cuEventQuery(event); return 0; }
static CUresult replay(Thing* t) { (void)t; return cuGraphLaunch(exec, beside); }
static CUresult current(Thing* t) { (void)t; CUcontext c; return cuCtxGetCurrent(&c); }

static void held_up(void) {
  prepare();
  MUST(cuEventCreate(&event, EVENT_DISABLE_TIMING));
  Thing thing = {0};
  make_exec(&thing);
  exec = thing.exec;
  MUST(cuGraphLaunch(exec, beside));
  CUresult (*const others[])(Thing*) = {launch_beside, set_beside, record_beside, query, replay, current};
  const char* const names[] = {"a launch", "a set", "the record of an event", "the query of an event", "the launch of a graph",
                               "the question for the current context"};
  beside_a_kernel(&cases[1], others, names, COUNT(names));
  beside_a_kernel(&cases[5], others, names, COUNT(names));
}

SECTIONS({"calls beside a kernel", calls}, {"what is held up", held_up})
