"""The house rules, read off the sources: who may import whom, start processes, write files, and how a file looks."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from orchestrator import registry

REPO = Path(__file__).resolve().parents[2]
PACKAGE = REPO / "orchestrator"

FLOORS = (
    "__main__",
    "cli",
    "commands",
    "verbs verbs.*",
    "arguments dryrun exporting exporting.* importing nightly share",
    "runner doctor knobs serve",
    "compare history",
    "historic.*",
    "doctor.*",
    "launchers.node launchers.nodes launchers.submit launchers.tasks",
    "launchers.task",
    "collect environment guard normalise outcome picks planfile.plans preflight resolve timeline",
    "live occupied planfile.messages planfile.schema reading repeatable told",
    "diagnose imported locate perfetto plan",
    "registry sharing",
    "diagnose.headline",
    "collectors.* diagnose.* env_steps.* nights nights.* render.*",
    "env_steps.clock_option env_steps.waiting",
    "comparing comparing.*",
    "restoring",
    "keeper",
    "journal",
    "cgroups changes locks",
    "kernel_seen",
    "gpu_seen",
    "judging locating locating.*",
    "collectors.base env_steps.base privileged report trust",
    "launchers launchers.base launchers.detect launchers.local launchers.told launchers.torchrun launchers.watch",
    "launchers.clocks launchers.mpi launchers.parted launchers.seat launchers.slurm",
    "formats.ncu formats.ncu_rep kernel machine",
    "armed cpufreq gpus",
    "attached inside neighbours nights.words veil",
    "nights.judge nights.schedule",
    "folder formats.* launching planfile.fields planfile.source process redact sampler.* signals standalone.* stdio",
    "comparing.words names parquet planfile planfile.tree stats steps tables units visible",
    "model",
    "errors inject inject.*",
)
"""The house from the roof down. A module may import what lies on the floors below its own."""

SHARED_ROOMS = (
    "comparing",
    "doctor",
    "exporting",
    "formats",
    "historic",
    "inject",
    "launchers",
    "locating",
    "render",
    "sampler",
)
"""Rooms whose files may import one another; those of all other rooms may not."""

STAND_ALONE = (
    "standalone.dumps",
    "standalone.hub",
    "standalone.keeper",
    "standalone.let_in",
    "standalone.lives",
    "standalone.ncu_rep",
    "standalone.nvml",
    "standalone.roothelper",
    "standalone.seize",
    "standalone.start_ranks",
    "standalone.wake",
)
"""Files that are run on their own, by any Python: nothing but the standard library."""

STAND_ALONE_MAY_TRY = {"standalone.ncu_rep": {"ncu_report"}, "standalone.nvml": {"pynvml"}}
"""NVIDIA's packages can end the process that they work in, or never come back: neither is loaded into profrun's own."""

SAMPLER_MAY_TRY = {"pynvml"}
"""The sampler is a program of its own, and profrun's own Python runs it: it may look for NVIDIA's bindings there."""

STARTS_PROCESSES = {"process", "sampler.gpus", "standalone.dumps", "standalone.roothelper", "standalone.start_ranks"}
"""Only the first is part of profrun's own process: nvidia-smi has to die with the sampler that reads it, the ranks of
`launcher: {use: local}` are that launcher's children, and the root helper becomes it."""

WRITES_FILES = {
    "folder": "the report folder, scratch space and everything else that is profrun's own",
    "historic.store": "the database of the runs so far",
    "nights.thin": "deletes old raw files, and writes down which",
    "process": "the answers of short commands",
    "machine": "settings of the host",
    "journal": "what a run changes on the machine, and puts back",
    "locks": "who holds a GPU or a CPU policy",
    "live": "the logs of a pass in its scratch space",
    "stdio": "stdin, kept for the passes to come",
    "runner": "the outputs of an earlier attempt, set aside",
    "commands": "the log of a bug",
    "sampler.log": "its samples, as they are taken",
    "armed": "the folder of a program that waits to be woken",
    "inside": "the settings of our part inside the target's Python",
    "standalone.let_in": "the script by which a running Python lets our part in",
    "standalone.wake": "what a program that was woken has recorded, on its way home",
    "standalone.dumps": "what it has seen of a program that hangs",
    "standalone.roothelper": "settings of the host, as root, and the place that all users share",
    "inject.bell": "a FIFO for an answer, from inside the target",
    "inject.diary": "the diary of a process of the target",
    "inject.mapped": "its steps and ranges",
    "inject.profiler": "its traces",
    "inject.armed": "the socket at which it can be woken",
}

