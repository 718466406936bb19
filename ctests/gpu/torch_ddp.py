"""DDP training of a small transformer for 50 steps in fp32, on NCCL's backend and on gloo: losses and parameters compared bit by bit.

    LD_PRELOAD=.../libnccl.so.2 python3 torch_ddp.py --ranks 2

With two ranks the sums are the same whatever the order, so every bit must agree; with more ranks gloo adds in another order, and the
largest relative difference is reported against --bound. The last run has the whole step in a CUDA graph.
"""

import os

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"

import torch
from torch.nn.parallel import DistributedDataParallel

import ranks
from served import served_by

STEPS = 50
WARM_UP = 11


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(512, 128)
        layer = torch.nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True)
        self.encoder = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = torch.nn.Linear(128, 512)

    def forward(self, tokens):
        return self.head(self.encoder(self.embedding(tokens)))


def body(rank, nranks, device, in_graph):
    torch.use_deterministic_algorithms(True)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.manual_seed(7)
    stream = torch.cuda.Stream()
    generator = torch.Generator().manual_seed(1000 + rank)
    batches = [torch.randint(0, 512, (8, 33), generator=generator) for _ in range(STEPS)]
    tokens = torch.zeros((8, 33), dtype=torch.int64, device=device)
    loss_of_step = torch.zeros((), device=device)
    losses = []
    with torch.cuda.stream(stream):
        model = DistributedDataParallel(Model().to(device), device_ids=[device.index])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

        def step():
            optimizer.zero_grad(set_to_none=False)
            logits = model(tokens[:, :-1])
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            loss_of_step.copy_(loss.detach())

        graph = None
        for number, batch in enumerate(batches):
            tokens.copy_(batch)
            if in_graph and number == WARM_UP:
                torch.cuda.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                    step()
            graph.replay() if graph else step()
            losses.append(loss_of_step.item())
        torch.cuda.synchronize()
        parameters = torch.cat([p.detach().flatten() for p in model.module.parameters()]).cpu()
    return losses, parameters.numpy(), served_by() if rank == 0 else None


def compare(name, runs, reference, nranks, bound):
    worst = 0.0
    equal = True
    for (losses, parameters, _), (other_losses, other_parameters, _) in zip(runs, reference):
        equal &= losses == other_losses and (parameters == other_parameters).all()
        difference = abs(parameters - other_parameters).max() / abs(other_parameters).max()
        worst = max(worst, float(difference), max(abs(a - b) / abs(b) for a, b in zip(losses, other_losses)))
    good = equal if nranks == 2 else worst <= bound
    print(f"{name}: {'bitwise equal' if equal else f'largest relative difference {worst:.3g}'}: {'ok' if good else 'WRONG'}")
    return good


if __name__ == "__main__":
    parser = ranks.parser(__doc__.splitlines()[0])
    parser.add_argument("--bound", type=float, default=1e-4, help="largest relative difference with more than two ranks")
    options = parser.parse_args()
    # DDP's Python watchdog must not touch the stream while it is captured.
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
    reference = ranks.run(body, options.ranks, "gloo", False)
    eager = ranks.run(body, options.ranks, "nccl", False)
    graph = ranks.run(body, options.ranks, "nccl", True)
    print(eager[0][2])
    print(f"{options.ranks} ranks: loss {eager[0][0][0]:.6f} -> {eager[0][0][-1]:.6f} (gloo {reference[0][0][-1]:.6f})")
    good = compare("eager against gloo", eager, reference, options.ranks, options.bound)
    good &= compare("CUDA graph against gloo", graph, reference, options.ranks, options.bound)
    ranks_agree = all((run[r][1] == run[0][1]).all() for run in (eager, graph) for r in range(options.ranks))
    print(f"parameters equal on all ranks: {ranks_agree}")
    raise SystemExit(not (good and ranks_agree))
