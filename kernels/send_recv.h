// Messages: one block per lane (peer, direction, channel), each going its own way.
//
// Small messages go by LL on channel 0; large ones are split over channels and go by Simple. Channel 0 carries every message's
// fingerprint, its size: the receiver compares, and never writes more than its own size. The sender runs ahead by as many steps
// as a FIFO has slots. A lane of the rank itself copies.
#pragma once

#include "prims_ll.h"
#include "prims_simple.h"

// A thread's view of the running lane.
struct LaneOp : Op {
  uint32_t peer;
  LaneState state;

  METHOD LaneOp(const CommArgs& comm, const Lane& l) : Op(comm), peer(l.peer) { channel = l.channel; }
};

// Thread 0 waits until `done`, all learn the outcome. A second barrier has to come before the next call.
template <class Done>
FN bool lane_wait(LaneOp& op, Done done) {
  Shared& s = shared<Shared>();
  if (tid() == 0) {
    uint32_t turns = 0;
    while (!op.failed && !done()) spin(op, op.peer, turns);
    if (op.failed) s.group_failed[0] = 1;
  }
  barrier();
  if (s.group_failed[0]) op.failed = true;
  return !op.failed;
}

// Lanes and messages stand in the launch's parameter or in memory.
FN Message message_of(const MessageWork& work, uint32_t index) {
  uint32_t v[8];
  load_pair((work.messages ? work.messages : (uint64_t)work.inline_messages) + (uint64_t)index * sizeof(Message), v);
  return {v[0] | (uint64_t)v[1] << 32, v[2] | (uint64_t)v[3] << 32, v[4] | (uint64_t)v[5] << 32, v[6], v[7]};
}

FN Lane lane_of(const MessageWork& work) {
  uint32_t v[8];
  load_pair((work.lanes ? work.lanes : (uint64_t)work.inline_lanes) + (uint64_t)block_id() * sizeof(Lane), v);
  return {v[0], v[1], v[2], v[3], v[4], {0, 0, 0}};
}

// This channel's share of a message: equal ones, multiples of 128 bytes but the last.
FN Span lane_span(const Message& m, uint32_t channel) {
  uint64_t share = ((m.bytes + m.channels - 1) / m.channels + 127) / 128 * 128, low = share * channel, high = low + share;
  return {low < m.bytes ? low : m.bytes, high < m.bytes ? high : m.bytes};
}

FN void copy_lane(const MessageWork& work, const Lane& lane) {
  for (uint32_t j = 0; j < lane.count; j++) {
    Message m = message_of(work, lane.first + j);
    if (m.source == m.buffer || lane.channel >= m.channels) continue;
    Span span = lane_span(m, lane.channel);
    for (uint64_t at = span.low + 16ull * tid(); at < span.high; at += 16ull * nthreads()) {
      store_pack<4>(m.buffer + at, span.high - at, load_pack<4>(m.source + at, span.high - at));
    }
  }
}

// A message of no bytes is a step of one line without meaning: it is matched and counted like any other.
FN uint32_t message_steps(uint64_t bytes, uint32_t chunk) { return bytes ? (uint32_t)((bytes + chunk - 1) / chunk) : 1; }
FN uint32_t message_lines(uint64_t bytes, uint32_t chunk, uint32_t k) {
  uint64_t rest = bytes - (uint64_t)k * chunk;
  uint32_t lines = (uint32_t)(((rest < chunk ? rest : chunk) + 7) / 8);
  return lines ? lines : 1;
}

FN uint64_t p2p_ll_slot(const CommArgs& c, uint64_t base, uint32_t sender, uint32_t step) {
  return base + c.p2p_ll_offset + ((uint64_t)sender * P2P_LL_SLOTS + step % P2P_LL_SLOTS) * (2 * c.p2p_ll_chunk);
}

