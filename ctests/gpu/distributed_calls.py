"""Chapters of torch_distributed.py: every call of torch.distributed on the default group, with all types and operations."""

import torch
import torch.distributed as dist

from chapters import chapter
from torch_collectives import OPERATIONS, TYPES, data, expected

COUNTS = [1, 17, 4099]
LARGE = (1 << 21) + 3
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def types(place):
    # Gloo knows no fp8; the CPU run is about the checks themselves.
    return [t for t in TYPES if place.on_gpu or t not in FLOAT8]


def operations(place, dtype):
    """Names of the reductions that PyTorch takes for the type. Averages only where they are exact."""
    power_of_two = place.nranks & (place.nranks - 1) == 0
    for name in OPERATIONS:
        exact = dtype.is_floating_point and power_of_two or dtype in (torch.int32, torch.int64)
        if name == "avg" and not (exact and place.on_gpu) or dtype == torch.bool and name == "product":
            continue
        yield name, OPERATIONS[name]


def inputs(place, dtype, count, seed):
    """The parts of all ranks on the host, and this rank's on its device."""
    parts = [data(dtype, count, rank, seed) for rank in range(place.nranks)]
    return parts, parts[place.rank].clone().to(place.device)


def blank(place, count, dtype=torch.float32):
    return torch.full((count,), 1, device=place.device).to(dtype)


def values(place, count, rank, seed, dtype=torch.float32):
    return data(dtype, count, rank, seed)


@chapter(180)
def all_reduce(place, checks):
    for dtype in types(place):
        for seed, count in enumerate(COUNTS):
            for name, operation in operations(place, dtype):
                parts, mine = inputs(place, dtype, count, seed)
                dist.all_reduce(mine, operation)
                checks.equal(f"all_reduce {dtype} {name} {count}", mine, expected(parts, name))
    parts, mine = inputs(place, torch.float32, LARGE, 9)
    dist.all_reduce(mine)
    checks.equal("all_reduce large", mine, expected(parts, "sum"))
    # Dense in another order of dimensions (which PyTorch refuses on the nccl backend), empty, without dimensions.
    parts, mine = inputs(place, torch.float32, 24, 10)
    turned = mine.view(4, 6).t()
    if place.on_gpu:
        checks.raises("all_reduce transposed", lambda: dist.all_reduce(turned))
    else:
        dist.all_reduce(turned)
        checks.equal("all_reduce transposed", turned, expected(parts, "sum").view(4, 6).t())
    empty = torch.empty(0, device=place.device)
    dist.all_reduce(empty)
    checks.true("all_reduce empty", empty.numel() == 0)
    single = torch.tensor(float(place.rank + 1), device=place.device)
    dist.all_reduce(single)
    checks.equal("all_reduce without dimensions", single, torch.tensor(float(sum(range(place.nranks + 1)))))
    # Not dense, of a type that there is not, with an operation that there is not: refused, and the group still works.
    if place.on_gpu:
        checks.raises("all_reduce with gaps", lambda: dist.all_reduce(torch.ones(8, device=place.device)[::2]))
        checks.raises("all_reduce int16", lambda: dist.all_reduce(torch.ones(8, dtype=torch.int16, device=place.device)))
        for operation in (dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR):
            call = lambda: dist.all_reduce(torch.ones(8, dtype=torch.int32, device=place.device), operation)  # noqa: E731
            checks.raises(f"all_reduce {operation}", call)
        checks.raises("all_reduce on the host", lambda: dist.all_reduce(torch.ones(8)))
    parts, mine = inputs(place, torch.int64, 33, 11)
    dist.all_reduce(mine)
    checks.equal("all_reduce after errors", mine, expected(parts, "sum"))


