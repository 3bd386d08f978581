"""What a command only starts: wrappers, launchers of ranks, containers; and how far profrun reaches through them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

RANKS = (
    "RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "PALS_RANKID",
    "JSM_NAMESPACE_RANK", "FLUX_TASK_RANK", "SLURM_PROCID",
)  # fmt: skip
LOCAL_RANKS = (
    "LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PALS_LOCAL_RANKID",
    "JSM_NAMESPACE_LOCAL_RANK", "FLUX_TASK_LOCAL_ID", "SLURM_LOCALID",
)  # fmt: skip
SIZES = (
    "WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "PMI_SIZE", "JSM_NAMESPACE_SIZE", "FLUX_JOB_SIZE",
    "SLURM_NTASKS",
)  # fmt: skip
LOCAL_SIZES = (
    "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS",
)  # fmt: skip
"""Where launchers put a process's place among the others: torchrun (and with it accelerate, deepspeed), Open MPI,
MVAPICH, MPICH and Intel MPI, PMIx, Cray PALS, IBM's jsrun, Flux, Slurm. Slurm comes last: what `mpirun` starts in a
batch script has inherited the script's own SLURM_PROCID, which is 0 for all of them."""

Place = tuple[tuple[str, str] | None, ...]
"""What an environment says of a rank: the variable and its value, for rank, local rank and number of ranks."""


def place_of(env: Mapping[str, str]) -> Place:
    """A process's place among the ranks of its job, as its environment tells it."""
    return tuple(
        next(((name, env[name]) for name in names if env.get(name, "").isdecimal()), None)
        for names in (RANKS, LOCAL_RANKS, SIZES)
    )


def ranks_here(env: Mapping[str, str]) -> int | None:
    """How many ranks of its job run on a process's own host, as its environment tells it."""
    return next((int(env[name]) for name in LOCAL_SIZES if env.get(name, "").isdecimal()), None)


def numbers(place: Place) -> tuple[int | None, int | None, int | None]:
    """(rank, local rank, number of ranks); None where nobody tells."""
    rank, local_rank, size = (None if said is None else int(said[1]) for said in place)
    return rank, local_rank, size


_STARTERS = {
    "conda": "run", "mamba": "run", "micromamba": "run", "uv": "run", "poetry": "run", "pdm": "run", "pipenv": "run",
    "hatch": "run", "pixi": "run", "rye": "run",
}  # fmt: skip
"""Managers of environments, and the word by which they start a program in one."""
LAUNCHERS = {
    "torchrun": "torchrun", "torch.distributed.run": "torchrun", "torch.distributed.launch": "torch.distributed.launch",
    "accelerate-launch": "accelerate launch", "accelerate.commands.launch": "accelerate launch",
    "deepspeed": "deepspeed", "deepspeed.launcher.launch": "deepspeed", "deepspeed.launcher.runner": "deepspeed",
    "mpirun": "mpirun", "mpiexec": "mpiexec", "orterun": "mpirun", "srun": "srun", "start_ranks.py": "profrun's own",
}  # fmt: skip
"""Programs and modules that start the ranks of a job: what they are called, and what a user calls them. What rank their
own environment tells of is the node's, or nobody's."""
_STANDING_BY = (
    "timeout", "time", "sudo", "su", "runuser", "tini", "dumb-init", "docker-init", "catatonit", "xvfb-run", "nsys",
    "nsys-launcher",
)  # fmt: skip
"""Programs that start another one and wait for its end."""
SHELLS = ("sh", "bash", "dash", "zsh", "ksh", "ash", "fish", "csh", "tcsh", "busybox")


# ---------------------------------------------------------------- what a running process is


def wrapper_of(argv: Sequence[str]) -> str | None:
    """What a command is where it only starts the program proper; None for a program proper."""
    words = without_interpreter(argv)
    name = name_of(words[:1])
    if name in LAUNCHERS:
        return LAUNCHERS[name]
    if name == "accelerate":
        return "accelerate launch" if "launch" in words[1:2] else None
    if name in _STARTERS:
        return f"{name} {_STARTERS[name]}" if _STARTERS[name] in words[1:5] else None
    return name if name in _STANDING_BY else None


def without_interpreter(argv: Sequence[str]) -> list[str]:
    """The command as its user knows it: without the interpreter before the script or module that it runs, and its
    options."""
    words = list(argv)
    if name_of(words[:1]) in SHELLS:
        return words[1:] if words[1:] and not words[1].startswith("-") else words
    if not name_of(words[:1]).startswith(("python", "pypy")):
        return words
    del words[:1]
    while words and words[0].startswith("-") and words[0] not in ("-m", "-c"):
        del words[: 2 if words[0] in ("-X", "-W") else 1]
    return words[1:] if words[:1] == ["-m"] else words


