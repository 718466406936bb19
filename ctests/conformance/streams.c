// Streams: creation, what the legacy stream waits for and what waits for it, host functions, destruction.
#include "conformance.h"

static void creation(void) {
  start();
  CUstream stream;
  unsigned flags = 99;
  int least = 99, greatest = 99, priority = 99;
  TRY(cuStreamCreate(NULL, 0));
  TRY(cuStreamCreate(&stream, 2));
  TRY(cuStreamCreate(&stream, STREAM_NON_BLOCKING));
  TRY(cuStreamGetFlags(stream, &flags));
  say("  %u", flags);
  TRY(cuStreamGetFlags(stream, NULL));
  TRY(cuStreamGetFlags(NULL, &flags));
  say("  %u", flags);
  TRY(cuStreamGetFlags(STREAM_PER_THREAD, &flags));
  say("  %u", flags);
  TRY(cuCtxGetStreamPriorityRange(&least, &greatest));
  say("  least %d, greatest below it: %s", least, greatest < least ? "yes" : "no");
  static const int asked[] = {0, -1, 100, -100};
  for (size_t i = 0; i < COUNT(asked); ++i) {
    CUresult result = cuStreamCreateWithPriority(&stream, STREAM_NON_BLOCKING, asked[i]);
    priority = 99;
    if (result == 0) cuStreamGetPriority(stream, &priority);
    say("priority %d: %s, %s", asked[i], result_name(result),
        priority == least ? "least" : priority == greatest ? "greatest" : priority == asked[i] ? "as asked" : "another");
  }
  TRY(cuStreamGetPriority(NULL, &priority));
  say("  %d", priority);
  CUcontext context = NULL, current;
  MUST(cuCtxGetCurrent(&current));
  TRY(cuStreamGetCtx(NULL, &context));
  say("  the current one: %s", context == current ? "yes" : "no");
  TRY(cuStreamGetCtx(stream, NULL));
  unsigned long long id_a = 0, id_b = 0, id_null = 0, id_legacy = 1;
  CUstream other;
  MUST(cuStreamCreate(&other, 0));
  TRY(cuStreamGetId(stream, &id_a));
  TRY(cuStreamGetId(other, &id_b));
  TRY(cuStreamGetId(NULL, &id_null));
  TRY(cuStreamGetId(STREAM_LEGACY, &id_legacy));
  say("  ids differ: %s, NULL is the legacy stream: %s", id_a != id_b ? "yes" : "no", id_null == id_legacy ? "yes" : "no");
  TRY(cuStreamDestroy(NULL));
  TRY(cuStreamDestroy(STREAM_LEGACY));
  TRY(cuStreamDestroy(STREAM_PER_THREAD));
  TRY(cuStreamQuery(stream));
  TRY(cuStreamSynchronize(stream));
  TRY(cuStreamDestroy(stream));
}

static Gate gate;
static CUstream blocking, other_blocking, non_blocking;
static CUdeviceptr words;

static void prepare(void) {
  start();
  gate = gate_make();
  MUST(cuStreamCreate(&blocking, STREAM_DEFAULT));
  MUST(cuStreamCreate(&other_blocking, STREAM_DEFAULT));
  MUST(cuStreamCreate(&non_blocking, STREAM_NON_BLOCKING));
  words = device_memory(4096);
  // Each stream is used once, so that nothing is set up for the first time while a gate is closed.
  MUST(cuMemsetD32Async(words, 0, 1, blocking));
  MUST(cuMemsetD32Async(words, 0, 1, other_blocking));
  MUST(cuMemsetD32Async(words, 0, 1, non_blocking));
  MUST(cuMemsetD32Async(words, 0, 1, STREAM_PER_THREAD));
  MUST(cuMemsetD32Async(words, 0, 1, NULL));
  MUST(cuCtxSynchronize());
}

static void say_query(const char* what, CUstream stream) { say("  query %s: %s", what, result_name(cuStreamQuery(stream))); }

// Waits until the stream is idle, or half a second: enough for a stream that is not held up.
static void say_whether_idle(const char* what, CUstream stream) {
  CUresult result;
  for (double end = now() + 0.5; (result = cuStreamQuery(stream)) == 600 && now() < end;) sleep_ms(1);
  say("  %s: %s", what, result == 0 ? "idle" : result == 600 ? "held up" : result_name(result));
}

