"""`profrun export`: what other programs read, read by those programs or by readers of their own."""

from __future__ import annotations

import csv
import gzip
import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cli
import hta
import perfetto_file
import pyarrow.parquet as pq
import pytest
import sample_report
from prometheus_client import parser
from two_runs import Job, make

from orchestrator import exporting, folder, report
from orchestrator.errors import ReportError, UsageError
from orchestrator.exporting import github, prometheus
from orchestrator.model import Artifact, Capture, Metric


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> report.Report:
    return sample_report.diagnosed(tmp_path_factory.mktemp("run"))


@pytest.fixture
def said() -> list[str]:
    return []


def export(run: report.Report, to: str, place: Path, said: list[str]) -> dict[str, Path]:
    return {str(path.relative_to(place)): path for path in exporting.export(run, to, place, said.append)}


# ---------------------------------------------------------------- tables


def test_csv_says_what_is_unknown(full: report.Report, tmp_path: Path, said: list[str]) -> None:
    files = export(full, "csv", tmp_path, said)
    assert set(files) == {f"{name}.csv" for name in (*full.tables, "metrics", "findings", "columns")}
    for name in full.tables:
        frame = full.table(name)
        assert frame is not None
        with files[f"{name}.csv"].open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert [row["run"] for row in rows] == [full.run.id] * len(frame)
        assert list(rows[0]) == ["run", *frame.columns]
    with files["syscalls.csv"].open(newline="") as file:
        first = next(csv.DictReader(file))
    frame = full.table("syscalls")
    assert frame is not None
    assert (first["name"], int(first["total_ns"])) == (frame["name"][0], frame["total_ns"][0])
    assert first["thread"] == "" and frame["thread"].isna()[0]


def test_columns_have_their_units(full: report.Report, tmp_path: Path, said: list[str]) -> None:
    with export(full, "csv", tmp_path, said)["columns.csv"].open(newline="") as file:
        units = {(row["table"], row["column"]): (row["unit"], row["meaning"]) for row in csv.DictReader(file)}
    assert units["syscalls", "total_ns"] == ("ns", "time in the call")
    assert units["runs", "wall_s"][0] == "s"
    assert said == ["columns.csv says what each column means, and its unit"]


def test_parquet_keeps_types_and_units(full: report.Report, tmp_path: Path, said: list[str]) -> None:
    files = export(full, "parquet", tmp_path, said)
    for name, info in full.tables.items():
        own, theirs = pq.read_table(full.folder / info.path), pq.read_table(files[f"{name}.parquet"])
        assert theirs.drop_columns(["run"]).equals(own, check_metadata=True)
    metrics = {row["name"]: row for row in pq.read_table(files["metrics.parquet"]).to_pylist()}
    assert (metrics["wall_s"]["value"], metrics["wall_s"]["ci95_high"]) == (3.2339, 3.2966)
    assert metrics["tokens_per_s"]["value"] is None


# ---------------------------------------------------------------- pictures


def test_speedscope(full: report.Report, tmp_path: Path, said: list[str]) -> None:
    files = export(full, "speedscope", tmp_path, said)
    assert files
    for path in files.values():
        data = json.loads(path.read_text())
        assert all(len(p["samples"]) == len(p["weights"]) for p in data["profiles"])


def test_perfetto(full: report.Report, tmp_path: Path, said: list[str]) -> None:
    (path,) = export(full, "perfetto", tmp_path, said).values()
    assert perfetto_file.read(path).slices


@pytest.mark.parametrize("to", ["speedscope", "perfetto", "hta"])
def test_nothing_to_export(to: str, tmp_path: Path, said: list[str]) -> None:
    with pytest.raises(UsageError, match="the report has no"):
        export(sample_report.bare(tmp_path), to, tmp_path, said)


# ---------------------------------------------------------------- HTA

