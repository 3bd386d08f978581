"""visible.py: CUDA's reading of CUDA_VISIBLE_DEVICES, beside PyTorch's own copy of the rule."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import pytest

from orchestrator.visible import visible


@dataclass(frozen=True)
class Device:
    index: int
    uuid: str
    name: str = "NVIDIA Example"
    mig_uuids: tuple[str, ...] = ()


ALIKE = [Device(n, f"GPU-{n}{n}aa-0000") for n in range(4)]
UNLIKE = [Device(0, "GPU-00aa", "NVIDIA T4"), Device(1, "GPU-11aa", "NVIDIA A100")]
SPLIT = [Device(0, "GPU-00aa", mig_uuids=("MIG-a0", "MIG-a1")), Device(1, "GPU-11aa")]


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("2,3", [2, 3]), ("3, 1", [3, 1]), ("0,2,-1,1", [0, 2]), ("1,9,2", [1]), ("1,x,2", [1]), ("2x,3", [2, 3]),
        ("", []), ("-1", []), ("none", []), ("9", []), ("0,0", []), ("1,2,1", []), ("+1", [1]),
        ("GPU-22aa-0000,GPU-00", [2, 0]), ("GPU-33", [3]), ("GPU-", []), ("GPU-ff", []), ("GPU-11,GPU-ff,GPU-22", [1]),
        ("GPU-11,GPU-11aa", []), ("GPU-11,2", [1]), ("2,GPU-11", [2]),
    ],
)  # fmt: skip
def test_the_list_is_read_as_cuda_reads_it(text: str, places: list[int]) -> None:
    found = visible(ALIKE, {"CUDA_VISIBLE_DEVICES": text})
    assert found.places == places and found.sure
    assert bool(found.why_none) == (not places)


def test_without_the_variable_all_are_seen() -> None:
    assert visible(ALIKE, {}).places == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "text",
    ["2,3", "3, 1", "0,2,-1,1", "", "-1", "none", "0,0", "1,2,1", "2x,3", "+1", "1,x,2", "GPU-33aa-0000",
     "GPU-22aa-0000,GPU-00", "GPU-11,GPU-11aa", "2,GPU-11", "GPU-11,2"],
)  # fmt: skip
def test_pytorch_reads_it_the_same_way(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = pytest.importorskip("torch.cuda")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
    words = cuda._parse_visible_devices()
    if words and isinstance(words[0], str):
        words = cuda._transform_uuid_to_ordinals(words, [device.uuid for device in ALIKE])
    assert visible(ALIKE, {"CUDA_VISIBLE_DEVICES": text}).places == words


def test_where_the_list_ends_is_said() -> None:
    seen = functools.partial(visible, ALIKE)
    (note,) = seen({"CUDA_VISIBLE_DEVICES": "1,9,2"}).notes
    assert "'9' is none of its GPUs here" in note and "leaves out what follows" in note
    assert "it is empty" in (seen({"CUDA_VISIBLE_DEVICES": ""}).why_none or "")
    assert "names GPU 0 twice" in (seen({"CUDA_VISIBLE_DEVICES": "0,0"}).why_none or "")
    assert "fits 4 GPUs" in (seen({"CUDA_VISIBLE_DEVICES": "GPU-"}).why_none or "")


@pytest.mark.parametrize(("text", "place"), [("MIG-a1", 0), ("MIG-GPU-11aa/1/0", 1)])
def test_a_part_of_a_gpu_means_the_whole_of_it(text: str, place: int) -> None:
    found = visible(SPLIT, {"CUDA_VISIBLE_DEVICES": text})
    assert found.places == [place] and found.notes == [f"{text} is a part (MIG) of GPU {place}"]


def test_two_parts_of_a_gpu_are_not_the_same_twice() -> None:
    assert visible(SPLIT, {"CUDA_VISIBLE_DEVICES": "MIG-a0,MIG-a1"}).places == [0]


@pytest.mark.parametrize(
    ("env", "sure"),
    [({"CUDA_VISIBLE_DEVICES": "0"}, False), ({"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, True),
     ({"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, False),
     ({"CUDA_VISIBLE_DEVICES": "0,1"}, True), ({"CUDA_VISIBLE_DEVICES": "GPU-00"}, True), ({}, True)],
)  # fmt: skip
def test_numbers_of_unlike_gpus_are_not_the_drivers(env: dict[str, str], sure: bool) -> None:
    found = visible(UNLIKE, env)
    assert found.sure == sure
    assert any("CUDA_DEVICE_ORDER=PCI_BUS_ID" in note for note in found.notes) != sure
