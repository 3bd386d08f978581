"""Plans: every error at once with its line, inheritance, --set, units, and the way back to YAML."""

from __future__ import annotations

import os
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import yaml

from orchestrator import registry
from orchestrator.collectors.timing import Timing
from orchestrator.env_steps.env import Env
from orchestrator.errors import EXIT_USAGE, PlanError, UsageError
from orchestrator.plan import Plan, Together
from orchestrator.planfile import plans
from orchestrator.units import Times

SMALL = "version: 1\ncollectors: [{use: timing}]\n"
KNOWN = "known: dumps, monitor, ncu, nsys, perf, py-spy, strace, timing, torch"


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes a plan into an empty current directory, so that messages name it by its bare name."""
    monkeypatch.chdir(tmp_path)

    def _write(text: str, name: str = "p.yaml") -> str:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(dedent(text))
        return name

    return _write


def problems_of(path: str, *sets: str) -> list[str]:
    with pytest.raises(PlanError) as raised:
        plans.load(path, sets)
    assert raised.value.exit_code == EXIT_USAGE
    return [problem.text() for problem in raised.value.problems]


# ---------------------------------------------------------------- what a good plan means


def test_a_full_plan_is_read_with_its_units(write: Any) -> None:
    plan = plans.load(
        write("""\
            version: 1
            name: mine
            target:
              command: [python, train.py, --lr, 0.10, --epochs, 3]
              env: {OMP_NUM_THREADS: 8}
              timeout: 1h30m
              ok_exit_codes: [0, 3]
            window: {after: 60s, for: 20s, then: stop}
            budget: 10x
            metrics:
              loss: 'loss=([0-9.]+)'
              rate: {pattern: 'tok/s ([0-9.]+)', take: median, unit: tok/s}
            environment:
              - {use: env, set: {A: "1"}, unset: [B]}
            collectors:
              - {use: timing, repeats: 3, timeout: 5m}
            leftovers: end
            tools: {nsys: /opt/nsys}
            report: {directory: out, formats: [html], env_show: [MINE]}
            """)
    )
    assert plan.target.command == ("python", "train.py", "--lr", "0.10", "--epochs", "3")
    assert (plan.target.env, plan.target.timeout, plan.target.ok_exit_codes) == (
        {"OMP_NUM_THREADS": "8"},
        5400.0,
        (0, 3),
    )
    assert plan.window is not None
    assert (plan.window.after, plan.window.for_, plan.window.then) == (60.0, 20.0, "stop")
    assert plan.budget == Times(10.0)
    assert (plan.metrics["loss"].take, plan.metrics["rate"].take, plan.metrics["rate"].unit) == (
        "last",
        "median",
        "tok/s",
    )
    assert plan.environment == (Env(set={"A": "1"}, unset=("B",)),)
    assert plan.groups() == ((Timing(repeats=3, timeout=300.0),),)
    assert (plan.leftovers, plan.tools, plan.report.formats) == ("end", {"nsys": "/opt/nsys"}, ("html",))


def test_a_small_plan_gets_its_defaults_and_its_files_name(write: Any) -> None:
    plan = plans.load(write(SMALL, "my first plan!.yaml"))
    assert plan.name == "my-first-plan"
    assert (plan.target.command, plan.target.timeout, plan.target.cwd, plan.target.retry) == (None, 1800.0, ".", False)
    assert (plan.window, plan.budget, plan.leftovers) == (None, None, "keep")
    assert (plan.report.directory, plan.report.formats) == ("reports", ("html", "markdown"))


def test_no_time_limit_is_null(write: Any) -> None:
    assert plans.load(write(SMALL + "target: {timeout: null}\n")).target.timeout is None


def test_each_value_knows_where_it_was_written(write: Any) -> None:
    write(SMALL + "target:\n  timeout: 5m\n", "base.yaml")
    plan = plans.load(write("extends: ./base.yaml\nleftovers: end\n"), ["target.cwd=/tmp"])
    assert plan.source_map["leftovers"] == ("p.yaml", 2)
    assert plan.source_map["target.timeout"] == ("base.yaml", 4)
    assert plan.source_map["collectors[0].use"] == ("base.yaml", 2)
    assert plan.source_map["target.cwd"] == ("--set", None)
    assert "target.retry" not in plan.source_map


def test_half_a_character_is_refused() -> None:
    with pytest.raises(ValueError, match="half a character"):
        Plan.model_validate({"version": 1, "collectors": [{"use": "timing"}], "target": {"command": ["a", "\ud800"]}})


@pytest.mark.parametrize(("take", "value"), [("last", 2.0), ("mean", 3.0), ("median", 3.0), ("min", 2.0), ("max", 4.0)])
def test_a_metric_takes_one_number_of_a_run(write: Any, take: str, value: float) -> None:
    plan = plans.load(write(SMALL + f"metrics: {{m: {{pattern: '(.)', take: {take}}}}}\n"))
    assert plan.metrics["m"].value([4.0, 3.0, 3.0, 2.0]) == value
    assert plan.metrics["m"].value([]) is None


# ---------------------------------------------------------------- all that is wrong, at once


TIMED_TWICE = """\
timing can't share a pass: it measures the undisturbed run
    write instead:
      - {use: timing}
      - {use: timing, repeats: 1000}"""


def test_everything_wrong_is_told_at_once(write: Any) -> None:
    path = write("""\
        version: 1
        target:
          comand: [python, train.py]
          command: python train.py --lr 0.1
          timeout: 30 parsecs
          retry: yes
          env: {A: true, B: 1e-3}
        window: {then: halt}
        metrics: {loss: 'loss=[0-9]+', 1st: '(x)'}
        budget: -1
        collectors:
          - use: timing
            repeat: 3
            warmup: many
          - {use: timming}
          - together:
            - {use: timing}
            - {use: timing, repeats: 1_000}
          - timing
          - {repeats: 1}
          - {use: timing, repeats: 0}
        environment: {use: env}
        leftovers: [keep]
        report: {formats: html}
        rank: [a]
        version: 1
        """)
    assert problems_of(path) == [
        "p.yaml:3:  target.comand: unknown key (did you mean command? "
        "known: before_each, command, cwd, env, inject, ok_exit_codes, retry, timeout)",
        "p.yaml:4:  target.command: needs a list of words, as no shell takes part: [python, train.py, --lr, 0.1]",
        "p.yaml:5:  target.timeout: 'parsecs' is no unit here; use one of ns, us, ms, s, m, min, h, d",
        'p.yaml:6:  target.retry: yes is text to some and a truth value to others (write true or "yes")',
        "p.yaml:7:  target.env.B: 1e-3 is not read as the same number, or not as a number, by everyone "
        '(write 0.001 for the number, "1e-3" for the text)',
        "p.yaml:7:  target.env.A: needs text: write it in quotes, exactly as it should arrive",
        'p.yaml:8:  window.then: "halt" is not possible here (one of stop, continue)',
        "p.yaml:9:  metrics.loss: loss=[0-9]+ has no groups: put ( ) around the number, (?: ) around the rest",
        "p.yaml:9:  metrics.1st: '1st' is no name for a metric: use letters, digits, `_`, `.`, `/` and `-`, "
        "a letter first",
        "p.yaml:10:  budget: -1 is no quantity; write it like 30s or 5m",
        "p.yaml:13:  collectors[0].repeat: unknown key (did you mean repeats? "
        "known: flush, repeats, required, timeout, use, warmup)",
        'p.yaml:14:  collectors[0].warmup: needs a whole number, not "many"',
        f"p.yaml:15:  collectors[1].use: timming is no collector (did you mean timing? {KNOWN})",
        f"p.yaml:16:  collectors[2]: {TIMED_TWICE}",
        "p.yaml:18:  collectors[2].together[1].repeats: 1_000 is not read as the same number, or not as a number, by "
        'everyone (write 1000 for the number, "1_000" for the text)',
        "p.yaml:19:  collectors[3]: needs keys and values that say which collector it is (write - {use: timing})",
        f"p.yaml:20:  collectors[4]: has no `use` to say which collector it is ({KNOWN})",
        "p.yaml:21:  collectors[5].repeats: must be at least 1, and is 0",
        "p.yaml:22:  environment: needs a list, not keys and values",
        "p.yaml:23:  leftovers: a list is not possible here (one of keep, end)",
        'p.yaml:24:  report.formats: needs a list, not "html" (write ["html"])',
        "p.yaml:25:  rank: unknown key (did you mean ranges? known: budget, collectors, description, environment, "
        "extends, launcher, leftovers, metrics, name, ranges, report, target, tools, version, window)",
        "p.yaml:26:  version: the key stands here twice, first on line 1 (keep one)",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("collectors: [{use: timing}]", "version: is missing (add version: 1)"),
        ("collectors: [{use: timing}]\nversion: 2", "version: 2 is not possible here (write 1)"),
        ("version: 1", "collectors: is missing (add a list, such as [{use: timing}])"),
        ("version: 1\ncollectors: []", "collectors: is empty (it needs at least 1)"),
        ("version: 1\ncollectors: [{use: 5}]", f"collectors[0].use: 5 is no collector ({KNOWN})"),
        ("version: 1\ncollectors: [{together: []}]", "collectors[0].together: is empty (it needs at least 1)"),
        (
            "version: 1\ncollectors: [{together: [{together: [{use: timing}]}]}]",
            f"collectors[0].together[0]: has no `use` to say which collector it is ({KNOWN})",
        ),
        (
            "version: 1\ncollectors: [{together: [{use: timing}], use: x}]",
            "collectors[0].use: unknown key (known: together)",
        ),
    ],
)
def test_a_plan_without_what_it_needs(write: Any, text: str, problem: str) -> None:
    assert problems_of(write(text)) == [f"p.yaml:{text.count(chr(10)) + 1}:  {problem}"]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("target: {command: []}", "target.command: needs a program as its first word"),
        (
            'target: {command: [a, "b\\0"]}',
            "target.command[1]: holds a NUL byte, which neither a command nor the environment can carry",
        ),
        (
            "target: {command: python t.py 'a b}",
            'target.command: needs a list of words, as no shell takes part: [python, t.py, "\'a", b]',
        ),
        (
            "target: {before_each: rm -rf '*.pt'}",
            'target.before_each: needs a list of words, as no shell takes part: [rm, -rf, "*.pt"]',
        ),
        ("target: {command: [a, [b]]}", "target.command[1]: needs text"),
        ("target: {env: {A=B: x}}", "target.env.A=B: is no name of an environment variable"),
        ("target: {timeout: 0s}", 'target.timeout: must be more than 0, and is "0s"'),
        ("target: {ok_exit_codes: [256]}", "target.ok_exit_codes[0]: must be at most 255, and is 256"),
        ("target: ./train.py", 'target: needs keys and values, not "./train.py"'),
        ("target:", "target: needs keys and values, not nothing (null)"),
        ("environment:", "environment: needs a list, not nothing (null) (write [] for none, or leave the key out)"),
        ("environment: [{use: env, set: {A: 1}, unset: [A]}]", "environment[0]: both sets and unsets A"),
        (
            "environment: [{use: evn}]",
            "environment[0].use: evn is no environment step (did you mean env? known: affinity, cpu_frequency, "
            "cpu_idle, drop_caches, env, gpu_clocks, gpu_idle, quiet_services, seeds, shell, wait_cool)",
        ),
        (
            "environment: [{use: shell, run: ls -l}]",
            "environment[0].run: needs a list of words, as no shell takes part: [ls, -l]",
        ),
        ("name: 5", 'name: needs text, not 5 (write "5")'),
        (
            "name: a/b",
            "name: 'a/b' can't name a folder: use up to 64 letters, digits, `-`, `_` and `.`, a letter or digit first",
        ),
        (
            "window: {}",
            "window: a window needs `steps`, `after` or `for`, such as {skip: 5, steps: 20} or {after: 60s, for: 20s}",
        ),
        ("window: {skip: 5}", "window: `skip` needs `steps`, such as {skip: 5, steps: 20}"),
        (
            "window: {steps: 5, after: 1s}",
            "window: a window is in steps (`skip`, `steps`) or in time (`after`, `for`), not in both",
        ),
        (
            "ranges: [forward]",
            "ranges[0]: 'forward' names no function: "
            "write train.py:forward, train.py:Net.forward or model.Block.forward",
        ),
        (
            "window: {after: 1s, then: stop}",
            "window: `then: stop` needs `steps` or `for`: without them the window ends with the target",
        ),
        (
            "launcher: {use: torchrun, nproc_per_nod: 2}",
            "launcher.nproc_per_nod: unknown key (did you mean nproc_per_node? "
            "known: nproc_per_node, options, ranks, use)",
        ),
        (
            "window: {skp: 5, steps: 1}",
            "window.skp: unknown key (did you mean skip? known: after, for, skip, steps, then)",
        ),
        ("metrics: {m: '(a)(b)'}", "metrics.m: (a)(b) has 2 groups: put ( ) around the number, (?: ) around the rest"),
        (
            "metrics: {m: '('}",
            "metrics.m: ( is no regular expression: missing ), unterminated subpattern at position 0",
        ),
        ("metrics: {m: {take: last}}", "metrics.m.pattern: is missing"),
        (
            "tools: {nsis: /opt/nsys}",
            "tools.nsis: no collector uses a tool of this name "
            "(did you mean nsys? known: ncu, nsys, nvidia-smi, perf, py-spy, strace)",
        ),
    ],
)
def test_one_thing_wrong_is_told_in_plain_words(write: Any, line: str, problem: str) -> None:
    assert problems_of(write(SMALL + line)) == [f"p.yaml:3:  {problem}"]


def test_a_key_written_twice_hides_nothing_below_it(write: Any) -> None:
    assert problems_of(write(SMALL + "target: {timeout: soon}\ntarget: {}\n")) == [
        "p.yaml:3:  target.timeout: 'soon' is no quantity; write it like 30s or 5m",
        "p.yaml:4:  target: the key stands here twice, first on line 3 (keep one)",
    ]


def test_no_word_of_pydantic_reaches_the_user(write: Any) -> None:
    text = """\
        version: [1]
        name: {a: 1}
        extends: 5
        target: {command: {a: b}, cwd: [], env: [], timeout: {}, ok_exit_codes: a, retry: maybe}
        window: 5
        metrics: []
        collectors: {use: timing}
        tools: x
        report: [a]
        """
    for line in problems_of(write(text)):
        assert "Input" not in line
        assert "valid" not in line


def test_no_more_than_fifty_problems_are_listed(write: Any) -> None:
    path = write(SMALL + "".join(f"key{i}: 1\n" for i in range(200)))
    told = problems_of(path)
    assert len(told) == 51
    assert told[-1] == "p.yaml:  and 150 more"


def test_a_value_cannot_spoil_the_message(write: Any) -> None:
    path = write('version: 1\ncollectors: [{use: "a\\e[31m\\nb"}, {use: ' + "x" * 5000 + "}]\n")
    first, second = problems_of(path)
    assert first == f"p.yaml:2:  collectors[0].use: a\\x1b[31m\\nb is no collector ({KNOWN})"
    assert len(second) < 500


# ---------------------------------------------------------------- files that are no plans


def _make_binary(path: Path) -> None:
    path.write_bytes(b"\x7fELF\x02\x01\x01\x00\x00\x00")


TO_START = "profrun init cpu-quick writes a plan to start from"
KEYS = "a plan is keys and values, the first of them version: 1"
TOO_LONG = "a plan is shorter than 1 MB (is it the right file?)"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: None, ":  there is no such file (profrun templates lists the plans that come with profrun)"),
        (lambda p: p.mkdir(), ":  is a folder, not a plan (name a file in it)"),
        (lambda p: p.symlink_to(p.name), ":  can't be read: Too many levels of symbolic links"),
        (lambda p: p.write_text(""), f":  is empty ({TO_START})"),
        (lambda p: p.write_text("# only a comment\n"), f":  is empty ({TO_START})"),
        (lambda p: p.write_text("\n- use: timing\n"), f":2:  holds a list ({KEYS})"),
        (lambda p: p.write_text("profile this"), f":1:  holds a single value ({KEYS})"),
        (lambda p: p.write_bytes(b"#" * 1_000_000), f":  is 1.0 MB long; {TOO_LONG}"),
        (lambda p: p.write_bytes(b"#" * 2_345_678), f":  is 2.3 MB long; {TOO_LONG}"),
        (lambda p: p.symlink_to("/dev/zero"), f":  is 1 MB or more long; {TOO_LONG}"),
        (_make_binary, ":1:  is not text but a binary file: it holds NUL bytes"),
        (lambda p: p.write_bytes(b"version: 1\nname: \xe9"), ":2:  is not UTF-8 text: byte 0xe9 (save it as UTF-8)"),
        (
            lambda p: p.write_text(f"{SMALL}---\n{SMALL}"),
            ":3:  holds several documents (---); a plan is one (keep one, or make two files)",
        ),
        (
            lambda p: p.write_text("version: 1\ntarget:\n\tcwd: a\n"),
            ":3:  a tab stands where the indentation should be (indent with spaces)",
        ),
    ],
)
def test_a_file_that_is_no_plan_gets_one_clear_message(write: Any, tmp_path: Path, make: Any, message: str) -> None:
    make(tmp_path / "p.yaml")
    with pytest.raises(PlanError) as raised:
        plans.load("p.yaml")
    assert raised.value.exit_code == 2
    assert raised.value.text() == f"the plan has 1 problem:\n  p.yaml{message}"


def test_an_unreadable_file_is_told(write: Any) -> None:
    Path(write(SMALL)).chmod(0)
    user = os.geteuid()
    if user == 0:  # root reads every file
        os.seteuid(65534)
    try:
        assert problems_of("p.yaml") == ["p.yaml:  can't be read: Permission denied"]
    finally:
        os.seteuid(user)


def test_a_plan_from_a_pipe_is_read(write: Any, tmp_path: Path) -> None:
    read, out = os.pipe()
    os.write(out, SMALL.encode())
    os.close(out)
    assert plans.load(f"/dev/fd/{read}").groups() == ((Timing(),),)
    os.close(read)


# ---------------------------------------------------------------- extends


def test_maps_merge_and_lists_replace(write: Any) -> None:
    write(
        SMALL + "name: base\ndescription: of the base\ntarget: {env: {A: a, B: b}, timeout: 5m}\nbudget: 1h\n",
        "lib/base.yaml",
    )
    write("extends: ./base.yaml\ntarget: {env: {B: c}}\n", "lib/middle.yaml")
    plan = plans.load(write("extends: lib/middle.yaml\ncollectors: [{use: timing, repeats: 2}]\nbudget: 10x\n"))
    assert (plan.target.env, plan.target.timeout) == ({"A": "a", "B": "c"}, 300.0)
    assert plan.groups() == ((Timing(repeats=2),),)
    assert plan.budget == Times(10.0)
    assert (plan.name, plan.description) == ("p", None)


def test_a_template_can_be_extended(write: Any) -> None:
    plan = plans.load(write("extends: cpu-quick\ncollectors: [{use: timing}]\n"))
    assert plan.target.retry is True
    assert plan.source_map["target.retry"][0] == str(plans.find("cpu-quick"))


def test_problems_name_the_file_they_stand_in(write: Any) -> None:
    write("version: 1\ntarget: {timeout: soon}\ncollectors: [{use: timing}]\n", "base.yaml")
    assert problems_of(write("extends: ./base.yaml\nleftovers: burn\n")) == [
        "base.yaml:2:  target.timeout: 'soon' is no quantity; write it like 30s or 5m",
        'p.yaml:2:  leftovers: "burn" is not possible here (one of keep, end)',
    ]


@pytest.mark.parametrize(
    ("extends", "problem"),
    [
        ("cpu-quik", "p.yaml:3:  extends: there is no template 'cpu-quik' (did you mean cpu-quick? templates: "),
        (
            "lib/none.yaml",
            "p.yaml:3:  extends: there is no file lib/none.yaml (a path is looked up from the file that names it)",
        ),
        ("[a]", "p.yaml:3:  extends: needs the name of a template, or a path (extends: cpu-quick)"),
        ("p.yaml", "p.yaml:3:  extends: goes round in a circle: p.yaml > p.yaml"),
    ],
)
def test_a_base_that_is_not_there_is_told(write: Any, extends: str, problem: str) -> None:
    (told,) = problems_of(write(f"{SMALL}extends: {extends}\n"))
    assert told.startswith(problem)


def test_a_circle_is_told_with_its_way(write: Any) -> None:
    write("extends: ./b.yaml\n", "a.yaml")
    write("extends: ./c.yaml\n", "b.yaml")
    write("extends: ./a.yaml\n" + SMALL, "c.yaml")
    assert problems_of("a.yaml") == ["c.yaml:1:  extends: goes round in a circle: a.yaml > b.yaml > c.yaml > a.yaml"]


def test_a_tower_of_plans_is_refused(write: Any) -> None:
    for level in range(12):
        write(f"{SMALL}extends: ./{level + 1}.yaml\n", f"{level}.yaml")
    write(SMALL, "12.yaml")
    (told,) = problems_of("0.yaml")
    assert told.startswith("10.yaml:3:  extends: more than 10 plans stand on top of one another: 0.yaml > 1.yaml")
    assert plans.load("2.yaml").name == "2"


# ---------------------------------------------------------------- --set


def test_set_reaches_every_place(write: Any) -> None:
    path = write("""\
        version: 1
        environment: [{use: env, set: {A: a}}]
        collectors:
          - {use: timing, repeats: 3}
          - together: [{use: py-spy}]
        """)
    plan = plans.load(
        path,
        [
            "target.env.LR=0.10",
            "target.command=[python, t.py]",
            "environment.env.set.A=b",
            "collectors.timing.repeats=7",
            "collectors.py-spy.rate=50",
            "collectors[0].warmup=2",
            "collectors.0.timeout=5m",
            "collectors[1].together[0].idle=false",
            "budget=10x",
            "description='a: b'",
            "window={after: 1s}",
        ],
    )
    assert plan.target.env == {"LR": "0.10"}
    assert plan.target.command == ("python", "t.py")
    assert plan.environment == (Env(set={"A": "b"}),)
    assert plan.groups()[0] == (Timing(repeats=7, warmup=2, timeout=300.0),)
    spy = plan.groups()[1][0].model_dump()
    assert (spy["rate"], spy["idle"]) == ("50Hz" if isinstance(spy["rate"], str) else 50.0, False)
    assert (plan.budget, plan.description) == (Times(10.0), "a: b")
    assert plan.window is not None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("target.timeout", "target.timeout: has no value; write it like target.timeout=30m"),
        ("=5", "=5: has no name before the =; write it like target.timeout=30m"),
        ("target..cwd=5", "target..cwd: is no path; write it like target.timeout or collectors[0].rate"),
        ("[0]=5", "[0]: is no path; write it like target.timeout or collectors[0].rate"),
        ("a" + ".a" * 99 + "=5", f"a{'.a' * 99}: is more than 50 keys deep"),
        (
            "target.timout=5m",
            "target.timout: unknown key (did you mean timeout? "
            "known: before_each, command, cwd, env, inject, ok_exit_codes, retry, timeout)",
        ),
        ("target.timeout=soon", "target.timeout: 'soon' is no quantity; write it like 30s or 5m"),
        ("target.retry=on", 'target.retry: on is text to some and a truth value to others (write true or "on")'),
        (
            "collectors.timing.repeats=1_0",
            "collectors[0].repeats: 1_0 is not read as the same number, or not as a number, by everyone "
            '(write 10 for the number, "1_0" for the text)',
        ),
        ("collectors.nsys.rate=5", "collectors.nsys.rate: collectors has no nsys; it has timing"),
        ("collectors[3].rate=5", "collectors[3].rate: collectors has 1 items, counted from 0"),
        ("version.a=5", "version.a: version is a single value and holds no a"),
        ("extends=x", "extends: can't be set, as the plan is read by then: name the plan to start from instead"),
        (
            "description=a: b",
            "description: needs its value in quotes, as it holds signs that mean something in YAML",
        ),
        ("target.command=[a", "target.command: a [ is not closed, or a comma is missing"),
    ],
)
def test_a_wrong_set_is_told(write: Any, text: str, problem: str) -> None:
    assert problems_of(write(SMALL), text) == [f"--set:  {problem}"]


def test_set_by_name_wants_one_item(write: Any) -> None:
    path = write("version: 1\ncollectors: [{use: timing}, {together: [{use: timing}]}]\n")
    assert problems_of(path, "collectors.timing.repeats=5") == [
        "--set:  collectors.timing.repeats: collectors has timing more than once: write one of "
        "collectors[0], collectors[1].together[0]"
    ]


# ---------------------------------------------------------------- --only and --skip


@pytest.fixture
def three(write: Any) -> Plan:
    return plans.load(write("version: 1\ncollectors: [{use: timing}, {together: [{use: py-spy}, {use: nsys}]}]\n"))


def _uses(plan: Plan) -> list[list[str]]:
    return [[collector.use for collector in group] for group in plan.groups()]


@pytest.mark.parametrize(
    ("only", "skip", "left"),
    [
        ((), (), [["timing"], ["py-spy", "nsys"]]),
        (("timing",), (), [["timing"]]),
        (("timing,nsys",), (), [["timing"], ["nsys"]]),
        (("timing", "py-spy, nsys"), (), [["timing"], ["py-spy", "nsys"]]),
        ((), ("py-spy",), [["timing"], ["nsys"]]),
        ((), ("py-spy", "nsys"), [["timing"]]),
        (("timing,nsys",), ("nsys",), [["timing"]]),
    ],
)
def test_only_and_skip_reach_inside_together(three: Plan, only: Any, skip: Any, left: list[list[str]]) -> None:
    assert _uses(plans.select(three, only, skip)) == left


def test_an_unknown_name_to_select_is_an_error(three: Plan) -> None:
    with pytest.raises(UsageError) as raised:
        plans.select(three, ["nsyss"])
    assert raised.value.text() == (
        "--only nsyss: the plan has no such collector\n  next: did you mean nsys? known: nsys, py-spy, timing"
    )


def test_nothing_left_is_an_error(three: Plan) -> None:
    with pytest.raises(UsageError, match="no collector is left to run"):
        plans.select(three, ["timing"], ["timing"])


# ---------------------------------------------------------------- find


def test_a_plan_is_a_path_or_a_template(write: Any) -> None:
    assert plans.find("./x") == Path("x")
    assert plans.find("a/b") == Path("a/b")
    assert plans.find("x.yml") == Path("x.yml")
    assert plans.find("cpu-quick") == plans.profiles() / "cpu-quick.yaml"


@pytest.mark.parametrize(
    ("name", "also", "next_step"),
    [
        ("cpu-quik", (), "did you mean cpu-quick? templates: "),
        ("chekc", ("check", "run"), "did you mean check? templates: "),
        ("zzzz", (), "templates: "),
        ("", (), "templates: "),
        ("here", (), "write ./here"),
    ],
)
def test_an_unknown_template_is_a_usage_error(write: Any, name: str, also: Any, next_step: str) -> None:
    write("x", "here")
    with pytest.raises(UsageError) as raised:
        plans.find(name, also)
    assert raised.value.exit_code == 2
    assert raised.value.what == f"there is no template {name!r}"
    assert raised.value.next_step.startswith(next_step)


# ---------------------------------------------------------------- plugins from another package


_PLUGINS = """
from typing import ClassVar, Literal
from orchestrator.collectors.base import Collector
from orchestrator.env_steps.base import Step
from pydantic import BaseModel, model_validator

