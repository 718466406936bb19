// Graphs: what capture makes of each call, launches, updates, user objects.
#include "kernels.h"

static CUstream stream, other;
static CUdeviceptr words;
static CUmodule module;
static CUfunction fill;

static void prepare(void) {
  start();
  MUST(cuStreamCreate(&stream, STREAM_NON_BLOCKING));
  MUST(cuStreamCreate(&other, STREAM_NON_BLOCKING));
  words = device_memory(4096);
  module = kernels_load();
  fill = kernel(module, "emu_probe_fill");
  MUST(cuFuncLoad(fill));
}

static void begin(void) { MUST(cuStreamBeginCapture(stream, CAPTURE_RELAXED)); }
static CUgraph end(void) {
  CUgraph graph;
  MUST(cuStreamEndCapture(stream, &graph));
  return graph;
}

static CUgraph captured_fill(uint32_t value, uint64_t count) {
  Fill arg = {words, count, value};
  begin();
  MUST(launch(fill, 1, 32, stream, &arg));
  return end();
}

static void say_shape(const char* what, CUgraph graph) {
  CUgraphNode nodes[32];
  size_t count = COUNT(nodes), edges = 0, roots = 0;
  MUST(cuGraphGetNodes(graph, nodes, &count));
  MUST(cuGraphGetEdges(graph, NULL, NULL, &edges));
  MUST(cuGraphGetRootNodes(graph, NULL, &roots));
  char types[128] = "";
  for (size_t i = 0; i < count && i < COUNT(nodes); ++i) {
    int type = -1;
    MUST(cuGraphNodeGetType(nodes[i], &type));
    snprintf(types + strlen(types), sizeof types - strlen(types), " %d", type);
  }
  say("%s: nodes %zu, edges %zu, roots %zu, types%s", what, count, edges, roots, types);
}

static void nothing(void* unused) { (void)unused; }

static void shapes(void) {
  prepare();
  uint32_t* host;
  MUST(cuMemHostAlloc((void**)&host, 4096, 0));
  CUevent event;
  MUST(cuEventCreate(&event, EVENT_DISABLE_TIMING));
  Fill arg = {words, 16, 1};
#define SHAPE(what, ...) do { begin(); __VA_ARGS__; say_shape(what, end()); } while (0)
  SHAPE("kernel", MUST(launch(fill, 1, 32, stream, &arg)));
  SHAPE("copy to the device", MUST(cuMemcpyHtoDAsync(words, host, 64, stream)));
  SHAPE("copy from the device", MUST(cuMemcpyDtoHAsync(host, words, 64, stream)));
  SHAPE("copy on the device", MUST(cuMemcpyDtoDAsync(words, words + 128, 64, stream)));
  SHAPE("unified copy", MUST(cuMemcpyAsync(words, words + 128, 64, stream)));
  SHAPE("copy of nothing", MUST(cuMemcpyAsync(words, words + 128, 0, stream)));
  SHAPE("set", MUST(cuMemsetD32Async(words, 1, 16, stream)));
  SHAPE("set of nothing", MUST(cuMemsetD32Async(words, 1, 0, stream)));
  SHAPE("host function", MUST(cuLaunchHostFunc(stream, nothing, NULL)));
  SHAPE("write", MUST(cuStreamWriteValue32(stream, words, 1, 0)));
  SHAPE("two writes", MUST(cuStreamWriteValue32(stream, words, 1, 0)); MUST(cuStreamWriteValue32(stream, words + 4, 1, 0)));
  SHAPE("event record", MUST(cuEventRecord(event, stream)));
  SHAPE("external event record", MUST(cuEventRecordWithFlags(event, stream, 1)));
}

static void more_shapes(void) {
  prepare();
  CUevent event, fresh;
  MUST(cuEventCreate(&event, EVENT_DISABLE_TIMING));
  MUST(cuEventCreate(&fresh, EVENT_DISABLE_TIMING));
  SHAPE("external wait for a fresh event", MUST(cuStreamWaitEvent(stream, fresh, 1)));
  // An event that stands for a place in a capture that has ended cannot be waited for, until it is recorded anew.
  SHAPE("event record", MUST(cuEventRecord(event, stream)));
  begin();
  TRY(cuStreamWaitEvent(stream, event, 1));
  CUgraph graph = NULL;
  TRY(cuStreamEndCapture(stream, &graph));
  MUST(cuEventRecord(event, stream));
  SHAPE("external wait for a recorded event", MUST(cuStreamWaitEvent(stream, event, 1)));
  CUgraphExec exec;
  MUST(cuGraphInstantiate(&exec, captured_fill(1, 16), 0));
  SHAPE("graph launch", MUST(cuGraphLaunch(exec, stream)));
}