@chapter(60, backends=("nccl",))
def scaled_sums(place, checks):
    """ReduceOp.PREMUL_SUM, with a factor from the host and from the device.

    Not bfloat16: PyTorch 2.11 hands a host factor over as a float's four bytes, of which NCCL reads two (2.0 becomes 0), and refuses one
    from the device.
    """
    for dtype in (torch.float16, torch.float32, torch.float64):
        for factor in (2.0, 0.5, torch.tensor([4.0], dtype=dtype, device=place.device)):
            name = f"{dtype} by {'device' if torch.is_tensor(factor) else factor}"
            operation = dist._make_nccl_premul_sum(factor)
            scale = float(factor)
            for count in COUNTS:
                parts, mine = inputs(place, dtype, count, count)
                wanted = (expected(parts, "sum").double() * scale).to(dtype)
                dist.all_reduce(mine, operation)
                checks.equal(f"all_reduce {name} {count}", mine, wanted)
            root = place.nranks - 1
            parts, mine = inputs(place, dtype, 513, 3)
            dist.reduce(mine, root, operation)
            if place.rank == root:
                checks.equal(f"reduce {name}", mine, (expected(parts, "sum").double() * scale).to(dtype))
            parts, mine = inputs(place, dtype, 65 * place.nranks, 4)
            piece = blank(place, 65, dtype)
            dist.reduce_scatter_tensor(piece, mine, operation)
            wanted = (expected(parts, "sum").double() * scale).to(dtype)[place.rank * 65:][:65]
            checks.equal(f"reduce_scatter_tensor {name}", piece, wanted)
    # Made and dropped many times, several alive at once.
    many = [dist._make_nccl_premul_sum(1.0 + number) for number in range(40)]
    for number, operation in enumerate(many):
        mine = torch.ones(5, device=place.device)
        dist.all_reduce(mine, operation)
        checks.equal(f"factor {number}", mine, torch.full((5,), (1.0 + number) * place.nranks))


@chapter(120)
def reduce_and_broadcast(place, checks):
    for dtype in types(place):
        for root in range(place.nranks):
            for name, operation in operations(place, dtype):
                parts, mine = inputs(place, dtype, 1031, root)
                dist.reduce(mine, root, operation)
                if place.rank == root:
                    checks.equal(f"reduce {dtype} {name} to {root}", mine, expected(parts, name))
            for seed, count in enumerate(COUNTS):
                parts, mine = inputs(place, dtype, count, seed)
                dist.broadcast(mine, root)
                checks.equal(f"broadcast {dtype} {count} from {root}", mine, parts[root])
    for root in range(place.nranks):
        parts, mine = inputs(place, torch.float32, LARGE, root)
        dist.broadcast(mine, group_src=root)
        checks.equal(f"broadcast large from {root}", mine, parts[root])
    checks.raises("broadcast from no rank", lambda: dist.broadcast(torch.ones(3, device=place.device), place.nranks))
    empty = torch.empty((0, 4), device=place.device)
    dist.broadcast(empty, 0)
    dist.reduce(empty, 0)
    checks.true("broadcast and reduce empty", empty.shape == (0, 4))


@chapter(120)
def all_gather(place, checks):
    n = place.nranks
    for dtype in types(place):
        for seed, count in enumerate(COUNTS):
            parts, mine = inputs(place, dtype, count, seed)
            gathered = [blank(place, count, dtype) for _ in range(n)]
            dist.all_gather(gathered, mine)
            checks.equal(f"all_gather {dtype} {count}", torch.cat([g.cpu() for g in gathered]), torch.cat(parts))
            flat = blank(place, count * n, dtype)
            dist.all_gather_into_tensor(flat, mine)
            checks.equal(f"all_gather_into_tensor {dtype} {count}", flat, torch.cat(parts))
            if place.on_gpu:
                stacked = blank(place, count * n, dtype).view(n, count)
                dist.all_gather_into_tensor(stacked, mine)
                checks.equal(f"all_gather_into_tensor stacked {dtype} {count}", stacked, torch.cat(parts).view(n, count))
    # In place: the input is the rank's piece of the output.
    parts, mine = inputs(place, torch.float32, LARGE, 5)
    flat = blank(place, LARGE * n)
    flat[place.rank * LARGE:][:LARGE] = mine
    dist.all_gather_into_tensor(flat, flat[place.rank * LARGE:][:LARGE])
    checks.equal("all_gather_into_tensor in place, large", flat, torch.cat(parts))
    if place.on_gpu:
        sizes = [7 + 5 * rank for rank in range(n)]
        parts = [values(place, size, rank, 6) for rank, size in enumerate(sizes)]
        gathered = [blank(place, size) for size in sizes]
        dist.all_gather(gathered, parts[place.rank].to(place.device))
        checks.equal("all_gather uneven", torch.cat([g.cpu() for g in gathered]), torch.cat(parts))
        checks.raises("all_gather_into_tensor of the wrong size",
                      lambda: dist.all_gather_into_tensor(torch.ones(5 * n + 1, device=place.device), torch.ones(5, device=place.device)))
        checks.raises("all_gather_into_tensor of two types", lambda: dist.all_gather_into_tensor(
            torch.ones(5 * n, device=place.device), torch.ones(5, dtype=torch.float64, device=place.device)))
    empty = torch.empty(0, device=place.device)
    dist.all_gather_into_tensor(empty, empty.clone())
    checks.true("all_gather_into_tensor empty", empty.numel() == 0)