class One(Collector):
    use: Literal["acme-one"] = "acme-one"
    depth: int = 3
    claims: ClassVar = frozenset({"ptrace", "preload"})

class Two(Collector):
    use: Literal["acme-two"] = "acme-two"
    claims: ClassVar = frozenset({"ptrace"})

class Rude(Collector):
    use: Literal["acme-rude"] = "acme-rude"
    @model_validator(mode="before")
    @classmethod
    def _check(cls, value):
        raise TypeError("oh no")

class Stranger(BaseModel):
    use: str

class Quiet(Step):
    use: Literal["acme-quiet"] = "acme-quiet"
    level: int
"""


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An installed package that offers collectors and a step; two of its entry points are broken."""
    site = tmp_path / "site"
    info = site / "acme_tools-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "acme_tools.py").write_text(_PLUGINS)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-tools\nVersion: 1.0\n")
    names = {
        "acme-one": "One",
        "acme-two": "Two",
        "acme-rude": "Rude",
        "acme-stranger": "Stranger",
        "acme-broken": "Nobody",
    }
    lines = [f"{name} = acme_tools:{attribute}" for name, attribute in names.items()]
    text = ["[profrun.collectors]", *lines, "[profrun.environment]", "acme-quiet = acme_tools:Quiet"]
    (info / "entry_points.txt").write_text("\n".join(text))
    monkeypatch.syspath_prepend(str(site))
    registry._plugins.cache_clear()
    yield
    registry._plugins.cache_clear()


