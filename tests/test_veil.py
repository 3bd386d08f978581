"""Names of people, hosts and addresses get other names, and what only looks like one keeps its own."""

from __future__ import annotations

import pytest

from orchestrator import redact
from orchestrator.redact import MASK
from orchestrator.veil import LEFT_OUT, Veil, told_of


@pytest.fixture
def veil() -> Veil:
    return Veil({"DB_PASS": "hunter2secret"}, hosts=("vm", "gpunode42"), users=("ada", "root"), hide=("Manhattan",))


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("/home/ada/x.py", "/home/user-1/x.py"),
        ("/home/bob/x.py and /Users/carol", "/home/user-1/x.py and /Users/user-2"),
        ("/scratch/ada_tmp, ada.log", "/scratch/user-1_tmp, user-1.log"),
        ("on gpunode42.cluster.corp", "on host-1"),
        ("GPUNODE42.log", "host-1.log"),
        ("vm", "host-1"),
        ("ssh ada@gpunode42", "ssh user-1@host-1"),
        ("10.1.2.3:29500 10.1.2.3 10.1.2.4", "address-1:29500 address-1 address-2"),
        ("[fe80::1%eth0] fd00:1::2", "[address-1%eth0] address-2"),
        ("de:ad:be:ef:00:01", "address-1"),
        ("ask bob@example.org", "ask e-mail-address-1"),
        ("GPU-5a3c12ef-1234-5678-9abc-0123456789ab", "GPU-shared-1"),
        ("project manhattan", f"project {MASK}"),
        ("x hunter2secret y", f"x {MASK} y"),
    ],
)
def test_taken_out(veil: Veil, text: str, clean: str) -> None:
    assert veil(text) == clean


@pytest.mark.parametrize(
    "text",
    [
        "void c10::add<at::native::bfd>(int)",
        "canada::adam(madam)",
        "at 12:34:56.789",
        "2026-09-21T10:13:20Z",
        "/root/train.py",
        "/home/ubuntu/train.py",
        "127.0.0.1:29500",
        "nsys 2022.4.2.1",
        "memcpy@@GLIBC_2.14",
        "vm.swappiness",
        "0000:01:00.0",
        "model @ 0x7f00",
        "torch 2.13.0+cpu",
    ],
)
def test_left_alone(veil: Veil, text: str) -> None:
    assert veil(text) == text


def test_twice_is_once(veil: Veil) -> None:
    text = "/home/bob on gpunode42 at 10.1.2.3 for bob@example.org, GPU-5a3c12ef-1234-5678-9abc-0123456789ab"
    once = veil(text)
    assert veil(once) == once


def test_variables_and_command_lines(veil: Veil) -> None:
    data = {
        "environment_variables": {"OMP_NUM_THREADS": "8", "HOME": "/home/ada", "CUDA_VISIBLE_DEVICES": None},
        "command": ["train", "--token", "abc", "--lr", "0.1"],
        "n": 3,
    }
    assert veil.tree(data) == {
        "environment_variables": {"OMP_NUM_THREADS": "8", "HOME": LEFT_OUT, "CUDA_VISIBLE_DEVICES": None},
        "command": ["train", "--token", MASK, "--lr", "0.1"],
        "n": 3,
    }


def test_what_a_record_tells() -> None:
    data = {
        "hostname": "n1.x.org",
        "captures": [{"host": "n2"}, {"host": None}],
        "argv": ["/home/ada/t.py", "--url", "https://bob:x@db.corp.example.com:5432/x", "s3://bucket/key"],
        "advice": "see https://docs.python.org/3/",
        "user": "bob",
    }
    assert told_of(data) == ({"n1.x.org", "n1", "n2", "db.corp.example.com"}, {"ada", "bob"})


@pytest.mark.parametrize(
    ("name", "kept"),
    [("TF_ENABLE_ONEDNN_OPTS", True), ("TF_XLA_FLAGS", True), ("OMP_NUM_THREADS", True), ("PYTHONHASHSEED", True),
     ("TF_VAR_admin", False), ("TF_WORKSPACE", False), ("TF_DATA_DIR", False), ("TF_CLI_CONFIG_FILE", False)],
)  # fmt: skip
def test_of_one_prefix_only_what_bears_on_speed_is_kept(name: str, kept: bool) -> None:
    assert Veil({}).variables({name: "acme"}) == {name: "acme" if kept else LEFT_OUT}
    assert redact.environment({name: "acme"}) == {name: "acme" if kept else redact.HIDDEN}


def test_what_an_environment_step_sets_is_an_environment(veil: Veil) -> None:
    asked = {"set": {"LICENSE": "AB-12", "OMP_NUM_THREADS": "8"}, "unset": ["LD_PRELOAD"]}
    clean = {"set": {"LICENSE": LEFT_OUT, "OMP_NUM_THREADS": "8"}, "unset": ["LD_PRELOAD"]}
    record = {"use": "env", "wanted": asked, "verified": {"LICENSE": "AB-12"}, "before": None}
    assert veil.tree([{"use": "env", **asked}, record, {"use": "affinity", "wanted": {"cpus": "0-3"}}]) == [
        {"use": "env", **clean},
        {"use": "env", "wanted": clean, "verified": {"LICENSE": LEFT_OUT}, "before": None},
        {"use": "affinity", "wanted": {"cpus": "0-3"}},
    ]


def test_names_that_may_be_told_are_no_variables() -> None:
    assert Veil({}, names=False).tree({"env": {"LICENSE": "AB-12"}}) == {"env": {"LICENSE": LEFT_OUT}}


def test_a_host_has_one_name_however_it_is_called() -> None:
    veil = Veil({}, hosts=("gpu-01.cluster.corp", "gpu-01"))
    assert (veil("gpu-01.cluster.corp"), veil("gpu-01"), veil("on gpu-01.cluster.corp:22")) == (
        "host-1", "host-1", "on host-1:22",
    )  # fmt: skip


def test_two_hosts_of_one_short_name_stay_two() -> None:
    veil = Veil({}, hosts=("gpu-01.a.corp", "gpu-01.b.corp", "gpu-01"))
    assert len({veil("gpu-01.a.corp"), veil("gpu-01.b.corp")}) == 2


def test_letters_that_only_fold_to_a_name_are_left() -> None:
    assert Veil({}, users=("sam",))("by ſam or Sam") == "by ſam or user-1"