static void memory_nodes(void) {
  prepare();
  CUdeviceptr p = 0;
  CUgraph graph = NULL;
  begin();
  if (TRY(cuMemAllocAsync(&p, 4096, stream)) == 0) TRY(cuMemFreeAsync(p, stream));
  if (TRY(cuStreamEndCapture(stream, &graph)) == 0) say_shape("allocation", graph);
}

static void info(void) {
  prepare();
  int status = -1;
  uint64_t id = 99, second = 99;
  CUgraph graph = NULL;
  const CUgraphNode* dependencies = NULL;
  size_t count = 99;
  TRY(cuStreamGetCaptureInfo(stream, &status, &id, &graph, &dependencies, &count));
  say("  status %d", status);
  begin();
  TRY(cuStreamGetCaptureInfo(stream, &status, &id, &graph, &dependencies, &count));
  say("  status %d, id %s, graph %s, dependencies %zu", status, id ? "not 0" : "0", graph ? "some" : "NULL", count);
  MUST(cuMemsetD32Async(words, 1, 1, stream));
  TRY(cuStreamGetCaptureInfo(stream, &status, &second, NULL, &dependencies, &count));
  say("  the same id: %s, dependencies %zu", id == second ? "yes" : "no", count);
  CUgraphNode first = dependencies[0];
  CUgraphNode extra = NULL;
  MUST(cuGraphAddEmptyNode(&extra, graph, &first, 1));
  TRY(cuStreamUpdateCaptureDependencies(stream, &extra, 1, 0));
  TRY(cuStreamGetCaptureInfo(stream, &status, NULL, NULL, &dependencies, &count));
  say("  dependencies %zu", count);
  TRY(cuStreamUpdateCaptureDependencies(stream, &extra, 1, 1));
  TRY(cuStreamGetCaptureInfo(stream, &status, NULL, NULL, &dependencies, &count));
  say("  dependencies %zu, the new one: %s", count, count == 1 && dependencies[0] == extra ? "yes" : "no");
  TRY(cuStreamUpdateCaptureDependencies(stream, NULL, 0, 1));
  MUST(cuMemsetD32Async(words, 1, 1, stream));
  TRY(cuStreamUpdateCaptureDependencies(stream, &extra, 1, 2));
  TRY(cuStreamGetCaptureInfo(NULL, &status, NULL, NULL, NULL, NULL));
  TRY(cuStreamGetCaptureInfo(stream, NULL, NULL, NULL, NULL, NULL));
  // A forked stream belongs to the same capture.
  CUevent event;
  MUST(cuEventCreate(&event, EVENT_DISABLE_TIMING));
  MUST(cuEventRecord(event, stream));
  MUST(cuStreamWaitEvent(other, event, 0));
  TRY(cuStreamGetCaptureInfo(other, &status, &second, NULL, NULL, &count));
  say("  status %d, the same id: %s, dependencies %zu", status, id == second ? "yes" : "no", count);
  MUST(cuEventRecord(event, other));
  MUST(cuStreamWaitEvent(stream, event, 0));
  say_shape("in the end", end());
  begin();
  TRY(cuStreamGetCaptureInfo(stream, &status, &second, NULL, NULL, NULL));
  say("  the next capture has another id: %s", id != second ? "yes" : "no");
  TRY(cuStreamUpdateCaptureDependencies(other, NULL, 0, 1));
}

