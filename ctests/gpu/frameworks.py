"""CuPy and JAX on the library: each function and type they offer, checked; what is not installed is named and left out.

    LD_PRELOAD=.../libnccl.so.2 python3 frameworks.py --ranks 2 [--only cupy_nccl cupyx jax]

Each part runs in processes of its own, one per rank, with a time limit; ranks share the GPUs at hand. JAX runs in one process on as many
GPUs as there are, and needs two. Exit code 1 when a result was wrong, a call raised or a part hung.
"""

import argparse
import faulthandler
import importlib.util
import multiprocessing
import os
import socket
import sys
import traceback

from counts import Counts
from served import served_by

LIMIT = 240
COUNTS = (1, 17, 4099, 1 << 20)
SHOWN = 8


def cupy_nccl(rank, nranks, shared, checks):
    """cupy.cuda.nccl.NcclCommunicator: every function, with all of CuPy's types and operations."""
    import cupy
    import numpy
    from cupy.cuda import nccl

    cupy.cuda.Device(rank % cupy.cuda.runtime.getDeviceCount()).use()
    if rank == 0:
        shared["id"] = nccl.get_unique_id()
    shared["barrier"].wait()
    comm = nccl.NcclCommunicator(nranks, shared["id"], rank)
    checks.true("rank_id, size, device_id", (comm.rank_id(), comm.size()) == (rank, nranks) and comm.device_id() >= 0)
    types = {"int8": nccl.NCCL_INT8, "uint8": nccl.NCCL_UINT8, "int32": nccl.NCCL_INT32, "uint32": nccl.NCCL_UINT32,
             "int64": nccl.NCCL_INT64, "uint64": nccl.NCCL_UINT64, "float16": nccl.NCCL_FLOAT16, "float32": nccl.NCCL_FLOAT32,
             "float64": nccl.NCCL_FLOAT64}
    operations = {"sum": nccl.NCCL_SUM, "prod": nccl.NCCL_PROD, "max": nccl.NCCL_MAX, "min": nccl.NCCL_MIN}
    folds = {"sum": numpy.add, "prod": numpy.multiply, "max": numpy.maximum, "min": numpy.minimum}
    stream = cupy.cuda.Stream(non_blocking=True)
    everyone = range(nranks)
    following, before = (rank + 1) % nranks, (rank - 1) % nranks

    def part(of, count, dtype, seed):
        return numpy.random.default_rng(seed * 100 + of).integers(0, 3, count).astype(dtype)

    def on_stream(what, wanted, incoming, outgoing, call):
        with stream:
            sent = cupy.asarray(incoming)
            got = cupy.zeros(outgoing, incoming.dtype)
            call(sent.data.ptr, got.data.ptr)
            got = got.get(stream=stream)
        stream.synchronize()
        if wanted is not None:
            checks.true(what, numpy.array_equal(got, wanted))

    for name, code in types.items():
        for seed, count in enumerate(COUNTS[:3] + (COUNTS[3:] if name == "float32" else ())):
            parts = [part(r, count, name, seed) for r in everyone]
            wide = [part(r, count * nranks, name, seed) for r in everyone]
            for operation, number in operations.items():
                total, wide_total = parts[0], wide[0]
                for other, other_wide in zip(parts[1:], wide[1:]):
                    total, wide_total = folds[operation](total, other), folds[operation](wide_total, other_wide)
                what = f"{name} {operation} {count}"
                on_stream(f"allReduce {what}", total, parts[rank], count,
                          lambda a, b: comm.allReduce(a, b, count, code, number, stream.ptr))
                for root in everyone:
                    on_stream(f"reduce {what} to {root}", total if rank == root else None, parts[rank], count,
                              lambda a, b: comm.reduce(a, b, count, code, number, root, stream.ptr))
                on_stream(f"reduceScatter {what}", wide_total[rank * count:][:count], wide[rank], count,
                          lambda a, b: comm.reduceScatter(a, b, count, code, number, stream.ptr))
            what = f"{name} {count}"
            on_stream(f"allGather {what}", numpy.concatenate(parts), parts[rank], count * nranks,
                      lambda a, b: comm.allGather(a, b, count, code, stream.ptr))
            for root in everyone:
                on_stream(f"broadcast {what} from {root}", parts[root], parts[rank], count,
                          lambda a, b: comm.broadcast(a, b, count, code, root, stream.ptr))
                with stream:
                    buffer = cupy.asarray(parts[rank])
                    comm.bcast(buffer.data.ptr, count, code, root, stream.ptr)
                    checks.true(f"bcast {what} from {root}", numpy.array_equal(buffer.get(stream=stream), parts[root]))

            def ring(a, b):
                nccl.groupStart()
                comm.send(a, count, code, following, stream.ptr)
                comm.recv(b, count, code, before, stream.ptr)
                nccl.groupEnd()

            on_stream(f"send, recv {what}", parts[before], parts[rank], count, ring)
    # A child with the ranks in reverse order.
    if hasattr(comm, "commSplit"):
        child = comm.commSplit(0, nranks - rank)
        checks.true("commSplit", (child.rank_id(), child.size()) == (nranks - 1 - rank, nranks))
        parts = [part(r, 513, "float32", 9) for r in everyone]
        on_stream("allReduce of a split", sum(parts), parts[rank], 513,
                  lambda a, b: child.allReduce(a, b, 513, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, stream.ptr))
        child.destroy()
    else:
        checks.notes.append("this CuPy has no commSplit")
    checks.true("check_async_error", comm.check_async_error() is None)
    shared["barrier"].wait()
    comm.destroy()
    if rank == 0:
        devices = list(range(cupy.cuda.runtime.getDeviceCount()))
        comms = nccl.NcclCommunicator.initAll(devices)
        arrays = []
        for device in devices:
            with cupy.cuda.Device(device):
                arrays.append(cupy.full(1000, device + 1, "float32"))
        nccl.groupStart()
        for device, one, array in zip(devices, comms, arrays):
            with cupy.cuda.Device(device):
                one.allReduce(array.data.ptr, array.data.ptr, 1000, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, cupy.cuda.Stream.null.ptr)
        nccl.groupEnd()
        for device, array in zip(devices, arrays):
            with cupy.cuda.Device(device):
                checks.true(f"initAll, device {device}", bool((array.get() == sum(range(len(devices) + 1))).all()))
        for one in comms:
            one.destroy()


