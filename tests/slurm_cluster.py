"""A real Slurm of two nodes on this machine, with its own ports, keys and folder; it is gone when the tests are over.

Both nodes, n1 and n2, are this host. Without accounting, as on many small clusters: sacct knows nothing."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from waiting import state, until

TOOLS = ("slurmctld", "slurmd", "srun", "sbatch", "munged")
CPUS = 4
"""What each node says it has, whatever there is: tasks wait for CPUs, not for ours."""

CONFIG = """\
ClusterName=tests
SlurmctldHost=localhost
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/builtin
SchedulerParameters=batch_sched_delay=0,sched_interval=1
ReturnToService=2
SlurmctldPort={port}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdSpoolDir={folder}/spool.%n
StateSaveLocation={folder}/state
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
KillWait=5
MinJobAge=300
InactiveLimit=0
Waittime=0
{nodes}
PartitionName=tests Nodes=n[1-2] Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""


@dataclass
class Cluster:
    """The running cluster; `env` leads profrun and Slurm's own commands to it."""

    folder: Path
    env: dict[str, str] = field(default_factory=dict)

    def ask(self, *argv: str) -> str:
        done = subprocess.run(argv, env=self.env, capture_output=True, text=True, timeout=60)
        return done.stdout + done.stderr

    def start(self) -> None:
        munge = self.folder / "munge"
        munge.mkdir(mode=0o755)
        (munge / "key").write_bytes(os.urandom(1024))
        (munge / "key").chmod(0o400)
        for place in (munge, munge / "key"):
            shutil.chown(place, "munge", "munge")
        files = [f"--{name}={munge / name}" for name in ("socket", "pid-file", "log-file", "seed-file")]
        words = " ".join(["/usr/sbin/munged", *files, f"--key-file={munge / 'key'}"])
        self._run("su", "-s", "/bin/sh", "munge", "-c", words)
        ports = free_ports(3)
        nodes = [
            f"NodeName=n{n} NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[n]} CPUs={CPUS} RealMemory=1000"
            for n in (1, 2)
        ]
        config = self.folder / "slurm.conf"
        config.write_text(CONFIG.format(folder=self.folder, port=ports[0], nodes="\n".join(nodes)))
        for name in ("state", "spool.n1", "spool.n2"):
            (self.folder / name).mkdir()
        self.env = {**os.environ, "SLURM_CONF": str(config), "NO_COLOR": "1"}
        self._run("slurmctld", "-c", "-f", str(config))
        for node in ("n1", "n2"):
            self._run("slurmd", "-f", str(config), "-N", node)
        until(lambda: self.ask("sinfo", "-h", "-t", "idle", "-o", "%D").strip() == "2")

    def stop(self) -> None:
        """Ends the jobs, then the daemons that it has started, by their own files of pids."""
        if self.env:
            self.ask("scancel", "--user=root")
            with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
                until(lambda: not self.ask("squeue", "-h").strip())
        for name in ("slurmd.n1.pid", "slurmd.n2.pid", "slurmctld.pid", "munge/pid-file"):
            with contextlib.suppress(OSError, ValueError):
                pid = int((self.folder / name).read_text())
                os.kill(pid, signal.SIGTERM)
                until(lambda pid=pid: state(pid) in "XZ")

    def _run(self, *argv: str) -> None:
        done = subprocess.run(argv, env=self.env or None, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{argv}: {done.stderr}"


def free_ports(count: int) -> list[int]:
    """Ports that nobody has, all at once."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """One cluster for all tests that ask for it."""
    missing = [name for name in TOOLS if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None]
    if missing or os.geteuid() != 0:
        said = f"{missing[0]} is not on this machine" if missing else "Slurm's daemons need root"
        (pytest.fail if missing and os.environ.get("CI") == "true" else pytest.skip)(said)
    folder = Path(tempfile.mkdtemp(prefix="profrun-slurm-", dir="/var/tmp"))
    folder.chmod(0o755)  # munge refuses a socket in a folder that others can't enter
    found = Cluster(folder)
    try:
        found.start()
        yield found
    finally:
        found.stop()
        shutil.rmtree(folder, ignore_errors=True)