def name_of(words: Sequence[str]) -> str:
    """The program's name; a login shell's begins with a dash."""
    return PurePath(words[0]).name.removeprefix("-") if words else ""


# ---------------------------------------------------------------- what a command line is about to start


@dataclass(frozen=True)
class Hurdle:
    """Something in a command line that keeps profrun, or its part in the target's Python, from the program.

    far: the program will be no process below what is started here; all that is, is `name`, which asks for it."""

    name: str
    far: bool
    why: str
    way: str
    """The next step, exactly."""
    gets_in: bool = False
    """Far, and yet with the environment that profrun makes, as a task of Slurm's."""


def hurdles(argv: Sequence[str], capabilities: Sequence[str] = ()) -> tuple[Hurdle, ...]:
    """What stands in the way, outermost first; where the program is not ours, that alone.

    capabilities: what the plan's profilers need in a container (SYS_PTRACE ...)."""
    found: list[Hurdle] = []
    for words in layers(argv):
        hurdle = _container(words, capabilities) or _elsewhere(words) or _environment(words) or _enclosed(words)
        if hurdle and hurdle.far:
            return (hurdle,)
        found += [hurdle] if hurdle else []
    return tuple(found)


def bindings(argv: Sequence[str], env: Mapping[str, str], places: Sequence[str]) -> dict[str, str]:
    """The variables by which an Apptainer or Singularity in this command also shows `places` in its container, where
    they are on the host; beside what the user has bound already. Nothing for other commands."""
    for words in layers(argv):
        name, (verb, _) = name_of(words), _verb(words)
        if name in _BINDING and verb in _BINDING_VERBS:
            known = (f"{one.upper()}_BIND" for one in (name, *_BINDING))
            before = [env[key] for key in known if env.get(key)][:1]
            sayable = [place for place in places if not set(place) & set(",:")]
            return {f"{name.upper()}_BIND": ",".join([*before, *sayable])}
    return {}