def cupyx(rank, nranks, shared, checks):
    """cupyx.distributed: its communicator over NCCL, dense and sparse."""
    import cupy
    import numpy
    from cupyx import distributed

    cupy.cuda.Device(rank % cupy.cuda.runtime.getDeviceCount()).use()
    comm = distributed.init_process_group(nranks, rank, backend="nccl", host="127.0.0.1", port=shared["port"])
    following, before = (rank + 1) % nranks, (rank - 1) % nranks

    def equal(what, got, wanted):
        checks.true(what, numpy.array_equal(got.get(), numpy.asarray(wanted)))

    for dtype in ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", "complex64", "complex128"):
        for count in (1, 257, 40_001):
            parts = [(numpy.arange(count) % 7 + r).astype(dtype) for r in range(nranks)]
            wide = [(numpy.arange(count * nranks) % 5 + r).astype(dtype) for r in range(nranks)]
            mine, mine_wide = cupy.asarray(parts[rank]), cupy.asarray(wide[rank]).reshape(nranks, count)
            what = f"{dtype} {count}"

            def blank(*shape):
                return cupy.zeros(shape, dtype)

            out = blank(count)
            comm.all_reduce(mine, out)
            equal(f"all_reduce {what}", out, sum(parts[1:], parts[0]))
            if not dtype.startswith("complex"):
                out = blank(count)
                comm.all_reduce(mine, out, op="max")
                equal(f"all_reduce max {what}", out, parts[-1])
            out = blank(nranks, count)
            comm.all_gather(mine, out, count)
            equal(f"all_gather {what}", out, parts)
            out = blank(count)
            comm.reduce_scatter(mine_wide, out, count)
            equal(f"reduce_scatter {what}", out, sum(wide[1:], wide[0])[rank * count:][:count])
            out = blank(nranks, count)
            comm.all_to_all(mine_wide, out)
            equal(f"all_to_all {what}", out, [w[rank * count:][:count] for w in wide])
            for root in range(nranks):
                out = blank(count)
                comm.reduce(mine, out, root)
                if rank == root:
                    equal(f"reduce {what} to {root}", out, sum(parts[1:], parts[0]))
                out = mine.copy()
                comm.broadcast(out, root)
                equal(f"broadcast {what} from {root}", out, parts[root])
                out = blank(nranks, count)
                comm.gather(mine, out, root)
                if rank == root:
                    equal(f"gather {what} to {root}", out, parts)
                out = blank(count)
                comm.scatter(mine_wide, out, root)
                equal(f"scatter {what} from {root}", out, wide[root][rank * count:][:count])
            if nranks > 1:
                out = blank(count)
                if rank % 2 == 0:
                    comm.send(mine, following)
                    comm.recv(out, before)
                else:
                    comm.recv(out, before)
                    comm.send(mine, following)
                equal(f"send, recv {what}", out, parts[before])
            if nranks == 2:
                out = blank(count)
                comm.send_recv(mine, out, 1 - rank)
                equal(f"send_recv {what}", out, parts[1 - rank])
    if importlib.util.find_spec("scipy"):
        from cupyx.scipy import sparse

        dense = [numpy.where(numpy.arange(60).reshape(6, 10) % (3 + r) == 0, 1.0 + r, 0).astype("float32") for r in range(nranks)]
        mine = sparse.csr_matrix(cupy.asarray(dense[rank]))
        out = sparse.csr_matrix((6, 10), dtype="float32")
        comm.all_reduce(mine, out)
        equal("all_reduce of sparse matrices", out.toarray(), sum(dense))
        out = sparse.csr_matrix(mine) if rank == 0 else sparse.csr_matrix((6, 10), dtype="float32")
        comm.broadcast(out, 0)
        equal("broadcast of a sparse matrix", out.toarray(), dense[0])
    else:
        checks.notes.append("sparse matrices: scipy is not installed")
    comm.barrier()
    comm.stop()