static void launches(void) {
  prepare();
  CUgraph graph = captured_fill(5, 4);
  CUgraphExec exec;
  TRY(cuGraphInstantiate(&exec, graph, 0));
  TRY(cuGraphUpload(exec, stream));
  TRY(cuGraphLaunch(exec, stream));
  TRY(cuStreamSynchronize(stream));
  say("  %u %u", read_word(words), read_word(words + 12));
  TRY(cuGraphDestroy(graph));
  TRY(cuMemsetD32(words, 0, 4));
  TRY(cuGraphLaunch(exec, NULL));
  TRY(cuGraphLaunch(exec, stream));
  TRY(cuGraphExecDestroy(exec));
  TRY(cuCtxSynchronize());
  say("  %u", read_word(words));
  TRY(cuGraphInstantiate(NULL, graph, 0));
  TRY(cuGraphLaunch(NULL, stream));
  TRY(cuGraphDestroy(NULL));
  TRY(cuGraphExecDestroy(NULL));
  CUgraph empty;
  TRY(cuGraphCreate(&empty, 1));
  TRY(cuGraphCreate(&empty, 0));
  TRY(cuGraphInstantiate(&exec, empty, 0));
  TRY(cuGraphInstantiate(&exec, empty, 1 << 20));
  TRY(cuGraphLaunch(exec, stream));
  TRY(cuStreamSynchronize(stream));
  CUgraphNode node, bad = NULL;
  TRY(cuGraphAddEmptyNode(&node, empty, NULL, 1));
  TRY(cuGraphAddEmptyNode(NULL, empty, NULL, 0));
  TRY(cuGraphAddEmptyNode(&node, empty, &bad, 1));
  TRY(cuGraphAddEmptyNode(&node, empty, NULL, 0));
  CUDA_MEMSET_NODE_PARAMS set = {words, 0, 9, 4, 4, 1};
  CUcontext context;
  MUST(cuCtxGetCurrent(&context));
  TRY(cuGraphAddMemsetNode(&bad, empty, &node, 1, &set, context));
  set.elementSize = 3;
  TRY(cuGraphAddMemsetNode(&bad, empty, &node, 1, &set, context));
  say_shape("by hand", empty);
  CUgraph clone;
  TRY(cuGraphClone(&clone, empty));
  say_shape("clone", clone);
  TRY(cuGraphInstantiate(&exec, clone, 0));
  TRY(cuGraphLaunch(exec, stream));
  TRY(cuStreamSynchronize(stream));
  say("  %u", read_word(words));
}

static void one_exec_twice(void) {
  prepare();
  Gate gate = gate_make();
  CUgraphExec exec;
  begin();
  gate_block(gate, stream, 1);
  MUST(cuStreamWriteValue32(stream, words, 5, 0));
  MUST(cuGraphInstantiate(&exec, end(), 0));
  // Two launches of one executable graph follow one another, on whatever streams.
  MUST(cuGraphLaunch(exec, stream));
  MUST(cuGraphLaunch(exec, other));
  sleep_ms(50);
  TRY(cuStreamQuery(stream));
  TRY(cuStreamQuery(other));
  // Destroying it does not stop it.
  TRY(cuGraphExecDestroy(exec));
  gate_open(gate, 1);
  TRY(cuStreamSynchronize(other));
  TRY(cuStreamSynchronize(stream));
  say("  %u", read_word(words));
}

static void branches(void) {
  prepare();
  CUevent event, join;
  MUST(cuEventCreate(&event, EVENT_DISABLE_TIMING));
  MUST(cuEventCreate(&join, EVENT_DISABLE_TIMING));
  // Two branches, each of which waits for a word that the other one writes.
  begin();
  MUST(cuEventRecord(event, stream));
  MUST(cuStreamWaitEvent(other, event, 0));
  MUST(cuStreamWriteValue32(stream, words, 1, 0));
  MUST(cuStreamWaitValue32(stream, words + 4, 1, WAIT_EQ));
  MUST(cuStreamWaitValue32(other, words, 1, WAIT_EQ));
  MUST(cuStreamWriteValue32(other, words + 4, 1, 0));
  MUST(cuEventRecord(join, other));
  MUST(cuStreamWaitEvent(stream, join, 0));
  CUgraph graph = end();
  say_shape("branches", graph);
  CUgraphExec exec;
  MUST(cuGraphInstantiate(&exec, graph, 0));
  MUST(cuGraphLaunch(exec, stream));
  TRY(cuStreamSynchronize(stream));
}

