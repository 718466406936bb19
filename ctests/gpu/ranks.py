"""Starts the ranks of a PyTorch check as processes that share the GPUs at hand."""

import argparse
import os
import sys
import tempfile
import traceback

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def _rank(rank, nranks, backend, store, body, arguments, results):
    try:
        torch.cuda.set_device(rank % torch.cuda.device_count())
        device = torch.device("cuda", torch.cuda.current_device())
        options = {"device_id": device} if backend == "nccl" else {}
        dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=nranks, **options)
        results[rank] = body(rank, nranks, device, arguments)
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:
        traceback.print_exc()
        sys.stdout.flush()
        os._exit(1)


def environment():
    """What the ranks need, before the first of them starts."""
    os.environ.setdefault("NCCL_MULTI_RANK_GPU_ENABLE", "1")
    # Ranks that share a GPU: a kernel that is first launched while another spins would wait for it.
    os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")
    # No NVLink multicast, whichever library serves.
    os.environ["NCCL_NVLS_ENABLE"] = "0"
    os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"


def run(body, nranks, backend="nccl", arguments=None):
    """Runs `body(rank, nranks, device, arguments)` on every rank; what it returns, in rank order. A failing rank ends the program."""
    environment()
    with tempfile.TemporaryDirectory() as folder, mp.Manager() as manager:
        results = manager.dict()
        store = os.path.join(folder, "store")
        mp.spawn(_rank, (nranks, backend, store, body, arguments, results), nprocs=nranks)
        return [results[rank] for rank in range(nranks)]


def parser(text):
    options = argparse.ArgumentParser(description=text)
    options.add_argument("--ranks", type=int, default=2)
    return options
