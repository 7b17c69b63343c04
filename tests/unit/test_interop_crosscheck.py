from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from builders import TraceBuilder
from interop_helpers import CORPUS, hta_python, labeled, read
from typer.testing import CliRunner

from analyzer.errors import InputError, MissingExtraError
from analyzer.interop import crosscheck as module
from analyzer.interop.crosscheck import ask_hta, compare, crosscheck, render

needs_hta = pytest.mark.skipif(hta_python() is None, reason="HTA is not installed")


def two_steps() -> TraceBuilder:
    """Two steps of 1 ms; an orphan kernel of 50 us in the first."""
    trace = TraceBuilder()
    for n in range(2):
        at = 1000 * n
        trace.step(n, at, 1000)
        trace.kernel("gemm", at + 100, 200)
        trace.kernel("ncclDevKernel_AllReduce", at + 250, 150, stream=20)
    trace.kernel("gemm", 600, 50, launch=False)
    return trace


def hta_on_two_steps() -> dict:
    """What HTA's conventions give by hand: step 0 alone, without the orphan."""
    first = {
        "failed": {}, "steps": 1, "compute_events": 1, "comm_events": 1, "memory_events": 0,
        "window_us": 300.0, "compute_us": 200.0, "non_compute_us": 100.0, "idle_us": 0.0,
        "compute_pct": 66.67, "idle_pct": 0.0, "overlap_pct": 33.33, "comm_us": 150.0,
        "host_wait_us": 0.0, "kernel_wait_us": 0.0, "other_us": 0.0,
    }  # fmt: skip
    both = {
        **first, "steps": 2, "compute_events": 2, "comm_events": 2, "window_us": 1300.0,
        "compute_us": 400.0, "non_compute_us": 200.0, "idle_us": 700.0, "compute_pct": 30.77,
        "idle_pct": 53.85, "comm_us": 300.0, "host_wait_us": 1650.0,
    }  # fmt: skip
    classes = {"gemm": "COMPUTATION", "ncclDevKernel_AllReduce": "COMMUNICATION"}
    return {
        "version": "HTA by hand", "pandas": "0", "classes": classes, "host_rows": [],
        "exact": first, "exact_all_steps": both, "default": {**first, "compute_us": 198.0},
    }  # fmt: skip


@pytest.fixture
def checked(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "ask_hta", lambda *_: hta_on_two_steps())
    return compare([labeled(read(two_steps(), tmp_path), [(0, 2000)])])


def row(check, quantity, unit="us", setting="default"):
    (found,) = [
        r for r in check.rows if (r.quantity, r.unit, r.setting) == (quantity, unit, setting)
    ]
    return found


def test_every_figure_agrees_by_htas_rules(checked):
    assert checked.disagreements == ()
    assert checked.compared == len(checked.rows) == 30


def test_causes_are_those_that_matter(checked):
    compute = row(checked, "compute")
    assert (compute.meshscope, compute.ours, compute.hta) == (450, 200, 200)
    assert compute.difference == 0
    assert {c.convention: c.effect for c in compute.causes} == {
        "drop_last_step": -200, "linked_only": -50,
    }  # fmt: skip
    assert "device events whose launch is not in the trace are dropped (-50 us)" in compute.reason
    assert (compute.hta_default, compute.default_error) == (198, -2)


def test_a_convention_without_effect_is_no_cause(checked):
    overlap = row(checked, "overlap of communication", "%")
    assert overlap.meshscope == pytest.approx(overlap.ours)
    assert overlap.causes == ()
    assert overlap.reason == ""
    named = {cause.convention for r in checked.rows for cause in r.causes}
    assert named == {"kernel_window", "drop_last_step", "linked_only"}


def test_the_last_step_included(checked):
    idle = row(checked, "idle", "us", "include_last_profiler_step")
    assert (idle.meshscope, idle.ours, idle.hta) == (2000 - 650, 700, 700)
    assert {c.convention: c.effect for c in idle.causes} == {
        "kernel_window": -700, "linked_only": 50,
    }  # fmt: skip
    assert idle.hta_default is None


