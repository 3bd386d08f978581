"""Seeds and sorted listings inside real interpreters: what repeats, what stays the program's own, what is read back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from interpreters import interpreter

INJECT = Path(__file__).resolve().parents[2] / "orchestrator" / "inject"

DRIVER = """
import importlib.util, json, os, sys

for name in os.environ.get("EARLY", "").split():
    __import__(name)  # as a .pth file of the environment might, before we come

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        then = waiting.pop(name, None)
        spec = importlib.util.find_spec(name) if then else None
        if spec:
            execute = spec.loader.exec_module
            spec.loader.exec_module = lambda module: (execute(module), then(module))
        return spec

if "SEEDS" in os.environ:
    sys.modules["_profrun"] = package = type(sys)("_profrun")
    package.__path__ = [os.environ["INJECT"]]
    from _profrun.seeds import Seeds
    sys.seeds = Seeds(json.loads(os.environ["SEEDS"]))
    sys.seeds.at_start()
    waiting = dict(sys.seeds.after_import)
    for name in [name for name in waiting if name in sys.modules]:
        waiting.pop(name)(sys.modules[name])
    sys.meta_path.insert(0, Finder)
"""


@pytest.fixture(params=["3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14"])
def python(request: pytest.FixtureRequest) -> str:
    return interpreter(request.param)


class Runner:
    """Starts programs in a folder with our driver as their sitecustomize."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "site").mkdir()
        (folder / "site" / "sitecustomize.py").write_text(DRIVER)

    def start(self, python: str, code: str, seeds: dict[str, Any] | None, *words: str, **env: str) -> Any:
        program = self.folder / "program.py"
        program.write_text(code)
        settings = {} if seeds is None else {"SEEDS": json.dumps(seeds)}
        ours = {"PYTHONPATH": str(self.folder / "site"), "INJECT": str(INJECT), "PYTHONDONTWRITEBYTECODE": "1"}
        environ = {**os.environ, **ours, **settings, **env}
        return subprocess.Popen([python, str(program), *words], env=environ, stdout=subprocess.PIPE, text=True)

    def run(self, python: str, code: str, seeds: dict[str, Any] | None, *words: str, **env: str) -> Any:
        return printed(self.start(python, code, seeds, *words, **env))


def printed(process: Any) -> Any:
    """What the program printed, as JSON."""
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    return json.loads(out)


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    return Runner(tmp_path)


# ---------------------------------------------------------------- random

FORKS = """
import json, os, random

def child():
    inside, outside = os.pipe()
    if os.fork() == 0:
        grandchild = b"" if os.fork() else b"/" + repr(random.random()).encode()
        if not grandchild:
            os.wait()
        os.write(outside, repr(random.random()).encode() + grandchild + b" ")
        os._exit(0)
    os.wait()
    return os.read(inside, 1000).decode().split()

print(json.dumps([random.random(), child(), child(), random.random()]))
"""


def test_random_repeats_also_in_forked_children(python: str, runner: Runner) -> None:
    first, second = (runner.run(python, FORKS, {"seed": 37}) for _ in range(2))
    assert first == second
    in_children = [*first[1], *first[2]]
    assert len(in_children) == len(set(in_children)) == 4


def test_without_seeds_it_does_not(runner: Runner) -> None:
    first, second = (runner.run(sys.executable, FORKS, None) for _ in range(2))
    assert first[0] != second[0]
    assert first[1] != second[1]


READ_BACK = """
import json, random, sys
print(json.dumps([random.random(), random.Random(37).random(), random.Random().random(), sys.seeds.read_back()]))
"""


@pytest.mark.parametrize("early", ["", "random pathlib glob"])
def test_random_starts_from_the_seed_and_nothing_else_is_loaded(python: str, runner: Runner, early: str) -> None:
    drawn, wanted, unseeded, found = runner.run(python, READ_BACK, {"seed": 37}, EARLY=early)
    assert drawn == wanted
    assert unseeded != wanted
    assert (found["random"], found["failed"]) == (37, {})
    unknown = {"numpy", "torch", "torch_initial_seed", "cudnn_deterministic", "cudnn_benchmark"}
    assert {name for name, value in found.items() if value is None} == unknown | {"deterministic_algorithms"}


BROKEN = """
import json, sys
sys.seeds.after_import["random"](object())
print(json.dumps(sys.seeds.read_back()))
"""


def test_what_can_t_be_done_is_told_and_not_raised(runner: Runner) -> None:
    found = runner.run(sys.executable, BROKEN, {"seed": 37})
    assert "has no attribute 'seed'" in found["failed"]["random"]
    assert found["random"] is None


# ---------------------------------------------------------------- NumPy

