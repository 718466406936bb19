"""DDP with its hooks and options, and FSDP2: 20 steps each of a small transformer, losses compared with a run without the library.

    LD_PRELOAD=.../libnccl.so.2 python3 torch_training.py --ranks 2

DDP is compared with the same training on gloo: bit by bit where two ranks add whole gradients, else within the bound that the chapter
states. FSDP2 is compared with one process that sees the batches of all ranks. Exit code 1 when a loss is off, a chapter raised or hung.
"""

import os

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

import chapters
from chapters import chapter

STEPS = 20
WORDS, WIDTH, LENGTH, BATCH = 256, 64, 33, 4


class Model(torch.nn.Module):
    def __init__(self, detour=False):
        super().__init__()
        self.embedding = torch.nn.Embedding(WORDS, WIDTH)
        # GELU has no kink, at which a last bit would change a gradient.
        self.layers = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, activation="gelu", batch_first=True) for _ in range(2))
        # Used in every other step by half of the ranks, if at all.
        self.detour = torch.nn.Linear(WIDTH, WIDTH) if detour else None
        self.head = torch.nn.Linear(WIDTH, WORDS)

    def forward(self, tokens, use_detour=False):
        hidden = self.embedding(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        if use_detour:
            hidden = hidden + self.detour(hidden)
        return self.head(hidden)


def deterministic():
    torch.use_deterministic_algorithms(True)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)


def new_model(place, **arguments):
    deterministic()
    torch.manual_seed(7)
    return Model(**arguments).to(place.device)


def batch(place, rank, step):
    """Sequences in which each word follows from the one before, so that there is something to learn."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    words = [torch.randint(0, WORDS, (BATCH,), generator=generator)]
    while len(words) < LENGTH:
        words.append((words[-1] * 5 + 3) % WORDS)
    return torch.stack(words, 1).to(place.device)


def loss_of(model, tokens, *arguments):
    logits = model(tokens[:, :-1], *arguments)
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


def train_ddp(place, group, hook=None, detour=False, accumulate=1, **settings):
    """This rank's losses and the parameters afterwards."""
    device_ids = [place.device.index] if place.on_gpu else None
    model = DistributedDataParallel(new_model(place, detour=detour), device_ids=device_ids, process_group=group, **settings)
    if hook:
        hook(model, group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    losses = []
    for step in range(STEPS):
        extra = (True,) if detour and step % 2 and place.rank % 2 == 0 else ()
        optimizer.zero_grad()
        for part in range(accumulate):
            tokens = batch(place, place.rank, step * accumulate + part)
            if part < accumulate - 1:
                with model.no_sync():
                    loss_of(model, tokens, *extra).backward()
            else:
                loss = loss_of(model, tokens, *extra)
                loss.backward()
        optimizer.step()
        losses.append(loss.detach().double().cpu())
    place.synchronize()
    parameters = torch.cat([p.detach().flatten() for p in model.module.parameters()]).cpu()
    return torch.stack(losses), parameters


def compare_ddp(place, checks, name, bound, **settings):
    """Trains on the nccl backend and on gloo. A bound of 0: bit by bit with two ranks, 1e-4 with more, where gloo adds in another order."""
    host = dist.new_group(backend="gloo")
    losses, parameters = train_ddp(place, dist.group.WORLD, **settings)
    wanted, wanted_parameters = train_ddp(place, host, **settings)
    if bound == 0 and place.nranks <= 2:
        checks.equal(f"{name}: losses", losses, wanted)
        checks.equal(f"{name}: parameters", parameters, wanted_parameters)
    else:
        checks.close(f"{name}: losses", losses, wanted, bound or 1e-4)
        checks.close(f"{name}: parameters", parameters, wanted_parameters, bound or 1e-4)
    everyone = [None] * place.nranks
    dist.all_gather_object(everyone, parameters.numpy().tobytes(), group=host)
    checks.true(f"{name}: parameters equal on all ranks", all(other == everyone[0] for other in everyone))
    checks.true(f"{name}: the loss falls", losses[-5:].mean() < losses[:5].mean())
    off = ((losses - wanted).abs() / wanted.abs()).max().item()
    checks.note(f"{name}: loss {losses[0]:.4f} to {losses[-1]:.4f}, largest relative difference {off:.2g}" if place.rank == 0 else "")


@chapter(120)
def ddp(place, checks):
    compare_ddp(place, checks, "plain", 0)
    compare_ddp(place, checks, "gradient_as_bucket_view", 0, gradient_as_bucket_view=True)
    compare_ddp(place, checks, "static_graph", 0, static_graph=True)
    compare_ddp(place, checks, "no_sync, three parts a step", 0, accumulate=3)
    compare_ddp(place, checks, "one bucket", 0, bucket_cap_mb=1000)
    compare_ddp(place, checks, "a bucket per parameter", 0, bucket_cap_mb=0.001)
    compare_ddp(place, checks, "without broadcast of buffers", 0, broadcast_buffers=False, init_sync=False)


@chapter(120)
def ddp_unused_parameters(place, checks):
    compare_ddp(place, checks, "find_unused_parameters", 0, detour=True, find_unused_parameters=True)
    compare_ddp(place, checks, "find_unused_parameters, bucket views", 0, detour=True, find_unused_parameters=True,
                gradient_as_bucket_view=True)


def _register(hook, state=None):
    return lambda model, group: model.register_comm_hook(state(group) if state else group, hook)


def _reduced_to_shards(group, bucket):
    """A hook of a user: reduce-scatter, then all-gather."""
    size = dist.get_world_size(group)
    flat = bucket.buffer()
    padded = torch.nn.functional.pad(flat, (0, -flat.numel() % size))
    shard = torch.empty(padded.numel() // size, device=flat.device, dtype=flat.dtype)
    work = dist.reduce_scatter_tensor(shard, padded, group=group, async_op=True)

    def gather(_):
        shard.div_(size)
        dist.all_gather_into_tensor(padded, shard, group=group)
        return padded[:flat.numel()]

    return work.get_future().then(gather)


@chapter(120)
def ddp_hooks(place, checks):
    compare_ddp(place, checks, "allreduce_hook", 0, hook=_register(default_hooks.allreduce_hook))
    # Compressed gradients: each addition rounds, in an order that may differ.
    compare_ddp(place, checks, "fp16_compress_hook", 1e-2, hook=_register(default_hooks.fp16_compress_hook))
    compare_ddp(place, checks, "bf16_compress_hook", 3e-2, hook=_register(default_hooks.bf16_compress_hook))
    wrapped = default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook)
    compare_ddp(place, checks, "fp16_compress_wrapper", 1e-2, hook=_register(wrapped))


@chapter(120)
def ddp_power_sgd(place, checks):
    def state(group):
        return powerSGD_hook.PowerSGDState(process_group=group, matrix_approximation_rank=2, start_powerSGD_iter=4, min_compression_rate=1)

    compare_ddp(place, checks, "powerSGD_hook", 1e-2, hook=_register(powerSGD_hook.powerSGD_hook, state))


@chapter(120, backends=("nccl",))
def ddp_own_hook(place, checks):
    # Gloo has no reduce-scatter on GPUs: compared with the plain sums, which shards add up in the same way.
    host = dist.new_group(backend="gloo")
    losses, parameters = train_ddp(place, dist.group.WORLD, hook=_register(_reduced_to_shards))
    wanted, wanted_parameters = train_ddp(place, host)
    checks.close("reduce-scatter and all-gather: losses", losses, wanted, 1e-4)
    checks.close("reduce-scatter and all-gather: parameters", parameters, wanted_parameters, 1e-4)


def train_alone(place):
    """Losses of a process that sees the batches of all ranks, and its parameters."""
    model = new_model(place)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        each = [loss_of(model, batch(place, rank, step)) for rank in range(place.nranks)]
        loss = torch.stack(each).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().double().cpu())
    return torch.stack(losses), {name: p.detach().clone() for name, p in model.named_parameters()}


