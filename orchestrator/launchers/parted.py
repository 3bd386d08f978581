"""A command that starts the tasks of a job, perhaps on other hosts (srun, mpirun), taken apart: what starts them, and
what each of them is."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from orchestrator import launching

_SRUN_VALUED = """
    accel-bind account acctg-freq batch bb bbf bcast-exclude begin chdir cluster-constraint clusters comment constraint
    container core-spec cores-per-socket cpu-bind cpu-freq cpus-per-gpu cpus-per-task deadline delay-boot dependency
    distribution epilog error exclude export extra extra-node-info gid gpu-bind gpu-freq gpus gpus-per-node
    gpus-per-socket gpus-per-task gres gres-flags het-group hint input job-name jobid licenses mail-type mail-user
    mcs-label mem mem-bind mem-per-cpu mem-per-gpu mincpus mpi msg-timeout network nodefile nodelist nodes ntasks
    ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket open-mode output partition power prefer priority
    profile prolog qos relative reservation signal slurmd-debug sockets-per-node switches task-epilog task-prolog
    thread-spec threads threads-per-core time time-min tmp treewidth tres-bind tres-per-task uid wait wckey
    container-image container-mounts container-name container-workdir container-save container-env
"""
"""Long options of srun(1) that take the next word for their value; those with an optional one (--nice, --propagate,
--kill-on-bad-exit ...) take it behind an = only. The last line is pyxis' (github.com/NVIDIA/pyxis)."""
_SRUN_SHORT = "AbBcCdDeFGiJLmMnNopPqrStTUwWx"
"""Its short options with a value, which may be in the same word."""
_MPIRUN_TWO = "--mca -mca --gmca -gmca --omca --prtemca --pmixmca -genv -env -gpath-map"
_MPIRUN_ONE = """
    -n -np --np --n -c -N -H -host --host -hosts -hostfile --hostfile -machinefile --machinefile --default-hostfile -f
    -x -wdir --wdir -wd --wd -gwdir -path --path -gpath --prefix -ppn -perhost -npernode --npernode --npersocket
    -npersocket -map-by --map-by -rank-by --rank-by -bind-to --bind-to --output -output-filename --output-filename
    -stdin --stdin --cpu-set --cpu-list -rf --rankfile -am --am -tune --tune --timeout -timeout --max-restarts
    --preload-files --server-wait-time --ompi-server --personality --runtime-options --display --with-ft --dvm --hnp
    --pidfile --report-uri --launch-agent --xterm -genvlist -envlist -membind -rr-size -launcher -launcher-exec
    -bootstrap -bootstrap-exec -rmk -iface -outfile-pattern -errfile-pattern -info-file -pmi-port -localhost -profile
    -order-nodes -usize -tmpdir -hostos -binding --stream-buffering -stream-buffering --mca-base-env-list
    --cpus-per-rank -cpus-per-rank --cpus-per-proc -cpus-per-proc
"""
"""Options of Open MPI's mpirun(1), and of Hydra's mpiexec(1), that of MPICH and Intel MPI, by how many words they
take."""
_TAKEN = {**dict.fromkeys(_MPIRUN_ONE.split(), 1), **dict.fromkeys(_MPIRUN_TWO.split(), 2)}


@dataclass(frozen=True)
class Parted:
    """`start` starts the tasks (with all that stands before it in the command), `command` is what each of them is.

    refusal: why they can't be looked at one by one, and the way out; None: they can."""

    kind: Literal["slurm", "mpi"]
    start: tuple[str, ...]
    command: tuple[str, ...]
    refusal: tuple[str, str] | None = None

    @property
    def name(self) -> str:
        """As its user calls it: srun, mpirun ..."""
        return next(launching.name_of((word,)) for word in self.start if launching.name_of((word,)) in STARTERS)

    @property
    def leads_from_afar(self) -> bool:
        """Whether this host runs none of the tasks, as the login node that salloc or srun was called on."""
        return self.kind == "slurm" and own_host() is None


def own_host() -> str | None:
    """The node of the Slurm allocation that we are on; None outside of it."""
    return os.environ.get("SLURMD_NODENAME")


STARTERS: dict[str, Literal["slurm", "mpi"]] = {
    "srun": "slurm", "mpirun": "mpi", "mpiexec": "mpi", "mpiexec.hydra": "mpi", "orterun": "mpi", "prterun": "mpi",
}  # fmt: skip


def parted(argv: Sequence[str]) -> Parted | None:
    """The command taken apart; None where it starts no tasks in this sense, also where it only asks for help."""
    words = tuple(argv)
    for layer in launching.layers(words):
        kind = STARTERS.get(launching.name_of(layer[:1]))
        if kind:
            before = words[: len(words) - len(layer)]
            options, command = _srun(layer) if kind == "slurm" else _mpirun(layer)
            found = Parted(kind, (*before, layer[0], *options), command)
            return _refused(found, options) if command or _is_multi(options) else None
    return None


