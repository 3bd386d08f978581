"""The root helper as an ordinary user calls it: through the real sudo, on settings of the kernel that only a namespace
of the test's own has."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

REPO = Path(__file__).resolve().parents[2]
HELPER = "/usr/local/libexec/profrun-root"
CPU = "/sys/devices/system/cpu"
GOVERNOR = f"{CPU}/cpufreq/policy0/scaling_governor"
UUID = "GPU-01234567-89ab-cdef-0123-456789abcdef"

pytestmark = [
    pytest.mark.tool("sudo", "visudo", "unshare", "setpriv"),
    pytest.mark.skipif(
        os.geteuid() != 0, reason="needs root to make a mount namespace and to lend root to another user"
    ),
]

PRELUDE = f"""
set -e
mount -t tmpfs -o mode=755 none "$STAGE"
for place in usr/local usr/bin; do
  mkdir -p "$STAGE/up/$place" "$STAGE/work/$place"
  mount -t overlay -o "lowerdir=/$place,upperdir=$STAGE/up/$place,workdir=$STAGE/work/$place" overlay "/$place"
done
chmod 755 /usr/local
mount -t tmpfs -o mode=755 none /etc/sudoers.d
mount -t tmpfs -o mode=755 none /run

mkdir "$STAGE/sysfs" "$STAGE/cpu" "$STAGE/nobody"
mount -t sysfs none "$STAGE/sysfs"
mkdir -p "$STAGE/cpu/cpufreq/policy0" "$STAGE/cpu/cpu0"
ln -s ../cpufreq/policy0 "$STAGE/cpu/cpu0/cpufreq"
for file in scaling_governor scaling_max_freq cpuinfo_max_freq; do echo old >"$STAGE/cpu/cpufreq/policy0/$file"; done
mount --bind "$STAGE/cpu" {CPU}
mount --bind "$STAGE/sysfs/class/net/lo/ifalias" {GOVERNOR}

for name in packages bin checkout python; do mkdir "$STAGE/$name"; done
mount --bind "$PACKAGES" "$STAGE/packages"
mount --bind "$BIN" "$STAGE/bin"
mount --bind "$CHECKOUT" "$STAGE/checkout"
mount --bind "$PREFIX" "$STAGE/python"
"$CHECKOUT/scripts/install-root-helper" nobody 2>"$STAGE/installed"
chown nobody "$STAGE/nobody"
cd "$STAGE/nobody"
"""
"""A machine whose governor is a text that the kernel keeps for the network namespace: a real file of sysfs, of no use
to anybody. The helper and sudo's settings are there in this namespace only."""


