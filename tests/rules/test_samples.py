"""The rules on simulated jobs, from trace files on, against the simulator's truth."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from analyzer.api import analyze
from analyzer.label import label_job
from analyzer.measure import measure_job
from analyzer.measure.results import Measurements
from analyzer.model import Finding, Outcome, Severity, Verdict
from analyzer.strategy import parse_expect
from collectors import open_job
from collectors.simulate import Defect, SimSpec, simulate, write
from rules import Registry, run
from rules.registry import built_in

SAMPLES = Path(__file__).resolve().parents[2] / "sample_traces"
RULES = Registry(built_in())
SMALL = {"layers": 4, "hidden": 2048, "vocab": 8192, "sequence": 2048}

Result = tuple[Measurements, dict[str, Outcome]]


def judged(paths: list[str], expect: str) -> Result:
    strategy = parse_expect(expect)
    job = open_job(paths)
    m = measure_job(label_job(job, expect=strategy), job, expect=strategy, mesh=None)
    return m, {o.rule: o for o in run(m, registry=RULES)}


@cache
def sample(name: str, expect: str) -> Result:
    return judged([str(p) for p in sorted((SAMPLES / name).glob("rank*.json.gz"))], expect)


def truth(name: str) -> dict[str, float]:
    means = json.loads((SAMPLES / name / "truth.json").read_text(encoding="utf-8"))["mean"]
    exposed = {f"exposed/{axis}": ns for axis, ns in means["exposed_comm_ns"].items()}
    idle = {f"idle/{cause}": ns for cause, ns in means["idle_ns"].items()}
    return {"step_ns": means["time_ns"], **exposed, **idle}


def bad(outcomes: dict[str, Outcome]) -> dict[str, Verdict]:
    good = (Verdict.PASS, Verdict.NOT_APPLICABLE)
    return {rule: o.verdict for rule, o in outcomes.items() if o.verdict not in good}


def only(outcomes: dict[str, Outcome], rule: str, axis: str | None = None) -> Finding:
    (finding,) = [f for f in outcomes[rule].findings if axis in (None, f.axis)]
    return finding


@pytest.mark.parametrize(
    ("name", "expect"), [("fsdp_tp_healthy", "fsdp_tp"), ("ddp_healthy", "ddp")]
)
def test_healthy_jobs_get_no_warning(name: str, expect: str) -> None:
    m, outcomes = sample(name, expect)
    assert bad(outcomes) == {}
    assert not [f for o in outcomes.values() for f in o.findings if f.severity is not Severity.INFO]
    assert {o.verdict for o in outcomes.values()} <= {Verdict.PASS, Verdict.NOT_APPLICABLE}
    assert m.exposed_comm_pct is not None


def test_no_prefetch_is_found_and_its_worth_is_what_prefetch_wins() -> None:
    _, outcomes = sample("fsdp_tp_no_prefetch", "fsdp_tp")
    assert bad(outcomes) == {"COM001": Verdict.FAIL, "COM002": Verdict.FAIL}
    finding = only(outcomes, "COM002")
    assert finding.ranks == (0, 1, 2, 3)
    won = (
        truth("fsdp_tp_no_prefetch")["exposed/dp_shard"]
        - truth("fsdp_tp_healthy")["exposed/dp_shard"]
    )
    assert finding.savings_ns == pytest.approx(won, rel=0.05)
    assert finding.savings_ns >= won  # an upper bound
    assert all("AllGather" in row.name for row in finding.evidence)


def test_small_buckets_are_found_and_their_worth_is_what_buckets_win() -> None:
    _, outcomes = sample("ddp_small_buckets", "ddp")
    assert bad(outcomes) == {"COM001": Verdict.FAIL, "COM005": Verdict.FAIL}
    won = (
        truth("ddp_small_buckets")["exposed/dp_replicate"]
        - truth("ddp_healthy")["exposed/dp_replicate"]
    )
    finding = only(outcomes, "COM005")
    assert won <= finding.savings_ns <= 1.2 * won


def test_a_slow_host_is_found_and_its_worth_is_the_idle_time() -> None:
    _, outcomes = sample("fsdp_host_bound", "fsdp")
    assert outcomes["HST001"].verdict is Verdict.FAIL
    known = truth("fsdp_host_bound")
    finding = only(outcomes, "HST001")
    assert finding.savings_ns == pytest.approx(known["idle/host_bound"], rel=0.001)
    assert finding.measured.value == pytest.approx(
        100 * known["idle/host_bound"] / known["step_ns"], rel=0.001
    )
    assert outcomes["HST002"].verdict is Verdict.PASS


def test_synchronisations_are_found() -> None:
    _, outcomes = sample("fsdp_tp_sync", "fsdp_tp")
    assert outcomes["HST002"].verdict is Verdict.WARN
    known = truth("fsdp_tp_sync")
    lost = known["idle/sync"] + known["idle/host_bound"] + known["idle/other"]
    assert known["idle/sync"] < only(outcomes, "HST002").savings_ns <= lost
    assert outcomes["HST001"].findings == ()


@pytest.mark.parametrize(
    ("name", "expect", "verdict", "axes"),
    [
        ("fsdp_tp_healthy", "fsdp", Verdict.WARN, {"tp"}),
        ("fsdp_host_bound", "fsdp_tp", Verdict.FAIL, {"tp"}),
        ("fsdp_tp_healthy", "fsdp2_tp2", Verdict.PASS, set()),
        ("fsdp_tp_healthy", "fsdp2_tp4", Verdict.FAIL, {"tp"}),
    ],
)
def test_what_was_stated_is_compared(
    name: str, expect: str, verdict: Verdict, axes: set[str]
) -> None:
    _, outcomes = sample(name, expect)
    assert outcomes["STR001"].verdict is verdict
    assert {f.axis for f in outcomes["STR001"].findings} == axes


# ---------------------------------------------------------------------- injected defects


def simulated(tmp_path: Path, strategy: str, defect: str = "", **mesh: int) -> Result:
    defects = (Defect.parse(defect),) if defect else ()
    folder = tmp_path / (defect.split("=", maxsplit=1)[0].replace(":", "_") or "healthy")
    folder.mkdir()
    write(simulate(SimSpec(mesh=mesh, strategy=strategy, defects=defects, **SMALL)), folder)
    return judged([str(p) for p in sorted(folder.glob("rank*"))], strategy)


def exposed_ns(m: Measurements, axis: str) -> int:
    return next(a.exposed_ns for a in m.axes if (a.axis, a.op) == (axis, ""))


def test_late_reductions_are_found_and_worth_exactly_what_they_cost(tmp_path: Path) -> None:
    healthy, without = simulated(tmp_path, "fsdp", dp_shard=4)
    late, outcomes = simulated(tmp_path, "fsdp", "late-reduce-scatter", dp_shard=4)
    assert bad(without) == {}
    assert bad(outcomes) == {"COM001": Verdict.FAIL, "COM003": Verdict.FAIL}
    won = exposed_ns(late, "dp_shard") - exposed_ns(healthy, "dp_shard")
    assert only(outcomes, "COM003").savings_ns == won
    assert only(outcomes, "COM001", "dp_shard").savings_ns == won


def test_a_slow_link_is_not_called_late_or_serialized(tmp_path: Path) -> None:
    _, outcomes = simulated(tmp_path, "fsdp", "slow-link:dp_shard=8", dp_shard=4)
    assert outcomes["COM001"].verdict is Verdict.FAIL
    assert bad(outcomes).keys() == {"COM001"}


def test_data_stalls_are_found(tmp_path: Path) -> None:
    _, outcomes = simulated(tmp_path, "fsdp", "data-stall", dp_shard=2)
    assert outcomes["HST003"].verdict is Verdict.FAIL
    assert "HST001" not in bad(outcomes)


def test_missing_launches_are_reported(tmp_path: Path) -> None:
    _, outcomes = simulated(tmp_path, "fsdp", "missing-launches", dp_shard=2)
    assert bad(outcomes) == {"TRC001": Verdict.WARN}
    assert outcomes["HST001"].verdict is Verdict.NOT_APPLICABLE


@pytest.mark.parametrize("strategy", ["hsdp", "tp"])
def test_other_healthy_strategies_get_no_warning(tmp_path: Path, strategy: str) -> None:
    mesh = {"hsdp": {"dp_replicate": 2, "dp_shard": 2}, "tp": {"tp": 2}}[strategy]
    _, outcomes = simulated(tmp_path, strategy, **mesh)
    assert bad(outcomes) == {}


def test_a_symptom_names_the_rules_that_explain_it() -> None:
    result = analyze(SAMPLES / "fsdp_tp_no_prefetch", expect="fsdp_tp")
    by_rule = {(f["rule"], f["axis"]): f for f in result.document["findings"]}
    assert by_rule["COM001", "dp_shard"]["explained_by"] == ["COM002"]
    assert by_rule["COM002", "dp_shard"]["explained_by"] == []
    # the cause is worth less than the whole symptom, and still comes first: it says what to do
    assert result.document["findings"][0]["rule"] == "COM002"
