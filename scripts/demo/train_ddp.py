"""The demo of many ranks: a small network, trained by DistributedDataParallel on CPUs (gloo) or GPUs (nccl). One rank
can be made slow, or fail. For torchrun, srun, and whatever sets RANK, WORLD_SIZE, MASTER_ADDR. Knows no profrun."""

import argparse
import os
import sys
import time

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))


def dawdle(seconds: float) -> None:
    """What makes a straggler: work that this rank does and the others don't."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        sum(range(500))


def train(options: argparse.Namespace, rank: int, device: torch.device) -> float:
    """Trains for so many steps and gives back how many it did per second."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(network().to(device), device_ids=[device.index] if device.type == "cuda" else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loss_of = nn.CrossEntropyLoss()
    started = time.perf_counter()
    for step in range(1, options.steps + 1):
        inputs = torch.randn(options.batch, 256, device=device)
        labels = torch.randint(10, (options.batch,), device=device)
        optimizer.zero_grad()
        loss = loss_of(model(inputs), labels)
        if rank == options.slow_rank:
            dawdle(options.slow_by)
        loss.backward()
        optimizer.step()
        if rank == options.fail_rank and step == options.fail_step:
            print(f"rank {rank}: this is where it was told to fail", file=sys.stderr, flush=True)
            os._exit(9)
        if rank == 0 and (step % 20 == 0 or step == options.steps):
            print(f"step {step}: loss={loss.item():.4f}", flush=True)
    return options.steps / (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--slow-rank", type=int, help="the rank that is late in each step")
    parser.add_argument("--slow-by", type=float, default=0.02, metavar="SECONDS")
    parser.add_argument("--fail-rank", type=int, help="the rank that ends with exit 9")
    parser.add_argument("--fail-step", type=int, default=10, help="after which of its steps")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name, of_slurm in (("RANK", "SLURM_PROCID"), ("LOCAL_RANK", "SLURM_LOCALID"), ("WORLD_SIZE", "SLURM_NTASKS")):
        os.environ.setdefault(name, os.environ.get(of_slurm, ""))
    local_rank, gpus = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    on_gpus = gpus > 0  # a task may see its own GPU alone, as the only one
    device = torch.device("cuda", local_rank % gpus) if on_gpus else torch.device("cpu")
    distributed.init_process_group("nccl" if on_gpus else "gloo")
    rank = distributed.get_rank()
    if rank == 0:
        print(f"{distributed.get_world_size()} ranks train on {device.type}", flush=True)
    rate = train(options, rank, device)
    if rank == 0:
        print(f"steps_per_s={rate:.1f}")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
