"""GPU memory per rank and start-up time, on the CUDA driver alone: after init, after a small and a 64 MB all-reduce, for 1 and 20 communicators.

    python3 memory.py --lib /path/to/libnccl.so.2 [--ranks 2]

Each rank is a process. Memory is what the driver reports as used on the rank's device, less what was used before the first
communicator (context, buffers and stream are there by then); ranks that share a device share the figure.
"""

import argparse
import ctypes as c
import multiprocessing
import os
import time

FURTHER = 19
SMALL, LARGE = 1024, 16 << 20
FLOAT, SUM = 7, 0


class UniqueId(c.Structure):
    _fields_ = [("bytes", c.c_char * 128)]


def check(result, what, nccl=None):
    if result != 0:
        nccl.ncclGetLastError.restype = c.c_char_p if nccl else None
        raise SystemExit(f"{what}: {result} {nccl.ncclGetLastError(None).decode() if nccl else ''}")


def rank_main(rank, nranks, library, barrier, ids, results):
    cuda = c.CDLL("libcuda.so.1")
    cuda.cuInit(0)
    count = c.c_int()
    cuda.cuDeviceGetCount(c.byref(count))
    device = rank % count.value
    context, stream = c.c_void_p(), c.c_void_p()
    cuda.cuDevicePrimaryCtxRetain(c.byref(context), device)
    cuda.cuCtxSetCurrent(context)
    cuda.cuStreamCreate(c.byref(stream), 1)
    buffer = c.c_uint64()
    cuda.cuMemAlloc_v2(c.byref(buffer), c.c_size_t(4 * LARGE))
    cuda.cuMemsetD8Async(buffer, 0, c.c_size_t(4 * LARGE), stream)
    cuda.cuStreamSynchronize(stream)
    nccl = c.CDLL(library)

    def used():
        cuda.cuStreamSynchronize(stream)
        barrier.wait()
        free, total = c.c_size_t(), c.c_size_t()
        cuda.cuMemGetInfo_v2(c.byref(free), c.byref(total))
        barrier.wait()
        return (total.value - free.value) / 2**20

    def unique_id(number):
        unique = UniqueId()
        if rank == 0:
            check(nccl.ncclGetUniqueId(c.byref(unique)), "ncclGetUniqueId", nccl)
            ids[number] = c.string_at(c.byref(unique), 128)
        barrier.wait()
        return UniqueId.from_buffer_copy(ids[number])

    def communicator(unique):
        comm = c.c_void_p()
        check(nccl.ncclCommInitRank(c.byref(comm), nranks, unique, rank), "ncclCommInitRank", nccl)
        return comm

    def all_reduce(comm, elements):
        check(nccl.ncclAllReduce(buffer, buffer, c.c_size_t(elements), FLOAT, SUM, comm, stream), "ncclAllReduce", nccl)
        cuda.cuStreamSynchronize(stream)

    start = used()
    unique = unique_id(0)
    begin = time.perf_counter()
    comm = communicator(unique)
    init = time.perf_counter() - begin
    rows = [("first communicator, after init", used() - start)]
    again = time.perf_counter()
    all_reduce(comm, SMALL)
    first = init + time.perf_counter() - again
    rows.append(("after a 4 KB all-reduce", used() - start))
    all_reduce(comm, LARGE)
    rows.append(("after a 64 MB all-reduce", used() - start))
    before = used()
    for number in range(FURTHER):
        all_reduce(communicator(unique_id(1 + number)), SMALL)
    rows.append((f"each of {FURTHER} further communicators, small messages", (used() - before) / FURTHER))
    sharing = -(-nranks // count.value)
    results[rank] = ([(name, value / sharing) for name, value in rows], init, first)
    os._exit(0)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--lib", default="libnccl.so.2")
    options.add_argument("--ranks", type=int, default=2)
    options = options.parse_args()
    os.environ.setdefault("NCCL_MULTI_RANK_GPU_ENABLE", "1")
    os.environ["NCCL_NVLS_ENABLE"] = "0"
    spawn = multiprocessing.get_context("spawn")
    with spawn.Manager() as manager:
        ids, results, barrier = manager.dict(), manager.dict(), manager.Barrier(options.ranks)
        arguments = [(rank, options.ranks, options.lib, barrier, ids, results) for rank in range(options.ranks)]
        processes = [spawn.Process(target=rank_main, args=one) for one in arguments]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        for name, mebibytes in results[0][0]:
            print(f"{name}: {mebibytes:.1f} MiB per rank")
        init, first = (max(result[index] for result in results.values()) for index in (1, 2))
        print(f"init {init * 1e3:.0f} ms, to the end of the first all-reduce {first * 1e3:.0f} ms")