static void updates(void) {
  prepare();
  CUgraphExec exec;
  CUgraphExecUpdateResultInfo info;
  MUST(cuGraphInstantiate(&exec, captured_fill(5, 4), 0));
#define UPDATE(what, graph)                                                                                    \
  do {                                                                                                         \
    memset(&info, 0x7f, sizeof info);                                                                          \
    CUresult result = cuGraphExecUpdate(exec, graph, &info);                                                   \
    say("%s: %s, %d, node %s, other %s", what, result_name(result), info.result, info.errorNode ? "some" : "NULL", \
        info.errorFromNode ? "some" : "NULL");                                                                 \
  } while (0)
  UPDATE("another argument", captured_fill(6, 4));
  MUST(cuGraphLaunch(exec, stream));
  MUST(cuStreamSynchronize(stream));
  say("  %u", read_word(words));
  Fill arg = {words, 8, 7};
  begin();
  MUST(launch(fill, 2, 64, stream, &arg));
  UPDATE("another grid", end());
  begin();
  MUST(cuMemsetD32Async(words, 1, 1, stream));
  UPDATE("another type of node", end());
  begin();
  MUST(launch(fill, 1, 32, stream, &arg));
  MUST(launch(fill, 1, 32, stream, &arg));
  UPDATE("one node more", end());
  begin();
  UPDATE("no node", end());
  uint32_t started = 0;
  (void)started;
  Spin spin = {words + 64, 0, 0};
  begin();
  MUST(launch(kernel(module, "emu_probe_spin"), 1, 32, stream, &spin));
  UPDATE("another kernel", end());
  MUST(cuGraphLaunch(exec, stream));
  TRY(cuStreamSynchronize(stream));
  begin();
  MUST(launch(fill, 1, 32, stream, &arg));
  MUST(cuMemsetD32Async(words, 1, 1, stream));
  MUST(cuGraphInstantiate(&exec, end(), 0));
  begin();
  MUST(cuMemsetD32Async(words, 1, 1, stream));
  MUST(launch(fill, 1, 32, stream, &arg));
  UPDATE("nodes exchanged", end());
  TRY(cuGraphExecUpdate(exec, captured_fill(1, 1), NULL));
  // The update may happen while the graph runs.
  Gate gate = gate_make();
  begin();
  gate_block(gate, stream, 1);
  MUST(launch(fill, 1, 32, stream, &arg));
  MUST(cuGraphInstantiate(&exec, end(), 0));
  MUST(cuGraphLaunch(exec, stream));
  Fill changed = {words, 8, 900};
  begin();
  gate_block(gate, stream, 1);
  MUST(launch(fill, 1, 32, stream, &changed));
  UPDATE("while it runs", end());
  gate_open(gate, 1);
  MUST(cuStreamSynchronize(stream));
  say("  the launch before it: %u", read_word(words));
  MUST(cuGraphLaunch(exec, stream));
  MUST(cuStreamSynchronize(stream));
  say("  the launch after it: %u", read_word(words));
}

static void parameters(void) {
  prepare();
  CUgraph graph = captured_fill(5, 4);
  CUgraphNode node;
  size_t count = 1;
  MUST(cuGraphGetNodes(graph, &node, &count));
  CUDA_KERNEL_NODE_PARAMS got;
  memset(&got, 0, sizeof got);
  TRY(cuGraphKernelNodeGetParams(node, &got));
  say("  grid %u %u %u, block %u %u %u, shared %u", got.gridDimX, got.gridDimY, got.gridDimZ, got.blockDimX, got.blockDimY,
      got.blockDimZ, got.sharedMemBytes);
  const Fill* arg = got.kernelParams ? got.kernelParams[0] : NULL;
  say("  value %u, count %llu", arg ? arg->value : 0, arg ? (unsigned long long)arg->count : 0);
  Fill other_arg = {words, 2, 70};
  void* params[] = {&other_arg};
  CUDA_KERNEL_NODE_PARAMS add = {.func = fill, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 32, .blockDimY = 1, .blockDimZ = 1, .kernelParams = params};
  CUgraphNode added;
  TRY(cuGraphAddKernelNode(&added, graph, &node, 1, &add));
  CUgraphExec exec;
  MUST(cuGraphInstantiate(&exec, graph, 0));
  other_arg.value = 1;
  MUST(cuGraphLaunch(exec, stream));
  MUST(cuStreamSynchronize(stream));
  say("  %u %u", read_word(words), read_word(words + 8));
  count = 0;
  TRY(cuGraphGetNodes(graph, &node, &count));
  CUgraphNode three[3] = {(CUgraphNode)1, (CUgraphNode)1, (CUgraphNode)1};
  count = 3;
  TRY(cuGraphGetNodes(graph, three, &count));
  say("  count %zu, the last one: %s", count, three[2] ? "untouched" : "NULL");
  TRY(cuGraphGetNodes(graph, NULL, NULL));
  int type;
  TRY(cuGraphNodeGetType(NULL, &type));
  TRY(cuGraphNodeGetType(node, NULL));
}

static _Atomic int destroyed;
static void destroy(void* count) { destroyed += (int)(intptr_t)count; }
static int destroyed_within(double seconds, int wanted) {
  for (double stop = now() + seconds; destroyed != wanted && now() < stop;) sleep_ms(1);
  return destroyed;
}

