// Stream memory operations: conditions, sizes, addresses, batches.
#include "conformance.h"

static Gate gate;
static CUstream stream;
static CUdeviceptr words;

static void prepare(void) {
  start();
  gate = gate_make();
  MUST(cuStreamCreate(&stream, STREAM_NON_BLOCKING));
  words = device_memory(4096);
}

static const char* met(void) {
  CUresult result;
  for (double end = now() + 0.5; (result = cuStreamQuery(stream)) == 600 && now() < end;) sleep_ms(1);
  return result == 0 ? "met" : result == 600 ? "not met" : result_name(result);
}

// Whether `have` meets the condition, and what the word that meets it in the end is.
static void condition(const char* name, unsigned flags, uint32_t have, uint32_t value, uint32_t in_the_end) {
  *gate.word = have;
  CUresult result = cuStreamWaitValue32(stream, gate.address, value, flags);
  say("%s, %#x against %#x: %s, %s", name, have, value, result_name(result), met());
  gate_open(gate, in_the_end);
  MUST(cuStreamSynchronize(stream));
}

static void conditions(void) {
  prepare();
  condition("GEQ", WAIT_GEQ, 5, 5, 5);
  condition("GEQ", WAIT_GEQ, 6, 5, 5);
  condition("GEQ", WAIT_GEQ, 4, 5, 5);
  condition("GEQ", WAIT_GEQ, 3, 0xfffffffe, 3);
  condition("GEQ", WAIT_GEQ, 0xfffffffe, 3, 3);
  condition("GEQ", WAIT_GEQ, 0x80000004, 5, 5);
  condition("GEQ", WAIT_GEQ, 0x80000005, 5, 5);
  condition("EQ", WAIT_EQ, 5, 5, 5);
  condition("EQ", WAIT_EQ, 6, 5, 5);
  condition("AND", WAIT_AND, 6, 2, 2);
  condition("AND", WAIT_AND, 4, 2, 2);
  condition("NOR", WAIT_NOR, 0xfffffff0, 0xf, 0);
  condition("NOR", WAIT_NOR, 0xffffffff, 0, 0);
  condition("NOR", WAIT_NOR, 0xf0, 0xf, 0);
}

static void wide(void) {
  prepare();
  volatile uint64_t* word = (volatile uint64_t*)gate.word;
  *word = 0x100000000ull;
  TRY(cuStreamWaitValue64(stream, gate.address, 0x100000001ull, WAIT_GEQ));
  say("  %s", met());
  *word = 0x100000001ull;
  TRY(cuStreamSynchronize(stream));
  TRY(cuStreamWaitValue64(stream, gate.address, 0x0f00000000ull, WAIT_AND));
  say("  %s", met());
  TRY(cuStreamSynchronize(stream));
  TRY(cuStreamWriteValue64(stream, words, 0x123456789abcdef0ull, 0));
  TRY(cuStreamSynchronize(stream));
  say("  %x %x", read_word(words), read_word(words + 4));
  TRY(cuStreamWaitValue64(stream, words, 0x123456789abcdef0ull, WAIT_EQ));
  TRY(cuStreamSynchronize(stream));
}

static void writes(void) {
  prepare();
  TRY(cuStreamWriteValue32(stream, words, 7, 0));
  TRY(cuStreamWriteValue32(stream, words + 4, 8, 1));
  TRY(cuStreamWriteValue32(stream, gate.address + 8, 9, 0));
  TRY(cuStreamWriteValue32(NULL, words + 8, 10, 0));
  TRY(cuStreamWriteValue32(STREAM_PER_THREAD, words + 12, 11, 0));
  TRY(cuCtxSynchronize());
  say("  %u %u %u %u %u", read_word(words), read_word(words + 4), gate.word[2], read_word(words + 8), read_word(words + 12));
  // A wait on device memory that another stream writes.
  CUstream other;
  MUST(cuStreamCreate(&other, STREAM_NON_BLOCKING));
  TRY(cuStreamWaitValue32(stream, words + 16, 3, WAIT_EQ));
  say("  %s", met());
  TRY(cuStreamWriteValue32(other, words + 16, 3, 0));
  TRY(cuStreamSynchronize(stream));
}

static void arguments(void) {
  prepare();
  static uint32_t unknown;
  TRY(cuStreamWriteValue32(stream, 0, 1, 0));
  TRY(cuStreamWaitValue32(stream, 0, 1, 0));
  TRY(cuStreamWriteValue32(stream, words + 1, 1, 0));
  TRY(cuStreamWaitValue32(stream, words + 2, 0, WAIT_EQ));
  TRY(cuStreamWriteValue64(stream, words + 4, 1, 0));
  TRY(cuStreamWaitValue64(stream, words + 4, 0, WAIT_EQ));
  TRY(cuStreamWriteValue32(stream, words, 1, 2));
  TRY(cuStreamWriteValue32(stream, words, 1, 0x100));
  TRY(cuStreamWaitValue32(stream, words, 0, 4));
  TRY(cuStreamWaitValue32(stream, words, 0, 0x100));
  TRY(cuStreamWaitValue32(stream, words, 0, WAIT_GEQ | 1u << 30));
  TRY(cuStreamWriteValue32(stream, (CUdeviceptr)(uintptr_t)&unknown, 1, 0));
  TRY(cuStreamWaitValue32(stream, (CUdeviceptr)(uintptr_t)&unknown, 0, WAIT_EQ));
  TRY(cuStreamSynchronize(stream));
  CUdeviceptr freed;
  MUST(cuMemAlloc(&freed, 64 << 20));
  MUST(cuMemFree(freed));
  TRY(cuStreamWriteValue32(stream, freed, 1, 0));
  TRY(cuStreamSynchronize(stream));
}