def train_sharded(place, mesh, **settings):
    model = new_model(place)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, **settings)
    fully_shard(model, mesh=mesh, **settings)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model, batch(place, place.rank, step))
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().double().cpu())
    place.synchronize()
    return torch.stack(losses), {name: p.full_tensor().detach() for name, p in model.named_parameters()}


def compare_fsdp(place, checks, name, bound, mesh=None, **settings):
    mesh = mesh or init_device_mesh(place.device.type, (place.nranks,))
    host = dist.new_group(backend="gloo")
    losses, parameters = train_sharded(place, mesh, **settings)
    dist.all_reduce(losses, group=host)
    losses /= place.nranks
    wanted, wanted_parameters = train_alone(place)
    checks.close(f"{name}: losses", losses, wanted, bound)
    for parameter, value in wanted_parameters.items():
        checks.close(f"{name}: {parameter}", parameters[parameter], value, bound)
    checks.true(f"{name}: the loss falls", losses[-5:].mean() < losses[:5].mean())
    off = ((losses - wanted).abs() / wanted.abs()).max().item()
    checks.note(f"{name}: loss {losses[0]:.4f} to {losses[-1]:.4f}, largest relative difference {off:.2g}" if place.rank == 0 else "")


@chapter(150)
def fsdp(place, checks):
    for reshard in (True, False):
        compare_fsdp(place, checks, f"reshard_after_forward {reshard}", 1e-4, reshard_after_forward=reshard)


@chapter(150)
def fsdp_mixed_precision(place, checks):
    # The sums are compared with fp32 training: the bound is that of bf16's eight bits over 20 steps.
    for reduced in (torch.float32, torch.bfloat16):
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduced)
        for reshard in (True, False):
            name = f"bf16 parameters, gradients as {reduced}, reshard_after_forward {reshard}"
            compare_fsdp(place, checks, name, 5e-2, reshard_after_forward=reshard, mp_policy=policy)


@chapter(150)
def fsdp_replicated(place, checks):
    """HSDP: shards within a group, replicas across groups."""
    shapes = [(1, place.nranks), (place.nranks, 1)]
    if place.nranks % 2 == 0 and place.nranks > 2:
        shapes.append((2, place.nranks // 2))
    for shape in shapes:
        mesh = init_device_mesh(place.device.type, shape, mesh_dim_names=("replicas", "shards"))
        compare_fsdp(place, checks, f"{shape[0]} replicas of {shape[1]} shards", 1e-4, mesh=mesh)


if __name__ == "__main__":
    chapters.main(__doc__, [ddp, ddp_unused_parameters, ddp_hooks, ddp_power_sgd, ddp_own_hook, fsdp, fsdp_mixed_precision, fsdp_replicated])
