"""What a command line tells of the ranks that it will start."""

from __future__ import annotations

import shlex

import pytest

from orchestrator import launching
from orchestrator.inject import boot
from orchestrator.launchers.base import Expected
from orchestrator.launchers.detect import Auto, found

COMMANDS = {
    "torchrun --nproc-per-node 2 train.py": ("torchrun", 2, 2),
    "torchrun --nproc_per_node=4 --nnodes 2 train.py --nnodes 9": ("torchrun", 8, 4),
    "torchrun train.py --nproc-per-node 3": ("torchrun", 1, 1),
    "torchrun --nproc 2 train.py": ("torchrun", 2, 2),
    "torchrun --nproc-per-node 2 --no-python ./x --nnodes 4": ("torchrun", 2, 2),
    "torchrun --nproc-per-node 2 ./x --nnodes 4": ("torchrun", 2, 2),
    "torchrun --nproc-per-node gpu train.py": ("torchrun", None, None),
    "torchrun --nnodes 1:4 --nproc-per-node 2 train.py": ("torchrun", None, 2),
    "torchrun --standalone --nproc-per-node 2 -m package.train": ("torchrun", 2, 2),
    "/opt/venv/bin/python -u -m torch.distributed.run --nproc-per-node 2 --no-python ./run.sh": ("torchrun", 2, 2),
    "python -m torch.distributed.launch --nproc_per_node 2 train.py": ("torch.distributed.launch", 2, 2),
    "env A=1 numactl -N 0 conda run -n ml torchrun --nproc-per-node 2 train.py": ("torchrun", 2, 2),
    "accelerate launch --num_processes 4 --num_machines 2 train.py": ("accelerate launch", 4, 2),
    "accelerate launch train.py": ("accelerate launch", None, None),
    "python -m accelerate.commands.launch --num-processes 2 train.py": ("accelerate launch", 2, 2),
    "deepspeed --num_gpus 2 train.py --deepspeed ds.json": ("deepspeed", 2, 2),
    "deepspeed --num_gpus 8 --hostfile hosts train.py": ("deepspeed", None, 8),
    "deepspeed --include localhost:1,3 train.py": ("deepspeed", 2, 2),
    "mpirun -np 4 python train.py": ("mpirun", 4, 4),
    "mpirun -n4 ./a.out -n 9": ("mpirun", 4, 4),
    "mpirun ./solver -n 5": ("mpirun", None, None),
    "mpirun -np 16 --hostfile hosts python train.py": ("mpirun", 16, None),
    "mpiexec -n 1 ./lead : -n 3 ./work": ("mpiexec", None, None),
    "srun -N 2 --ntasks-per-node 4 python train.py": ("srun", 8, None),
    "srun trainer --nodes 3 --ntasks-per-node 8": ("srun", None, None),
    "srun -n 3 python train.py": ("srun", 3, None),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_launcher_is_seen_with_the_number_of_its_ranks(command: str) -> None:
    name, world, here = COMMANDS[command]
    seen = found(shlex.split(command))
    assert seen and (seen.name, seen.expected({})) == (name, Expected(world, here))


@pytest.mark.parametrize(
    "command", ["python train.py", "bash run.sh", "accelerate config", "python -c 'import torchrun'", "sh -c torchrun"]
)
def test_what_is_no_launcher_starts_nobody_knows_how_many(command: str) -> None:
    assert found(shlex.split(command)) is None
    assert Auto().expected(shlex.split(command), {}) == Expected()


def test_the_environment_says_what_the_command_leaves_out() -> None:
    torchrun, srun = found(["torchrun", "train.py"]), found(["srun", "python", "train.py"])
    assert torchrun and torchrun.expected({"PET_NPROC_PER_NODE": "2", "PET_NNODES": "2"}) == Expected(4, 2)
    assert srun and srun.expected({"SLURM_NTASKS": "4"}) == Expected(4, None)


def test_inside_the_target_the_same_names_are_known() -> None:
    assert (boot.RANKS, boot.LOCAL_RANKS, boot.SIZES) == (launching.RANKS, launching.LOCAL_RANKS, launching.SIZES)
    others = ("mpirun", "mpiexec", "srun", "profrun's own")
    of_python = {name for name, called in launching.LAUNCHERS.items() if called not in others}
    assert {*boot.LAUNCHERS} == {*of_python, "accelerate"}