NUMPY = """
import json, os, secrets, sys
import numpy.random as r
if "OLD" in os.environ:
    r.bit_generator.randbits = secrets.randbits
    del sys.modules["numpy.random.bit_generator"]  # as if it had gone
    sys.seeds.after_import["numpy.random"](r)
old = [r.rand(), r.RandomState(37).rand()]
fresh = [r.default_rng().random() for _ in range(3)]
if "OLD" not in os.environ:
    fresh += [r.Generator(r.PCG64()).random(), r.RandomState().rand(), r.SeedSequence().entropy]
print(json.dumps([old, fresh, [r.default_rng(5).random(), r.Generator(r.PCG64(5)).random()], len(set(fresh))]))
"""


@pytest.mark.parametrize("env", [{}, {"OLD": "1"}], ids=["randbits", "default_rng"])
def test_generators_without_a_seed_repeat_and_differ_among_themselves(runner: Runner, env: dict[str, str]) -> None:
    pytest.importorskip("numpy")
    first, second = (runner.run(sys.executable, NUMPY, {"seed": 37}, **env) for _ in range(2))
    assert first == second
    (drawn, wanted), fresh, (own, wanted_own), distinct = first
    assert (drawn, own, distinct) == (wanted, wanted_own, len(fresh))
    other_rank = runner.run(sys.executable, NUMPY, {"seed": 37}, RANK="1", **env)
    assert other_rank[0] == first[0]
    assert not set(other_rank[1]) & set(fresh)


# ---------------------------------------------------------------- torch and its workers

WORKERS = """
import json, random, sys
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

class Draws(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return [random.random(), np.random.rand(), np.random.default_rng().random(), torch.rand(()).item()]

def own_seeds():
    random.seed(5), np.random.seed(5), torch.manual_seed(5)
    wanted = [random.Random(5).random(), np.random.RandomState(5).rand()]
    wanted.append(torch.rand((), generator=torch.Generator().manual_seed(5)).item())
    return [[random.random(), np.random.rand(), torch.rand(()).item()], wanted]

if __name__ == "__main__":
    found = {"main": Draws()[0], "read_back": sys.seeds.read_back(), "cuda": torch.cuda.is_initialized()}
    for method in ("fork", "spawn"):
        loader = DataLoader(Draws(), batch_size=None, num_workers=2, multiprocessing_context=method)
        found[method] = [list(map(float, item)) for item in loader]
    print(json.dumps({**found, "own": own_seeds()}))
"""