static void blocking_holds_legacy(void) {
  prepare();
  gate_block(gate, blocking, 1);
  say_query("blocking", blocking);
  MUST(cuMemsetD32Async(words + 4, 1, 1, other_blocking));
  say_whether_idle("another blocking stream", other_blocking);
  MUST(cuMemsetD32Async(words + 8, 1, 1, non_blocking));
  say_whether_idle("a non-blocking stream", non_blocking);
  MUST(cuMemsetD32Async(words + 12, 1, 1, STREAM_PER_THREAD));
  say_whether_idle("the per-thread stream", STREAM_PER_THREAD);
  say_query("legacy without work", NULL);
  MUST(cuMemsetD32Async(words + 16, 1, 1, NULL));
  say_whether_idle("the legacy stream with work", NULL);
  MUST(cuMemsetD32Async(words + 4, 2, 1, other_blocking));
  say_whether_idle("another blocking stream, enqueued after the legacy one", other_blocking);
  MUST(cuMemsetD32Async(words + 12, 2, 1, STREAM_PER_THREAD));
  say_whether_idle("the per-thread stream, enqueued after the legacy one", STREAM_PER_THREAD);
  MUST(cuMemsetD32Async(words + 8, 2, 1, non_blocking));
  say_whether_idle("a non-blocking stream, enqueued after the legacy one", non_blocking);
  CUstream late;
  MUST(cuStreamCreate(&late, STREAM_DEFAULT));
  MUST(cuMemsetD32Async(words + 20, 2, 1, late));
  say_whether_idle("a blocking stream that is younger than the legacy work", late);
  gate_open(gate, 1);
  TRY(cuCtxSynchronize());
  say_query("blocking", blocking);
}

static void legacy_holds_blocking(void) {
  prepare();
  gate_block(gate, NULL, 1);
  MUST(cuMemsetD32Async(words + 4, 1, 1, blocking));
  MUST(cuMemsetD32Async(words + 8, 1, 1, non_blocking));
  MUST(cuMemsetD32Async(words + 12, 1, 1, STREAM_PER_THREAD));
  say_whether_idle("blocking", blocking);
  say_whether_idle("non-blocking", non_blocking);
  say_whether_idle("per-thread", STREAM_PER_THREAD);
  say_whether_idle("legacy", STREAM_LEGACY);
  gate_open(gate, 1);
  TRY(cuStreamSynchronize(NULL));
  TRY(cuStreamSynchronize(blocking));
  TRY(cuStreamSynchronize(STREAM_PER_THREAD));
}

static void events_and_legacy(void) {
  prepare();
  CUevent event, legacy_event;
  MUST(cuEventCreate(&event, EVENT_DISABLE_TIMING));
  MUST(cuEventCreate(&legacy_event, EVENT_DISABLE_TIMING));
  // An event of the legacy stream stands for all blocking streams.
  gate_block(gate, blocking, 1);
  MUST(cuEventRecord(legacy_event, NULL));
  MUST(cuStreamWaitEvent(non_blocking, legacy_event, 0));
  MUST(cuMemsetD32Async(words + 4, 1, 1, non_blocking));
  say_whether_idle("non-blocking behind an event of the legacy stream", non_blocking);
  TRY(cuEventQuery(legacy_event));
  gate_open(gate, 1);
  MUST(cuCtxSynchronize());
  // The legacy stream waits for a non-blocking one only through an event, and then holds the blocking ones.
  gate_block(gate, non_blocking, 2);
  MUST(cuEventRecord(event, non_blocking));
  MUST(cuStreamWaitEvent(NULL, event, 0));
  say_whether_idle("legacy", NULL);
  MUST(cuMemsetD32Async(words + 8, 1, 1, other_blocking));
  say_whether_idle("blocking behind it", other_blocking);
  gate_open(gate, 2);
  TRY(cuCtxSynchronize());
}