def test_collectors_and_steps_of_another_package_work(write: Any, acme: Any) -> None:
    plan = plans.load(
        write("version: 1\nenvironment: [{use: acme-quiet, level: 2}]\ncollectors: [{use: acme-one, depth: 5}]\n")
    )
    assert [type(collector).__name__ for collector in plan.each_collector()] == ["One"]
    assert plans.load(write(plans.dump(plan), "again.yaml")).model_dump() == {**plan.model_dump(), "name": "p"}


def test_broken_plugins_hide_nothing(write: Any, acme: Any) -> None:
    path = write("""\
        version: 1
        collectors:
          - {use: acme-broken}
          - {use: acme-stranger}
          - {use: acme-rude}
          - {use: acme-one, dept: 5}
          - {use: timing, repeats: none}
        """)
    told = problems_of(path)
    assert [line.partition(" (")[0] for line in told] == [
        "p.yaml:3:  collectors[0].use: 'acme-broken' comes from the installed package acme-tools and can't be loaded",
        "p.yaml:4:  collectors[1].use: acme-stranger comes from an installed package, but is no Collector",
        "p.yaml:5:  collectors[2].use: acme-rude fails on these options: TypeError: oh no",
        "p.yaml:6:  collectors[3].dept: unknown key",
        'p.yaml:7:  collectors[4].repeats: needs a whole number, not "none"',
    ]