@chapter(180)
def reduce_scatter(place, checks):
    n = place.nranks
    for dtype in types(place):
        for name, operation in operations(place, dtype):
            for seed, count in enumerate(COUNTS):
                parts, mine = inputs(place, dtype, count * n, seed)
                wanted = expected(parts, name)[place.rank * count:][:count]
                piece = blank(place, count, dtype)
                dist.reduce_scatter_tensor(piece, mine, operation)
                checks.equal(f"reduce_scatter_tensor {dtype} {name} {count}", piece, wanted)
                piece = blank(place, count, dtype)
                dist.reduce_scatter(piece, list(mine.split(count)), operation)
                checks.equal(f"reduce_scatter {dtype} {name} {count}", piece, wanted)
    parts, mine = inputs(place, torch.float32, LARGE * n, 5)
    piece = mine[place.rank * LARGE:][:LARGE]
    dist.reduce_scatter_tensor(piece, mine)
    checks.equal("reduce_scatter_tensor in place, large", piece, expected(parts, "sum")[place.rank * LARGE:][:LARGE])
    if place.on_gpu:
        sizes = [3 + 11 * rank for rank in range(n)]
        parts, mine = inputs(place, torch.float32, sum(sizes), 6)
        piece = blank(place, sizes[place.rank])
        dist.reduce_scatter(piece, list(mine.split(sizes)))
        checks.equal("reduce_scatter uneven", piece, expected(parts, "sum").split(sizes)[place.rank])
        checks.raises("reduce_scatter_tensor of the wrong size",
                      lambda: dist.reduce_scatter_tensor(torch.ones(5, device=place.device), torch.ones(5 * n + 1, device=place.device)))


def _lanes(place, seed, dtype, most):
    """How much each rank sends to each, and what: lanes[from][to]."""
    n = place.nranks
    sizes = [[(7 * source + 3 * target + seed) % (most + 1) for target in range(n)] for source in range(n)]
    return sizes, [[data(dtype, sizes[a][b], a * n + b, seed) for b in range(n)] for a in range(n)]


@chapter(120)
def all_to_all(place, checks):
    n, me = place.nranks, place.rank
    for dtype in types(place):
        for seed, count in enumerate(COUNTS):
            parts, mine = inputs(place, dtype, count * n, seed)
            got = blank(place, count * n, dtype)
            dist.all_to_all_single(got, mine)
            wanted = torch.cat([part.split(count)[me] for part in parts])
            checks.equal(f"all_to_all_single {dtype} {count}", got, wanted)
            if place.on_gpu:
                pieces = [blank(place, count, dtype) for _ in range(n)]
                dist.all_to_all(pieces, list(mine.split(count)))
                checks.equal(f"all_to_all {dtype} {count}", torch.cat([p.cpu() for p in pieces]), wanted)
        # Uneven, some lanes empty.
        for seed, most in ((0, 2), (1, 3), (2, 5000)):
            sizes, lanes = _lanes(place, seed, dtype, most)
            incoming = [sizes[source][me] for source in range(n)]
            wanted = torch.cat([lanes[source][me] for source in range(n)])
            got = blank(place, sum(incoming), dtype)
            dist.all_to_all_single(got, torch.cat(lanes[me]).to(place.device), incoming, sizes[me])
            checks.equal(f"all_to_all_single uneven {dtype} up to {most}", got, wanted)
            if place.on_gpu:
                pieces = [blank(place, size, dtype) for size in incoming]
                dist.all_to_all(pieces, [lane.to(place.device) for lane in lanes[me]])
                checks.equal(f"all_to_all uneven {dtype} up to {most}", torch.cat([p.cpu() for p in pieces]), wanted)
    # One rank sends all, then one receives all; then none sends anything.
    for source, target in ((0, None), (None, n - 1), (-1, -1)):
        sizes = [[(5 if source in (a, None) and target in (b, None) else 0) for b in range(n)] for a in range(n)]
        got = blank(place, sum(row[me] for row in sizes))
        mine = torch.arange(sum(sizes[me]), dtype=torch.float32, device=place.device) + 100 * me
        dist.all_to_all_single(got, mine, [row[me] for row in sizes], sizes[me])
        lanes = [(torch.arange(sum(sizes[a]), dtype=torch.float32) + 100 * a).split(sizes[a])[me] for a in range(n)]
        checks.equal(f"all_to_all_single from {source} to {target}", got, torch.cat(lanes))
    # Rows of a matrix.
    got = blank(place, 6 * n).view(n * 2, 3)
    mine = torch.arange(6 * n, dtype=torch.float32, device=place.device).view(n * 2, 3) + 1000 * me
    dist.all_to_all_single(got, mine)
    rows = [torch.arange(6 * n, dtype=torch.float32).view(n * 2, 3)[2 * me:2 * me + 2] + 1000 * a for a in range(n)]
    checks.equal("all_to_all_single of rows", got, torch.cat(rows))


