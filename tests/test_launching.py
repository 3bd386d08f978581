"""What a command line starts, and what of it profrun can't reach."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli import profrun, write_plan

from orchestrator import launching
from orchestrator.inject import boot
from orchestrator.model import SeenPython
from orchestrator.told import _why_not


def names(command: str) -> list[str]:
    return [launching.name_of(words) for words in launching.layers(command.split())]


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("python train.py", ["python"]),
        ("env -u B A=1 nohup nice -n 5 python x.py", ["env", "nohup", "nice", "python"]),
        ("timeout -k 3 10 taskset -c 0-3 python x.py", ["timeout", "taskset", "python"]),
        ("/usr/bin/time -f %e stdbuf -oL numactl -N 0 python", ["time", "stdbuf", "numactl", "python"]),
        ("conda run -n e --no-capture-output python x.py", ["conda", "python"]),
        ("uv --quiet run --with numpy -- python x.py", ["uv", "python"]),
        ("conda list", ["conda"]),
        ("sudo -u bob A=1 python x.py", ["sudo", "python"]),
        ("unshare --pid --fork python x.py", ["unshare", "python"]),
        ("", []),
        ("env", ["env"]),
    ],
)
def test_the_layers_of_a_command(command: str, found: list[str]) -> None:
    assert names(command) == found


@pytest.mark.parametrize(
    ("command", "name", "way"),
    [
        ("docker run --rm --name job img python x.py", "docker run", "$(docker inspect -f '{{.State.Pid}}' job)"),
        ("docker run --name=job img x", "docker run", "' job)"),
        ("docker --context c container exec -it -e A=b box python", "docker exec", "' box)"),
        ("docker compose run web python x.py", "docker compose", "docker compose run --cap-add SYS_PTRACE"),
        ("nvidia-docker run img", "nvidia-docker run", "run profrun inside: nvidia-docker run --cap-add SYS_PTRACE"),
        ("podman run img python x.py", "podman run", "$(podman inspect -f '{{.State.Pid}}' NAME)"),
        ("nerdctl -n k8s.io exec box python", "nerdctl exec", "' box)"),
        ("crictl exec abc python", "crictl exec", "$(crictl inspect --output go-template"),
        ("sudo -n env A=1 docker exec box python", "docker exec", "' box)"),
        ("kubectl -n ns exec pod -- python x.py", "kubectl exec", "kubectl exec POD -- profrun PLAN -- COMMAND"),
        ("timeout 5 ssh host python x.py", "ssh", "ssh HOST profrun PLAN -- COMMAND"),
        ("systemd-run --user python x.py", "systemd-run", "add --scope"),
        ("srun -n 2 --container-image img python x.py", "srun", "srun ... profrun PLAN -- COMMAND"),
        ("sbatch job.sh", "sbatch", "into the job itself"),
    ],
)
def test_what_others_start_is_out_of_reach(command: str, name: str, way: str) -> None:
    (hurdle,) = launching.hurdles(command.split(), ["SYS_PTRACE"])
    assert (hurdle.name, hurdle.far) == (name, True)
    assert way in hurdle.way


@pytest.mark.parametrize(
    ("command", "name", "way"),
    [
        ("sudo -u bob python x.py", "sudo", "--preserve-env=PYTHONPATH,PROFRUN_INJECT"),
        ("su bob -c x", "su", "su ... profrun PLAN -- COMMAND"),
        ("env -i A=1 python x.py", "env -i", "leave -i out"),
        ("env PYTHONPATH=src python x.py", "env", "PYTHONPATH=... profrun PLAN -- COMMAND"),
        ("pixi run --clean-env train", "pixi run --clean-env", "leave --clean-env out"),
        ("apptainer exec --nv -B /d -C img.sif python x.py", "apptainer exec", "leave -C out"),
        ("enroot start box python x.py", "enroot start", "enroot start --env PYTHONPATH --env PROFRUN_INJECT --mount"),
    ],
)
def test_what_keeps_profruns_part_out(command: str, name: str, way: str) -> None:
    (hurdle,) = launching.hurdles(command.split())
    assert (hurdle.name, hurdle.far) == (name, False)
    assert way in hurdle.way


@pytest.mark.parametrize(
    "command",
    [
        "python docker run",
        "docker ps",
        "docker image ls",
        "kubectl get pods",
        "systemd-run --scope python x.py",
        "sudo -E python x.py",
        "sudo --preserve-env=PYTHONPATH,PROFRUN_INJECT python x.py",
        "runuser -u bob -- python x.py",
        "apptainer exec --nv img.sif python -C x.py",
        "enroot start -e PYTHONPATH -e PROFRUN_INJECT box python",
        "torchrun --nproc-per-node 2 train.py",
        "accelerate launch train.py",
        "mpirun -np 2 python x.py",
        "conda run -n e python x.py",
        "env A=1 python x.py",
        "docker",
        "",
    ],
)
def test_nothing_stands_in_the_way(command: str) -> None:
    assert launching.hurdles(command.split()) == ()


def test_an_apptainer_is_shown_our_folders_beside_what_its_user_shows_it() -> None:
    def bound(command: str, **env: str) -> dict[str, str]:
        return launching.bindings(command.split(), env, ["/ours", "/a,b", "/pass"])

    assert bound("apptainer exec i python") == {"APPTAINER_BIND": "/ours,/pass"}
    assert bound("nice apptainer run i", APPTAINER_BIND="/d:/e") == {"APPTAINER_BIND": "/d:/e,/ours,/pass"}
    assert bound("apptainer exec i", SINGULARITY_BIND="/d") == {"APPTAINER_BIND": "/d,/ours,/pass"}
    assert bound("singularity exec i", SINGULARITY_BIND="/d") == {"SINGULARITY_BIND": "/d,/ours,/pass"}
    assert bound("apptainer pull i") == bound("python exec x") == {}


def test_the_part_inside_knows_a_rank_by_the_same_names() -> None:
    """It stands alone, and so has a list of its own."""
    assert boot.RANKS == launching.RANKS
    assert launching.RANKS[-1] == "SLURM_PROCID", "which a batch script's own mpirun hands down to all of its ranks"


# ---------------------------------------------------------------- what a user is told


def test_a_container_that_a_daemon_starts_is_refused_with_two_ways_out(tmp_path: Path) -> None:
    docker = tmp_path / "docker"
    docker.write_text("#!/bin/sh\n")
    docker.chmod(0o755)
    result = profrun(write_plan(tmp_path, "{use: py-spy}"), "--", docker, "exec", "job", "python", "x.py", cwd=tmp_path)
    assert result.code == 3
    assert "py-spy: would see `docker exec` alone: Docker's daemon starts the program" in result.stderr
    assert "next: run profrun inside: docker exec ... CONTAINER profrun PLAN -- COMMAND" in result.stderr
    assert "profrun attach --pid $(docker inspect -f '{{.State.Pid}}' job)" in result.stderr


def test_what_measures_the_client_runs_and_says_so(tmp_path: Path) -> None:
    docker = tmp_path / "docker"
    docker.write_text("#!/bin/sh\nexit 7\n")
    docker.chmod(0o755)
    plan = write_plan(tmp_path, "{use: timing, warmup: 0, repeats: 1}", report="{formats: []}")
    result = profrun(plan, "--", docker, "run", "img", "python", "x.py", cwd=tmp_path)
    assert result.code == 7, "its own status, which is the container's"
    assert "docker run: Docker's daemon starts the program" in result.stderr
    assert "what is measured is this command, not the program" in result.stderr


def test_what_slurm_starts_is_looked_at_unless_it_is_several_programs(tmp_path: Path) -> None:
    srun = tmp_path / "srun"
    srun.write_text("#!/bin/sh\n")
    srun.chmod(0o755)
    plan = write_plan(tmp_path, "{use: torch}", "{use: py-spy, required: false}")
    said = profrun("check", plan, "--", srun, "-n", "2", "python", "x.py", cwd=tmp_path).stdout
    assert "blocked" not in said
    said = profrun("check", plan, "--", srun, "--multi-prog", "tasks.conf", cwd=tmp_path).stdout
    assert "blocked py-spy: would see `srun` alone" in said
    assert "blocked torch" not in said
    assert "let srun start profrun" in said


@pytest.mark.parametrize(
    ("seen", "command", "why"),
    [
        (SeenPython(1, ("python",), injected=False), "sudo python x.py", "`sudo`: gives the program an environment"),
        (SeenPython(1, ("python",), injected=False), "env PYTHONPATH=a python x", "`env`: it replaces PYTHONPATH"),
        (SeenPython(1, ("python",), injected=False), "conda run python", "(`conda run`, it seems) has dropped"),
        (SeenPython(1, ("python",), injected=False), "./run.sh", "what started it has dropped profrun's variables"),
        (SeenPython(1, ("python", "-I"), None, True, True), "python -I x.py", "python was started with -I"),
        (SeenPython(1, ("python",), None, True, False), "apptainer exec i python", "not to be seen where it runs"),
        (SeenPython(1, ("python",), None, True, True), "python x.py", "it never signed in"),
    ],
)
def test_why_profruns_part_is_not_in_force(seen: SeenPython, command: str, why: str) -> None:
    assert why in _why_not(seen, command.split())