def test_a_figure_no_convention_explains_is_a_disagreement(tmp_path, monkeypatch):
    said = hta_on_two_steps()
    said["exact"]["compute_us"] = 205.0
    monkeypatch.setattr(module, "ask_hta", lambda *_: said)
    check = compare([labeled(read(two_steps(), tmp_path), [(0, 2000)])])
    (differs,) = check.disagreements
    assert (differs.quantity, differs.difference) == ("compute", -5)
    assert differs.reason.endswith("not explained by any convention known here")
    assert "DIFFERS" in render(check)


@pytest.mark.parametrize(("off", "agrees"), [(0.09, True), (0.11, False)])
def test_percentages_agree_within_a_tenth_of_a_point(tmp_path, monkeypatch, off, agrees):
    said = hta_on_two_steps()
    said["exact"]["overlap_pct"] = 100 / 3 + off
    monkeypatch.setattr(module, "ask_hta", lambda *_: said)
    check = compare([labeled(read(two_steps(), tmp_path), [(0, 2000)])])
    assert row(check, "overlap of communication", "%").agrees is agrees


def test_what_hta_cannot_do_is_said(tmp_path, monkeypatch):
    said = hta_on_two_steps()
    for key in ("window_us", "compute_us", "non_compute_us", "idle_us", "compute_pct", "idle_pct"):
        del said["exact"][key]
    said["exact"]["failed"] = {"temporal": "AssertionError"}
    monkeypatch.setattr(module, "ask_hta", lambda *_: said)
    check = compare([labeled(read(two_steps(), tmp_path), [(0, 2000)])])
    idle = row(check, "idle", "%")
    assert (idle.hta, idle.agrees) == (None, None)
    assert idle.reason == "HTA gives no figure: AssertionError"
    assert row(check, "overlap of communication", "%").agrees


def test_host_side_ranks_have_nothing_to_compare(tmp_path):
    rank = labeled(read(two_steps(), tmp_path), [(0, 2000)])
    with pytest.raises(InputError, match="no device events"):
        compare([replace(rank, host_side=True)])


def test_the_table_reads_well(checked):
    lines = render(checked).splitlines()
    assert lines[0] == "meshscope against HTA by hand (pandas 0)"
    (compute,) = [line for line in lines if line.startswith("  compute, us")][:1]
    assert compute.split() == [
        "compute,", "us", "450", "200", "200", "=", "198", "(-2)", "b", "-200,", "c", "-50",
    ]  # fmt: skip
    assert "b: in HTA, the last ProfilerStep is dropped" in lines
    assert lines[-1] == "30 of 30 figures agree."


def test_json_holds_every_row(checked):
    document = json.loads(checked.to_json())
    assert document["schema"] == "meshscope.crosscheck/1"
    assert len(document["rows"]) == len(checked.rows)
    first = document["rows"][0]
    assert (first["quantity"], first["hta"], first["agrees"]) == ("steps", 1, True)