@chapter(120)
def gather_and_scatter(place, checks):
    n, me = place.nranks, place.rank
    for dtype in types(place):
        for root in range(n):
            for seed, count in enumerate(COUNTS):
                parts, mine = inputs(place, dtype, count, seed)
                gathered = [blank(place, count, dtype) for _ in range(n)] if me == root else None
                dist.gather(mine, gathered, root)
                if me == root:
                    checks.equal(f"gather {dtype} {count} to {root}", torch.cat([g.cpu() for g in gathered]), torch.cat(parts))
                got = blank(place, count, dtype)
                dist.scatter(got, [part.to(place.device) for part in parts] if me == root else None, root)
                checks.equal(f"scatter {dtype} {count} from {root}", got, parts[me])
    checks.raises("gather without a list at the root", lambda: dist.gather(torch.ones(3, device=place.device), None, me))


@chapter(120)
def send_and_receive(place, checks):
    n, me = place.nranks, place.rank
    if n == 1:
        checks.note("one rank has no peers")
        return
    following, before = (me + 1) % n, (me - 1) % n
    for seed, dtype in enumerate(types(place)):
        for count in COUNTS:
            parts, mine = inputs(place, dtype, count, seed)
            got = blank(place, count, dtype)
            # No cycle, with an odd number of ranks either: rank 1 receives first.
            if me % 2 == 0:
                dist.send(mine, following)
                dist.recv(got, before)
            else:
                dist.recv(got, before)
                dist.send(mine, following)
            checks.equal(f"send, recv {dtype} {count}", got, parts[before])
    # Many in flight from 0 to 1, received in order.
    messages = [values(place, 1 + 997 * number, 0, number) for number in range(20)]
    if me == 0:
        works = [dist.isend(message.to(place.device), 1) for message in messages]
        for work in works:
            work.wait()
    elif me == 1:
        got = [blank(place, len(message)) for message in messages]
        for work in [dist.irecv(tensor, 0) for tensor in got]:
            work.wait()
        for number, message in enumerate(messages):
            checks.equal(f"isend, irecv number {number}", got[number], message)
    for call in (lambda: dist.send(torch.ones(1, device=place.device), me), lambda: dist.recv(torch.ones(1, device=place.device), me)):
        checks.raises("send to itself, outside a batch", call)
    # Empty, and with a matrix.
    matrix = torch.arange(12, dtype=torch.float32, device=place.device).view(3, 4)
    if me == 0:
        dist.send(torch.empty(0, device=place.device), 1)
        dist.send(matrix, 1)
    elif me == 1:
        got = torch.empty(0, device=place.device)
        dist.recv(got, 0)
        got = torch.zeros_like(matrix)
        dist.recv(got, 0)
        checks.equal("send a matrix", got, matrix)


