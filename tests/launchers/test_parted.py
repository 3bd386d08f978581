"""Commands of srun and mpirun taken apart, Slurm's lists of hosts, and the place that a task has in its job."""

from __future__ import annotations

import shlex

import pytest

from orchestrator.launchers.parted import hosts, names_hosts, parted
from orchestrator.launchers.seat import is_one_rank, meeting, seat_of

COMMANDS = (
    ("srun -n 2 -N2 python train.py -n 3", "slurm", "python train.py -n 3"),
    ("srun --ntasks-per-node=1 --gpus-per-task 1 -- python x.py", "slurm", "python x.py"),
    ("srun -ln 4 -u --mem 3G --exclusive ./a", "slurm", "./a"),
    ("srun -K1 --kill-on-bad-exit=0 --label --cpu-bind=none a b", "slurm", "a b"),
    ("srun --ntasks-per-n 2 a", "slurm", "a"),
    ("mpirun --cpus-per-rank 4 a", "mpi", "a"),
    ("env A=1 nice -n 3 srun -p gpu a", "slurm", "a"),
    ("/usr/bin/srun a", "slurm", "a"),
    ("mpirun -np 2 -x A --mca btl tcp,self --oversubscribe python x.py", "mpi", "python x.py"),
    ("mpiexec -n 4 -genv OMP_NUM_THREADS 2 -ppn 2 ./a --host b", "mpi", "./a --host b"),
    ("mpirun --stream-buffering 0 -n 2 a", "mpi", "a"),
    ("mpirun -s -n 2 a", "mpi", "a"),
    ("mpiexec -binding cell -n 2 a", "mpi", "a"),
    ("mpirun --host n1:4,n2:4 --map-by=slot a", "mpi", "a"),
)


@pytest.mark.parametrize(("line", "kind", "command"), COMMANDS)
def test_the_program_begins_where_the_options_end(line: str, kind: str, command: str) -> None:
    found = parted(shlex.split(line))
    assert found is not None
    assert (found.kind, shlex.join(found.command), found.refusal) == (kind, command, None)
    assert [*found.start, *found.command] == shlex.split(line), "no word is lost"


@pytest.mark.parametrize(
    "line", ["python srun.py", "srun --help", "srun", "torchrun --nproc-per-node 2 t.py", "sh -c srun"]
)
def test_what_starts_no_tasks_stays_whole(line: str) -> None:
    assert parted(shlex.split(line)) is None


@pytest.mark.parametrize("line", ["srun --multi-prog tasks.conf", "mpirun -n 1 a : -n 2 b", "srun -n1 a : -n2 b"])
def test_several_programs_in_one_job_are_refused_with_a_way_out(line: str) -> None:
    found = parted(shlex.split(line))
    assert found is not None
    assert found.refusal is not None
    assert "one of them at a time" in found.refusal[1]


def test_a_number_is_no_program() -> None:
    found = parted(["mpirun", "--of-next-year", "3", "python", "t.py"])
    assert found is not None and found.refusal is not None
    assert found.refusal[0] == "--of-next-year is not known to take 3 as its value"
    assert "put -- before the program" in found.refusal[1]


@pytest.mark.parametrize("line", ["srun --container-image IMG python t.py", "srun --container-image=IMG python t.py"])
def test_tasks_in_containers_are_refused_with_a_way_out(line: str) -> None:
    found = parted(shlex.split(line))
    assert found is not None and found.refusal is not None
    assert found.command == ("python", "t.py") and "start it inside" in found.refusal[1]


@pytest.mark.parametrize(
    ("line", "env", "elsewhere"),
    [
        ("mpirun -n 2 a", {}, False),
        ("mpirun --host n1,n2 a", {}, True),
        ("mpirun -hostfile f a", {}, True),
        ("mpirun a -H n1", {}, False),
        ("mpirun a", {"PBS_NODEFILE": "/f"}, True),
    ],
)
def test_mpirun_leaves_this_host_only_where_it_was_given_others(
    line: str, env: dict[str, str], elsewhere: bool
) -> None:
    found = parted(shlex.split(line))
    assert found is not None and names_hosts(found, env) is elsewhere


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("n[1-3,07],login", ["n1", "n2", "n3", "n07", "login"]),
        ("gpu-[009-011]", ["gpu-009", "gpu-010", "gpu-011"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("", []),
    ],
)
def test_slurms_lists_of_hosts(text: str, names: list[str]) -> None:
    assert list(hosts(text)) == names


SLURM = {
    "SLURM_JOB_ID": "42", "SLURM_STEP_ID": "1", "SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_NODEID": "1",
    "SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "6", "SLURM_STEP_NUM_NODES": "2", "SLURMD_NODENAME": "n2",
    "SLURM_STEP_NODELIST": "n[1-2]", "SLURM_STEP_TASKS_PER_NODE": "4,2",
}  # fmt: skip


def test_a_task_of_slurm_knows_its_place() -> None:
    seat = seat_of(SLURM, "slurm")
    assert (seat.index, seat.size, seat.local, seat.local_size) == (5, 6, 1, 2)
    assert (seat.host, seat.node, seat.nodes, seat.first, seat.step) == ("n2", 1, 2, "n1", "42.1")


def test_what_mpirun_starts_in_a_job_of_slurms_is_numbered_by_mpirun() -> None:
    given = {**SLURM, "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
    seat = seat_of(given, "mpi")
    assert (seat.index, seat.size, seat.local, seat.step, seat.first) == (3, 4, 1, None, None)


def test_a_rank_is_told_what_torch_asks_for() -> None:
    told = meeting({}, seat_of(SLURM, "slurm"), ("python", "t.py"), ("10.0.0.1", 4711), "run")
    assert told == {
        "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "4711", "RANK": "5", "WORLD_SIZE": "6", "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
    }  # fmt: skip


def test_what_the_user_has_set_stays() -> None:
    told = meeting({"MASTER_PORT": "1", "RANK": "7"}, seat_of(SLURM, "slurm"), ("a",), ("n1", 4711), "run")
    assert {"MASTER_PORT", "RANK"}.isdisjoint(told)


def test_torchrun_on_several_nodes_is_told_where_they_meet() -> None:
    seat, command = seat_of(SLURM, "slurm"), ("torchrun", "--nproc-per-node", "4", "t.py")
    told = meeting({}, seat, command, ("n1", 4711), "run-1")
    assert told["PET_RDZV_ENDPOINT"] == "n1:4711"
    assert (told["PET_RDZV_BACKEND"], told["PET_NNODES"], told["PET_RDZV_ID"]) == ("c10d", "6", "run-1")
    assert "RANK" not in told, "its ranks are told theirs by it"
    own = ("torchrun", "--rdzv-endpoint=x:1", "t.py")
    assert meeting({}, seat, own, ("n1", 4711), "run-1") == {}


def test_a_task_is_one_rank_unless_it_starts_some() -> None:
    assert is_one_rank(("python", "torchrun.py"))
    assert not is_one_rank(("python", "-m", "torch.distributed.run", "t.py"))
    assert not is_one_rank(("env", "A=1", "torchrun", "t.py"))