def test_two_that_claim_the_same_cannot_share_a_pass(write: Any, acme: Any) -> None:
    path = write("version: 1\ncollectors: [{together: [{use: acme-one, depth: 2}, {use: timing}, {use: acme-two}]}]\n")
    assert problems_of(path) == [
        "p.yaml:2:  collectors[0]: timing can't share a pass: it measures the undisturbed run; acme-one and acme-two "
        "can't share a pass: each traces the process (ptrace), and a process has one tracer at a time\n"
        "    write instead:\n      - {use: acme-one, depth: 2}\n      - {use: timing}\n      - {use: acme-two}"
    ]


def test_the_schema_holds_plugins_and_leaves_broken_ones_out(acme: Any) -> None:
    definitions = plans.json_schema()["$defs"]
    assert {"One", "Two", "Quiet", "Timing"} <= set(definitions)
    assert "Stranger" not in definitions
    assert "One" not in plans.json_schema(plugins=False)["$defs"]


# ---------------------------------------------------------------- dump and schema


def test_a_dumped_plan_spells_everything_out(write: Any) -> None:
    plan = plans.load(write(SMALL + "target: {command: [a, 'off', '1e5', 0.10]}\nbudget: 10x\nmetrics: {m: '(x)'}\n"))
    text = plans.dump(plan)
    data = yaml.safe_load(text)
    assert data["target"] == {
        "command": ["a", "off", "1e5", "0.10"],
        "cwd": ".",
        "env": {},
        "timeout": "30m",
        "before_each": None,
        "ok_exit_codes": [0],
        "inject": True,
        "retry": False,
    }
    assert data["collectors"] == [
        {"use": "timing", "required": True, "timeout": None, "flush": "1m", "repeats": 5, "warmup": 1}
    ]
    assert data["budget"] == "10x"
    assert data["metrics"] == {"m": {"pattern": "(x)", "take": "last", "unit": None}}
    assert set(data) == {field.alias or name for name, field in Plan.model_fields.items()} - {"extends"}