@chapter(120)
def batches(place, checks):
    """batch_isend_irecv: rings both ways at once, several messages per peer in order, to all ranks, to itself."""
    n, me = place.nranks, place.rank
    following, before = (me + 1) % n, (me - 1) % n
    for count in (1, 513, 70_001, LARGE):
        for depth in ((1, 3, 16) if count < LARGE else (1,)):
            operations, wanted, got = [], [], []
            peers = [(following, before), (before, following)] if n > 1 else []
            for lane, (to, source) in enumerate(peers if n > 2 else peers[:1]):
                for message in range(depth):
                    seed = lane * 100 + message
                    operations.append(dist.P2POp(dist.isend, values(place, count, me, seed).to(place.device), to))
                    got.append(blank(place, count))
                    operations.append(dist.P2POp(dist.irecv, got[-1], source))
                    wanted.append(values(place, count, source, seed))
            for work in dist.batch_isend_irecv(operations) if operations else []:
                work.wait()
            for number, (a, b) in enumerate(zip(got, wanted)):
                checks.equal(f"ring of {count}, {depth} deep, message {number}", a, b)
    # Everyone to everyone, with sizes of their own and all types; all sends after all receives.
    for dtype in types(place):
        sizes, lanes = _lanes(place, 4, dtype, 3000)
        others = [rank for rank in range(n) if place.on_gpu or rank != me]
        got = {source: blank(place, max(1, sizes[source][me]), dtype) for source in others}
        operations = [dist.P2POp(dist.irecv, got[source][:sizes[source][me]], source) for source in others]
        operations += [dist.P2POp(dist.isend, lanes[me][to].to(place.device), to) for to in others]
        for work in dist.batch_isend_irecv(operations) if operations else []:
            work.wait()
        for source in others:
            checks.equal(f"all pairs {dtype} from {source}", got[source][:sizes[source][me]], lanes[source][me])
    # A pipeline: each rank passes on what it got, 8 micro-batches.
    for micro in range(8):
        tensor = torch.full((4096,), float(micro), device=place.device)
        if me > 0:
            for work in dist.batch_isend_irecv([dist.P2POp(dist.irecv, tensor, me - 1)]):
                work.wait()
        tensor += 1
        if me < n - 1:
            for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, tensor, me + 1)]):
                work.wait()
        checks.equal(f"pipeline, micro-batch {micro}", tensor, torch.full((4096,), float(micro + me + 1)))
    if place.on_gpu:
        count = 777
        mine = [values(place, count, me, number).to(place.device) for number in range(5)]
        got = [blank(place, count) for _ in mine]
        operations = [dist.P2POp(dist.isend, tensor, me) for tensor in mine] + [dist.P2POp(dist.irecv, tensor, me) for tensor in got]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        for number, tensor in enumerate(mine):
            checks.equal(f"to itself, message {number}", got[number], tensor)
    else:
        checks.note("gloo does not send to itself")


@chapter(60)
def objects(place, checks):
    n, me = place.nranks, place.rank
    mine = {"rank": me, "values": list(range(me * 3)), "text": "x" * (1000 * me)}
    all_of_them = [{"rank": r, "values": list(range(r * 3)), "text": "x" * (1000 * r)} for r in range(n)]
    got = [None] * n
    dist.all_gather_object(got, mine)
    checks.true("all_gather_object", got == all_of_them)
    for root in range(n):
        got = [None] * n if me == root else None
        dist.gather_object(mine, got, root)
        checks.true(f"gather_object to {root}", me != root or got == all_of_them)
        got = [mine, me, "same"] if me == root else [None] * 3
        dist.broadcast_object_list(got, root)
        checks.true(f"broadcast_object_list from {root}", got == [all_of_them[root], root, "same"])
        got = [None]
        dist.scatter_object_list(got, all_of_them if me == root else None, root)
        checks.true(f"scatter_object_list from {root}", got == [mine])
    if n > 1:
        if me == 0:
            dist.send_object_list(all_of_them, 1)
        elif me == 1:
            got = [None] * n
            dist.recv_object_list(got, 0)
            checks.true("send_object_list", got == all_of_them)


@chapter(60)
def barriers(place, checks):
    for number in range(20):
        dist.barrier()
    work = dist.barrier(async_op=True)
    work.wait()
    checks.true("barrier", True)
    if place.on_gpu:
        dist.barrier(device_ids=[place.device.index])
        checks.raises("monitored_barrier (for gloo alone)", dist.monitored_barrier)
        checks.note("monitored_barrier is for gloo alone: PyTorch refuses it on the nccl backend, and that is checked")
        host = dist.new_group(backend="gloo")
        dist.monitored_barrier(host)
    else:
        dist.monitored_barrier()
    checks.true("monitored_barrier on gloo", True)


def managed(asynchronous, call, arguments):
    """Makes the call for each tuple of arguments in one coalescing manager, and waits."""
    with dist._coalescing_manager(async_ops=asynchronous) as manager:
        for each in arguments:
            call(*each)
    if asynchronous:
        manager.wait()