TRACE = {
    "schemaVersion": 1,
    "traceEvents": [
        {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 7, "tid": 7, "ts": 10.0, "dur": 5.0, "args": {}},
        {"ph": "X", "cat": "kernel", "name": "add_kernel", "pid": 0, "tid": 7, "ts": 12.0, "dur": 2.0,
         "args": {"stream": 7, "correlation": 3, "device": 0}},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 7, "tid": 7, "ts": 11.0, "dur": 1.0,
         "args": {"correlation": 3}},
    ],
}  # fmt: skip


def traced(place: Path, traces: dict[str, str | None], capture: str = "p01-torch") -> Capture:
    """A capture with these traces: name, and what is said of a rank in it."""
    artifacts = []
    for name, rank in traces.items():
        path = place / "raw" / capture / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = {**({"distributedInfo": {"rank": int(rank)}} if rank is not None else {}), **TRACE}
        text = json.dumps(data, indent=1).encode()
        path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
        artifacts.append(Artifact("trace", str(path.relative_to(place)), "kineto", len(text), "", 0))
    return Capture(capture, "p01", "torch", "ok", artifacts=tuple(artifacts), root=place)


def test_hta_reads_a_trace_for_each_rank(tmp_path: Path, said: list[str]) -> None:
    names = {"rank0-1.trace.json": "0", "rank1-2.trace.json": None, "x.json.gz": "3"}
    run = replace(sample_report.bare(tmp_path), captures=(traced(tmp_path, names),))
    files = export(run, "hta", tmp_path / "out", said)
    assert sorted(files) == [f"rank-{rank}.trace.json.gz" for rank in (0, 1, 3)]
    loaded = hta.load(tmp_path / "out")
    assert {rank: names["aten::add"] for rank, names in loaded.ranks.items()} == {0: 1, 1: 1, 3: 1}
    assert "does not have the rank" not in loaded.said and "same rank" not in loaded.said
    assert said[0] == "rank1-2.trace.json names no rank: taken for 1"


def test_two_traces_of_a_rank_and_two_captures(tmp_path: Path, said: list[str]) -> None:
    twice = traced(tmp_path, {"a.json": "0", "b.json": "0", "c.json": None})
    other = traced(tmp_path, {"a.json": "0"}, "p02-torch")
    files = export(replace(sample_report.bare(tmp_path), captures=(twice, other)), "hta", tmp_path / "out", said)
    assert sorted(files) == [
        f"{c}/rank-{r}.trace.json.gz" for c, r in (("p01-torch", 0), ("p01-torch", 1), ("p02-torch", 0))
    ]
    assert said[0] == "b.json is left out: HTA takes one trace a rank, and there is one of rank 0"


def test_hta_gets_all_ranks_of_a_job_of_tasks_in_one_folder(tmp_path: Path, said: list[str]) -> None:
    tasks = tuple(traced(tmp_path, {"a.json": str(rank)}, f"p01-torch@n{rank}.r{rank}") for rank in range(2))
    files = export(replace(sample_report.bare(tmp_path), captures=tasks), "hta", tmp_path / "out", said)
    assert sorted(files) == ["rank-0.trace.json.gz", "rank-1.trace.json.gz"]


# ---------------------------------------------------------------- Prometheus


def families(run: report.Report) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    found = parser.text_string_to_metric_families(prometheus.render(run))
    return {f.name: {tuple(sorted(s.labels.items())): s.value for s in f.samples} for f in found}


def test_prometheus_in_base_units(full: report.Report, tmp_path: Path, said: list[str]) -> None:
    metrics = {
        **full.metrics,
        "host_cpu_pct": Metric(64.2, "%"),
        "odd.name": Metric(1.0, "x"),
        "wait_ms": Metric(250.0, "ms"),
    }
    run = replace(full, metrics=metrics, run=replace(full.run, name='a "b"\\\nc'))
    found = families(run)
    plan = (("plan", run.run.name),)
    assert found["profrun_step_seconds"] == {plan: 0.01613}
    assert found["profrun_step_ci95_low_seconds"] == {plan: 0.01601}
    assert found["profrun_max_rss_bytes"] == {plan: 412_310_000.0}
    assert found["profrun_host_cpu_ratio"] == {plan: 0.642}
    assert found["profrun_wait_seconds"] == {plan: 0.25}
    assert found["profrun_odd_name"] == {plan: 1.0}
    assert "profrun_tokens_per_second" not in found, "unknown is no sample"
    assert found["profrun_findings"][(*plan, ("severity", "major"))] == 1
    (cost, *_) = found["profrun_finding_cost_ratio"].values()
    assert cost == 0.408
    (path,) = export(full, "prometheus", tmp_path, said).values()
    assert path.name == "profrun-cpu-quick.prom"