FN void send_ll(LaneOp& op, const Message& m) {
  uint32_t peer = op.peer, chunk = op.c.p2p_ll_chunk, steps = message_steps(m.bytes, chunk);
  for (uint32_t k = 0; k < steps && !op.failed; k++) {
    uint32_t step = op.state.ll_steps + 1 + k;
    uint32_t wanted = ll_wraps(step - 1) ? step - 1 : step - P2P_LL_SLOTS;
    if (!reached(op.state.ll_known, wanted)) {
      const uint32_t* ack = &mailbox_from(op.c, peer)->p2p_ll_ack;
      if (!lane_wait(op, [&] { return reached(load_relaxed(ack), wanted); })) return;
      op.state.ll_known = wanted;
    }
    uint64_t slot = p2p_ll_slot(op.c, remote_base(op.c, peer), sender_index(op.c.rank, peer), step);
    for (uint32_t i = tid(); i < message_lines(m.bytes, chunk, k); i += nthreads()) {
      uint64_t at = (uint64_t)k * chunk + 8ull * i;
      put_line(slot, i, ll_flag(step), load_pack<2>(m.buffer + at, m.bytes - at));
    }
    // The second barrier of lane_wait; also keeps `ll_known` of all threads the same.
    barrier();
  }
  op.state.ll_steps += steps;
}

FN void recv_ll(LaneOp& op, const Message& m) {
  uint32_t peer = op.peer, chunk = op.c.p2p_ll_chunk, steps = message_steps(m.bytes, chunk);
  for (uint32_t k = 0; k < steps; k++) {
    uint32_t step = op.state.ll_steps + 1 + k, flag = ll_flag(step);
    uint64_t slot = p2p_ll_slot(op.c, local_base(op.c, peer), sender_index(peer, op.c.rank), step);
    for (uint32_t i = tid(); i < message_lines(m.bytes, chunk, k); i += nthreads()) {
      uint64_t at = (uint64_t)k * chunk + 8ull * i;
      uint32_t words[4], turns = 0;
      load_line(slot + 16ull * i, words);
      while (!line_is(words, flag) && !op.failed) {
        spin(op, peer, turns);
        load_line(slot + 16ull * i, words);
      }
      if (!op.failed) store_pack<2>(m.buffer + at, m.bytes - at, Pack<2>{{words[0], words[2]}});
    }
    if (op.failed) shared<Shared>().group_failed[0] = 1;
    if (!lane_wait(op, [] { return true; })) return;
    if (ll_wraps(step)) {
      uint64_t first = p2p_ll_slot(op.c, local_base(op.c, peer), sender_index(peer, op.c.rank), 0);
      uint32_t zero[4] = {0, 0, 0, 0};
      for (uint32_t i = tid(); i < P2P_LL_SLOTS * chunk / 8; i += nthreads()) store_line(first + 16ull * i, zero);
      fence();
    }
    barrier();
    if (tid() == 0) store_ack(&mailbox_to(op.c, peer)->p2p_ll_ack, step);
  }
  op.state.ll_steps += steps;
}

FN uint64_t p2p_slot(const LaneOp& op, uint64_t region, uint32_t step) {
  return region + ((uint64_t)op.channel * SIMPLE_SLOTS + step % SIMPLE_SLOTS) * op.c.p2p_chunk;
}

FN void send_simple(LaneOp& op, const Message& m) {
  Span span = lane_span(m, op.channel);
  Group g = whole_block();
  uint32_t peer = op.peer;
  uint64_t at = span.low;
  while (at < span.high) {
    uint32_t step = op.state.steps + 1, wanted = step - SIMPLE_SLOTS;
    uint32_t length = span.high - at < op.c.p2p_chunk ? (uint32_t)(span.high - at) : op.c.p2p_chunk;
    if (!reached(op.state.known, wanted)) {
      const uint32_t* head = &mailbox_from(op.c, peer)->p2p_head[op.channel];
      if (!lane_wait(op, [&] { return reached(load_acquire(head), wanted); })) return;
      op.state.known = wanted;
    }
    copy_to_slot<4>(g, p2p_slot(op, remote_p2p(op.c, peer), step), m.buffer + at, length, Unchanged());
    barrier();
    if (tid() == 0) {
      fence();
      store_relaxed(&mailbox_to(op.c, peer)->p2p_tail[op.channel], step);
    }
    op.state.steps = step;
    at += length;
  }
}