HEAVY = {"jinja2", "numpy", "pandas", "perfetto", "pyarrow", "rich", "sh", "torch"}
"""What costs too much to be imported by `--help` and `check`."""

LONGEST_FUNCTION_LINES = 60


# ---------------------------------------------------------------- reading the sources


def name_of(path: Path) -> str:
    """The module's name inside the package: `plan`, `formats.nsys`; a room's `__init__` is the room itself."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix("__init__").removesuffix(".")


MODULES = {name_of(path): ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}
SCRIPTS = sorted(path for path in (REPO / "scripts").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
PYTHON_FILES = [
    *sorted(PACKAGE.rglob("*.py")),
    *sorted((REPO / "tests").rglob("*.py")),
    *(path for path in SCRIPTS if path.suffix == ".py" or "python" in path.read_text().partition("\n")[0]),
]


def floor_of(module: str) -> int | None:
    places = {word: number for number, floor in enumerate(FLOORS) for word in floor.split()}
    return places.get(module, places.get(module.partition(".")[0] + ".*"))


def running(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those under `if TYPE_CHECKING:`, which no run ever sees."""
    yield tree
    for child in ast.iter_child_nodes(tree):
        if not (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"):
            yield from running(child)


def imported(node: ast.AST) -> list[str]:
    """The full names that an import statement may mean: `from a import b` is `a` or `a.b`."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def own_imports(tree: ast.AST) -> set[str]:
    """The modules of this package that a file imports, anywhere in it."""
    found = set()
    for name in (name for node in running(tree) for name in imported(node)):
        inside = name.partition("orchestrator.")[2] if name.startswith("orchestrator.") else ""
        known = next((x for x in (inside, inside.rpartition(".")[0]) if x in MODULES), "")
        found |= {known} if known else set()
    return found


def outside_imports(nodes: Iterable[ast.AST]) -> set[str]:
    """The top names of everything imported that is not of this package."""
    return {name.partition(".")[0] for node in nodes for name in imported(node)} - {"orchestrator"}


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    """Every call with its function as it is written: `os.fork`, `path.write_text`, `open`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


# ---------------------------------------------------------------- who may import whom


def test_every_module_has_its_floor() -> None:
    assert [module for module in MODULES if module and floor_of(module) is None] == []


def test_imports_point_down() -> None:
    upward = []
    for module, tree in MODULES.items():
        for other in own_imports(tree):
            here, there = floor_of(module), floor_of(other)
            room = module.partition(".")[0]
            same_room = room in SHARED_ROOMS and other.partition(".")[0] == room
            if other and not same_room and here is not None and there is not None and there <= here:
                upward.append(f"{module} imports {other}")
    assert upward == []


@pytest.mark.parametrize("module", STAND_ALONE)
def test_stand_alone_files_need_only_the_standard_library(module: str) -> None:
    assert own_imports(MODULES[module]) == set()
    may_try = STAND_ALONE_MAY_TRY.get(module, set())
    assert outside_imports(ast.walk(MODULES[module])) <= sys.stdlib_module_names | may_try


def test_the_sampler_needs_only_the_standard_library() -> None:
    parts = {module: tree for module, tree in MODULES.items() if module.partition(".")[0] == "sampler"}
    assert "sampler.__main__" in parts
    for tree in parts.values():
        assert own_imports(tree) <= set(parts)
        assert outside_imports(ast.walk(tree)) <= sys.stdlib_module_names | SAMPLER_MAY_TRY


VERB = """
import sys
from orchestrator.cli import main
try:
    main(sys.argv[1:])
except SystemExit as end:
    assert end.code in (0, 3), end.code
"""
EVERYTHING_OFFERED = """
import sys
from orchestrator import registry
for name in registry.COLLECTORS:
    registry.collector(name)
for name in registry.ENVIRONMENT:
    registry.environment_step(name)
registry.rules()
"""


def loaded_by(code: str, *words: str) -> set[str]:
    """The packages that are loaded when a program has run."""
    argv = [sys.executable, "-c", code + "\nprint()\nprint(*sys.modules)", *words]
    done = subprocess.run(argv, cwd=REPO, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("words", [("--help",), ("--version",)])
def test_help_loads_next_to_nothing(words: tuple[str, ...]) -> None:
    assert loaded_by(VERB, *words) & (HEAVY | {"pydantic", "yaml", "subprocess"}) == set()


def test_check_loads_nothing_heavy() -> None:
    assert loaded_by(VERB, "check", "cpu-quick", "--", "true") & (HEAVY - {"sh"}) == set()


def test_nothing_that_a_plan_may_name_loads_anything_heavy() -> None:
    assert loaded_by(EVERYTHING_OFFERED) & HEAVY == set()


# ---------------------------------------------------------------- the doors

STARTERS = re.compile(r"os\.(fork|forkpty|exec\w+|spawn\w+|posix_spawn\w*|system|popen)")
STARTING_MODULES = {"subprocess", "sh", "pty", "multiprocessing"}


def test_processes_are_started_in_one_place() -> None:
    starting = {
        module
        for module, tree in MODULES.items()
        if outside_imports(ast.walk(tree)) & STARTING_MODULES
        or any(STARTERS.fullmatch(name) for name, _ in calls(tree))
    }
    assert starting == STARTS_PROCESSES


WRITERS = re.compile(
    r"(.+\.)?(write_text|write_bytes|mkdir|touch|unlink|rmdir|symlink_to|hardlink_to|chmod|chown)"
    r"|os\.(makedirs|remove|removedirs|rename|replace|truncate|link|symlink|mkfifo)"
    r"|shutil\.(copy\w*|move|rmtree|make_archive)"
    r"|tempfile\.\w+"
)


def writes(tree: ast.AST) -> bool:
    return any(WRITERS.fullmatch(name) or opens_to_write(name, call) for name, call in calls(tree))


def opens_to_write(name: str, call: ast.Call) -> bool:
    """open(path, "w"), path.open("ab"), os.open(path, ... O_CREAT ...)."""
    if name == "os.open":
        return any(flag in ast.unparse(call) for flag in ("O_CREAT", "O_TRUNC"))
    words = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg == "mode")]
    modes = [word.value for word in words if isinstance(word, ast.Constant) and isinstance(word.value, str)]
    return name.split(".")[-1] == "open" and any(re.fullmatch(r"[rbt]*[wax+][wax+bt]*", mode) for mode in modes)