def _refused(found: Parted, options: Sequence[str]) -> Parted:
    """With the reason why its tasks can't be told apart."""
    several = "it starts several programs, each of which would need tools of its own"
    way = f"profile one of them at a time: {found.name} ... COMMAND"
    if inside := next((word for word in options if word.startswith("--container")), None):
        why = f"its tasks run in a container ({inside.partition('=')[0]}), where this profrun is not"
        out = "install profrun in the image and start it inside, for one task: srun ... profrun run -o DIR -- COMMAND"
        return Parted(found.kind, found.start, found.command, (why, out))
    if found.command and found.command[0].isdecimal():
        why = f"{options[-1] if options else found.name} is not known to take {found.command[0]} as its value"
        return Parted(
            found.kind, found.start, found.command, (why, f"put -- before the program: {found.name} ... -- PROGRAM")
        )
    if _is_multi(options) or ":" in found.command:
        return Parted(found.kind, found.start, found.command, (several, way))
    return found


def _is_multi(options: Sequence[str]) -> bool:
    return any(word in ("--multi-prog", "--app", "-app", "-configfile") for word in options)


_HOSTS = re.compile(r"-H|--?hosts?|-f|--?(default-)?(hostfile|machinefile)|-rf|--rankfile")
_OF_JOBS = ("SLURM_JOB_ID", "PBS_NODEFILE", "LSB_HOSTS", "LSB_DJOB_HOSTFILE", "PE_HOSTFILE", "COBALT_NODEFILE")


def names_hosts(found: Parted, env: Mapping[str, str]) -> bool:
    """Whether mpirun's options, or the batch job that it is called in, give it hosts; without, it stays on its own."""
    named = any(_HOSTS.fullmatch(word.partition("=")[0]) for word in found.start)
    return named or any(env.get(name) for name in (*_OF_JOBS, "OMPI_MCA_orte_default_hostfile"))


# ---------------------------------------------------------------- options, up to the program


def options_of(name: str, words: Sequence[str]) -> tuple[str, ...]:
    """Of what stands behind srun or mpirun, its own options."""
    return (_srun if STARTERS[name] == "slurm" else _mpirun)((name, *words))[0]


def _srun(words: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(srun's own options, the program with its words)."""
    at = 1
    while at < len(words) and words[at].startswith("-") and words[at] != "-":
        if words[at] == "--":
            return words[1 : at + 1], words[at + 1 :]
        at += 2 if _takes_next(words[at]) else 1
    return words[1:at], words[at:]


def _takes_next(word: str) -> bool:
    """Whether an option of srun takes the next word: `-n 4`, `-ln 4`, `--ntasks 4`; not `-n4`, `--ntasks=4`. A long one
    may be cut short."""
    if word.startswith("--"):
        name, sign, _ = word[2:].partition("=")
        return not sign and _meant(name, _SRUN_VALUED.split())
    for place, letter in enumerate(word[1:], 2):
        if letter in _SRUN_SHORT:
            return place == len(word)
        if letter in "IKk":  # an optional value, in the same word
            return False
    return False


def _meant(name: str, known: Collection[str]) -> bool:
    return name in known or (len(name) > 3 and any(one.startswith(name) for one in known))


def _mpirun(words: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    at = 1
    while at < len(words) and words[at].startswith("-"):
        if words[at] == "--":
            return words[1 : at + 1], words[at + 1 :]
        at += 1 + _taken(words[at])
    return words[1:at], words[at:]


def _taken(word: str) -> int:
    """How many words an option of mpirun takes."""
    return 0 if "=" in word else _TAKEN.get(word, 0)


# ---------------------------------------------------------------- lists of hosts


def hosts(text: str) -> Iterator[str]:
    """The hosts of a list as Slurm writes it: `n[1-3,07],login` names five."""
    for part in re.findall(r"[^,\[\]]+(?:\[[^\]]*\][^,\[\]]*)*", text):
        yield from _spread(part)


def _spread(part: str) -> Iterator[str]:
    head, bracket, rest = part.partition("[")
    if not bracket:
        yield part
        return
    inner, _, tail = rest.partition("]")
    for piece in inner.split(","):
        first, _, last = piece.partition("-")
        last = last or first
        numbers = range(int(first), int(last) + 1) if first.isdecimal() and last.isdecimal() else ()
        for number in numbers:
            yield from (f"{head}{number:0{len(first)}d}{more}" for more in _spread(tail))
