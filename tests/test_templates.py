"""The plans that come with profrun: each loads, survives a dump, fits the schema, and explains itself."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from orchestrator import resolve
from orchestrator.dryrun import dry_run
from orchestrator.env_steps.waiting import Waiting
from orchestrator.machine import Machine
from orchestrator.plan import Plan
from orchestrator.planfile import plans
from orchestrator.units import Times

REPO = Path(__file__).resolve().parents[1]
NAMES = (
    "attach", "auto", "cpu-deep", "cpu-quick", "gpu-deep", "gpu-quick", "hang", "io", "night", "ranks", "torch-deep",
    "torch-memory", "wake", "why",
)  # fmt: skip
VERBS = (
    "run", "check", "templates", "init", "doctor", "env", "import", "report", "show", "open", "compare", "history",
    "nightly", "share", "export", "schema", "arm", "completion",
)  # fmt: skip


def load(name: str) -> Plan:
    return plans.load(plans.find(name))


def test_these_templates_come_with_profrun() -> None:
    assert [template.name for template in plans.templates()] == list(NAMES)


def test_no_template_bears_the_name_of_a_command() -> None:
    assert not set(NAMES) & set(VERBS)


@pytest.mark.parametrize("name", NAMES)
def test_each_template_loads_and_reads_back_as_the_same(name: str, tmp_path: Path) -> None:
    plan = load(name)
    again = tmp_path / "again.yaml"
    again.write_text(plans.dump(plan))
    assert plans.load(again).model_dump() == plan.model_dump()
    assert plan.name == name


@pytest.mark.parametrize("name", NAMES)
def test_each_template_fits_the_schema_and_points_editors_at_it(name: str) -> None:
    path = plans.find(name)
    first, second, *_ = path.read_text().splitlines()
    assert first == "# yaml-language-server: $schema=schema.json"
    assert second == "#"
    schema = json.loads((path.parent / "schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(yaml.safe_load(path.read_text()))


@pytest.mark.parametrize("name", NAMES)
def test_each_template_explains_itself(name: str) -> None:
    lines = plans.find(name).read_text().splitlines()
    comments = [line for line in lines if "#" in line]
    assert len(comments) >= 5
    about = next(template for template in plans.templates() if template.name == name).description
    assert 20 < len(about) < 100
    assert max(map(len, lines)) <= 120


def test_the_schema_in_the_repository_is_fresh() -> None:
    """When this fails: scripts/profrun schema > profiles/schema.json"""
    kept = json.loads((plans.profiles() / "schema.json").read_text())
    assert _outline(kept) == _outline(plans.json_schema(plugins=False))


def _outline(schema: dict[str, Any]) -> dict[str, Any]:
    """What an editor shows: keys, descriptions, choices. Versions of pydantic word the rest differently."""
    return {
        name: {key: (about.get("description"), sorted(_choices(about))) for key, about in part["properties"].items()}
        for name, part in {"Plan": schema, **schema["$defs"]}.items()
    }


def _choices(about: Any) -> set[str]:
    if isinstance(about, list):
        return {choice for item in about for choice in _choices(item)}
    if not isinstance(about, dict):
        return set()
    own = {str(value) for value in (*about.get("enum", ()), *([about["const"]] if "const" in about else ()))}
    return own.union(*(_choices(value) for value in about.values()))


def test_a_copied_template_points_at_the_schema_by_its_full_path(tmp_path: Path) -> None:
    text = plans.template_text(plans.find("cpu-quick"))
    first = text.splitlines()[0]
    assert first.startswith("# yaml-language-server: $schema=/")
    assert Path(first.partition("$schema=")[2]).is_file()
    copy = tmp_path / "mine.yaml"
    copy.write_text(text)
    assert plans.load(copy).model_dump(exclude={"name"}) == load("cpu-quick").model_dump(exclude={"name"})


@pytest.mark.parametrize("name", NAMES)
def test_a_window_in_steps_fits_every_template(name: str) -> None:
    plan = plans.load(plans.find(name), ["window={skip: 3, steps: 4}"])
    assert plan.window is not None
    assert (plan.window.skip, plan.window.steps) == (3, 4)


def _uses(name: str) -> list[str]:
    return [collector.use for collector in load(name).each_collector()]


def test_cpu_quick_is_what_the_demo_needs() -> None:
    plan = load("cpu-quick")
    assert _uses("cpu-quick") == ["timing", "py-spy", "strace", "nsys"]
    options = {collector.use: collector.model_dump() for collector in plan.each_collector()}
    assert (options["timing"]["warmup"], options["timing"]["repeats"]) == (1, 5)
    assert options["strace"]["mode"] == "summary"
    assert options["nsys"]["trace"] == ("osrt", "nvtx")
    assert all(collector.required for collector in plan.each_collector())


def test_auto_costs_little_and_requires_nothing_but_timing() -> None:
    plan = load("auto")
    assert plan.budget == Times(10.0)
    assert [collector.use for collector in plan.each_collector() if collector.required] == ["timing"]
    assert next(plan.each_collector()).repeats == 3


def test_only_the_plans_for_small_programs_may_start_one_again() -> None:
    assert [name for name in NAMES if load(name).target.retry] == ["cpu-deep", "cpu-quick"]


def test_torch_deep_looks_at_a_window_of_steps_with_equal_random_numbers() -> None:
    plan = load("torch-deep")
    assert _uses("torch-deep") == ["timing", "torch", "py-spy", "monitor"]
    assert plan.window is not None
    assert (plan.window.skip, plan.window.steps, plan.window.then) == (10, 10, "continue")
    assert [step.use for step in plan.environment] == ["seeds"]


def test_cpu_deep_has_the_monitor_and_both_modes_of_perf() -> None:
    uses = _uses("cpu-deep")
    assert uses.count("perf") == 2
    assert "monitor" in uses


def test_attach_holds_only_what_can_attach() -> None:
    assert all(collector.can_attach for collector in load("attach").each_collector())
    assert _uses("attach") == ["py-spy", "monitor", "perf", "strace"], "what costs least comes first"
    required = [collector.use for collector in load("attach").each_collector() if collector.required]
    assert required == ["py-spy", "monitor"]


def test_gpu_deep_adds_to_gpu_quick() -> None:
    quick, deep = _uses("gpu-quick"), _uses("gpu-deep")
    assert sorted({*deep} - {*quick}) == ["ncu", "strace", "torch"]
    assert {*quick} <= {*deep}


@pytest.mark.parametrize("name", NAMES)
def test_only_the_night_sets_anything_on_the_machine(name: str) -> None:
    """The others look, wait minutes at most, and set what ends with the program; and none insists on anything."""
    setting = {"cpu_frequency", "gpu_clocks", "drop_caches", "shell", "affinity"}
    steps = load(name).environment
    assert {step.use for step in steps} & setting == ({"cpu_frequency", "gpu_clocks"} if name == "night" else set())
    assert all(step.on_fail != "fail" for step in steps)
    waits = [step.wait for step in steps if isinstance(step, Waiting)]
    assert max(waits, default=0) <= (1800 if name == "night" else 300)
    assert not any(waits) or name in ("gpu-deep", "night")


def test_the_first_look_on_the_cpu_is_a_short_one() -> None:
    (step,) = load("cpu-quick").environment
    assert (step.use, step.model_dump()["over"]) == ("cpu_idle", "500ms")
    assert load("cpu-deep").environment == load("cpu-quick").environment


@pytest.fixture(scope="module")
def machine() -> Machine:
    """Probes each tool once."""
    return Machine()


@pytest.mark.parametrize("name", NAMES)
def test_each_template_can_be_looked_at_before_it_runs(name: str, machine: Machine, tmp_path: Path) -> None:
    short = [f"environment.{step.use}.over=10ms" for step in load(name).environment if hasattr(step, "over")]
    plan = plans.load(plans.find(name), short)
    with subprocess.Popen(["sleep", "1000"]) as running:
        pids = (running.pid,) if name in ("attach", "hang", "wake") else ()
        told = dry_run(plan, () if pids else ("true",), machine, tmp_path, (pids, None))
        running.kill()
    expected = [] if name == "wake" else ["p01"]  # nobody has armed that process
    assert [planned.id for planned, _ in told.passes][:1] == expected
    assert {step.use for step, _ in told.found.steps} == {step.use for step in plan.environment}
    assert "its checks failed" not in told.text()


def starts_told() -> dict[str, int]:
    """Template -> how often README says that it starts the program."""
    rows = re.findall(r"^\| `([\w-]+)` \| [^|]+ \| (\d+) \|$", (REPO / "README.md").read_text(), re.MULTILINE)
    return {name: int(number) for name, number in rows if name in NAMES}


@pytest.mark.parametrize(("name", "starts"), starts_told().items())
def test_the_readme_says_how_often_a_template_starts_the_program(name: str, starts: int) -> None:
    (plan,) = [plans.load(one.path) for one in plans.templates() if one.name == name]
    assert len(resolve.resolve(plan, ["true"]).passes) == starts