def test_prometheus_of_next_to_nothing(tmp_path: Path) -> None:
    found = families(sample_report.bare(tmp_path))
    assert found["profrun_run_exit_status"] == {(("plan", "x"),): 127}


# ---------------------------------------------------------------- a CI job's page


def test_github_summary(full: report.Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "step-summary"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(page))
    monkeypatch.setenv("DEPLOY_TOKEN", "zqx7731hunter")
    run = replace(full, run=replace(full.run, command=("python", "t.py", "zqx7731hunter")))
    assert github.tell(run) and github.append("## The gate\n")
    text = page.read_text()
    assert "zqx7731hunter" not in text and "[redacted]" in text
    assert "| Steady step | 16.13 ms | 16.01 to 16.25 ms | 3 |" in re.sub(" +", " ", text)
    assert "40.8 % of the bare run's 3.21 s of wall time" in text
    assert text.rstrip().endswith("## The gate")
    assert "<script>" not in re.sub(r"(`+).*?\1", "", text).replace("\\<", ""), "outside of code nothing is markup"


def test_a_gate_is_told_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = (make(tmp_path / name, job, seed) for name, job, seed in (("a", Job(), 1), ("b", Job().with_ms(log=6.0), 2)))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "page"))
    done = cli.profrun("compare", a.folder, b.folder, "--gate", "3%", cwd=tmp_path)
    text = (tmp_path / "page").read_text()
    assert done.code == 6 and "## profrun compare: gate failed" in text
    assert "slower per step" in text and "| `step_s` | failed" in re.sub(" +", " ", text)


def test_no_ci_no_summary(full: report.Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    assert not github.tell(full)
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path))
    assert not github.tell(full), "a folder takes no text, and that is no error"


# ---------------------------------------------------------------- MLflow