static void user_objects(void) {
  prepare();
  CUuserObject object;
  TRY(cuUserObjectCreate(&object, (void*)1, destroy, 1, 0));
  TRY(cuUserObjectCreate(&object, (void*)1, destroy, 0, 1));
  TRY(cuUserObjectCreate(&object, (void*)1, NULL, 1, 1));
  TRY(cuUserObjectCreate(NULL, (void*)1, destroy, 1, 1));
  TRY(cuUserObjectCreate(&object, (void*)1, destroy, 1, 1));
  TRY(cuUserObjectRetain(object, 0));
  TRY(cuUserObjectRetain(object, 2));
  TRY(cuUserObjectRelease(object, 2));
  TRY(cuUserObjectRelease(object, 0));
  say("  destroyed: %d", destroyed);
  TRY(cuUserObjectRelease(object, 1));
  say("  destroyed: %d", destroyed_within(5, 1));

  say("owned by a graph");
  destroyed = 0;
  CUgraph graph = captured_fill(5, 4);
  MUST(cuUserObjectCreate(&object, (void*)1, destroy, 1, 1));
  TRY(cuGraphRetainUserObject(graph, object, 0, 0));
  TRY(cuGraphRetainUserObject(graph, object, 1, 2));
  TRY(cuGraphRetainUserObject(graph, object, 1, 0));
  TRY(cuUserObjectRelease(object, 1));
  sleep_ms(50);
  say("  destroyed: %d", destroyed);
  TRY(cuGraphReleaseUserObject(graph, object, 1));
  say("  destroyed: %d", destroyed_within(5, 1));

  say("moved to a graph, then executed");
  destroyed = 0;
  Gate gate = gate_make();
  begin();
  gate_block(gate, stream, 1);
  graph = end();
  MUST(cuUserObjectCreate(&object, (void*)1, destroy, 1, 1));
  TRY(cuGraphRetainUserObject(graph, object, 1, 1));
  CUgraphExec exec;
  MUST(cuGraphInstantiate(&exec, graph, 0));
  TRY(cuGraphDestroy(graph));
  sleep_ms(50);
  say("  graph destroyed: %d", destroyed);
  MUST(cuGraphLaunch(exec, stream));
  TRY(cuGraphExecDestroy(exec));
  sleep_ms(100);
  say("  executable destroyed while it runs: %d", destroyed);
  gate_open(gate, 1);
  MUST(cuStreamSynchronize(stream));
  MUST(cuCtxSynchronize());
  say("  and after it ran: %d", destroyed_within(5, 1));

  say("clones and children own it too");
  destroyed = 0;
  MUST(cuGraphCreate(&graph, 0));
  MUST(cuUserObjectCreate(&object, (void*)1, destroy, 1, 1));
  MUST(cuGraphRetainUserObject(graph, object, 1, 1));
  CUgraph clone;
  MUST(cuGraphClone(&clone, graph));
  TRY(cuGraphDestroy(graph));
  sleep_ms(50);
  say("  destroyed: %d", destroyed);
  TRY(cuGraphDestroy(clone));
  say("  destroyed: %d", destroyed_within(5, 1));

  say("retained during a capture");
  destroyed = 0;
  int status;
  begin();
  MUST(cuStreamGetCaptureInfo(stream, &status, NULL, &graph, NULL, NULL));
  MUST(cuUserObjectCreate(&object, (void*)1, destroy, 1, 1));
  TRY(cuGraphRetainUserObject(graph, object, 1, 1));
  CUgraph ended = end();
  say("  the capture's graph is the one that it gives: %s", ended == graph ? "yes" : "no");
  TRY(cuGraphDestroy(ended));
  say("  destroyed: %d", destroyed_within(5, 1));

  say("retained in a capture that fails");
  destroyed = 0;
  begin();
  MUST(cuStreamGetCaptureInfo(stream, &status, NULL, &graph, NULL, NULL));
  MUST(cuUserObjectCreate(&object, (void*)1, destroy, 1, 1));
  MUST(cuGraphRetainUserObject(graph, object, 1, 1));
  TRY(cuStreamSynchronize(stream));
  TRY(cuStreamEndCapture(stream, &graph));
  say("  destroyed: %d", destroyed_within(5, 1));
}

SECTIONS({"shapes", shapes}, {"memory nodes", memory_nodes}, {"capture info", info}, {"launches", launches}, {"one executable graph twice", one_exec_twice},
         {"branches", branches}, {"updates", updates}, {"parameters", parameters}, {"user objects", user_objects},
         {"more shapes", more_shapes})