def test_a_dumped_plan_reads_back_as_the_same(write: Any) -> None:
    path = write("""\
        version: 1
        target: {command: [python, "a b", "", "x: y", "'"], env: {A: "  x", B: "no"}, timeout: null}
        window: {after: 0.5s, for: 1500ms}
        metrics: {m: '\\d+ ("?x)'}
        environment: [{use: shell, run: [ls], undo: ["true"], timeout: 90s}]
        collectors:
          - {use: timing, flush: 0.25s}
          - together: [{use: py-spy, rate: 50Hz}, {use: nsys}]
        """)
    plan = plans.load(path)
    again = plans.load(write(plans.dump(plan), "again.yaml"))
    assert again.model_dump() == plan.model_dump()
    assert again.groups() == plan.groups()
    assert isinstance(again.collectors[1], Together)


def test_the_schema_agrees_with_the_reader(write: Any) -> None:
    import jsonschema

    schema = plans.json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    good = [SMALL, "extends: cpu-quick\n", SMALL + "budget: 10x\n", SMALL + "target: {env: {A: 8}, timeout: 1h30m}\n"]
    bad = ["version: 1\n", SMALL + "x: 1\n", "version: 2\ncollectors: [{use: timing}]\n",
           "version: 1\ncollectors: [{use: timing, x: 1}]\n", "version: 1\ncollectors: [{warmup: 1}]\n",
           SMALL + "target: {timeout: soon}\n", SMALL + "environment: [{use: evn}]\n"]  # fmt: skip
    assert [validator.is_valid(yaml.safe_load(text)) for text in good] == [True] * len(good)
    assert [validator.is_valid(yaml.safe_load(text)) for text in bad] == [False] * len(bad)
    for text in bad:
        problems_of(write(text))


def test_every_key_of_the_schema_is_described() -> None:
    schema = plans.json_schema(plugins=False)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    bare = [
        f"{name}.{key}"
        for name, part in {"Plan": schema, **schema["$defs"]}.items()
        for key, about in part.get("properties", {}).items()
        if "description" not in about and key != "use"
    ]
    assert bare == []
    uses = [
        part["properties"]["use"]["const"] for part in schema["$defs"].values() if "use" in part.get("properties", {})
    ]
    assert set(uses) == {*registry.COLLECTORS, *registry.ENVIRONMENT, *registry.LAUNCHERS}