static void batches(void) {
  prepare();
  CUstreamBatchMemOpParams ops[3];
  memset(ops, 0, sizeof ops);
  ops[0].writeValue.operation = MEM_OP_WRITE_32;
  ops[0].writeValue.address = words;
  ops[0].writeValue.value = 21;
  ops[1].waitValue.operation = MEM_OP_WAIT_32;
  ops[1].waitValue.address = gate.address;
  ops[1].waitValue.value = 1;
  ops[1].waitValue.flags = WAIT_EQ;
  ops[2].writeValue.operation = MEM_OP_WRITE_64;
  ops[2].writeValue.address = words + 8;
  ops[2].writeValue.value64 = 22;
  TRY(cuStreamBatchMemOp(stream, 3, ops, 0));
  say("  %s", met());
  gate_open(gate, 1);
  TRY(cuStreamSynchronize(stream));
  say("  %u %u", read_word(words), read_word(words + 8));
  TRY(cuStreamBatchMemOp(stream, 0, ops, 0));
}

static void bad_batches(void) {
  prepare();
  CUstreamBatchMemOpParams ops[2];
  memset(ops, 0, sizeof ops);
  ops[0].writeValue.operation = MEM_OP_WRITE_32;
  ops[0].writeValue.address = words;
  ops[0].writeValue.value = 31;
  TRY(cuStreamBatchMemOp(stream, 1, ops, 1));
  ops[1].operation = 99;
  TRY(cuStreamBatchMemOp(stream, 1, &ops[1], 0));
  // One bad operation: is anything of the batch carried out?
  memset(&ops[1], 0, sizeof ops[1]);
  ops[1].writeValue.operation = MEM_OP_WRITE_32;
  ops[1].writeValue.address = words + 1;
  TRY(cuStreamBatchMemOp(stream, 2, ops, 0));
  TRY(cuStreamSynchronize(stream));
  say("  %u", read_word(words));
}

static void barriers(void) {
  prepare();
  CUstreamBatchMemOpParams op;
  memset(&op, 0, sizeof op);
  op.memoryBarrier.operation = MEM_OP_BARRIER;
  TRY(cuStreamBatchMemOp(stream, 1, &op, 0));
  op.memoryBarrier.flags = 1;
  TRY(cuStreamBatchMemOp(stream, 1, &op, 0));
  memset(&op, 0, sizeof op);
  op.flushRemoteWrites.operation = MEM_OP_FLUSH;
  TRY(cuStreamBatchMemOp(stream, 1, &op, 0));
  TRY(cuStreamSynchronize(stream));
}

static void large_batches(void) {
  prepare();
  static CUstreamBatchMemOpParams many[300];
  for (size_t i = 0; i < COUNT(many); ++i) {
    many[i].writeValue.operation = MEM_OP_WRITE_32;
    many[i].writeValue.address = words + 4 * (i % 256);
    many[i].writeValue.value = (uint32_t)i;
  }
  TRY(cuStreamBatchMemOp(stream, 256, many, 0));
  TRY(cuStreamBatchMemOp(stream, 257, many, 0));
  TRY(cuStreamBatchMemOp(stream, 300, many, 0));
  TRY(cuStreamSynchronize(stream));
}

static void graphs(void) {
  prepare();
  CUgraph graph;
  CUgraphExec exec;
  MUST(cuStreamBeginCapture(stream, CAPTURE_RELAXED));
  TRY(cuStreamWaitValue32(stream, gate.address, 1, WAIT_EQ));
  TRY(cuStreamWriteValue32(stream, words, 5, 0));
  TRY(cuStreamWriteValue32(stream, gate.address, 0, 0));
  MUST(cuStreamEndCapture(stream, &graph));
  CUgraphNode nodes[8];
  size_t count = COUNT(nodes);
  MUST(cuGraphGetNodes(graph, nodes, &count));
  for (size_t i = 0; i < count; ++i) {
    int type = -1;
    MUST(cuGraphNodeGetType(nodes[i], &type));
    say("  node of type %d", type);
  }
  MUST(cuGraphInstantiate(&exec, graph, 0));
  for (int round = 0; round < 3; ++round) {
    MUST(cuGraphLaunch(exec, stream));
    say("  %s", met());
    gate_open(gate, 1);
    MUST(cuStreamSynchronize(stream));
    say("  gate %u, word %u", gate.word[0], read_word(words));
  }
}

SECTIONS({"conditions", conditions}, {"64 bits", wide}, {"writes", writes}, {"arguments", arguments}, {"batches", batches},
         {"graphs", graphs}, {"bad batches", bad_batches}, {"barriers", barriers}, {"large batches", large_batches})