@pytest.fixture(scope="module")
def both_runs(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The same training program twice, at the same time."""
    pytest.importorskip("torch")
    runner = Runner(tmp_path_factory.mktemp("workers"))
    seeds = {"seed": 37, "cudnn_deterministic": True, "cudnn_benchmark": False}
    return [printed(run) for run in [runner.start(sys.executable, WORKERS, seeds) for _ in range(2)]]


@pytest.mark.parametrize("where", ["main", "fork", "spawn"])
def test_two_runs_draw_the_same_numbers(both_runs: list[dict[str, Any]], where: str) -> None:
    assert both_runs[0][where] == both_runs[1][where]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_no_two_workers_draw_the_same_numbers(both_runs: list[dict[str, Any]], method: str) -> None:
    drawn = both_runs[0][method]
    assert len(drawn) == 8
    assert [len(set(column)) for column in zip(*drawn, strict=True)] == [8] * 4


def test_a_seed_of_the_program_s_own_wins(both_runs: list[dict[str, Any]]) -> None:
    drawn, wanted = both_runs[0]["own"]
    assert drawn == wanted


def test_torch_is_seeded_and_cuda_left_asleep(both_runs: list[dict[str, Any]]) -> None:
    found = both_runs[0]["read_back"]
    assert [found[name] for name in ("random", "numpy", "torch", "torch_initial_seed")] == [37] * 4
    assert (found["cudnn_deterministic"], found["cudnn_benchmark"]) == (True, False)
    assert (found["deterministic_algorithms"], found["failed"]) == (False, {})
    assert both_runs[0]["cuda"] is False


ALGORITHMS = """
import json, sys, torch
from _profrun.seeds import Seeds
found = []
for mode in ("warn", "error"):
    part = Seeds({"seed": 1, "deterministic_algorithms": mode})
    part.after_import["torch"](torch)
    found.append(part.read_back())
print(json.dumps(found))
"""


def test_deterministic_algorithms_warn_or_fail(runner: Runner) -> None:
    pytest.importorskip("torch")
    found = runner.run(sys.executable, ALGORITHMS, {"seed": 37})
    assert [(one["deterministic_algorithms"], one["failed"]) for one in found] == [("warn", {}), ("error", {})]
    assert [(one["cudnn_deterministic"], one["cudnn_benchmark"]) for one in found] == [(False, False)] * 2


# ---------------------------------------------------------------- listings

LISTINGS = """
import glob, json, os, pathlib, pickle, shutil, sys
top = sys.argv[1]
os.chdir(top)
fd = os.open(top, os.O_RDONLY)
path = pathlib.Path(top)
text = lambda names: [os.fsdecode(name) for name in names]
entries = lambda place: text(entry.name for entry in os.scandir(place))

def error(call, *args):
    try:
        call(*args)
    except Exception as error:
        return [type(error).__name__, str(error), getattr(error, "filename", None)]

flat = {
    "listdir": os.listdir(top), "cwd": os.listdir(), "none": os.listdir(None), "keyword": os.listdir(path=top),
    "bytes": text(os.listdir(os.fsencode(top))), "path": os.listdir(path), "fd": os.listdir(fd),
    "scandir": entries(top), "scandir cwd": text(entry.name for entry in os.scandir()),
    "scandir bytes": entries(os.fsencode(top)), "scandir path": entries(path), "scandir fd": entries(fd),
    "glob": glob.glob("*"), "glob bytes": text(glob.glob(b"*")), "iterdir": [p.name for p in path.iterdir()],
    "Path.glob": [p.name for p in path.glob("*")],
}
deep = {
    "walk": [os.path.join(d, n) for d, ds, fs in os.walk(top) for names in (ds, fs) for n in names],
    "fwalk": [os.path.join(d, n) for d, ds, fs, _ in os.fwalk(top) for names in (ds, fs) for n in names],
    "glob": [p for p in glob.glob(top + "/**/*", recursive=True)],
    "rglob": [str(p) for p in path.rglob("*")], "Path.glob": [str(p) for p in path.glob("**/*")],
}
with os.scandir(top) as closed:
    first = next(closed)
    stays = iter(closed) is closed
never_read = os.scandir(top)
never_read.close()
rest = {
    "descriptor": sum(e.stat().st_size == os.stat(e.name).st_size for e in os.scandir(fd)),
    "closed": [list(closed), list(never_read), stays, type(first).__name__],
    "errors": [error(os.listdir, "no such"), error(os.scandir, "no such"), error(os.listdir, "a/f00"),
               error(os.listdir, 1.5)[:1], error(list, path.glob("no such/*")), error(os.listdir, top, top)[:1]],
    "pickled": [pickle.loads(pickle.dumps(f)) is f for f in (os.listdir, os.scandir)],
    "supports_fd": [f in os.supports_fd for f in (os.listdir, os.scandir)],
    "safe": shutil.rmtree.avoids_symlink_attacks,
}
shutil.copytree(top, sys.argv[2])
rest["copied"] = sorted(os.listdir(sys.argv[2])) == sorted(os.listdir(top))
shutil.rmtree(sys.argv[2])
rest["gone"] = not os.path.exists(sys.argv[2])
rest["descriptors"] = len(os.listdir("/proc/self/fd"))
print(json.dumps([flat, deep, rest, sys.seeds.read_back()["sort_listings"]]))
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two folders full of files, made in an order that is neither that of their names nor its reverse."""
    top = tmp_path_factory.mktemp("listings") / "top"
    for folder in ("b", "a"):
        (top / folder).mkdir(parents=True)
        for number in range(40):
            (top / folder / f"f{number * 17 % 40:02}").touch()
    for number in range(40):
        (top / f"{number * 23 % 40:02}.txt").touch()
    with os.scandir(top) as entries:
        names = [entry.name for entry in entries]
    if names == sorted(names):
        pytest.skip("this file system lists by name without our help")
    return top


@pytest.mark.parametrize("early", ["", "pathlib glob shutil"])
def test_listings_go_by_name_and_are_otherwise_as_they_were(
    python: str, runner: Runner, tree: Path, early: str
) -> None:
    words = (str(tree), str(runner.folder / "copy"))
    flat, deep, rest, in_force = runner.run(python, LISTINGS, {"seed": 0, "sort_listings": True}, *words, EARLY=early)
    plain_flat, plain_deep, plain_rest, _ = runner.run(python, LISTINGS, {"seed": 0}, *words, EARLY=early)
    assert in_force is True
    names = sorted(path.name for path in tree.iterdir())
    assert flat == dict.fromkeys(flat, names)
    assert {how: sorted(found) for how, found in deep.items()} == {how: sorted(f) for how, f in plain_deep.items()}
    assert [how for how, found in deep.items() if any(a > b for a, b in neighbours(found))] == []
    assert rest == plain_rest
    assert all(found != names for found in plain_flat.values())


def neighbours(paths: list[str]) -> list[tuple[str, str]]:
    """Paths that follow one another within their folder; files and folders apart, as `walk` gives them."""
    groups: dict[tuple[Path, bool], list[str]] = {}
    for path in map(Path, paths):
        groups.setdefault((path.parent, path.is_dir()), []).append(path.name)
    return [pair for names in groups.values() for pair in pairwise(names)]
