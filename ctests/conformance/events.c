// Events: flags, states, times, and events of another process.
#include "conformance.h"

static void flags(void) {
  start();
  CUevent event;
  TRY(cuEventCreate(NULL, 0));
  for (unsigned f = 0; f < 9; ++f) {
    CUresult result = cuEventCreate(&event, f);
    say("flags %u: %s", f, result_name(result));
    if (result == 0) MUST(cuEventDestroy(event));
  }
  TRY(cuEventQuery(NULL));
  TRY(cuEventDestroy(NULL));
  TRY(cuEventRecord(NULL, NULL));
  TRY(cuEventSynchronize(NULL));
}

static void states(void) {
  start();
  Gate gate = gate_make();
  CUstream stream;
  CUevent event, again;
  MUST(cuStreamCreate(&stream, STREAM_NON_BLOCKING));
  MUST(cuEventCreate(&event, EVENT_DEFAULT));
  MUST(cuEventCreate(&again, EVENT_DISABLE_TIMING));
  say("never recorded");
  TRY(cuEventQuery(event));
  TRY(cuEventSynchronize(event));
  float ms = 99;
  TRY(cuEventElapsedTime(&ms, event, event));
  gate_block(gate, stream, 1);
  MUST(cuEventRecord(event, stream));
  say("recorded behind a gate");
  TRY(cuEventQuery(event));
  TRY(cuEventElapsedTime(&ms, event, event));
  gate_open(gate, 1);
  TRY(cuEventSynchronize(event));
  TRY(cuEventQuery(event));
  gate_block(gate, stream, 2);
  MUST(cuEventRecord(event, stream));
  say("recorded again");
  TRY(cuEventQuery(event));
  gate_open(gate, 2);
  TRY(cuEventSynchronize(event));
  say("external record outside a capture");
  TRY(cuEventRecordWithFlags(event, stream, 0));
  TRY(cuEventRecordWithFlags(event, stream, 1));
  TRY(cuEventRecordWithFlags(event, stream, 2));
  TRY(cuStreamWaitEvent(stream, event, 1));
  TRY(cuEventSynchronize(event));
  gate_block(gate, stream, 3);
  MUST(cuEventRecord(again, stream));
  TRY(cuEventDestroy(again));
  gate_open(gate, 3);
  TRY(cuCtxSynchronize());
}

static const char* sign(float ms) { return ms > 0 ? "positive" : ms < 0 ? "negative" : "zero"; }

static void times(void) {
  start();
  CUstream stream;
  CUevent a, b, untimed, fresh;
  MUST(cuStreamCreate(&stream, STREAM_NON_BLOCKING));
  MUST(cuEventCreate(&a, EVENT_DEFAULT));
  MUST(cuEventCreate(&b, EVENT_BLOCKING_SYNC));
  MUST(cuEventCreate(&fresh, EVENT_DEFAULT));
  MUST(cuEventCreate(&untimed, EVENT_DISABLE_TIMING));
  MUST(cuEventRecord(a, stream));
  MUST(cuEventRecord(untimed, stream));
  MUST(cuStreamSynchronize(stream));
  sleep_ms(20);
  MUST(cuEventRecord(b, NULL));
  MUST(cuEventSynchronize(b));
  float ms = 99;
  TRY(cuEventElapsedTime(&ms, a, b));
  say("  %s, at least 15 ms: %s", sign(ms), ms >= 15 ? "yes" : "no");
  TRY(cuEventElapsedTime(&ms, b, a));
  say("  %s", sign(ms));
  TRY(cuEventElapsedTime(&ms, a, a));
  say("  %s", sign(ms));
  TRY(cuEventElapsedTime(&ms, a, untimed));
  TRY(cuEventElapsedTime(&ms, untimed, b));
  TRY(cuEventElapsedTime(&ms, a, fresh));
  TRY(cuEventElapsedTime(&ms, fresh, b));
  TRY(cuEventElapsedTime(NULL, a, b));
  TRY(cuEventElapsedTime(&ms, NULL, b));
}

// The parent's side and the child's side of an interprocess event, over a pair of sockets.
typedef struct { CUresult result; CUipcEventHandle handle; } Offer;

static void child_side(int socket) {
  start();
  Offer offer;
  if (read(socket, &offer, sizeof offer) != sizeof offer) _Exit(1);
  CUevent event, twice;
  say("child");
  if (TRY(cuIpcOpenEventHandle(&event, offer.handle)) != 0) return;
  TRY(cuIpcOpenEventHandle(&twice, offer.handle));
  TRY(cuEventQuery(event));
  float ms;
  TRY(cuEventElapsedTime(&ms, event, event));
  CUstream stream;
  MUST(cuStreamCreate(&stream, STREAM_NON_BLOCKING));
  TRY(cuStreamWaitEvent(stream, event, 0));
  sleep_ms(50);
  TRY(cuStreamQuery(stream));
  // Now the parent may open its gate.
  if (write(socket, "x", 1) != 1) _Exit(1);
  TRY(cuStreamSynchronize(stream));
  TRY(cuEventQuery(event));
  TRY(cuEventRecord(event, stream));
  TRY(cuEventSynchronize(event));
  TRY(cuEventDestroy(event));
  if (write(socket, "y", 1) != 1) _Exit(1);
}

static void interprocess(void) {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return;
  pid_t child = fork();
  if (child == 0) {
    close(pair[0]);
    child_side(pair[1]);
    fflush(stdout);
    _Exit(0);
  }
  close(pair[1]);
  start();
  Gate gate = gate_make();
  CUstream stream;
  CUevent event, plain;
  MUST(cuStreamCreate(&stream, STREAM_NON_BLOCKING));
  MUST(cuEventCreate(&event, EVENT_DISABLE_TIMING | EVENT_INTERPROCESS));
  MUST(cuEventCreate(&plain, EVENT_DISABLE_TIMING));
  Offer offer;
  memset(&offer, 0, sizeof offer);
  TRY(cuIpcGetEventHandle(&offer.handle, plain));
  TRY(cuIpcGetEventHandle(NULL, event));
  TRY(cuIpcGetEventHandle(&offer.handle, NULL));
  TRY(cuIpcGetEventHandle(&offer.handle, event));
  CUevent own;
  TRY(cuIpcOpenEventHandle(&own, offer.handle));
  TRY(cuIpcOpenEventHandle(NULL, offer.handle));
  gate_block(gate, stream, 1);
  MUST(cuEventRecord(event, stream));
  if (write(pair[0], &offer, sizeof offer) != sizeof offer) return;
  char byte = 0;
  if (read(pair[0], &byte, 1) == 1) {
    gate_open(gate, 1);
    if (read(pair[0], &byte, 1) != 1) byte = 0;
  }
  gate_open(gate, 1);
  int status;
  waitpid(child, &status, 0);
  say("parent");
  TRY(cuEventSynchronize(event));
  TRY(cuEventQuery(event));
  TRY(cuEventDestroy(event));
}

SECTIONS({"flags", flags}, {"states", states}, {"times", times}, {"interprocess", interprocess})
