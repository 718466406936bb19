"""Chapters of torch_distributed.py: groups and how they come and go, CUDA graphs, memory pools, and what is built on the calls."""

import os
import time

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import nccl_allocator
from chapters import chapter
from distributed_calls import blank, inputs, values
from torch_collectives import expected


def works(place, checks, what, group=None, members=None, seed=1):
    """One round of calls on a group that must be right; `members` are its ranks in the world."""
    members = list(range(place.nranks)) if members is None else members
    if place.rank not in members:
        return
    size, own = len(members), members.index(place.rank)
    parts = [values(place, 1009, rank, seed) for rank in members]
    mine = parts[own].clone().to(place.device)
    dist.all_reduce(mine, group=group)
    checks.equal(f"{what}: all_reduce", mine, expected(parts, "sum"))
    mine = parts[own].clone().to(place.device)
    dist.broadcast(mine, members[-1], group=group)
    checks.equal(f"{what}: broadcast", mine, parts[-1])
    flat = blank(place, 1009 * size)
    dist.all_gather_into_tensor(flat, parts[own].to(place.device), group=group)
    checks.equal(f"{what}: all_gather_into_tensor", flat, torch.cat(parts))
    if size > 1:
        got = blank(place, 77)
        following, before = members[(own + 1) % size], members[(own - 1) % size]
        operations = [dist.P2POp(dist.isend, torch.full((77,), float(place.rank), device=place.device), following, group),
                      dist.P2POp(dist.irecv, got, before, group)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        checks.equal(f"{what}: ring", got, torch.full((77,), float(before)))


def _kinds_of_groups(place, checks, name):
    n, me = place.nranks, place.rank
    everyone = list(range(n))
    works(place, checks, f"{name}, the world")
    works(place, checks, f"{name}, the world again", dist.new_group(), everyone)
    # Overlapping: every pair of neighbours; used in order, then in turns.
    pairs = [sorted({rank, (rank + 1) % n}) for rank in range(n)]
    groups = [dist.new_group(pair) for pair in pairs]
    for round_ in range(2):
        for pair, group in zip(pairs, groups):
            works(place, checks, f"{name}, neighbours {pair}", group, pair, seed=round_)
        works(place, checks, f"{name}, the world between")
    for rank in everyone:
        works(place, checks, f"{name}, rank {rank} alone", dist.new_group([rank]), [rank])
    halves = [everyone[:(n + 1) // 2], everyone[(n + 1) // 2:]]
    for half in halves:
        group = dist.new_group(half) if half else None
        if half:
            works(place, checks, f"{name}, half {half}", group, half)
            if me in half:
                dist.destroy_process_group(group)
    subgroup, _ = dist.new_subgroups(group_size=n)
    works(place, checks, f"{name}, new_subgroups", subgroup, everyone)
    subgroup, _ = dist.new_subgroups_by_enumeration([[rank] for rank in everyone])
    works(place, checks, f"{name}, new_subgroups_by_enumeration", subgroup, [me])
    host = dist.new_group(backend="gloo")
    tensor = torch.tensor([me + 1])
    dist.all_reduce(tensor, group=host)
    checks.equal(f"{name}, gloo beside it", tensor, torch.tensor([n * (n + 1) // 2]))


@chapter(120)
def groups_eager(place, checks):
    """The default group is bound to the device: new groups come about at once, by a split where possible."""
    _kinds_of_groups(place, checks, "eager")
    if place.on_gpu:
        backend = dist.group.WORLD._get_backend(place.device)
        checks.note(f"ncclCommSplit was called {backend.comm_split_count()} times for the world's groups")
        checks.true("groups of a bound world are splits", backend.comm_split_count() > 0)


@chapter(120)
def groups_lazy(place, checks):
    """No device is bound: a communicator comes about with the group's first call."""
    dist.destroy_process_group()
    place.join(eager=False)
    _kinds_of_groups(place, checks, "lazy")
    # Bound for one group alone.
    if place.on_gpu:
        group = dist.new_group(device_id=place.device)
        works(place, checks, "eager group of a lazy world", group)
    dist.destroy_process_group()
    place.join()
    works(place, checks, "the next world")


@chapter(120, backends=("nccl",))
def splits(place, checks):
    n, me = place.nranks, place.rank
    everyone = list(range(n))
    # A split while the parent has work in flight.
    pending = torch.full((1 << 21,), float(me), device=place.device)
    work = dist.all_reduce(pending, async_op=True)
    halves = [half for half in (everyone[:(n + 1) // 2], everyone[(n + 1) // 2:]) if half]
    own = next(half for half in halves if me in half)
    child = dist.split_group(split_ranks=halves)
    work.wait()
    checks.equal("the parent's work", pending, torch.full((1 << 21,), float(sum(everyone))))
    works(place, checks, f"split {own}", child, own)
    # A split of the split, one that leaves ranks out, many one after the other.
    single = dist.split_group(child, [[rank] for rank in range(len(own))])
    works(place, checks, "split of the split", single, [me])
    first = dist.split_group(split_ranks=[[0]])
    checks.true("ranks left out get no group", (first is not None) == (me == 0))
    works(place, checks, "split of rank 0 alone", first, [0])
    for number in range(10):
        whole = dist.split_group(split_ranks=[everyone])
        works(place, checks, f"split number {number}", whole, everyone, seed=number)
        dist.destroy_process_group(whole)
    works(place, checks, "the parent after its splits")
    works(place, checks, "the first split, at the end", child, own)
    mesh = init_device_mesh("cuda", (1, n), mesh_dim_names=("replicas", "shards"))
    works(place, checks, "a dimension of a mesh", mesh.get_group("shards"), everyone)
    works(place, checks, "the other dimension", mesh.get_group("replicas"), [me])
    if n % 2 == 0 and n > 2:
        mesh = init_device_mesh("cuda", (2, n // 2), mesh_dim_names=("a", "b"))
        for name, members in (("a", [me % (n // 2), me % (n // 2) + n // 2]), ("b", everyone[me // (n // 2) * (n // 2):][:n // 2])):
            works(place, checks, f"mesh of 2 x {n // 2}, {name}", mesh.get_group(name), members)


@chapter(90, backends=("nccl",))
def options(place, checks):
    """Settings of a group that reach ncclConfig_t."""
    for priority in (False, True):
        for least, most in ((1, 1), (2, 4), (1, 32)):
            settings = dist.ProcessGroupNCCL.Options(is_high_priority_stream=priority)
            settings.config.min_ctas, settings.config.max_ctas = least, most
            settings.config.cga_cluster_size = 2
            works(place, checks, f"ctas {least} to {most}, high priority {priority}", dist.new_group(pg_options=settings))


def _steps(place):
    """The calls to be captured: name, its buffers, the call, and what must be there after a replay with the given inputs."""
    n, me, count = place.nranks, place.rank, 4099
    following, before = (me + 1) % n, (me - 1) % n

    def split(flat):
        return list(flat.split(count))

    def ring(a, b):
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, a, following), dist.P2POp(dist.irecv, b, before)]):
            work.wait()

    def coalesced(a, b):
        b.copy_(a)
        with dist._coalescing_manager():
            for tensor in b.split(1000):
                dist.all_reduce(tensor)

    def moved(call):
        return lambda a, b: (b.copy_(a), call(b))

    def pieces(parts):
        return [torch.stack(column) for column in zip(*(part.split(count) for part in parts))]

    yield "all_reduce", count, count, moved(dist.all_reduce), lambda parts: sum(parts)
    yield "all_reduce max", count, count, moved(lambda b: dist.all_reduce(b, dist.ReduceOp.MAX)), lambda parts: torch.stack(parts).amax(0)
    yield "all_reduce scaled", count, count, moved(lambda b: dist.all_reduce(b, dist._make_nccl_premul_sum(2.0))), lambda p: 2 * sum(p)
    yield "broadcast", count, count, moved(lambda b: dist.broadcast(b, n - 1)), lambda parts: parts[-1]
    yield "reduce", count, count, moved(lambda b: dist.reduce(b, 0)), lambda parts: sum(parts) if me == 0 else None
    yield "all_gather_into_tensor", count, count * n, lambda a, b: dist.all_gather_into_tensor(b, a), torch.cat
    yield "all_gather", count, count * n, lambda a, b: dist.all_gather(split(b), a), torch.cat
    yield "reduce_scatter_tensor", count * n, count, lambda a, b: dist.reduce_scatter_tensor(b, a), lambda parts: pieces(parts)[me].sum(0)
    yield "reduce_scatter", count * n, count, lambda a, b: dist.reduce_scatter(b, split(a)), lambda parts: pieces(parts)[me].sum(0)
    yield "all_to_all_single", count * n, count * n, lambda a, b: dist.all_to_all_single(b, a), lambda p: pieces(p)[me].flatten()
    yield "all_to_all", count * n, count * n, lambda a, b: dist.all_to_all(split(b), split(a)), lambda p: pieces(p)[me].flatten()
    yield ("gather", count, count * n, lambda a, b: dist.gather(a, split(b) if me == 0 else None, 0),
           lambda parts: torch.cat(parts) if me == 0 else None)
    yield ("scatter", count * n, count, lambda a, b: dist.scatter(b, split(a) if me == 0 else None, 0),
           lambda parts: parts[0].split(count)[me])
    yield "ring", count, count, ring, lambda parts: parts[before]
    yield "coalesced", count, count, coalesced, lambda parts: sum(parts)


def _data(place, count, seed):
    return [values(place, count, rank, seed) for rank in range(place.nranks)]


@chapter(180, backends=("nccl",))
def graphs(place, checks):
    """Every call in a CUDA graph of its own, then all in one; replayed with new data, with eager calls between."""
    kept = []
    for name, incoming, outgoing, call, wanted in _steps(place):
        a, b = torch.zeros(incoming, device=place.device), torch.zeros(outgoing, device=place.device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            call(a, b)
        kept.append((name, graph, a, b, incoming, wanted))
        for seed in range(5):
            parts = _data(place, incoming, seed)
            a.copy_(parts[place.rank])
            b.fill_(-7)
            graph.replay()
            if (result := wanted(parts)) is not None:
                checks.equal(f"{name}, replay {seed}", b, result)
        works(place, checks, f"eager after {name}")
    # All of them again, the other way round, without a wait of the host between.
    rounds = [_data(place, incoming, 50) for _, _, _, _, incoming, _ in kept]
    for (name, graph, a, b, _, _), parts in reversed(list(zip(kept, rounds))):
        a.copy_(parts[place.rank])
        graph.replay()
    for (name, _, _, b, _, wanted), parts in zip(kept, rounds):
        if (result := wanted(parts)) is not None:
            checks.equal(f"{name}, all graphs in turn", b, result)
    steps = list(_steps(place))
    buffers = [(torch.zeros(step[1], device=place.device), torch.zeros(step[2], device=place.device)) for step in steps]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for (_, _, _, call, _), (a, b) in zip(steps, buffers):
            call(a, b)
    for seed in range(3):
        rounds = [_data(place, step[1], 100 + seed) for step in steps]
        for parts, (a, b) in zip(rounds, buffers):
            a.copy_(parts[place.rank])
        graph.replay()
        for (name, _, _, _, wanted), parts, (a, b) in zip(steps, rounds, buffers):
            if (result := wanted(parts)) is not None:
                checks.equal(f"{name} in one graph, replay {seed}", b, result)
    # Several streams joined by events, async calls, kernels around them.
    side = torch.cuda.Stream()
    x, y = torch.zeros(5000, device=place.device), torch.zeros(5000, device=place.device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            doubled = y * 2
            work = dist.all_reduce(doubled, async_op=True)
            work.wait()
        summed = x + 1
        dist.all_reduce(summed)
        torch.cuda.current_stream().wait_stream(side)
        result = doubled + summed
    for seed in range(5):
        first, second = _data(place, 5000, seed), _data(place, 5000, seed + 20)
        x.copy_(first[place.rank])
        y.copy_(second[place.rank])
        graph.replay()
        checks.equal(f"two streams, replay {seed}", result, sum(first) + place.nranks + 2 * sum(second))
    # The first call of a group is in the graph.
    fresh = dist.new_group()
    tensor = torch.zeros(3000, device=place.device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        dist.all_reduce(tensor, group=fresh)
    for seed in range(3):
        parts = _data(place, 3000, seed)
        tensor.copy_(parts[place.rank])
        graph.replay()
        checks.equal(f"a group's first call in a graph, replay {seed}", tensor, sum(parts))


@chapter(90, backends=("nccl",))
def memory_pools(place, checks):
    """Tensors on ncclMemAlloc, registered with the group and not, eager and in a graph.

    The allocator is one of our own: that of PyTorch's backend asks for multicast, which is switched off here.
    """
    n, me = place.nranks, place.rank
    backend = dist.group.WORLD._get_backend(place.device)
    allocator = nccl_allocator.build()
    for registered in (False, True):
        pool = torch.cuda.MemPool(allocator.allocator())
        with torch.cuda.use_mem_pool(pool):
            tensors = [torch.zeros(count, device=place.device) for count in (5, 4099, 1 << 20, (1 << 22) + 1)]
            flat = torch.zeros(70_001 * n, device=place.device)
        torch.cuda.synchronize()
        if registered:
            backend.register_mem_pool(pool)
        name = "registered" if registered else "not registered"
        for tensor in tensors:
            parts = [values(place, tensor.numel(), rank, 3) for rank in range(n)]
            tensor.copy_(parts[me])
            dist.all_reduce(tensor)
            checks.equal(f"{name}: all_reduce {tensor.numel()}", tensor, expected(parts, "sum"))
        parts = [values(place, 70_001, rank, 4) for rank in range(n)]
        dist.all_gather_into_tensor(flat, parts[me].to(place.device))
        checks.equal(f"{name}: all_gather_into_tensor", flat, torch.cat(parts))
        static = tensors[1]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            dist.all_reduce(static)
        for seed in range(3):
            parts = [values(place, static.numel(), rank, seed) for rank in range(n)]
            static.copy_(parts[me])
            graph.replay()
            checks.equal(f"{name}: graph replay {seed}", static, expected(parts, "sum"))
        del graph
        torch.cuda.synchronize()
        if registered:
            backend.deregister_mem_pool(pool)
        del tensors, flat, static, tensor
        del pool
        works(place, checks, f"after the pool ({name})")


@chapter(180)
def lifetimes(place, checks):
    """The process group destroyed and made anew, bound to the device and not, with subgroups and with work in flight."""
    for number in range(6):
        group = dist.new_group()
        works(place, checks, f"life {number}", group)
        dist.all_reduce(torch.ones(1 << 20, device=place.device), async_op=True).wait()
        dist.destroy_process_group()
        place.join(eager=number % 2 == 0)
        works(place, checks, f"life {number + 1}")
    dist.destroy_process_group()
    place.join()


@chapter(120, backends=("nccl",))
def aborts(place, checks):
    """A receive that nobody serves ends by abort; then a new group works."""
    # As PyTorch asks: its watchdog would act on the abort too.
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
    dist.destroy_process_group()
    place.join()
    for number in range(2):
        works(place, checks, f"before abort {number}")
        if place.nranks > 1:
            # Every rank waits for one that does not send.
            pending = torch.zeros(1000, device=place.device)
            dist.batch_isend_irecv([dist.P2POp(dist.irecv, pending, (place.rank + 1) % place.nranks)])
            # No rank aborts before all have come so far.
            store = dist.distributed_c10d._get_default_store()
            store.add(f"waiting {number}", 1)
            while store.add(f"waiting {number}", 0) < place.nranks:
                time.sleep(0.01)
        dist.distributed_c10d._abort_process_group()
        torch.cuda.synchronize()
        checks.true(f"the device is idle after abort {number}", True)
        place.join()
        works(place, checks, f"after abort {number}")
    group = dist.new_group()
    works(place, checks, "a group to be aborted", group)
    dist.distributed_c10d._abort_process_group(group)
    works(place, checks, "the world after a group's abort")
    del os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"]


@chapter(90)
def functional_calls(place, checks):
    n, me = place.nranks, place.rank
    group = dist.group.WORLD
    parts, mine = inputs(place, torch.float32, 600, 1)
    checks.equal("all_reduce", functional.wait_tensor(functional.all_reduce(mine, "sum", group)), expected(parts, "sum"))
    checks.equal("all_reduce max", functional.wait_tensor(functional.all_reduce(mine, "max", group)), expected(parts, "max"))
    checks.equal("input left alone", mine, parts[me])
    checks.equal("broadcast", functional.wait_tensor(functional.broadcast(mine, n - 1, group)), parts[-1])
    for dimension in (0, 1):
        matrices = [part.view(20, 30) for part in parts]
        got = functional.wait_tensor(functional.all_gather_tensor(mine.view(20, 30), dimension, group))
        checks.equal(f"all_gather_tensor along {dimension}", got, torch.cat(matrices, dimension))
        wide = torch.cat([mine.view(20, 30)] * n, dimension)
        got = functional.wait_tensor(functional.reduce_scatter_tensor(wide, "sum", dimension, group))
        checks.equal(f"reduce_scatter_tensor along {dimension}", got, sum(matrices))
    wide = torch.cat([mine + rank for rank in range(n)])
    got = functional.wait_tensor(functional.all_to_all_single(wide, None, None, group))
    checks.equal("all_to_all_single", got, torch.cat([part + me for part in parts]))
    sizes = [[1 + (source + 2 * target) % 3 for target in range(n)] for source in range(n)]
    incoming = [sizes[source][me] for source in range(n)]
    got = functional.all_to_all_single(torch.full((sum(sizes[me]),), float(me), device=place.device), incoming, sizes[me], group)
    wanted = torch.cat([torch.full((size,), float(source)) for source, size in enumerate(incoming)])
    checks.equal("all_to_all_single uneven", functional.wait_tensor(got), wanted)
    got = functional.wait_tensor(functional.permute_tensor(mine, [(rank + 1) % n for rank in range(n)], group))
    checks.equal("permute_tensor", got, parts[(me - 1) % n])
    if place.on_gpu:
        several = [mine[:100].clone(), mine[100:].clone()]
        split = [(part[:100], part[100:]) for part in parts]
        for number, got in enumerate(functional.all_reduce_coalesced(several, "sum", group)):
            checks.equal(f"all_reduce_coalesced {number}", functional.wait_tensor(got), sum(s[number] for s in split))
        for number, got in enumerate(functional.all_gather_into_tensor_coalesced(several, group)):
            checks.equal(f"all_gather_into_tensor_coalesced {number}", functional.wait_tensor(got), torch.cat([s[number] for s in split]))
        wide = [torch.cat([tensor] * n) for tensor in several]
        for number, got in enumerate(functional.reduce_scatter_tensor_coalesced(wide, "sum", [0, 0], group)):
            checks.equal(f"reduce_scatter_tensor_coalesced {number}", functional.wait_tensor(got), sum(s[number] for s in split))
    # Gradients through the calls.
    x = mine.clone().requires_grad_()
    y = functional.wait_tensor(functional.all_gather_tensor_autograd(x, 0, group))
    (y * torch.arange(600 * n, device=place.device)).sum().backward()
    weights = torch.arange(600 * n, dtype=torch.float32).split(600)[me]
    checks.equal("all_gather_tensor_autograd", x.grad, weights * n)


@chapter(120)
def dtensors(place, checks):
    n, me = place.nranks, place.rank
    mesh = init_device_mesh(place.device.type, (n,))
    for shape in ((8 * n, 6), (4 * n + 1, 3 * n + 2), (1, 7)):
        whole = torch.arange(shape[0] * shape[1], dtype=torch.float32, device=place.device).view(shape)
        for source in (Replicate(), Shard(0), Shard(1)):
            tensor = distribute_tensor(whole, mesh, [source])
            for target in (Replicate(), Shard(0), Shard(1)):
                moved = tensor.redistribute(mesh, [target])
                name = f"{shape} {source} to {target}"
                checks.equal(name, moved.full_tensor(), whole)
                local = whole if target.is_replicate() else None
                if target.is_shard():
                    pieces = whole.chunk(n, target.dim)
                    local = pieces[me] if me < len(pieces) else whole.narrow(target.dim, 0, 0)
                checks.equal(f"{name}, the local part", moved.to_local(), local)
        partial = DTensor.from_local(whole + me, mesh, [Partial()], run_check=False)
        wanted = whole * n + sum(range(n))
        for target in (Replicate(), Shard(0), Shard(1)):
            checks.equal(f"{shape} partial to {target}", partial.redistribute(mesh, [target]).full_tensor(), wanted)
    generator = torch.Generator().manual_seed(5)
    a, b = (torch.randint(-3, 4, (12 * n, 12 * n), generator=generator).float().to(place.device) for _ in range(2))
    for left in (Replicate(), Shard(0), Shard(1)):
        for right in (Replicate(), Shard(0), Shard(1)):
            product = distribute_tensor(a, mesh, [left]) @ distribute_tensor(b, mesh, [right])
            checks.equal(f"product of {left} and {right}", product.full_tensor(), (a.cpu().double() @ b.cpu().double()).float())


@chapter(120, backends=("nccl",))
def many_groups(place, checks):
    """Thirty communicators alive at once, used in turns and from several streams."""
    n, me = place.nranks, place.rank
    groups = [dist.new_group() for _ in range(30)]
    for round_ in range(3):
        tensors = [torch.full((100 + 31 * number,), float(me + number + round_), device=place.device) for number in range(len(groups))]
        pending = [dist.all_reduce(tensor, group=group, async_op=True) for tensor, group in zip(tensors, groups)]
        for work in pending:
            work.wait()
        for number, tensor in enumerate(tensors):
            wanted = torch.full((100 + 31 * number,), float(sum(range(n)) + n * (number + round_)))
            checks.equal(f"group {number}, round {round_}", tensor, wanted)
    for group in groups:
        dist.destroy_process_group(group)
    works(place, checks, "the world afterwards")


# The splits come before anything ends the world: PyTorch 2.11's split_group crashes in a world that is not the process's first.
CHAPTERS = [groups_eager, splits, groups_lazy, options, graphs, memory_pools, functional_calls, dtensors, many_groups, lifetimes, aborts]
