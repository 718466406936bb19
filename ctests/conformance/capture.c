// Stream capture: the life of a capture, the errors 900 to 908, and which calls a capture forbids in which mode.
#include "kernels.h"

static const char* status_name(int status) {
  static const char* const names[] = {"none", "active", "invalidated"};
  return status >= 0 && status <= 2 ? names[status] : "?";
}

static void say_status(const char* what, CUstream stream) {
  int status = -1;
  CUresult result = cuStreamIsCapturing(stream, &status);
  say("  %s: %s, %s", what, result_name(result), status_name(status));
}

static size_t node_count(CUgraph graph) {
  size_t count = 0;
  MUST(cuGraphGetNodes(graph, NULL, &count));
  return count;
}

// Ends a capture that may be broken and drops its graph.
static void end_quietly(CUstream stream) {
  CUgraph graph = NULL;
  if (cuStreamEndCapture(stream, &graph) == 0 && graph) cuGraphDestroy(graph);
}

static CUstream new_stream(void) {
  CUstream stream;
  MUST(cuStreamCreate(&stream, STREAM_NON_BLOCKING));
  return stream;
}

static void life(void) {
  start();
  CUdeviceptr memory = device_memory(64);
  CUstream stream = new_stream();
  CUgraph graph;
  TRY(cuStreamBeginCapture(stream, CAPTURE_GLOBAL));
  say_status("begun", stream);
  TRY(cuStreamBeginCapture(stream, CAPTURE_GLOBAL));
  say_status("begun twice", stream);
  TRY(cuStreamEndCapture(stream, &graph));
  say_status("ended", stream);
  say("  nodes: %zu", node_count(graph));
  TRY(cuStreamEndCapture(stream, &graph));
  TRY(cuStreamBeginCapture(stream, 3));
  TRY(cuStreamBeginCapture(stream, -1));
  TRY(cuStreamBeginCapture(NULL, CAPTURE_GLOBAL));
  TRY(cuStreamBeginCapture(STREAM_LEGACY, CAPTURE_RELAXED));
  TRY(cuStreamBeginCapture(STREAM_PER_THREAD, CAPTURE_GLOBAL));
  say_status("per-thread stream", STREAM_PER_THREAD);
  TRY(cuMemsetD8Async(memory, 1, 64, STREAM_PER_THREAD));
  TRY(cuStreamEndCapture(STREAM_PER_THREAD, &graph));
  say("  nodes: %zu", node_count(graph));
  TRY(cuStreamIsCapturing(stream, NULL));
  int status = -1;
  TRY(cuStreamIsCapturing(NULL, &status));
  say("  %s", status_name(status));
  TRY(cuStreamBeginCapture(stream, CAPTURE_GLOBAL));
  TRY(cuStreamEndCapture(stream, NULL));
  say_status("end into NULL", stream);
  end_quietly(stream);
  // Nothing runs while a capture records.
  MUST(cuStreamBeginCapture(stream, CAPTURE_RELAXED));
  MUST(cuMemsetD8Async(memory, 7, 64, stream));
  MUST(cuStreamEndCapture(stream, &graph));
  MUST(cuCtxSynchronize());
  say("  word after capture: %#x", read_word(memory));
  CUgraphExec exec;
  MUST(cuGraphInstantiate(&exec, graph, 0));
  MUST(cuGraphLaunch(exec, stream));
  MUST(cuStreamSynchronize(stream));
  say("  word after launch: %#x", read_word(memory));
}

