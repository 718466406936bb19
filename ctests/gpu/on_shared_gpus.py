"""Runs a torchrun program whose ranks take GPU LOCAL_RANK on a machine with fewer GPUs than ranks: they share those that are there.

    NCCL_MULTI_RANK_GPU_ENABLE=1 LD_PRELOAD=.../libnccl.so.2 torchrun --nproc-per-node 4 on_shared_gpus.py program.py [arguments]
"""

import os
import runpy
import sys

import torch

if __name__ == "__main__":
    os.environ["LOCAL_RANK"] = str(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    sys.argv = sys.argv[1:]
    # Beside the program, as python would have it.
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")
