"""all_reduce, broadcast, send and recv of every type through PyTorch, checked bit by bit against the host.

    LD_PRELOAD=.../libnccl.so.2 python3 torch_collectives.py --ranks 4
"""

import torch
import torch.distributed as dist

import ranks
from served import served_by

TYPES = [torch.int8, torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.bool,
         torch.float8_e4m3fn, torch.float8_e5m2]
OPERATIONS = {"sum": dist.ReduceOp.SUM, "product": dist.ReduceOp.PRODUCT, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN,
              "avg": dist.ReduceOp.AVG}
COUNTS = [1, 15, 16, 17, 255, 256, 257, 4099, 65537, 1 << 20]


def data(dtype, count, rank, seed):
    generator = torch.Generator().manual_seed(seed * 131 + rank)
    if dtype == torch.bool:
        return torch.randint(0, 2, (count,), generator=generator).bool()
    # Small integers: sums and products of a few ranks are exact in every type.
    values = torch.randint(-2, 3, (count,), generator=generator)
    if dtype == torch.uint8:
        values = values.abs()
    return values.to(torch.float32).to(dtype) if dtype.is_floating_point else values.to(dtype)


def expected(parts, operation):
    wide = [part.to(torch.float64) if part.dtype.is_floating_point else part.to(torch.int64) for part in parts]
    result = wide[0].clone()
    for part in wide[1:]:
        if operation == "product":
            result *= part
        elif operation == "max":
            result = torch.maximum(result, part)
        elif operation == "min":
            result = torch.minimum(result, part)
        else:
            result += part
    if operation == "avg":
        if parts[0].dtype.is_floating_point:
            result /= len(parts)
        else:
            result = torch.div(result, len(parts), rounding_mode="trunc")
    if parts[0].dtype == torch.bool:
        return result != 0
    return result.to(torch.float32).to(parts[0].dtype) if parts[0].dtype.is_floating_point else result.to(parts[0].dtype)


def same(got, wanted):
    width = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[got.element_size()]
    if got.dtype.is_floating_point:
        # Zero has two bit patterns; everything else is compared by its bits.
        zero = (got.float() == 0) & (wanted.float() == 0)
        return bool(((got.view(width) == wanted.view(width)) | zero).all())
    return torch.equal(got, wanted)


def body(rank, nranks, device, _):
    checks = wrong = 0
    failures = []

    def check(what, got, wanted):
        nonlocal checks, wrong
        checks += 1
        if not same(got.cpu(), wanted):
            wrong += 1
            failures.append(what)

    for dtype in TYPES:
        for number, count in enumerate(COUNTS):
            parts = [data(dtype, count, r, number) for r in range(nranks)]
            for name, operation in OPERATIONS.items():
                if dtype == torch.bool and name in ("avg", "product"):
                    continue
                if dtype in (torch.float8_e4m3fn, torch.float8_e5m2) and name == "avg" and nranks & (nranks - 1):
                    continue
                tensor = parts[rank].to(device)
                dist.all_reduce(tensor, operation)
                check(f"all_reduce {dtype} {name} {count}", tensor, expected(parts, name))
            for root in range(nranks):
                tensor = parts[rank].to(device)
                dist.broadcast(tensor, root)
                check(f"broadcast {dtype} {count} from {root}", tensor, parts[root])
            tensor = torch.zeros_like(parts[rank], device=device)
            to, source = (rank + 1) % nranks, (rank - 1) % nranks
            mine = parts[rank].to(device)
            if rank % 2 == 0:
                dist.send(mine, to)
                dist.recv(tensor, source)
            else:
                dist.recv(tensor, source)
                dist.send(mine, to)
            check(f"send/recv {dtype} {count}", tensor, parts[source])
    # A captured all-reduce, replayed with new data.
    static = torch.zeros(100_003, device=device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dist.all_reduce(static)
    for step in range(20):
        static.fill_(step + rank)
        graph.replay()
        check(f"graph replay {step}", static, torch.full((100_003,), float(step * nranks + sum(range(nranks)))))
    torch.cuda.synchronize()
    return checks, wrong, failures[:10], served_by()


if __name__ == "__main__":
    options = ranks.parser(__doc__.splitlines()[0]).parse_args()
    results = ranks.run(body, options.ranks)
    for failure in {failure for result in results for failure in result[2]}:
        print("wrong:", failure)
    print(results[0][3])
    total, bad = sum(r[0] for r in results), sum(r[1] for r in results)
    print(f"{options.ranks} ranks, {torch.cuda.device_count()} GPUs: {total} checks, {bad} wrong")
    raise SystemExit(bad != 0)
