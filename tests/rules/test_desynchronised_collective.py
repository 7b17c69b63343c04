"""COM006: members that call different things."""

from __future__ import annotations

from crossrank_builder import compared, frame
from measure_builder import ORIGIN_NS, measured, outcome

from analyzer import schema
from analyzer.model import Severity, Verdict

MIB = 2**20


def calls(*positions: dict[int, tuple[str, int]]):
    """Position by position: rank -> (operation, bytes)."""
    rows = [
        {
            "position": number, "rank": rank, "op": op, "bytes": nbytes, "seq": 17 + number,
            "start_ns": ORIGIN_NS + 1_000 * number, "end_ns": ORIGIN_NS + 1_000 * number + 500,
        }
        for number, by_rank in enumerate(positions)
        for rank, (op, nbytes) in by_rank.items()
    ]  # fmt: skip
    odd = frame(schema.DESYNCHRONISED, rows, axis="tp", group="0,1", lane=0, step=0, event=0)
    return measured(ranks=(0, 1), crossrank=compared(desynchronised=odd))


def test_fires_with_what_each_rank_called() -> None:
    m = calls(
        {0: ("all_reduce", 4 * MIB), 1: ("all_gather", 8 * MIB)},
        {0: ("all_reduce", 4 * MIB), 1: ("all_reduce", 2 * MIB)},
    )
    (finding,) = outcome("COM006", m).findings
    assert (finding.severity, finding.axis) == (Severity.WARNING, "tp")
    assert finding.measured.value == 2
    assert finding.ranks == (0, 1)
    assert "rank 0: all_reduce of 4.0 MiB; rank 1: all_gather of 8.0 MiB" in finding.advice
    assert [(row.rank, row.start_ns, row.dur_ns) for row in finding.evidence] == [
        (0, 0, 500), (1, 0, 500), (0, 1_000, 500), (1, 1_000, 500),
    ]  # fmt: skip
    assert finding.evidence[0].note == "all_reduce of 4.0 MiB, sequence number 17"


def test_quiet_when_all_agree_and_at_the_limit() -> None:
    assert outcome("COM006", measured(ranks=(0, 1), crossrank=compared())).findings == ()
    one = calls({0: ("all_reduce", 8), 1: ("barrier", 8)})
    assert outcome("COM006", one, max_positions=1).findings == ()


def test_not_applicable_to_one_rank() -> None:
    result = outcome("COM006", measured())
    assert (result.verdict, result.reason) == (
        Verdict.NOT_APPLICABLE, "the traces of several ranks are needed",
    )  # fmt: skip