FN void recv_simple(LaneOp& op, const Message& m) {
  Span span = lane_span(m, op.channel);
  Group g = whole_block();
  uint32_t peer = op.peer;
  uint64_t at = span.low;
  while (at < span.high) {
    uint32_t step = op.state.steps + 1;
    uint32_t length = span.high - at < op.c.p2p_chunk ? (uint32_t)(span.high - at) : op.c.p2p_chunk;
    const uint32_t* tail = &mailbox_from(op.c, peer)->p2p_tail[op.channel];
    if (!lane_wait(op, [&] { return reached(load_acquire(tail), step); })) return;
    copy_from_slot(g, m.buffer + at, p2p_slot(op, local_p2p(op.c, peer), step), length);
    barrier();
    if (tid() == 0) store_ack(&mailbox_to(op.c, peer)->p2p_head[op.channel], step);
    op.state.steps = step;
    at += length;
  }
}

// The message's size, to the receiver or from the sender. Thread 0 of channel 0. The receiver looks before it reads: a size that
// differs may have sent the data another way.
FN void tell_size(LaneOp& op) {
  if (op.channel != 0 || tid() != 0) return;
  uint32_t line[4];
  header_line(line);
  store_line(header_place(mailbox_to(op.c, op.peer)->p2p_headers), line);
}
FN bool check_size(LaneOp& op) {
  if (op.channel != 0) return true;
  uint32_t peer = op.peer;
  bool go = lane_wait(op, [&] { return header_came(op, peer, mailbox_from(op.c, peer)->p2p_headers, ERROR_MESSAGE_SIZE); });
  barrier();
  return go;
}

FN void finish_launch(const MessageWork& work) {
  if (block_id() == 0 && tid() == 0) store_relaxed(&host_of(work.comm)->completed, shared<Shared>().launch);
}

FN void messages(const MessageWork& work) {
  Lane lane = lane_of(work);
  LaneOp op(work.comm, lane);
  Shared& s = shared<Shared>();
  if (block_id() == 0 && tid() == 0) s.launch = 1 + add_relaxed_device(&state_of(op.c)->launches, 1);
  if (lane.peer == op.c.rank) {
    copy_lane(work, lane);
    barrier();
    return finish_launch(work);
  }
  uint64_t place = lane_address(op.c, lane.is_send, lane.peer, lane.channel);
  if (tid() == 0) {
    prepare_shared();
    s.chain = 0;
    s.sequence = 0;
    s.own = 0;
    s.counter = take_counter(op, (uint32_t*)place);
    s.refused = op.failed;
  }
  barrier();
  op.failed = s.refused != 0;
  uint32_t v[8];
  load_pair(place, v);
  op.state = {0, v[1], v[2], v[3], v[4], v[5], {0, 0}};
  NOT_UNROLLED
  for (uint32_t j = 0; !op.failed; j++) {
    // Read again rather than kept in registers.
    Lane l = lane_of(work);
    if (j >= l.count) break;
    Message m = message_of(work, l.first + j);
    if (op.channel >= m.channels) continue;
    op.state.messages++;
    if (tid() == 0) {
      s.sequence = op.state.messages;
      s.own = m.bytes;
    }
    if (l.is_send) {
      tell_size(op);
      if (m.is_ll) {
        send_ll(op, m);
      } else {
        send_simple(op, m);
      }
    } else if (check_size(op)) {
      if (m.is_ll) {
        recv_ll(op, m);
      } else {
        recv_simple(op, m);
      }
    }
  }
  barrier();
  if (tid() != 0) return;
  if (s.failed) return raise(op);
  uint32_t low[4] = {COUNTER_BUSY, op.state.messages, op.state.steps, op.state.known};
  uint32_t high[4] = {op.state.ll_steps, op.state.ll_known, 0, 0};
  store16(place, low);
  store16(place + 16, high);
  store_release_device((uint32_t*)place, next_count(s.counter));
  finish_launch(work);
}