@pytest.fixture
def stage() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="profrun-stage-", dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def on(stage: Path, text: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs a shell text as root on that machine; in it, `nobody WORDS` runs a command as an ordinary user."""
    switch = 'nobody() { setpriv --reuid=nobody --regid=nogroup --clear-groups "$@"; }\n'
    places = {
        "STAGE": str(stage),
        "CHECKOUT": str(REPO),
        "PACKAGES": next(p for p in sys.path if p.endswith("site-packages")),
        "BIN": str(Path(sys.prefix) / "bin"),
        "PREFIX": sys.base_prefix,
        "HELPER": f"sudo -n {HELPER}",
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/nonexistent",
    }
    return subprocess.run(
        ["unshare", "--mount", "--net", "sh", "-c", PRELUDE + switch + text],
        env={**places, **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )


def python_on(stage: Path, code: str, before: str = "") -> Any:
    """What a Python text of an ordinary user's prints as JSON; profrun can be imported in it."""
    python = f"$STAGE/python/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    run = f"""
cat >"$STAGE/code.py" <<'END'
{code}
END
export PYTHONPATH="$STAGE/checkout:$STAGE/packages" PYTHONDONTWRITEBYTECODE=1 LD_LIBRARY_PATH="$STAGE/python/lib"
{before}
nobody "{python}" "$STAGE/code.py"
"""
    done = on(stage, run)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


# ---------------------------------------------------------------- what it does


def test_a_setting_is_written_and_the_same_through_a_link_or_off_sysfs_is_not(stage: Path) -> None:
    text = f"""
nobody $HELPER write {GOVERNOR} performance
cat {GOVERNOR}
set +e
nobody $HELPER write {CPU}/cpu0/cpufreq/scaling_governor powersave; echo $?
nobody $HELPER write {CPU}/cpufreq/policy0/scaling_max_freq 2000000; echo $?
nobody $HELPER write {CPU}/cpufreq/policy7/scaling_max_freq 2000000; echo $?
cat {GOVERNOR} {CPU}/cpufreq/policy0/scaling_max_freq
"""
    done = on(stage, text)
    assert done.stdout.split() == ["performance", "64", "64", "71", "performance", "old"]
    assert done.stderr.splitlines() == [
        "profrun-root: refused: this text to this path",
        "profrun-root: refused: a file that is no setting of the kernel's",
        "profrun-root: ENOENT: No such file or directory",
    ]


def test_a_link_in_the_place_of_a_setting_is_not_followed(stage: Path) -> None:
    text = f"""
mkdir {CPU}/cpufreq/policy1 {CPU}/cpufreq/policy2
ln -s /proc/sys/vm/drop_caches {CPU}/cpufreq/policy1/boost
ln -s ../policy0/scaling_governor {CPU}/cpufreq/policy2/scaling_governor
set +e
nobody $HELPER write {CPU}/cpufreq/policy1/boost 1; echo $?
nobody $HELPER write {CPU}/cpufreq/policy2/scaling_governor powersave; echo $?
"""
    done = on(stage, text)
    assert done.stdout.split() == ["64", "64"]
    assert done.stderr.count("a path through a link") == 2


def test_the_kernels_refusal_keeps_its_name(stage: Path) -> None:
    """The file lies on a sysfs that is mounted read-only, as in a container."""
    done = on(stage, f"mount -o remount,ro,bind {GOVERNOR}\nnobody $HELPER write {GOVERNOR} performance")
    assert (done.returncode, done.stderr) == (71, "profrun-root: EROFS: Read-only file system\n")


ATTACKS: list[list[str]] = [
    [],
    ["--help"],
    ["sh"],
    ["write", GOVERNOR],
    ["write", GOVERNOR, "performance", "more"],
    ["write", "--", GOVERNOR, "performance"],
    ["write", f"{GOVERNOR}/", "performance"],
    ["write", f"{CPU}/../cpu/cpufreq/policy0/scaling_governor", "performance"],
    ["write", f"{CPU}/cpufreq/policy0/../policy0/scaling_governor", "performance"],
    ["write", f"{CPU}//cpufreq/policy0/scaling_governor", "performance"],
    ["write", f"{GOVERNOR}\n", "performance"],
    ["write", f"x\n{GOVERNOR}", "performance"],
    ["write", GOVERNOR.removeprefix("/"), "performance"],
    ["write", f"/proc/self/root{GOVERNOR}", "performance"],
    ["write", f"{CPU}/cpufreq/policy0/cpuinfo_max_freq", "1"],
    ["write", f"{CPU}/cpu0/online", "0"],
    ["write", f"{CPU}/cpufreq/policy٠/scaling_governor", "performance"],
    ["write", "/proc/sys/kernel/core_pattern", "|/tmp/x"],
    ["write", "/proc/sys/kernel/modprobe", "x"],
    ["write", "/proc/sys/kernel/perf_event_paranoid", "1"],
    ["write", "/proc/sysrq-trigger", "b"],
    ["write", "/sys/power/state", "mem"],
    ["write", "/etc/passwd", "x"],
    ["write", GOVERNOR, ""],
    ["write", GOVERNOR, "performance\n"],
    ["write", GOVERNOR, "performance\nx"],
    ["write", GOVERNOR, "perform ance"],
    ["write", GOVERNOR, "x" * 100_000],
    ["write", GOVERNOR, "\udcff"],
    ["write", f"{CPU}/cpufreq/policy0/scaling_max_freq", "-1"],
    ["write", f"{CPU}/cpufreq/policy0/scaling_max_freq", "9" * 5000],
    ["write", f"{CPU}/cpufreq/policy0/scaling_max_freq", "٣"],
    ["write", f"{CPU}/smt/control", "forceoff"],
    ["write", "/proc/sys/vm/drop_caches", "4"],
    ["hold-latency"],
    ["hold-latency", "-1"],
    ["hold-latency", "1", "2"],
    ["hold-latency", "0x10"],
    ["hold-latency", "9" * 20],
    ["smi"],
    ["smi", "-i", UUID],
    ["smi", "-i", "0", "-rgc"],
    ["smi", "-i", UUID, "-rgc", "-f"],
    ["smi", "-i", UUID, "-lgc"],
    ["smi", "-i", UUID, "-lgc", "1,2,3"],
    ["smi", "-i", UUID, "-lgc", "1,2", "-f", "/etc/passwd"],
    ["smi", "-i", UUID, "-pm", "2"],
    ["smi", "-i", UUID, "-pl", "100"],
    ["smi", "-i", UUID, "-r"],
    ["smi", "-q", "-f", "/etc/shadow"],
    ["smi", "-i", f"{UUID}\n", "-rgc"],
    ["smi", "-i", f"{UUID},{UUID}", "-rgc"],
    ["place", "/tmp"],
    ["version", "-c"],
    ["VERSION"],
    ["__class__"],
]

DRIVER = f"""
import json, os, subprocess
def call(words):
    done = subprocess.run(["sudo", "-n", "{HELPER}", *words], capture_output=True, text=True)
    return done.returncode, done.stderr
print(json.dumps([call(words) for words in json.load(open(os.environ["STAGE"] + "/attacks.json"))]))
"""


def test_every_attack_is_refused_and_leaves_no_trace(stage: Path) -> None:
    attacks = json.dumps(ATTACKS)
    before = f"cat >\"$STAGE/attacks.json\" <<'END'\n{attacks}\nEND\necho untouched >{GOVERNOR}"
    answers = python_on(stage, DRIVER, before)
    allowed = [words for words, (code, _) in zip(ATTACKS, answers, strict=True) if code != 64]
    assert allowed == []
    assert {said.split(":")[0] + ":" + said.split(":")[1] for _, said in answers} == {"profrun-root: refused"}
    assert all(len(said) < 200 and said.count("\n") == 1 for _, said in answers)


def test_sudo_lets_the_user_do_nothing_else(stage: Path) -> None:
    text = f"""
set +e
nobody sudo -n id; nobody sudo -n /bin/sh -c id; nobody sudo -n -u daemon {HELPER} version
nobody sudo -n LD_PRELOAD=/tmp/x {HELPER} version
setpriv --reuid=daemon --regid=nogroup --clear-groups $HELPER version
nobody {HELPER} version; echo $?
stat -c '%U %G %a' {HELPER} /etc/sudoers.d/profrun /usr/local/libexec
"""
    done = on(stage, text)
    assert done.stdout.splitlines() == ["77", "root root 755", "root root 440", "root root 755"]


def test_nothing_of_the_callers_python_is_loaded(stage: Path) -> None:
    """Called by root itself, so that sudo cleans nothing away."""
    text = f"""
mkdir evil; for name in re os signal sitecustomize contextlib; do echo 'print("evil")' >evil/$name.py; done; cp evil/* .
export PYTHONPATH="$PWD/evil" PYTHONHOME=/nonexistent PYTHONSTARTUP="$PWD/evil/re.py" PYTHONINSPECT=1
{HELPER} version
cd evil; {HELPER} version
"""
    done = on(stage, text)
    assert (done.stdout, done.stderr) == ("profrun-root 1\nprofrun-root 1\n", "")


# ---------------------------------------------------------------- holding

HOLD = """
import json, struct, subprocess, sys, time
from pathlib import Path
from orchestrator import privileged
from orchestrator.model import Hold

def latency():  # what the kernel is bound to, of all requests
    return struct.unpack("i", Path("/dev/cpu_dma_latency").read_bytes())[0]

def gone(before):
    end = time.monotonic() + 60
    while latency() != before and time.monotonic() < end:
        time.sleep(0.02)
    return latency() == before

argv = privileged.held(Hold("/dev/cpu_dma_latency", "%x" % MICROSECONDS))
before = latency()
inner = '''
import os, subprocess, sys
holder = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
print(holder.stdout.readline().decode().strip(), flush=True)
sys.stdin.read()
'''
pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
caller = subprocess.Popen([sys.executable, "-c", inner, *argv], text=True, **pipes)
said, during = caller.stdout.readline().strip(), latency()
caller.kill()
ended = gone(before)
print(json.dumps([argv[-2:], said, during, ended]))
"""


READABLE = """
mknod -m 644 "$STAGE/latency" c $(stat -c '0x%t 0x%T' /dev/cpu_dma_latency)
mount --bind "$STAGE/latency" /dev/cpu_dma_latency
"""
"""The same device under another mode: what it is bound to is for root's eyes elsewhere."""


@pytest.mark.skipif(not Path("/dev/cpu_dma_latency").exists(), reason="this kernel takes no requests for latency")
def test_a_held_latency_ends_with_its_caller_however_that_dies(stage: Path) -> None:
    """A thousand seconds: longer than any state of a processor needs, so nobody on this machine feels it."""
    argv, said, during, ended = python_on(stage, HOLD.replace("MICROSECONDS", "999_999_999"), READABLE)
    assert (argv, said, during, ended) == (["hold-latency", "999999999"], "held", 999_999_999, True)


# ---------------------------------------------------------------- nvidia-smi

FAKE_SMI = """#!/bin/sh
echo "$@"; env | sort; pwd; exit 3
"""


def test_nvidia_smi_gets_its_words_and_a_clean_environment(stage: Path) -> None:
    text = f"""
cat >/usr/bin/nvidia-smi <<'END'
{FAKE_SMI}END
chmod 755 /usr/bin/nvidia-smi
set +e
nobody env SECRET=1 NVIDIA_TF32_OVERRIDE=0 $HELPER smi -i {UUID} -lgc 1410,1410; echo $?
chmod 775 /usr/bin/nvidia-smi; nobody $HELPER smi -i {UUID} -rgc; echo $?
rm /usr/bin/nvidia-smi; nobody $HELPER smi -i {UUID} -rgc; echo $?
"""
    done = on(stage, text)
    lines = done.stdout.splitlines()
    assert lines[0] == f"-i {UUID} -lgc 1410,1410"
    shell_own = ("PWD=", "OLDPWD=", "SHLVL=", "_=")
    assert [line for line in lines[1:-4] if not line.startswith(shell_own)] == [
        "LC_ALL=C",
        "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
    ]
    assert lines[-4:] == ["/", "3", "64", "69"]


def test_a_driver_that_never_answers_is_ended_though_the_caller_could_not(stage: Path) -> None:
    """With a limit of one second in the place of the real one, and a caller that has tried to keep the alarm off."""
    text = f"""
sed -i 's/^LIMIT_S, SMI_LIMIT_S = .*/LIMIT_S, SMI_LIMIT_S = 60, 1/' {HELPER}
printf '#!/bin/sh\nexec sleep 600\n' >/usr/bin/nvidia-smi; chmod 755 /usr/bin/nvidia-smi
trap '' ALRM HUP INT TERM
set +e; nobody $HELPER smi -i {UUID} -rgc; echo $?
"""
    assert on(stage, text).stdout.split()[-1] == str(128 + signal.SIGALRM)


# ---------------------------------------------------------------- the common place


def test_the_common_place_is_open_to_all_and_nobodys_to_take_away(stage: Path) -> None:
    text = """
nobody $HELPER place; nobody $HELPER place; stat -c '%U %a' /run/profrun
rmdir /run/profrun; ln -s /etc /run/profrun
set +e; nobody $HELPER place; echo $?
rm /run/profrun; mkdir /run/profrun; chown nobody /run/profrun; nobody $HELPER place; echo $?
stat -c %a /etc
"""
    done = on(stage, text)
    assert done.stdout.splitlines() == ["root 1777", "71", "64", oct(Path("/etc").stat().st_mode & 0o777)[2:]]


def test_profrun_has_it_made_where_it_is_missing(stage: Path) -> None:
    code = """
import json, os
from orchestrator import folder, privileged
privileged.place()
print(json.dumps([oct(os.stat("/run/profrun").st_mode), str(folder.state_folder())]))
"""
    assert python_on(stage, code) == ["0o41777", "/run/profrun"]


# ---------------------------------------------------------------- what profrun makes of it

ASK = f"""
import json
from dataclasses import asdict
from orchestrator import privileged, process
from orchestrator.model import Run, Write
found = privileged.available()
change = privileged.instead(Write("{GOVERNOR}", "performance", "policy0 governor"))
answer = process.ask(change.argv, timeout_s=60)
print(json.dumps([found.allowed, found.why, found.fix, privileged.why_not(), answer.ok, answer.stderr]))
"""


def test_profrun_finds_the_helper_and_writes_through_it(stage: Path) -> None:
    allowed, why, fix, why_not, written, said = python_on(stage, ASK)
    assert (allowed, why, fix, why_not) == (True, f"the root helper {HELPER} answers", None, None)
    assert (written, said) == (True, "")


LINE = f"nobody ALL=(root) NOPASSWD: {HELPER}"
REFUSALS = {
    "rm /etc/sudoers.d/profrun": ("a password is required", LINE),
    f"echo 'Defaults requiretty' >/etc/sudoers.d/a; echo '{LINE}' >/etc/sudoers.d/profrun": (
        "you must have a tty",
        f"Defaults!{HELPER} !requiretty",
    ),
    f"rm {HELPER}": ("is not installed", "install-root-helper"),
    f"chmod 775 {HELPER}": ("can be changed by others", "install-root-helper"),
    f"chown nobody {HELPER}": ("can be changed by others", "install-root-helper"),
    "chmod 777 /usr/local/libexec": ("can be changed by anybody", "install-root-helper"),
    f"sed -i 's/profrun-root 1/profrun-root 0/' {HELPER}": ("another version", "install-root-helper"),
    "rm /usr/bin/sudo": ("command not found", LINE),
}


@pytest.mark.parametrize("broken", REFUSALS)
def test_what_is_in_the_way_is_told_with_what_mends_it(stage: Path, broken: str) -> None:
    allowed, why, fix, why_not, *_ = python_on(stage, ASK, broken)
    expected, mends = REFUSALS[broken]
    assert not allowed and expected in why and mends in fix
    assert why_not.startswith(why)


def test_the_two_commands_for_who_has_no_checkout_do_what_they_say(stage: Path) -> None:
    """As root types them: sudo is dropped, since the user in the test has no other right to it."""
    text = f"""
rm {HELPER} /etc/sudoers.d/profrun
export PYTHONPATH="$STAGE/checkout:$STAGE/packages" PYTHONDONTWRITEBYTECODE=1 LD_LIBRARY_PATH="$STAGE/python/lib"
python="$STAGE/python/bin/python{sys.version_info.major}.{sys.version_info.minor}"
nobody "$python" -c 'import orchestrator.privileged as p; print("\\n".join(p._commands()))' | sed 's/sudo //' >commands
unset PYTHONPATH LD_LIBRARY_PATH
sh -e commands
nobody $HELPER version
"""
    done = on(stage, text)
    assert done.stdout.splitlines()[-1:] == ["profrun-root 1"], done.stderr


def test_the_installer_takes_one_plain_name(stage: Path) -> None:
    names = ("'alice ALL'", "%", "'a\nb'", "root,nobody", "'ALL=(ALL)'", "'#x'", "''")
    calls = "\n".join(f'"$CHECKOUT/scripts/install-root-helper" {name}; echo $?' for name in names)
    done = on(stage, f"rm {HELPER}\nset +e\n{calls}\nls {HELPER}")
    assert done.stdout.split() == ["1"] * len(names)
    assert done.stderr.count("can't stand in sudoers") == len(names) - 1


def test_the_installer_shows_and_removes(stage: Path) -> None:
    text = f"""
"$CHECKOUT/scripts/install-root-helper" --print %profrun
"$CHECKOUT/scripts/install-root-helper" --remove
ls {HELPER} /etc/sudoers.d 2>&1
"""
    done = on(stage, text)
    assert f"%profrun ALL=(root) NOPASSWD: {HELPER}" in done.stdout
    assert "No such file" in done.stdout and "profrun\n" not in done.stdout.partition("No such file")[2]