def layers(argv: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The command, then what it starts, as far as that can be read off its words: `env A=1 nice python x.py` is
    three."""
    words = tuple(argv)
    while words:
        yield words
        words = _inner(words)


def _inner(words: tuple[str, ...]) -> tuple[str, ...]:
    """What a command starts; nothing where it is not one that is known to start another."""
    name, rest = name_of(words), words[1:]
    if name in _STARTERS:
        if _STARTERS[name] not in rest[:4]:
            return ()
        rest = rest[rest.index(_STARTERS[name]) + 1 :]
    elif name not in _TAKE:
        return ()
    values, others = _TAKE.get(name, ("", 0))
    rest = _after_options(rest, values)
    while name in ("env", "sudo") and rest and "=" in rest[0]:
        rest = rest[1:]
    return rest[others:]


def _after_options(words: tuple[str, ...], with_value: str) -> tuple[str, ...]:
    """From the first word on that is no option, nor the value of one of these."""
    values = with_value.split()
    while words and words[0].startswith("-"):
        word, words = words[0], words[1:]
        if word == "--":
            break
        words = words[1:] if word in values else words
    return words


def _verb(words: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """(what is to be done, the words after that): `docker --context x container run` runs."""
    rest = _after_options(words[1:], _GLOBAL)
    rest = rest[1:] if rest[:1] == ("container",) else rest
    return (rest[0], rest[1:]) if rest else ("", ())


_TAKE = {
    "env": ("-u --unset -C --chdir -S --split-string", 0), "nohup": ("", 0), "setsid": ("", 0), "command": ("", 0),
    "nice": ("-n --adjustment", 0), "ionice": ("-c -n --class --classdata", 0), "chrt": ("-T -P -D", 1),
    "timeout": ("-s -k --signal --kill-after", 1), "time": ("-f -o --format --output", 0), "taskset": ("", 1),
    "numactl": ("-N -m -i -C -p --cpunodebind --membind --interleave --physcpubind --preferred", 0),
    "stdbuf": ("-i -o -e --input --output --error", 0), "catchsegv": ("", 0), "chroot": ("", 1),
    "xvfb-run": ("-n -s -f -e -p -w --server-num --server-args --auth-file --error-file --xauth-protocol --wait", 0),
    "sudo": ("-u -g -h -p -C -r -t -T -U -D -R --user --group --host --prompt --chdir --chroot", 0),
    "doas": ("-u -C", 0), "runuser": ("-u -g -G --user --group", 0), "setpriv": ("", 0), "tini": ("-e -p", 0),
    "unshare": ("-S -G -R -w --setuid --setgid --root --wd --map-user --map-group --map-users --map-groups", 0),
    "nsenter": ("-t -S -G --target --setuid --setgid", 0), "dumb-init": ("-r --rewrite", 0),
    "conda": ("-n -p --name --prefix --cwd", 0), "mamba": ("-n -p --name --prefix --cwd", 0),
    "micromamba": ("-n -p -r -e -a --name --prefix --root-prefix --cwd --env --attach", 0),
    "uv": ("-p --python --with --with-editable --with-requirements --extra --group --env-file --project --directory "
           "--package --index --index-url --default-index", 0),
    "pdm": ("-p --project --venv", 0), "pixi": ("-e --environment --manifest-path", 0),
}  # fmt: skip
"""What starts the rest of its own command line: which of its options take the next word for their value, and how many
words stand before the command."""
_GLOBAL = (
    "-H --host -c --context --config -l --log-level --connection --url --root --runroot --storage-driver -a --address "
    "-n --namespace --cgroup-manager --log-driver -r --runtime-endpoint -i --image-endpoint --kubeconfig --cluster "
    "--user -s --server"
)
"""Options of the clients below that stand before the verb, with a value."""

# ---------------------------------------------------------------- containers that a daemon starts

_INSPECT = " inspect -f '{{.State.Pid}}'"
_DAEMONS = {
    "docker": ("Docker's daemon starts", _INSPECT), "nvidia-docker": ("Docker's daemon starts", _INSPECT),
    "podman": ("podman's monitor starts", _INSPECT), "nerdctl": ("containerd starts", _INSPECT),
    "crictl": ("the container runtime starts", " inspect --output go-template --template '{{.info.pid}}'"),
}  # fmt: skip
"""Clients of what runs containers: who starts the program, and the question for its pid, which wants a name."""
_RUNNING = {"run": "IMAGE", "create": "IMAGE", "exec": "CONTAINER", "start": "", "attach": "", "compose": "SERVICE"}


def _container(words: tuple[str, ...], capabilities: Sequence[str]) -> Hurdle | None:
    name, (verb, rest) = name_of(words), _verb(words)
    if name not in _DAEMONS or verb not in _RUNNING:
        return None
    starter, question = _DAEMONS[name]
    call = f"{name} compose run" if verb == "compose" else f"{name} {verb if verb in ('run', 'exec') else 'run'}"
    grants = [f"--cap-add {one}" for one in capabilities] if call in (f"{name} run", f"{name} compose run") else []
    inside = " ".join([call, *grants, "...", _RUNNING[verb] or "IMAGE", "profrun PLAN -- COMMAND"])
    return Hurdle(
        f"{name} {verb}",
        True,
        f"{starter} the program: it is no process of profrun's, and does not get the environment that profrun makes",
        f"run profrun inside: {inside}; or attach while it runs: "
        f"profrun attach --pid $({name}{question} {_container_name(verb, rest)})",
    )


def _container_name(verb: str, rest: tuple[str, ...]) -> str:
    """As the command line has it; NAME where it has none."""
    for word, following in zip(rest, (*rest[1:], ""), strict=True):
        if word == "--name" or word.startswith("--name="):
            return shlex.quote(word.partition("=")[2] or following)
    left = _after_options(rest, "-e --env -u --user -w --workdir --env-file --detach-keys")
    return shlex.quote(left[0]) if left and verb in ("exec", "start", "attach") else "NAME"


# ---------------------------------------------------------------- programs that run elsewhere

_POD = (
    "the program runs in a pod of the cluster, and no process of it is here",
    "run profrun in the pod: {name} exec POD -- profrun PLAN -- COMMAND (its container needs SYS_PTRACE in "
    "securityContext.capabilities.add); then {name} cp POD:PATH_OF_THE_REPORT ./report",
)
_HOST = (
    "the program runs on another machine, and no process of it is here",
    "run profrun there: {name} HOST profrun PLAN -- COMMAND",
)
_LATER = ("somebody else starts the program, later", "write profrun into the job itself: profrun PLAN -- COMMAND")
_ELSEWHERE = {
    **dict.fromkeys(("kubectl", "oc"), (("exec", "run", "debug", "attach"), *_POD)),
    **dict.fromkeys(("ssh", "mosh", "rsh", "pdsh", "clush"), ((), *_HOST)),
    **dict.fromkeys(("sbatch", "qsub", "bsub", "condor_submit", "at", "batch"), ((), *_LATER)),
    "systemd-run": (
        (), "systemd starts the program: it is no process of profrun's",
        "add --scope, with which systemd-run starts it itself; or let it start profrun: "
        "systemd-run ... profrun PLAN -- COMMAND",
    ),
    "srun": (
        (), "Slurm's daemon starts the tasks: they are no processes of profrun's",
        "let srun start profrun, once for each task: srun ... profrun PLAN -- COMMAND; "
        "or attach on the node: profrun attach --pid PID",
    ),
}  # fmt: skip
"""By name: the verbs with which it starts something (none: it always does), why that is not ours, and what to do."""


def _elsewhere(words: tuple[str, ...]) -> Hurdle | None:
    name, (verb, _) = name_of(words), _verb(words)
    verbs, why, way = _ELSEWHERE.get(name, (("",), "", ""))
    if (verbs and verb not in verbs) or not why or (name == "systemd-run" and "--scope" in words):
        return None
    called = f"{name} {verb}" if verbs else name
    return Hurdle(called, True, why, way.replace("{name}", name), gets_in=name == "srun")


# ---------------------------------------------------------------- what does not let our variables through

_OURS = ("PYTHONPATH", "PROFRUN_INJECT")
_NO_USER_SWITCH_KEEPS = "gives the program an environment of its own, without profrun's variables"


def _environment(words: tuple[str, ...]) -> Hurdle | None:
    name, own = name_of(words), words[1 : len(words) - len(_inner(words))]
    if name in ("sudo", "doas", "su"):
        return None if _keeps(own) else _switch(name)
    if name == "env" and {"-i", "-", "--ignore-environment"} & set(own):
        kept = " ".join(f'{one}="${one}"' for one in _OURS)
        way = f"leave -i out; or keep them: sh -c 'exec env -i {kept} ... COMMAND'"
        return Hurdle("env -i", False, "it empties the environment, and profrun's variables are gone", way)
    if name == "env" and any(word.startswith("PYTHONPATH=") or word in _OURS for word in own):
        why = "it replaces PYTHONPATH, through which profrun's part gets into the program"
        return Hurdle("env", False, why, "set it outside: PYTHONPATH=... profrun PLAN -- COMMAND")
    if name in ("pixi", "micromamba") and "--clean-env" in own:
        why = "it empties the environment, and profrun's variables are gone"
        return Hurdle(f"{name} run --clean-env", False, why, "leave --clean-env out")
    return None


def _keeps(options: Sequence[str]) -> bool:
    named = [word for word in options if word.startswith("--preserve-env=")]
    return bool({"-E", "-m", "-p", "--preserve-env"} & set(options)) or any(_OURS[1] in word for word in named)


def _switch(name: str) -> Hurdle:
    way = f"let it start profrun: {name} ... profrun PLAN -- COMMAND"
    way += f"; or let them through: sudo --preserve-env={','.join(_OURS)} ..." if name == "sudo" else ""
    return Hurdle(name, False, _NO_USER_SWITCH_KEEPS, way)


# ---------------------------------------------------------------- containers that are processes of ours

_BINDING, _BINDING_VERBS = ("apptainer", "singularity"), ("exec", "run", "shell")
_CLEAN = ("-e", "--cleanenv", "-C", "--containall")
_BINDING_VALUES = (
    "-B --bind --env --env-file -H --home --mount -o --overlay --pwd --cwd -S --scratch -W --workdir --add-caps "
    "--drop-caps --network --dns --hostname --security --app --fusemount"
)
_SITE = PurePath(__file__).parent / "inject"


def _enclosed(words: tuple[str, ...]) -> Hurdle | None:
    name, (verb, rest) = name_of(words), _verb(words)
    if name == "enroot" and verb == "start" and not any(_OURS[1] in word for word in rest):
        places = " ".join(f"--mount {place}:{place}:none:x-create=dir,bind" for place in (_SITE, "${TMPDIR:-/tmp}"))
        why = "the container has an environment and files of its own, without profrun's part"
        way = f"enroot start --env PYTHONPATH --env PROFRUN_INJECT {places} ...; or run profrun inside"
        return Hurdle("enroot start", False, why, way)
    clean = [word for word in rest[: len(rest) - len(_after_options(rest, _BINDING_VALUES))] if word in _CLEAN]
    if name in _BINDING and verb in _BINDING_VERBS and clean:
        why = "the container starts with an environment of its own, without profrun's variables"
        return Hurdle(f"{name} {verb}", False, why, f"leave {' and '.join(clean)} out; or run profrun inside")
    return None