def bare_python(tmp_path: Path) -> Path:
    """An interpreter without site-packages."""
    script = tmp_path / "python"
    script.write_text('#!/bin/sh\nexec python3 -I -S "$@"\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return script


def test_an_interpreter_without_hta_is_named(tmp_path):
    trace = two_steps().write(tmp_path / "rank0.json")
    with pytest.raises(MissingExtraError, match=r"is not installed for .*meshscope\[hta\]"):
        ask_hta(trace, bare_python(tmp_path))


def test_an_interpreter_that_does_not_exist(tmp_path):
    with pytest.raises(InputError, match="cannot be run"):
        ask_hta(tmp_path / "rank0.json", tmp_path / "no-python")


@pytest.mark.hta
@needs_hta
def test_hta_itself_says_what_was_worked_out_by_hand(tmp_path):
    trace = two_steps().write(tmp_path / "rank0.json")
    said = ask_hta(trace, hta_python())
    expected = hta_on_two_steps()
    assert said["classes"] == expected["classes"]
    for variant in ("exact", "exact_all_steps"):
        assert said[variant].pop("failed") == expected[variant].pop("failed") == {}
        assert said[variant] == pytest.approx(expected[variant])


@pytest.mark.hta
@needs_hta
def test_hta_on_a_broken_file_is_an_answer(tmp_path):
    path = tmp_path / "rank0.json"
    path.write_bytes(two_steps().json()[:-500])
    said = ask_hta(path, hta_python())
    assert said["exact"]["failed"].startswith("JSONDecodeError")


REAL = (
    "hta/tests/data/nccl_parser_config/nccl_data.json.gz",
    "hta/tests/data/df_index_resolver/df_index_resolver.json.gz",
    "hta/tests/data/trace_diff/control/control.json.gz",
    "torchtitan_fsdp4/profiling/traces/iteration_6/11f6ff08__rank000000_trace.json.gz",
    "modded_nanogpt/records/track_1_short/2025-10-31_AdamSyncGradientHook/"
    "e12c7829__modded-nanogpt-current-gpu-rank-00-chrome-trace.json.gz",
    "tracelens/tests/traces/mi300/resnet_act_checkpoint.json.gz",
)


@pytest.mark.hta
@pytest.mark.corpus
@needs_hta
@pytest.mark.parametrize("name", REAL, ids=lambda name: name.rpartition("/")[2][:24])
def test_real_traces_agree_with_hta(name):
    """Overlap and idle within 0.1 points of HTA's, by its own conventions, on real traces."""
    path = CORPUS / "kineto" / name
    if not path.exists():
        pytest.skip("no corpus")
    check = crosscheck([path], hta_python=hta_python())
    assert check.disagreements == ()
    for quantity in ("overlap of communication", "idle"):
        found = row(check, quantity, "%")
        assert abs(found.ours - found.hta) <= 0.1
    unexplained = [
        r for r in check.rows
        if r.meshscope is not None and r.hta is not None and not r.causes
        and abs(r.meshscope - r.hta) > max(0.02, 1e-4 * abs(r.hta))
    ]  # fmt: skip
    assert unexplained == []


@pytest.mark.hta
@pytest.mark.corpus
@needs_hta
def test_htas_rounding_is_shown_with_its_error():
    """As shipped, HTA loses 11.5 % of the compute time of this trace to rounding."""
    path = CORPUS / "kineto" / REAL[-1]
    if not path.exists():
        pytest.skip("no corpus")
    compute = row(crosscheck([path], hta_python=hta_python()), "compute")
    assert compute.ours == pytest.approx(19_234.094, abs=0.001)
    assert compute.hta_default == 17_018
    assert compute.default_error / compute.hta == pytest.approx(-0.115, abs=0.0005)


def test_command_prints_and_judges(checked, monkeypatch, tmp_path):
    import typer

    from analyzer.interop.command import crosscheck_command

    app = typer.Typer()
    app.command()(crosscheck_command)
    monkeypatch.setattr(module, "crosscheck", lambda *_, **__: checked)
    out = tmp_path / "check.json"
    done = CliRunner().invoke(app, ["traces", "--json", str(out)])
    assert (done.exit_code, "30 of 30 figures agree." in done.output) == (0, True)
    assert json.loads(out.read_text())["hta"] == "HTA by hand"
    wrong = replace(checked, rows=(replace(checked.rows[0], agrees=False),))
    monkeypatch.setattr(module, "crosscheck", lambda *_, **__: wrong)
    assert CliRunner().invoke(app, ["traces"]).exit_code == 1
    silent = replace(checked, rows=(replace(checked.rows[0], agrees=None),))
    monkeypatch.setattr(module, "crosscheck", lambda *_, **__: silent)
    assert CliRunner().invoke(app, ["traces", "--json", "-"]).exit_code == 3
