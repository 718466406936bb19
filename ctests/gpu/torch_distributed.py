"""Every call of torch.distributed on the nccl backend: each result checked bit by bit, in chapters of which none costs the others.

    LD_PRELOAD=.../libnccl.so.2 python3 torch_distributed.py --ranks 2 [--only all_reduce graphs]

Exit code 1 when a result was wrong, a call raised or a chapter ran into its time limit.
"""

import chapters
import distributed_calls
import distributed_groups

if __name__ == "__main__":
    chapters.main(__doc__, distributed_calls.CHAPTERS + distributed_groups.CHAPTERS)