def test_files_are_written_behind_known_doors() -> None:
    assert {module for module, tree in MODULES.items() if writes(tree)} == set(WRITES_FILES)


# ---------------------------------------------------------------- how a file looks


def place(path: Path) -> str:
    return str(path.relative_to(REPO))


def test_every_file_says_first_what_lives_in_it() -> None:
    silent = [path for path in PYTHON_FILES if path.stat().st_size and not _first_line(ast.parse(path.read_text()))]
    silent += [path for path in SCRIPTS if path.suffix != ".py" and not _comment(path)]
    assert [place(path) for path in silent] == []


def _first_line(tree: ast.Module) -> str:
    return (ast.get_docstring(tree) or "").partition("\n")[0]


def _comment(path: Path) -> bool:
    """A script that is no Python: a comment right after its #! line; else a docstring there."""
    first, second = path.read_text().splitlines()[:2]
    return first.startswith("#!") and second.startswith(("# ", '"""'))


def test_no_function_is_too_long() -> None:
    functions = (
        (place(path), node)
        for path in PYTHON_FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    )
    sizes = ((f"{name}: {node.name}", (node.end_lineno or 0) - node.lineno + 1) for name, node in functions)
    assert [(name, lines) for name, lines in sizes if lines > LONGEST_FUNCTION_LINES] == []


def test_nothing_is_left_for_later() -> None:
    later = re.compile(rf"\b({'todo|fixme|xxx'.upper()})\b")
    files = [*PYTHON_FILES, *SCRIPTS, *(REPO / "profiles").glob("*"), *REPO.glob("*.md"), REPO / "pyproject.toml"]
    assert [place(path) for path in files if later.search(path.read_text())] == []


# ---------------------------------------------------------------- what the registry offers


@pytest.mark.parametrize("name", sorted(registry.COLLECTORS))
def test_a_collector_is_called_as_it_is_registered_and_explained(name: str) -> None:
    cls = registry.collector(name)
    assert cls.model_validate({"use": name}).use == name
    assert cls.purpose, "one line that says what it is for"
    assert cls.probe is None or cls.probe.install, "how to get its tool"
    assert re.search(rf"^\|\s*`{re.escape(name)}`", (REPO / "README.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize("name", sorted(registry.ENVIRONMENT))
def test_an_environment_step_is_called_as_it_is_registered(name: str) -> None:
    assert registry.environment_step(name).model_fields["use"].annotation is not None
    assert name in str(registry.environment_step(name).model_fields["use"].annotation)