@chapter(90, backends=("nccl",))
def coalesced(place, checks):
    n, me = place.nranks, place.rank
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        for counts in ([5], [1, 2, 3], [4096, 1, 70_001], list(range(1, 60))):
            name = f"{dtype} {len(counts)} tensors"
            parts = [[data(dtype, count, rank, seed) for seed, count in enumerate(counts)] for rank in range(n)]
            sums = [expected([parts[rank][i] for rank in range(n)], "sum") for i in range(len(counts))]
            joined = [torch.cat([parts[rank][i] for rank in range(n)]) for i in range(len(counts))]
            wide = [[torch.cat([part] * n) for part in own] for own in parts]

            def on_device(own):
                return [tensor.to(place.device) for tensor in own]

            def compare(call, got, wanted):
                for number, (a, b) in enumerate(zip(got, wanted)):
                    checks.equal(f"{call} {name}, tensor {number}", a, b)

            mine = on_device(parts[me])
            dist.all_reduce_coalesced(mine)
            compare("all_reduce_coalesced", mine, sums)
            mine = on_device(parts[me])
            dist.all_reduce_coalesced(mine, async_op=True).wait()
            compare("all_reduce_coalesced async", mine, sums)
            for asynchronous in (False, True):
                mine = on_device(parts[me])
                managed(asynchronous, dist.all_reduce, zip(mine))
                compare("all_reduce in a manager", mine, sums)
                mine, got = on_device(parts[me]), [blank(place, count * n, dtype) for count in counts]
                managed(asynchronous, dist.all_gather_into_tensor, zip(got, mine))
                compare("all_gather_into_tensor in a manager", got, joined)
                mine, got = on_device(wide[me]), [blank(place, count, dtype) for count in counts]
                managed(asynchronous, dist.reduce_scatter_tensor, zip(got, mine))
                compare("reduce_scatter_tensor in a manager", got, sums)
    # With the device named, calls of different kinds go into one group of NCCL's.
    summed = torch.full((1000,), float(me), device=place.device)
    moved = torch.full((500,), float(me), device=place.device)
    reduced = torch.full((300,), float(me), device=place.device)
    with dist._coalescing_manager(device=place.device, async_ops=True) as manager:
        dist.broadcast(moved, n - 1, async_op=True)
        dist.reduce(reduced, 0, async_op=True)
        dist.all_reduce(summed, dist.ReduceOp.MAX, async_op=True)
    manager.wait()
    if me == 0:
        checks.equal("mixed: reduce", reduced, torch.full((300,), float(sum(range(n)))))
    checks.equal("mixed: broadcast", moved, torch.full((500,), float(n - 1)))
    checks.equal("mixed: all_reduce", summed, torch.full((1000,), float(n - 1)))