static void waits(void) {
  prepare();
  CUevent event, fresh;
  MUST(cuEventCreate(&event, EVENT_DISABLE_TIMING));
  MUST(cuEventCreate(&fresh, EVENT_DISABLE_TIMING));
  TRY(cuStreamWaitEvent(blocking, fresh, 0));
  TRY(cuStreamWaitEvent(blocking, fresh, 2));
  TRY(cuStreamWaitEvent(blocking, NULL, 0));
  say_whether_idle("behind an event that was never recorded", blocking);
  // A wait takes the record that was the last when it was enqueued.
  gate_block(gate, blocking, 1);
  MUST(cuEventRecord(event, blocking));
  MUST(cuStreamWaitEvent(non_blocking, event, 0));
  MUST(cuEventRecord(event, other_blocking));
  say_whether_idle("behind the first record", non_blocking);
  TRY(cuEventSynchronize(event));
  MUST(cuStreamWaitEvent(other_blocking, event, 0));
  say_whether_idle("behind the second record", other_blocking);
  gate_open(gate, 1);
  TRY(cuCtxSynchronize());
  // Destroying the event does not undo the wait.
  gate_block(gate, blocking, 2);
  MUST(cuEventRecord(event, blocking));
  MUST(cuStreamWaitEvent(non_blocking, event, 0));
  TRY(cuEventDestroy(event));
  say_whether_idle("behind a destroyed event", non_blocking);
  gate_open(gate, 2);
  TRY(cuCtxSynchronize());
}

static void destruction(void) {
  prepare();
  gate_block(gate, blocking, 1);
  MUST(cuMemsetD32Async(words + 4, 7, 1, blocking));
  TRY(cuStreamDestroy(blocking));
  sleep_ms(50);
  gate_open(gate, 1);
  TRY(cuCtxSynchronize());
  say("  %u", read_word(words + 4));
  // A synchronous copy from pageable memory has read its source when it returns, an asynchronous one as well.
  uint32_t value = 5;
  gate_block(gate, non_blocking, 2);
  MUST(cuMemcpyHtoDAsync(words + 8, &value, 4, non_blocking));
  value = 6;
  gate_open(gate, 2);
  MUST(cuStreamSynchronize(non_blocking));
  say("pageable copy took the value of its call: %s", read_word(words + 8) == 5 ? "yes" : "no");
}

static _Atomic int order;
static int first, second;
static void note(void* out) { *(int*)out = ++order; }
static CUresult inside[8];
static void call_driver(void* unused) {
  (void)unused;
  CUdeviceptr p;
  int number;
  const char* name;
  inside[0] = cuMemAlloc(&p, 16);
  inside[1] = cuStreamQuery(blocking);
  inside[2] = cuStreamSynchronize(non_blocking);
  inside[3] = cuDeviceGetCount(&number);
  inside[4] = cuGetErrorName(0, &name);
  CUcontext context;
  inside[5] = cuCtxGetCurrent(&context);
  inside[6] = cuMemsetD32Async(words, 0, 1, non_blocking);
  inside[7] = cuCtxSynchronize();
}
static void callback(CUstream stream, CUresult status, void* out) {
  *(int*)out = stream == blocking ? status : -1;
}

static void host_functions(void) {
  prepare();
  TRY(cuLaunchHostFunc(blocking, note, &first));
  TRY(cuLaunchHostFunc(blocking, note, &second));
  TRY(cuStreamSynchronize(blocking));
  say("  order %d %d", first, second);
  gate_block(gate, blocking, 1);
  order = first = 0;
  MUST(cuLaunchHostFunc(blocking, note, &first));
  sleep_ms(50);
  say("  before the gate opens: %d", first);
  gate_open(gate, 1);
  MUST(cuStreamSynchronize(blocking));
  say("  afterwards: %d", first);
  TRY(cuLaunchHostFunc(blocking, NULL, NULL));
  TRY(cuLaunchHostFunc(blocking, call_driver, NULL));
  MUST(cuStreamSynchronize(blocking));
  static const char* const calls[] = {"cuMemAlloc", "cuStreamQuery", "cuStreamSynchronize", "cuDeviceGetCount",
                                      "cuGetErrorName", "cuCtxGetCurrent", "cuMemsetD32Async", "cuCtxSynchronize"};
  for (size_t i = 0; i < COUNT(inside); ++i) say("  %s inside: %s", calls[i], result_name(inside[i]));
  int status = 99;
  TRY(cuStreamAddCallback(blocking, callback, &status, 0));
  TRY(cuStreamAddCallback(blocking, callback, &status, 1));
  TRY(cuStreamAddCallback(blocking, NULL, &status, 0));
  MUST(cuStreamSynchronize(blocking));
  say("  status %d", status);
}

SECTIONS({"creation", creation}, {"blocking streams hold the legacy stream", blocking_holds_legacy},
         {"the legacy stream holds blocking streams", legacy_holds_blocking}, {"events and the legacy stream", events_and_legacy},
         {"waits", waits}, {"destruction", destruction}, {"host functions", host_functions})
