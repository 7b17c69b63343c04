"""STR001: stated against seen."""

from __future__ import annotations

import pytest
from measure_builder import Comm, measured, outcome, strategy, unmeasurable

from analyzer.model import Severity, Verdict
from analyzer.strategy import parse_expect

GATHER = [Comm("dp_shard", "all_gather", 5 * i, 5 * i + 1) for i in range(8)]
SCATTER = [Comm("dp_shard", "reduce_scatter", 40 + 5 * i, 41 + 5 * i) for i in range(4)]
FSDP = [*GATHER, *SCATTER]
DDP = [Comm("dp_replicate", "all_reduce", 40 + 5 * i, 41 + 5 * i) for i in range(4)]
TP = [Comm("tp", "all_reduce", 2 + 5 * i, 3 + 5 * i) for i in range(8)]
TP_SP = [Comm("tp", op, 2 + 5 * i, 3 + 5 * i) for i, op in
         enumerate(["all_gather", "reduce_scatter"] * 4)]  # fmt: skip


def stated(*words: str, comm: list[Comm], mesh: dict[str, int] | None = None, **degrees: int):
    fields = {} if mesh is None else {"mesh": mesh}
    return outcome("STR001", measured(comm, expect=strategy(*words, **degrees), **fields))


def test_fires_on_a_missing_axis() -> None:
    result = stated("fsdp", "tp", comm=FSDP)
    (finding,) = result.findings
    assert result.verdict is Verdict.FAIL
    assert finding.axis == "tp"
    assert finding.title == "tp was stated, but there is no communication on tp"
    assert finding.savings_ns is None


def test_fires_when_nothing_communicates() -> None:
    assert stated("ddp", comm=[]).verdict is Verdict.FAIL


def test_fires_on_a_missing_axis_with_the_label_as_a_suspect() -> None:
    (finding,) = stated("fsdp", "tp", comm=[*FSDP, Comm("unknown", "all_reduce", 90, 91)]).findings
    assert "--mesh" in finding.advice


def test_fires_on_the_wrong_kind_of_collective() -> None:
    replicated = [Comm("dp_shard", "all_reduce", 40 + i, 41 + i) for i in range(4)]
    (finding,) = stated("fsdp", comm=replicated).findings
    assert finding.severity is Severity.ERROR
    assert (
        finding.title == "fsdp was stated, but dp_shard shows no all_gather and no reduce_scatter"
    )
    assert "looks like ddp" in finding.advice
    assert "4 all_reduce" in finding.advice
    sharded = [Comm("dp_replicate", c.op, c.start, c.end) for c in FSDP]
    (finding,) = stated("ddp", comm=sharded).findings
    assert "looks like fsdp" in finding.advice


def test_fires_on_an_unstated_axis() -> None:
    result = stated("fsdp", comm=[*FSDP, *TP])
    (finding,) = result.findings
    assert (result.verdict, finding.axis) == (Verdict.WARN, "tp")
    assert finding.measured.value == pytest.approx(8.0)


def test_fires_twice_when_ddp_runs_instead_of_fsdp() -> None:
    findings = stated("fsdp", comm=DDP).findings
    assert [(f.axis, f.severity) for f in findings] == [
        ("dp_shard", Severity.ERROR),
        ("dp_replicate", Severity.WARNING),
    ]


def test_fires_on_another_degree() -> None:
    mesh = {"dp_shard": 4, "tp": 2}
    (finding,) = stated("fsdp", "tp", comm=[*FSDP, *TP], mesh=mesh, tp=4).findings
    assert finding.title == "tp was stated as 4, the trace shows 2"
    assert (finding.measured.value, finding.threshold) == (2.0, 4.0)


def parsed(text: str, mesh: dict[str, int]):
    return outcome("STR001", measured(FSDP, expect=parse_expect(text), mesh=mesh))


def test_fsdp2_that_was_meant_as_the_api_is_explained() -> None:
    mesh = {"dp_shard": 4}
    (finding,) = parsed("fsdp2", mesh).findings
    assert finding.title == "dp_shard was stated as 2, the trace shows 4"
    assert "fsdp2 was read as fsdp over 2 ranks" in finding.advice
    assert "write fsdp." in finding.advice
    (finding,) = parsed("fsdp8", mesh).findings
    assert "was read as" not in finding.advice


def test_fires_on_the_wrong_zero_stage() -> None:
    result = stated("zero2", comm=FSDP)  # 8 all-gathers, 4 reduce-scatters
    (finding,) = result.findings
    assert (result.verdict, finding.measured.value) == (Verdict.WARN, 2.0)
    assert "like ZeRO-3" in finding.title
    result = stated("fsdp", comm=[*GATHER[:4], *SCATTER])
    (finding,) = result.findings
    assert (result.verdict, finding.severity) == (Verdict.PASS, Severity.INFO)
    assert "like ZeRO-2" in finding.title


@pytest.mark.parametrize(
    ("words", "comm"),
    [
        (("fsdp",), FSDP),
        (("zero2",), [*GATHER[:4], *SCATTER]),
        (("ddp",), DDP),
        (("fsdp", "tp"), [*FSDP, *TP]),
        (("fsdp", "tp"), [*FSDP, *TP_SP]),
        (("fsdp",), [*FSDP, Comm("world", "all_reduce", 90, 95)]),
        (("fsdp",), [Comm("dp_shard+cp", c.op, c.start, c.end) for c in FSDP]),
        (
            ("fsdp", "ep"),
            [*FSDP, Comm("ep", "all_to_all", 90, 91), Comm("edp", "all_gather", 92, 94)],
        ),
    ],
)
def test_quiet_on_the_right_expectation(words: tuple[str, ...], comm: list[Comm]) -> None:
    result = stated(*words, comm=comm)
    assert (result.verdict, result.findings) == (Verdict.PASS, ())


def test_quiet_on_degree_one_and_on_the_stated_degree() -> None:
    assert stated("fsdp", "tp", comm=FSDP, tp=1).findings == ()
    assert stated("fsdp", "tp", comm=FSDP, mesh={"dp_shard": 4, "tp": 1}).findings == ()
    mesh = {"dp_shard": 4, "tp": 2}
    assert stated("fsdp", "tp", comm=[*FSDP, *TP], mesh=mesh, tp=2, dp_shard=4).findings == ()


def test_quiet_just_under_the_smallest_traffic() -> None:
    for length, found in ((0.49, 0), (0.5, 1)):
        other = Comm("cp", "all_gather", 90, 90 + length)
        assert len(stated("fsdp", comm=[*FSDP, other]).findings) == found


def test_not_applicable_without_a_statement_or_a_step() -> None:
    result = outcome("STR001", measured(FSDP))
    assert result.verdict is Verdict.NOT_APPLICABLE
    assert "--expect" in result.reason
    assert outcome("STR001", unmeasurable("no step")).verdict is Verdict.NOT_APPLICABLE