def jax(rank, nranks, shared, checks):
    """JAX in one process on all GPUs: collectives under jit, by shard_map."""
    import inspect

    import jax as jax_
    import numpy
    from jax import lax
    from jax import numpy as jnp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    devices = [device for device in jax_.devices() if device.platform in ("gpu", "cuda")]
    n = len(devices)
    if n < 2:
        checks.notes.append(f"jax: {n} GPUs, two are needed: JAX has no ranks that share one")
        return
    jax_.config.update("jax_enable_x64", True)
    mesh = Mesh(numpy.array(devices), ("i",))
    sharded, everywhere = PartitionSpec("i"), PartitionSpec()
    shard_map = getattr(jax_, "shard_map", None) or __import__("jax.experimental.shard_map", fromlist=["shard_map"]).shard_map
    # The check of replicated outputs, under its names in older and newer versions.
    unchecked = {name: False for name in ("check_vma", "check_rep") if name in inspect.signature(shard_map).parameters}

    def run(what, function, wanted, data, outputs=sharded):
        call = jax_.jit(shard_map(function, mesh=mesh, in_specs=sharded, out_specs=outputs, **unchecked))
        for _ in range(3):
            got = numpy.asarray(call(jax_.device_put(data, NamedSharding(mesh, sharded))))
        checks.true(what, numpy.array_equal(got, wanted))

    for dtype in ("int8", "uint8", "int32", "uint32", "int64", "float16", "bfloat16", "float32", "float64"):
        for count in (n, 257 * n, 4096 * n):
            data = (numpy.arange(n * count) % 5).astype(jnp.dtype(dtype))
            parts = data.reshape(n, count)
            wide = parts.astype("float64")
            what = f"{dtype} {count}"

            def as_type(values):
                return values.astype(jnp.dtype(dtype))

            run(f"psum {what}", lambda x: lax.psum(x, "i"), as_type(wide.sum(0)), data, everywhere)
            run(f"pmax {what}", lambda x: lax.pmax(x, "i"), parts.max(0), data, everywhere)
            run(f"pmin {what}", lambda x: lax.pmin(x, "i"), parts.min(0), data, everywhere)
            run(f"all_gather {what}", lambda x: lax.all_gather(x, "i", tiled=True), data, data, everywhere)
            run(f"psum_scatter {what}", lambda x: lax.psum_scatter(x, "i", tiled=True), as_type(wide.sum(0)), data)
            run(f"all_to_all {what}", lambda x: lax.all_to_all(x, "i", 0, 0, tiled=True),
                parts.reshape(n, n, count // n).transpose(1, 0, 2).flatten(), data)
            shift = [(source, (source + 1) % n) for source in range(n)]
            run(f"ppermute {what}", lambda x: lax.ppermute(x, "i", shift), numpy.roll(parts, 1, 0).flatten(), data)
    a, b = (numpy.random.default_rng(seed).integers(-3, 4, (64 * n, 64 * n)).astype("float32") for seed in (1, 2))
    rows, columns = NamedSharding(mesh, PartitionSpec("i", None)), NamedSharding(mesh, PartitionSpec(None, "i"))
    for left in (rows, columns):
        for right in (rows, columns):
            product = jax_.jit(lambda x, y: x @ y)(jax_.device_put(a, left), jax_.device_put(b, right))
            checks.true(f"product {left.spec} {right.spec}", numpy.array_equal(numpy.asarray(product), a @ b))


PARTS = {"cupy_nccl": (cupy_nccl, "cupy"), "cupyx": (cupyx, "cupy"), "jax": (jax, "jax")}


def _rank(name, rank, nranks, shared, results):
    faulthandler.dump_traceback_later(LIMIT, exit=True)
    checks, raised = Counts(), None
    try:
        PARTS[name][0](rank, nranks, shared, checks)
    except BaseException:
        raised = traceback.format_exc()
    try:
        served = served_by()
    except OSError as why:
        served = str(why)
    results[rank] = (checks.count, checks.failures, checks.notes, raised, served)
    sys.stderr.flush()
    # Without the frameworks' exit handlers, which may wait for ranks that failed.
    os._exit(raised is not None)


def run(name, nranks):
    """True when the part is right or cannot run here."""
    package = PARTS[name][1]
    if importlib.util.find_spec(package) is None:
        print(f"{name}: not run, {package} is not installed")
        return True
    spawn = multiprocessing.get_context("spawn")
    nranks = 1 if name == "jax" else nranks
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with spawn.Manager() as manager:
        results, shared = manager.dict(), manager.dict()
        shared["port"], shared["barrier"] = port, manager.Barrier(nranks)
        processes = [spawn.Process(target=_rank, args=(name, rank, nranks, shared, results)) for rank in range(nranks)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(LIMIT + 30)
            if process.is_alive():
                process.kill()
                process.join()
        found = dict(results)
    failures = [failure for result in found.values() for failure in result[1]]
    raised = {rank: result[3] for rank, result in found.items() if result[3]}
    whole = len(found) == nranks and not raised
    ranks = "one process" if name == "jax" else f"{nranks} ranks"
    print(f"{name}: {ranks}: {sum(r[0] for r in found.values())} checks, {len(failures)} wrong{'' if whole else ', FAILED'}", flush=True)
    for line in dict.fromkeys([note for r in found.values() for note in r[2]] + [r[4] for r in found.values()]):
        print(f"    {line}")
    for failure in list(dict.fromkeys(failures))[:SHOWN]:
        print(f"    wrong: {failure}")
    for rank, text in raised.items():
        print(f"    rank {rank}: {text}")
    if len(found) < nranks:
        print(f"    no report from ranks {[rank for rank in range(nranks) if rank not in found]}")
    return whole and not failures


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--ranks", type=int, default=2)
    options.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    options = options.parse_args()
    os.environ.setdefault("NCCL_MULTI_RANK_GPU_ENABLE", "1")
    os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")
    # JAX would take most of the memory, of which others have a share.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    os.environ["NCCL_NVLS_ENABLE"] = "0"
    raise SystemExit(not all([run(name, options.ranks) for name in options.only]))