static void on_the_captured_stream(void) {
  start();
  CUstream stream = new_stream(), other = new_stream();
  CUevent event, outside;
  MUST(cuEventCreate(&event, EVENT_DEFAULT));
  MUST(cuEventCreate(&outside, EVENT_DEFAULT));
  MUST(cuEventRecord(outside, other));
  MUST(cuStreamSynchronize(other));
  CUgraph graph;
  float ms;
#define IN_CAPTURE(call)                                                     \
  do {                                                                       \
    MUST(cuStreamBeginCapture(stream, CAPTURE_RELAXED));                      \
    MUST(cuEventRecord(event, stream));                                      \
    try_result(#call, (call));                                               \
    say_status("then", stream);                                              \
    graph = (CUgraph)1;                                                      \
    CUresult ended = cuStreamEndCapture(stream, &graph);                     \
    say("  end: %s, graph %s", result_name(ended), graph ? "made" : "NULL"); \
    if (ended == 0) cuGraphDestroy(graph);                                   \
  } while (0)
  IN_CAPTURE(cuStreamSynchronize(stream));
  IN_CAPTURE(cuStreamQuery(stream));
  IN_CAPTURE(cuEventQuery(event));
  IN_CAPTURE(cuEventSynchronize(event));
  IN_CAPTURE(cuEventElapsedTime(&ms, event, event));
  IN_CAPTURE(cuEventElapsedTime(&ms, outside, event));
  IN_CAPTURE(cuCtxSynchronize());
  IN_CAPTURE(cuEventRecord(event, other));
  IN_CAPTURE(cuStreamWaitEvent(stream, outside, 0));
  IN_CAPTURE(cuStreamWaitEvent(stream, outside, 1));
  IN_CAPTURE(cuStreamWaitEvent(stream, event, 0));
  IN_CAPTURE(cuEventRecordWithFlags(event, stream, 1));
  IN_CAPTURE(cuStreamAddCallback(stream, NULL, NULL, 0));
  IN_CAPTURE(cuLaunchHostFunc(stream, NULL, NULL));
  IN_CAPTURE(cuMemsetD8Async(0, 0, 4, stream));
  // An event of a capture after the capture.
  MUST(cuStreamBeginCapture(stream, CAPTURE_RELAXED));
  MUST(cuEventRecord(event, stream));
  MUST(cuStreamEndCapture(stream, &graph));
  TRY(cuEventQuery(event));
  TRY(cuEventSynchronize(event));
  TRY(cuStreamWaitEvent(other, event, 0));
  TRY(cuEventRecord(event, other));
  TRY(cuEventSynchronize(event));
}

static void destroyed_stream(void) {
  start();
  CUstream stream = new_stream(), other = new_stream();
  CUdeviceptr memory = device_memory(64);
  CUevent event;
  MUST(cuEventCreate(&event, EVENT_DISABLE_TIMING));
  CUgraph graph = NULL;
  MUST(cuStreamBeginCapture(stream, CAPTURE_RELAXED));
  MUST(cuEventRecord(event, stream));
  MUST(cuStreamWaitEvent(other, event, 0));
  MUST(cuMemsetD8Async(memory, 1, 64, other));
  TRY(cuStreamDestroy(other));
  say_status("origin", stream);
  TRY(cuStreamEndCapture(stream, &graph));
  stream = new_stream();
  MUST(cuStreamBeginCapture(stream, CAPTURE_RELAXED));
  TRY(cuStreamDestroy(stream));
}

static void several_streams(void) {
  start();
  CUstream a = new_stream(), b = new_stream(), c = new_stream();
  CUdeviceptr memory = device_memory(64);
  CUevent fork, join;
  MUST(cuEventCreate(&fork, EVENT_DISABLE_TIMING));
  MUST(cuEventCreate(&join, EVENT_DISABLE_TIMING));
  CUgraph graph = NULL;
  say("fork and join");
  MUST(cuStreamBeginCapture(a, CAPTURE_GLOBAL));
  MUST(cuMemsetD8Async(memory, 1, 8, a));
  MUST(cuEventRecord(fork, a));
  TRY(cuStreamWaitEvent(b, fork, 0));
  say_status("b", b);
  MUST(cuMemsetD8Async(memory + 8, 2, 8, b));
  MUST(cuMemsetD8Async(memory + 16, 3, 8, a));
  MUST(cuEventRecord(join, b));
  TRY(cuStreamWaitEvent(a, join, 0));
  say_status("b after the join", b);
  MUST(cuMemsetD8Async(memory + 24, 4, 8, a));
  TRY(cuStreamEndCapture(a, &graph));
  say_status("b after the end", b);
  size_t edges = 0, roots = 0;
  MUST(cuGraphGetEdges(graph, NULL, NULL, &edges));
  MUST(cuGraphGetRootNodes(graph, NULL, &roots));
  say("  nodes %zu, edges %zu, roots %zu", node_count(graph), edges, roots);

  say("a fork that does nothing");
  MUST(cuStreamBeginCapture(a, CAPTURE_GLOBAL));
  MUST(cuMemsetD8Async(memory, 1, 8, a));
  MUST(cuEventRecord(fork, a));
  MUST(cuStreamWaitEvent(b, fork, 0));
  TRY(cuStreamEndCapture(a, &graph));
  say_status("b", b);

  say("a fork that is not joined");
  MUST(cuStreamBeginCapture(a, CAPTURE_GLOBAL));
  MUST(cuEventRecord(fork, a));
  MUST(cuStreamWaitEvent(b, fork, 0));
  MUST(cuMemsetD8Async(memory, 2, 8, b));
  graph = (CUgraph)1;
  TRY(cuStreamEndCapture(a, &graph));
  say("  graph %s", graph ? "made" : "NULL");
  say_status("a", a);
  say_status("b", b);
  TRY(cuMemsetD8Async(memory, 2, 8, b));

  say("ended on the wrong stream");
  MUST(cuStreamBeginCapture(a, CAPTURE_GLOBAL));
  MUST(cuEventRecord(fork, a));
  MUST(cuStreamWaitEvent(b, fork, 0));
  TRY(cuStreamEndCapture(b, &graph));
  say_status("a", a);
  say_status("b", b);
  TRY(cuStreamEndCapture(a, &graph));

  say("two captures meet");
  MUST(cuStreamBeginCapture(a, CAPTURE_RELAXED));
  MUST(cuStreamBeginCapture(c, CAPTURE_RELAXED));
  MUST(cuEventRecord(fork, a));
  TRY(cuStreamWaitEvent(c, fork, 0));
  say_status("a", a);
  say_status("c", c);
  TRY(cuStreamEndCapture(a, &graph));
  TRY(cuStreamEndCapture(c, &graph));

  say("a capture waits for work outside");
  MUST(cuEventRecord(join, b));
  MUST(cuStreamBeginCapture(a, CAPTURE_RELAXED));
  TRY(cuStreamWaitEvent(a, join, 0));
  say_status("a", a);
  TRY(cuStreamEndCapture(a, &graph));

  say("a capture waits for an event that was never recorded");
  CUevent fresh;
  MUST(cuEventCreate(&fresh, EVENT_DISABLE_TIMING));
  MUST(cuStreamBeginCapture(a, CAPTURE_RELAXED));
  TRY(cuStreamWaitEvent(a, fresh, 0));
  say_status("a", a);
  TRY(cuStreamEndCapture(a, &graph));

  say("an external wait and an external record");
  MUST(cuStreamBeginCapture(a, CAPTURE_RELAXED));
  TRY(cuStreamWaitEvent(a, join, 1));
  TRY(cuEventRecordWithFlags(join, a, 1));
  TRY(cuStreamEndCapture(a, &graph));
  say("  nodes %zu", node_count(graph));
}

static void legacy_stream(void) {
  start();
  CUstream blocking, other = new_stream();
  MUST(cuStreamCreate(&blocking, STREAM_DEFAULT));
  CUdeviceptr memory = device_memory(64);
  CUevent event;
  MUST(cuEventCreate(&event, EVENT_DISABLE_TIMING));
  CUgraph graph;
  uint32_t word = 0;
#define WITH_CAPTURE(kind, stream, mode, text, call)     \
  do {                                                   \
    MUST(cuStreamBeginCapture(stream, mode));            \
    CUresult result = (call);                            \
    int status = -1;                                     \
    cuStreamIsCapturing(stream, &status);                \
    CUresult ended = cuStreamEndCapture(stream, &graph); \
    say("%s, %s: %s, %s, end %s", kind, text, result_name(result), status_name(status), result_name(ended)); \
    if (ended == 0) cuGraphDestroy(graph);               \
  } while (0)
#define BOTH(call)                                                                  \
  WITH_CAPTURE("blocking stream, global", blocking, CAPTURE_GLOBAL, #call, call);          \
  WITH_CAPTURE("blocking stream, relaxed", blocking, CAPTURE_RELAXED, #call, call);        \
  WITH_CAPTURE("non-blocking stream, global", other, CAPTURE_GLOBAL, #call, call);         \
  WITH_CAPTURE("non-blocking stream, relaxed", other, CAPTURE_RELAXED, #call, call)
  BOTH(cuMemsetD8Async(memory, 1, 8, NULL));
  BOTH(cuMemsetD8Async(memory, 1, 8, STREAM_PER_THREAD));
  BOTH(cuMemsetD8(memory, 1, 8));
  BOTH(cuMemcpyDtoH(&word, memory, 4));
  BOTH(cuMemcpyHtoDAsync(memory, &word, 4, NULL));
  BOTH(cuEventRecord(event, NULL));
  BOTH(cuStreamWaitEvent(NULL, event, 0));
  BOTH(cuStreamSynchronize(NULL));
  BOTH(cuStreamQuery(NULL));
  BOTH(cuLaunchHostFunc(NULL, NULL, NULL));
  // What of the capture leaks into the legacy stream.
  MUST(cuStreamBeginCapture(other, CAPTURE_RELAXED));
  MUST(cuEventRecord(event, other));
  TRY(cuStreamWaitEvent(NULL, event, 0));
  say_status("captured", other);
  say_status("legacy", NULL);
  TRY(cuStreamEndCapture(other, &graph));
}

static CUstream thread_stream;
static CUdeviceptr thread_memory;
static void* end_in_thread(void* context) {
  MUST(cuCtxSetCurrent(context));
  CUgraph graph;
  TRY(cuStreamEndCapture(thread_stream, &graph));
  return NULL;
}
static void* memset_in_thread(void* context) {
  MUST(cuCtxSetCurrent(context));
  TRY(cuMemsetD8Async(thread_memory, 1, 8, thread_stream));
  return NULL;
}

static void threads(void) {
  CUcontext context = start();
  static const char* const names[] = {"global", "thread local", "relaxed"};
  for (int mode = 0; mode < 3; ++mode) {
    say("%s", names[mode]);
    thread_stream = new_stream();
    MUST(cuStreamBeginCapture(thread_stream, mode));
    pthread_t thread;
    pthread_create(&thread, NULL, end_in_thread, context);
    pthread_join(thread, NULL);
    say_status("after the other thread's end", thread_stream);
    CUgraph graph;
    TRY(cuStreamEndCapture(thread_stream, &graph));
  }
  // Work of another thread on a captured stream belongs to the capture.
  thread_stream = new_stream();
  thread_memory = device_memory(8);
  MUST(cuStreamBeginCapture(thread_stream, CAPTURE_RELAXED));
  pthread_t thread;
  pthread_create(&thread, NULL, memset_in_thread, context);
  pthread_join(thread, NULL);
  CUgraph graph;
  TRY(cuStreamEndCapture(thread_stream, &graph));
  say("  nodes %zu", node_count(graph));
}

// What may be called while another stream captures.
static CUcontext context;
static CUstream captured, idle;
static CUevent idle_event;
static CUdeviceptr memory, spare[64], reserved, mapped;
static void* host;
static char page[8192] __attribute__((aligned(4096)));
static CUmemGenericAllocationHandle physical;
static CUmemAllocationProp property = {.type = MEM_PINNED, .requestedHandleTypes = HANDLE_POSIX_FD, .location = {LOCATION_DEVICE, 0}};
static CUmemAccessDesc access_all = {.location = {LOCATION_DEVICE, 0}, .flags = ACCESS_READ_WRITE};
static CUmodule module;
static CUgraph small_graph;
static CUgraphExec small_exec;
enum { GRANULE = 2 << 20 };

#define CALLS(F) \
  F(cuMemAlloc(&p, 4096)) \
  F(cuMemFree(spare[turn])) \
  F(cuMemHostAlloc(&q, 4096, 0)) \
  F(cuMemAllocHost(&q, 4096)) \
  F(cuMemFreeHost(host_spare())) \
  F(cuMemHostRegister(page, 4096, 0)) \
  F(cuMemHostUnregister(page)) \
  F(cuMemHostGetDevicePointer(&p, host, 0)) \
  F(cuMemAllocManaged(&p, 4096, 1)) \
  F(cuMemAllocAsync(&p, 4096, idle)) \
  F(cuMemGetInfo(&n, &m)) \
  F(cuMemGetAddressRange(&p, &n, memory)) \
  F(cuPointerGetAttribute(&i, 2, memory)) \
  F(cuPointerSetAttribute(&one, 6, memory)) \
  F(cuMemcpyHtoD(memory, page, 4)) \
  F(cuMemcpyDtoH(page, memory, 4)) \
  F(cuMemcpyDtoD(memory, memory + 64, 4)) \
  F(cuMemcpy(memory, memory + 64, 4)) \
  F(cuMemsetD8(memory, 1, 4)) \
  F(cuMemcpyHtoDAsync(memory, page, 4, idle)) \
  F(cuMemcpyDtoHAsync(page, memory, 4, idle)) \
  F(cuMemsetD8Async(memory, 1, 4, idle)) \
  F(cuStreamWriteValue32(idle, memory, 1, 0)) \
  F(cuStreamQuery(idle)) \
  F(cuStreamSynchronize(idle)) \
  F(cuCtxSynchronize()) \
  F(cuEventCreate(&event, EVENT_DISABLE_TIMING)) \
  F(cuEventDestroy(event)) \
  F(cuEventRecord(idle_event, idle)) \
  F(cuEventQuery(idle_event)) \
  F(cuEventSynchronize(idle_event)) \
  F(cuStreamWaitEvent(idle, idle_event, 0)) \
  F(cuStreamCreate(&stream, STREAM_NON_BLOCKING)) \
  F(cuStreamDestroy(stream)) \
  F(cuLaunchHostFunc(idle, nothing, NULL)) \
  F(cuMemAddressReserve(&p, GRANULE, 0, 0, 0)) \
  F(cuMemAddressFree(p, GRANULE)) \
  F(cuMemCreate(&handle, GRANULE, &property, 0)) \
  F(cuMemRelease(handle)) \
  F(cuMemMap(reserved, GRANULE, 0, physical, 0)) \
  F(cuMemSetAccess(reserved, GRANULE, &access_all, 1)) \
  F(cuMemSetAccess(mapped, GRANULE, &access_all, 1)) \
  F(cuMemUnmap(reserved, GRANULE)) \
  F(cuMemExportToShareableHandle(&fd, physical, HANDLE_POSIX_FD, 0)) \
  F(cuMemImportFromShareableHandle(&handle, (void*)(intptr_t)fd, HANDLE_POSIX_FD)) \
  F(cuMemRetainAllocationHandle(&handle, (void*)mapped)) \
  F(cuMemGetAllocationGranularity(&n, &property, 0)) \
  F(cuIpcGetMemHandle(&ipc, memory)) \
  F(cuModuleLoadData(&loaded, kernels_ptx)) \
  F(cuModuleGetFunction(&function, module, "emu_probe_fill")) \
  F(cuFuncLoad(fill_function())) \
  F(cuFuncGetAttribute(&i, 0, fill_function())) \
  F(cuOccupancyMaxActiveBlocksPerMultiprocessor(&i, fill_function(), 128, 0)) \
  F(cuModuleUnload(loaded)) \
  F(cuGraphCreate(&graph, 0)) \
  F(cuGraphInstantiate(&exec, small_graph, 0)) \
  F(cuGraphUpload(small_exec, idle)) \
  F(cuGraphLaunch(small_exec, idle)) \
  F(cuGraphExecDestroy(exec)) \
  F(cuGraphDestroy(graph)) \
  F(cuCtxGetCurrent(&current)) \
  F(cuCtxSetCurrent(context)) \
  F(cuDevicePrimaryCtxRetain(&current, 0)) \
  F(cuDevicePrimaryCtxRelease(0)) \
  F(cuDeviceGetAttribute(&i, 16, 0))

static void nothing(void* unused) { (void)unused; }
static CUfunction fill_function(void) {
  static CUfunction function;
  if (!function) MUST(cuModuleGetFunction(&function, module, "emu_probe_fill"));
  return function;
}
static void* host_spare(void) {
  static void* pointers[64];
  static int used, ready;
  if (!ready) {
    for (int i = 0; i < 64; ++i) MUST(cuMemHostAlloc(&pointers[i], 4096, 0));
    ready = 1;
  }
  return pointers[used++ % 64];
}

static void* call_all(void* where) {
  MUST(cuCtxSetCurrent(context));
  const char* mode = where;
  static int turn;
  CUdeviceptr p = 0;
  void* q;
  size_t n, m;
  int i, one = 1, fd = -1;
  CUevent event = NULL;
  CUstream stream = NULL;
  CUmemGenericAllocationHandle handle = 0;
  CUipcMemHandle ipc;
  CUmodule loaded = NULL;
  CUfunction function;
  CUgraph graph = NULL;
  CUgraphExec exec = NULL;
  CUcontext current;
  const int how = atoi(mode);
#define CALL_ONE(call)                                                                             \
  do {                                                                                             \
    ++turn;                                                                                        \
    MUST(cuStreamBeginCapture(captured, how));                                                     \
    int known = 1;                                                                                 \
    CUresult result = 0, ended = 0;                                                                \
    int status = -1;                                                                               \
    /* A call that needs what an earlier one was not allowed to make is left out. */               \
    if ((strstr(#call, "cuMemAddressFree") && !p) || (strstr(#call, "cuMemRelease") && !handle) || \
        (strstr(#call, "cuEventDestroy") && !event) || (strstr(#call, "cuStreamDestroy") && !stream) || \
        (strstr(#call, "cuModuleUnload") && !loaded) || (strstr(#call, "cuGraphExecDestroy") && !exec) || \
        (strstr(#call, "cuGraphDestroy") && !graph) || (strstr(#call, "ImportFrom") && fd < 0)) known = 0; \
    if (known) result = (call);                                                                    \
    cuStreamIsCapturing(captured, &status);                                                        \
    CUgraph end_graph = NULL;                                                                      \
    ended = cuStreamEndCapture(captured, &end_graph);                                              \
    if (end_graph) cuGraphDestroy(end_graph);                                                      \
    if (!known) say("  %s: left out", #call);                                                      \
    else if (status == CAPTURE_STATUS_ACTIVE && ended == 0) say("  %s: %s", #call, result_name(result)); \
    else say("  %s: %s, %s, end %s", #call, result_name(result), status_name(status), result_name(ended)); \
    cuStreamSynchronize(idle);                                                                     \
  } while (0);
  CALLS(CALL_ONE)
  return NULL;
}

// The capture is begun by a helper thread or by the thread that calls.
static void prepare(void) {
  context = start();
  captured = new_stream();
  idle = new_stream();
  MUST(cuEventCreate(&idle_event, EVENT_DISABLE_TIMING));
  memory = device_memory(4096);
  for (size_t i = 0; i < COUNT(spare); ++i) MUST(cuMemAlloc(&spare[i], 4096));
  MUST(cuMemHostAlloc(&host, 4096, 0));
  MUST(cuMemAddressReserve(&reserved, 2 * GRANULE, 0, 0, 0));
  mapped = reserved + GRANULE;
  MUST(cuMemCreate(&physical, GRANULE, &property, 0));
  MUST(cuMemMap(mapped, GRANULE, 0, physical, 0));
  MUST(cuMemSetAccess(mapped, GRANULE, &access_all, 1));
  module = kernels_load();
  fill_function();
  host_spare();
  MUST(cuGraphCreate(&small_graph, 0));
  CUgraphNode node;
  MUST(cuGraphAddEmptyNode(&node, small_graph, NULL, 0));
  MUST(cuGraphInstantiate(&small_exec, small_graph, 0));
  MUST(cuCtxSynchronize());
}
static void allowed_global(void) { prepare(); call_all("0"); }
static void allowed_thread_local(void) { prepare(); call_all("1"); }
static void allowed_relaxed(void) { prepare(); call_all("2"); }

// The thread that captures does nothing else; another one makes the calls.
static pthread_barrier_t turns;
static int capture_mode, calls_left;
static void* capturing_thread(void* unused) {
  (void)unused;
  MUST(cuCtxSetCurrent(context));
  for (;;) {
    pthread_barrier_wait(&turns);
    if (!calls_left) return NULL;
    MUST(cuStreamBeginCapture(captured, capture_mode));
    pthread_barrier_wait(&turns);
    pthread_barrier_wait(&turns);
    CUgraph graph = NULL;
    CUresult ended = cuStreamEndCapture(captured, &graph);
    if (graph) cuGraphDestroy(graph);
    if (ended) say("    the other thread's end: %s", result_name(ended));
    pthread_barrier_wait(&turns);
  }
}
static void from_another_thread(int mode) {
  prepare();
  capture_mode = mode;
  calls_left = 1;
  pthread_barrier_init(&turns, NULL, 2);
  pthread_t thread;
  pthread_create(&thread, NULL, capturing_thread, NULL);
  CUdeviceptr p = 0;
  void* q;
  size_t n, m;
#define CALL_BESIDE(call)                         \
  do {                                            \
    pthread_barrier_wait(&turns);                 \
    pthread_barrier_wait(&turns);                 \
    say("  %s: %s", #call, result_name(call));    \
    pthread_barrier_wait(&turns);                 \
    pthread_barrier_wait(&turns);                 \
  } while (0)
  CALL_BESIDE(cuMemAlloc(&p, 4096));
  CALL_BESIDE(cuMemHostAlloc(&q, 4096, 0));
  CALL_BESIDE(cuMemGetInfo(&n, &m));
  CALL_BESIDE(cuMemcpyDtoH(page, memory, 4));
  CALL_BESIDE(cuStreamQuery(idle));
  CALL_BESIDE(cuStreamSynchronize(idle));
  CALL_BESIDE(cuCtxSynchronize());
  CALL_BESIDE(cuEventQuery(idle_event));
  CALL_BESIDE(cuMemFree(spare[0]));
  CALL_BESIDE(cuMemSetAccess(mapped, GRANULE, &access_all, 1));
  CALL_BESIDE(cuModuleUnload(kernels_load()));
  calls_left = 0;
  pthread_barrier_wait(&turns);
  pthread_join(thread, NULL);
}
static void beside_global(void) { from_another_thread(CAPTURE_GLOBAL); }
static void beside_thread_local(void) { from_another_thread(CAPTURE_THREAD_LOCAL); }
static void beside_relaxed(void) { from_another_thread(CAPTURE_RELAXED); }

static void exchange(void) {
  prepare();
  int mode = CAPTURE_RELAXED;
  TRY(cuThreadExchangeStreamCaptureMode(&mode));
  say("  before: %d", mode);
  CUdeviceptr p;
  for (int own = 0; own < 3; ++own)
    for (int capture = 0; capture < 3; ++capture) {
      mode = own;
      MUST(cuThreadExchangeStreamCaptureMode(&mode));
      MUST(cuStreamBeginCapture(captured, capture));
      CUresult alloc = cuMemAlloc(&p, 4096);
      CUgraph graph = NULL;
      CUresult ended = cuStreamEndCapture(captured, &graph);
      say("thread's mode %d, capture's %d: %s, end %s", own, capture, result_name(alloc), result_name(ended));
    }
}

// Modes that there are not are taken.
static void exchange_unknown(void) {
  prepare();
  static const int modes[] = {3, -1, CAPTURE_GLOBAL};
  for (size_t i = 0; i < COUNT(modes); ++i) {
    int mode = modes[i];
    TRY(cuThreadExchangeStreamCaptureMode(&mode));
    say("  before: %d", mode);
    CUdeviceptr p;
    MUST(cuStreamBeginCapture(captured, CAPTURE_GLOBAL));
    CUresult alloc = cuMemAlloc(&p, 4096);
    CUgraph graph = NULL;
    CUresult ended = cuStreamEndCapture(captured, &graph);
    say("  in a global capture: %s, end %s", result_name(alloc), result_name(ended));
  }
}

static void after_invalidation(void) {
  prepare();
  CUgraph graph = (CUgraph)1;
  MUST(cuStreamBeginCapture(captured, CAPTURE_GLOBAL));
  TRY(cuStreamSynchronize(captured));
  say_status("then", captured);
  TRY(cuMemsetD8Async(memory, 1, 4, captured));
  TRY(cuEventRecord(idle_event, captured));
  TRY(cuStreamWaitEvent(captured, idle_event, 0));
  TRY(cuStreamQuery(captured));
  TRY(cuLaunchHostFunc(captured, nothing, NULL));
  TRY(cuStreamWriteValue32(captured, memory, 1, 0));
  TRY(cuGraphLaunch(small_exec, captured));
  TRY(cuStreamBeginCapture(captured, CAPTURE_GLOBAL));
  TRY(cuStreamEndCapture(captured, &graph));
  say("  graph %s", graph ? "made" : "NULL");
  say_status("ended", captured);
  TRY(cuMemsetD8Async(memory, 1, 4, captured));
  TRY(cuStreamSynchronize(captured));
}

SECTIONS({"life", life}, {"on the captured stream", on_the_captured_stream}, {"destroyed stream", destroyed_stream},
         {"several streams", several_streams}, {"legacy stream", legacy_stream}, {"threads", threads},
         {"allowed in global mode", allowed_global}, {"allowed in thread-local mode", allowed_thread_local},
         {"allowed in relaxed mode", allowed_relaxed}, {"beside a global capture", beside_global},
         {"beside a thread-local capture", beside_thread_local}, {"beside a relaxed capture", beside_relaxed},
         {"exchange", exchange}, {"after invalidation", after_invalidation}, {"exchange for no mode", exchange_unknown})