@chapter(90)
def asynchronous(place, checks):
    n, me = place.nranks, place.rank
    total = float(sum(range(1, n + 1)))
    for count in (100, LARGE):
        mine = torch.full((count,), float(me + 1), device=place.device)
        own = mine.clone()
        works = {"all_reduce": dist.all_reduce(mine, async_op=True)}
        sent = torch.full((count,), float(me), device=place.device)
        works["broadcast"] = dist.broadcast(sent, n - 1, async_op=True)
        gathered = blank(place, count * n)
        works["all_gather_into_tensor"] = dist.all_gather_into_tensor(gathered, own, async_op=True)
        piece = blank(place, count)
        works["reduce_scatter_tensor"] = dist.reduce_scatter_tensor(piece, own.repeat(n), async_op=True)
        exchanged = blank(place, count * n)
        works["all_to_all_single"] = dist.all_to_all_single(exchanged, own.repeat(n), async_op=True)
        reduced = own.clone()
        works["reduce"] = dist.reduce(reduced, 0, async_op=True)
        works["barrier"] = dist.barrier(async_op=True)
        for name, work in works.items():
            checks.true(f"wait for {name}", work.wait() is not False)
        place.synchronize()
        for name, work in works.items():
            checks.true(f"{name} is completed", work.is_completed() or not place.on_gpu)
        each = torch.arange(1, n + 1, dtype=torch.float32).repeat_interleave(count)
        checks.equal(f"all_reduce {count}", mine, torch.full((count,), total))
        checks.equal(f"broadcast {count}", sent, torch.full((count,), float(n - 1)))
        checks.equal(f"all_gather_into_tensor {count}", gathered, each)
        checks.equal(f"reduce_scatter_tensor {count}", piece, torch.full((count,), total))
        checks.equal(f"all_to_all_single {count}", exchanged, each)
        if me == 0:
            checks.equal(f"reduce {count}", reduced, torch.full((count,), total))
    # A future and what follows it.
    mine = torch.full((1000,), float(me + 1), device=place.device)
    future = dist.all_reduce(mine, async_op=True).get_future().then(lambda done: done.value()[0] * 2)
    checks.equal("future", future.wait(), torch.full((1000,), total * 2))
    # A hundred in flight, waited for backwards.
    tensors = [torch.full((1 + number,), float(me + number), device=place.device) for number in range(100)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in reversed(works):
        work.wait()
    for number, tensor in enumerate(tensors):
        checks.equal(f"in flight {number}", tensor, torch.full((1 + number,), float(sum(range(n)) + number * n)))


@chapter(60)
def complex_numbers(place, checks):
    n, me = place.nranks, place.rank
    for dtype in (torch.complex64, torch.complex128):
        real = torch.float32 if dtype == torch.complex64 else torch.float64
        count = 321
        parts = [torch.complex(data(torch.float32, count * n, r, 1).to(real), data(torch.float32, count * n, r, 2).to(real)) for r in range(n)]
        mine = parts[me].to(place.device)
        tensor = mine.clone()
        dist.all_reduce(tensor)
        checks.equal(f"all_reduce {dtype}", tensor, torch.stack(parts).sum(0))
        tensor = mine.clone()
        dist.broadcast(tensor, n - 1)
        checks.equal(f"broadcast {dtype}", tensor, parts[-1])
        flat = torch.zeros(count * n * n, dtype=dtype, device=place.device)
        dist.all_gather_into_tensor(flat, mine)
        checks.equal(f"all_gather_into_tensor {dtype}", flat, torch.cat(parts))
        lanes = [torch.zeros(count * n, dtype=dtype, device=place.device) for _ in range(n)]
        dist.all_gather(lanes, mine)
        checks.equal(f"all_gather {dtype}", torch.cat(lanes), torch.cat(parts))
        got = torch.zeros(count * n, dtype=dtype, device=place.device)
        dist.all_to_all_single(got, mine)
        checks.equal(f"all_to_all_single {dtype}", got, torch.cat([part.split(count)[me] for part in parts]))
        if place.on_gpu:
            # PyTorch views complex numbers as real ones in the call for tensors, and not in the one for lists.
            piece = torch.zeros(count, dtype=dtype, device=place.device)
            checks.raises(f"reduce_scatter {dtype}", lambda: dist.reduce_scatter(piece, list(mine.split(count))))
        tensor = mine.clone()
        checks.raises(f"all_reduce max {dtype}", lambda: dist.all_reduce(tensor, dist.ReduceOp.MAX))


@chapter(60, backends=("nccl",))
def streams(place, checks):
    """Calls from several streams of the program; each result is used on its own stream."""
    n, me = place.nranks, place.rank
    pool = [torch.cuda.Stream() for _ in range(4)]
    tensors, results = [], []
    for number in range(40):
        with torch.cuda.stream(pool[number % len(pool)]):
            tensor = torch.full((1 + 1013 * number,), float(number + me), device=place.device)
            dist.all_reduce(tensor)
            results.append(tensor * 3 + 1)
            tensors.append(tensor)
    torch.cuda.synchronize()
    for number, result in enumerate(results):
        total = float(sum(range(n)) + number * n) * 3 + 1
        checks.equal(f"stream {number % len(pool)}, call {number}", result, torch.full((1 + 1013 * number,), total))
    # Pending work before the call, and after it without a wait of the host.
    big = torch.zeros(1 << 22, device=place.device)
    for number in range(10):
        big.add_(1)
        dist.all_reduce(big, dist.ReduceOp.MAX)
        big.mul_(2)
    wanted = 0.0
    for number in range(10):
        wanted = (wanted + 1) * 2
    checks.equal("kernels around the calls", big, torch.full((1 << 22,), wanted))


CHAPTERS = [all_reduce, scaled_sums, reduce_and_broadcast, all_gather, reduce_scatter, all_to_all, gather_and_scatter, send_and_receive,
            batches, objects, barriers, coalesced, asynchronous, complex_numbers, streams]
