"""GPU memory per rank and start-up time: after init, after a small and after a 64 MB all-reduce, for 1 and for 20 communicators.

    LD_PRELOAD=.../libnccl.so.2 python3 memory.py --ranks 2

Memory is what the driver reports as used on the device, less what was used before; ranks that share a device share the figure.
"""

import time

import torch
import torch.distributed as dist

import ranks

FURTHER = 19


def body(rank, nranks, device, _):
    sharing = max(1, nranks // torch.cuda.device_count())
    gloo = dist.new_group(backend="gloo")

    def used():
        torch.cuda.synchronize()
        dist.barrier(gloo)
        free, total = torch.cuda.mem_get_info()
        dist.barrier(gloo)
        return total - free

    small = torch.ones(1024, device=device)
    large = torch.ones(16 << 20, device=device)
    start = used()
    rows = []
    begin = time.perf_counter()
    group = dist.new_group(backend="nccl", device_id=device)
    rows.append(("first communicator: after init", used() - start))
    init_done = time.perf_counter()
    dist.all_reduce(small, group=group)
    torch.cuda.synchronize()
    first = time.perf_counter() - begin
    rows.append(("after a 4 KB all-reduce", used() - start))
    dist.all_reduce(large, group=group)
    rows.append(("after a 64 MB all-reduce", used() - start))
    before = used()
    groups = []
    for _ in range(FURTHER):
        further = dist.new_group(backend="nccl", device_id=device)
        dist.all_reduce(small, group=further)
        groups.append(further)
    rows.append((f"each of {FURTHER} further communicators, small messages", (used() - before) / FURTHER))
    return [(name, value / sharing / 2**20) for name, value in rows], first, init_done - begin, ranks.served_by()


if __name__ == "__main__":
    options = ranks.parser(__doc__.splitlines()[0]).parse_args()
    results = ranks.run(body, options.ranks, "gloo")
    print(results[0][3])
    for name, mebibytes in results[0][0]:
        print(f"{name}: {mebibytes:.1f} MiB per rank")
    worst = max(result[1] for result in results)
    print(f"from the start of init to the end of the first all-reduce: {worst * 1e3:.0f} ms (init alone {max(r[2] for r in results) * 1e3:.0f} ms)")