def test_mlflow_is_asked_for_where_it_is_missing(
    full: report.Report, tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow.tracking", None)
    with pytest.raises(UsageError, match="pip install mlflow-skinny"):
        export(full, "mlflow", tmp_path, said)


class Recorded:
    """What stands in for MLflow's client: its calls, by name."""

    def __init__(self, tracking_uri: str) -> None:
        self.calls: dict[str, list[tuple[Any, ...]]] = {"uri": [(tracking_uri,)]}
        RECORDED.append(self)

    def get_experiment_by_name(self, name: str) -> None:
        return None

    def create_experiment(self, name: str) -> str:
        return f"experiment of {name}"

    def create_run(self, experiment: str, **more: Any) -> Any:
        self.calls["create_run"] = [(experiment, more)]
        return SimpleNamespace(info=SimpleNamespace(run_id="r1"))

    def __getattr__(self, name: str) -> Any:
        return lambda *given, **more: self.calls.setdefault(name, []).append((*given, *more.values()))


RECORDED: list[Recorded] = []


def test_mlflow_gets_figures_facts_and_pages(
    full: report.Report, tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow.tracking", SimpleNamespace(MlflowClient=Recorded))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking:5000")
    (full.folder / "report.md").write_text("# it")
    assert export(full, "mlflow", tmp_path, said) == {}, "nothing is left here"
    calls = RECORDED[-1].calls
    assert calls["uri"] == [("http://tracking:5000",)] and said == ["run r1 in http://tracking:5000"]
    ((experiment, about),) = calls["create_run"]
    assert (experiment, about["run_name"]) == ("experiment of cpu-quick", full.run.id)
    started_ms = 1_789_985_600_000
    metrics = {key: value for _, key, value, at in calls["log_metric"] if at == started_ms}
    assert (metrics["step_s"], metrics["step_s_ci95_low"], metrics["finding_file_io_pct"]) == (0.01613, 0.01601, 40.8)
    assert "tokens_per_s" not in metrics, "unknown is no figure"
    assert ("r1", "cpu", "AMD EPYC 7763") in calls["log_param"]
    assert calls["log_artifact"] == [("r1", str(full.folder / "report.md"))]
    assert calls["set_terminated"] == [("r1", "FINISHED", started_ms + 47_300)]


def test_the_real_mlflow_takes_it(full: report.Report, tmp_path: Path, said: list[str]) -> None:
    tracking = pytest.importorskip("mlflow.tracking", reason="mlflow-skinny, a hundred megabytes, is not installed")
    (stored,) = export(full, "mlflow", tmp_path, said).values()
    client = tracking.MlflowClient(tracking_uri=stored.as_uri())
    (run,) = client.search_runs([client.get_experiment_by_name("cpu-quick").experiment_id])
    assert (run.info.run_name, run.info.status) == (full.run.id, "FINISHED")
    assert run.data.metrics["wall_s"] == 3.2339 and run.data.params["kernel"] == "6.1.0-18-amd64"


# ---------------------------------------------------------------- the verb


def test_the_command(full: report.Report, tmp_path: Path) -> None:
    place = tmp_path / "run"
    place.mkdir()
    folder.Folder(place).write_json("summary.json", report.summary(replace(full, tables={})))
    done = cli.profrun("export", place, "--to", "prometheus", cwd=tmp_path)
    written = place / "exports" / "prometheus" / "profrun-cpu-quick.prom"
    assert (done.code, done.stdout) == (0, f"{written}\n")
    assert written.stat().st_size
    done = cli.profrun("export", place, "--to", "hta", cwd=tmp_path)
    assert done.code == 2 and "profrun torch-deep" in done.stderr


def test_names_that_prometheus_would_take_for_one_are_told_apart(tmp_path: Path) -> None:
    twins = {"tok/s": Metric(1.0), "tok.s": Metric(2.0), "run_info": Metric(3.0)}
    found = families(replace(sample_report.bare(tmp_path), metrics=twins))
    assert sorted(found["profrun_tok_s"].values()) == [1.0, 2.0]
    assert [*found["profrun_metric_run_info"].values()] == [3.0]
    assert [*found["profrun_run_info"].values()] == [1.0]


def test_a_password_in_an_address_is_nobodys(
    full: report.Report, tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refuses(Recorded):
        def create_experiment(self, name: str) -> str:
            raise ConnectionError("https://bob:pa55-word@mlflow.corp refused")

    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://bob:pa55-word@mlflow.corp")
    monkeypatch.setitem(sys.modules, "mlflow.tracking", SimpleNamespace(MlflowClient=Refuses))
    with pytest.raises(UsageError) as refused:
        export(full, "mlflow", tmp_path, said)
    monkeypatch.setitem(sys.modules, "mlflow.tracking", SimpleNamespace(MlflowClient=Recorded))
    export(full, "mlflow", tmp_path, said)
    assert "pa55-word" not in refused.value.text() + "".join(said)
    assert "mlflow.corp" in refused.value.text()


@pytest.mark.parametrize("to", ["csv", "parquet"])
@pytest.mark.parametrize("damage", [lambda path: path.write_bytes(b"PAR1 no more"), lambda path: path.unlink()])
def test_a_damaged_table_is_named(damage: Callable[[Path], Any], to: str, tmp_path: Path, said: list[str]) -> None:
    run = sample_report.build(tmp_path / "run")
    name = next(iter(run.tables))
    damage(run.folder / run.tables[name].path)
    with pytest.raises(ReportError, match=f"{name}.parquet can't be read"):
        export(run, to, tmp_path / "out", said)
