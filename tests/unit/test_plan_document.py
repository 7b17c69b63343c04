"""The command: its document, terminal output, and errors."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from plan_helpers import plan, run
from report_fixture import GATES, make_measurements, make_outcomes

from analyzer.errors import MeshscopeError
from analyzer.roofline.registry import formulas
from reports.document import build_document

ROOT = Path(__file__).resolve().parents[2]
JOB = {"model": "llama3-70b", "hardware": "h100-sxm", "devices": 512, "batch_tokens": "4M"}
WORDS = ["--model", "llama3-70b", "--hardware", "h100-sxm", "--devices", "64",
         "--batch-tokens", "2M"]  # fmt: skip


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return plan(**JOB)


@pytest.mark.parametrize(
    "options",
    [
        JOB,
        {**JOB, "devices": 8},
        {**JOB, "model": "deepseek-v3", "sequence": 4096, "strategy": "zero1+pp+ep+tp"},
        {**JOB, "hardware": "tpu-v5p", "pods": 2},
    ],
)
def test_documents_satisfy_the_schema(options: dict[str, object]) -> None:
    schema = json.loads((files("reports") / "schema" / "plan-1.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(plan(**options), schema)


def test_every_candidate_fills_the_machine_and_adds_up(document: dict[str, Any]) -> None:
    assert document["candidates"][0] == document["recommended"]
    for row in document["candidates"]:
        product = 1
        for axis, degree in row["mesh"].items():
            product *= degree if axis != "ep" else 1
        assert product == 512
        if row["parts_s"]:
            assert sum(row["parts_s"].values()) == pytest.approx(row["step_s"])
            assert row["tokens_per_s"] == pytest.approx(row["setup"]["tokens"] / row["step_s"])
            for axis, comm in row["comm_s"].items():
                assert row["parts_s"][f"exposed {axis}"] <= comm * (1 + 1e-9)
            limit = document["machine"]["memory_bytes"]
            assert (sum(row["memory_bytes"].values()) <= limit) == row["fits"]
        assert bool(row["why"]) == (row["code"] != "best")
    speeds = [row["tokens_per_s"] for row in document["candidates"] if row["fits"]]
    assert speeds == sorted(speeds, reverse=True)
    assert [row["rank"] for row in document["candidates"] if row["fits"]] == list(
        range(1, len(speeds) + 1)
    )


def test_batches_are_rounded_to_whole_sequences(document: dict[str, Any]) -> None:
    """4e6 tokens of 8192 are 488.3 sequences: 512 that all ranks share, or nothing."""
    tokens = {row["setup"]["tokens"] for row in document["candidates"] if row["setup"]}
    assert all(abs(count / 4e6 - 1) <= 0.1 and count % 8192 == 0 for count in tokens)
    assert 512 * 8192 in tokens


def test_equal_requests_give_equal_documents_quickly(document: dict[str, Any]) -> None:
    before = time.process_time()
    again = plan(**JOB)
    assert time.process_time() - before < 2
    assert again == document


def test_nothing_fits_is_said() -> None:
    document = plan(**{**JOB, "devices": 8})
    assert document["recommended"] is None
    assert document["reason"].startswith("nothing fits")
    assert document["checks"] == []
    assert all(row["code"] in ("memory", "batch") for row in document["candidates"])


def test_strategy_restricts_the_search() -> None:
    rows = plan(**JOB, strategy="fsdp+tp8")["candidates"]
    assert [(row["data"], row["mesh"]) for row in rows] == [("fsdp", {"dp_shard": 64, "tp": 8})]


def test_tensor_parallelism_leaves_the_node_only_when_asked() -> None:
    inside = plan(**JOB, strategy="fsdp+tp")["candidates"]
    assert max(row["mesh"]["tp"] for row in inside) == 8
    result = run(*WORDS, "--strategy", "fsdp+tp", "--tp-across-nodes", "--json", "-")
    across = json.loads(result.stdout)["candidates"]
    assert max(row["mesh"]["tp"] for row in across) == 32


def test_pods_of_a_torus_replicate_over_the_network() -> None:
    document = plan(**{**JOB, "hardware": "tpu-v5p", "devices": 1024}, pods=2)
    assert document["machine"]["pods"] == 2
    assert {row["data"] for row in document["candidates"]} == {"hsdp"}
    pods = next(row for row in document["conditions"] if row["id"] == "pods")
    assert pods["value"] == 2e6
    assert pods["holds"] is True
    assert "exposed dp_replicate" in document["recommended"]["parts_s"]


def test_model_by_config_json_and_by_dimensions(tmp_path: Path) -> None:
    config = {
        "model_type": "llama", "num_hidden_layers": 40, "hidden_size": 5120,
        "intermediate_size": 13824, "num_attention_heads": 40, "vocab_size": 32000,
    }  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    stated = "layers=40,hidden=5120,ffn=13824,heads=40,vocab=32000"
    for model in (str(path), stated, "LLaMA-2 13B"):
        made = plan(**{**JOB, "devices": 64, "model": model}, strategy="fsdp")
        assert made["model"]["parameters"] == 13_015_864_320


def result_file(tmp_path: Path, **changes: Any) -> Path:
    measurements, activity = make_measurements()
    made = build_document(measurements, make_outcomes(measurements, activity), GATES)
    for axis in made["axes"].values():
        axis["link_efficiency"] = None
    made |= changes
    path = tmp_path / "result.json"
    path.write_text(json.dumps(made))
    return path


def test_measured_efficiencies_replace_defaults_and_say_so(tmp_path: Path) -> None:
    axes = {"tp": {"link_efficiency": 0.25}, "dp_shard": {"link_efficiency": None}}
    step = {"time_ns": 1000, "compute_ns": 800, "idle_ns": {"host_bound": 60}, "memcpy_ns": 20}
    path = result_file(tmp_path, axes=axes, step=step, mfu_pct=40.0)
    options = {**JOB, "strategy": "fsdp+tp8"}
    plain, learned = plan(**options), plan(**options, **{"from": path})
    machine = learned["machine"]
    assert machine["link_efficiency"] == {"tp": 0.25}
    assert machine["efficiency"] == pytest.approx(0.4 / 0.8)
    best, before = learned["recommended"], plain["recommended"]
    faster = plain["machine"]["efficiency"] / machine["efficiency"]
    assert best["parts_s"]["compute"] == pytest.approx(before["parts_s"]["compute"] * faster)
    assert best["parts_s"]["idle"] == pytest.approx(0.1 * best["parts_s"]["compute"])
    assert best["parts_s"]["exposed tp"] > 2 * before["parts_s"]["exposed tp"]
    notes = "\n".join(learned["measured"])
    for word in ("tp: 25% of the link rate", "dp_shard: link efficiency was not measured",
                 "40.0 % MFU", "10.0%"):  # fmt: skip
        assert word in notes


def test_a_result_without_utilisation_keeps_the_default(tmp_path: Path) -> None:
    path = result_file(tmp_path, mfu_pct=None)
    learned = plan(**JOB, strategy="fsdp", **{"from": path})
    assert learned["machine"]["efficiency"] == pytest.approx(0.7 * 0.8)
    assert any("default stays" in note for note in learned["measured"])


def test_stated_figures_win_and_are_named() -> None:
    made = plan(**{**JOB, "hardware": "ascend-910b"}, peak_tflops=320, memory_gb=64,
                memory_gbps=1600, link_gbps=196, network_gbps=25, strategy="fsdp")  # fmt: skip
    figures = {row["name"]: row for row in made["machine"]["figures"]}
    assert figures["bf16 peak"]["value"] == 320
    assert figures["bf16 peak"]["source"] == "stated"
    assert made["machine"]["peak_flops_per_s"] == 320e12


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "llama9-1t"}, "unknown model"),
        ({"model": "layers=4,heads=8"}, "no usable ffn"),
        ({"model": "layers=4,tensors=8"}, "is no dimension"),
        ({"model": "missing.json"}, "No such file"),
        ({"hardware": "abacus"}, "unknown device"),
        ({"hardware": "ascend-910b"}, "--peak-tflops"),
        ({"hardware": "h100-pcie"}, "--network-gbps"),
        ({"hardware": "tpu-v5p", "devices": "4x4x4x4"}, "torus axes"),
        ({"devices": "16x16x16"}, "has no torus"),
        ({"devices": "none"}, "is not a count"),
        ({"devices": "0"}, "is not a count"),
        ({"batch_tokens": "many"}, "no number of tokens"),
        ({"efficiency": "140%"}, "is not a share"),
        ({"strategy": "magic"}, "unknown strategy"),
        ({"strategy": "ep"}, "no mesh"),
        ({"accounting": "none"}, "is not known"),
        ({"dtype": "int3"}, "no int3 peak"),
        ({"from": "/dev/null"}, "not JSON"),
        ({"pods": 3, "hardware": "tpu-v5p"}, "no multiple of --pods"),
    ],
)
def test_errors_are_one_line_with_exit_code_2(changes: dict[str, object], message: str) -> None:
    with pytest.raises(MeshscopeError, match=message) as caught:
        plan(**{**JOB, **changes})
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


def test_terminal_output_fits_80_columns() -> None:
    for options in (WORDS, [*WORDS[:-4], "--devices", "8", "--batch-tokens", "2M"]):
        result = run(*options)
        assert result.exit_code == 0
        assert max(map(len, result.stdout.splitlines())) <= 80


def test_outputs_overwrite_nothing(tmp_path: Path) -> None:
    path = result_file(tmp_path)
    before = path.read_text()
    for more in (["--from", str(path), "--json", str(path)],
                 ["--json", str(tmp_path / "a"), "--html", str(tmp_path / "a")]):  # fmt: skip
        error = run(*WORDS, *more).exception
        assert isinstance(error, MeshscopeError)
        assert "would overwrite" in str(error)
    assert path.read_text() == before
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    "changes",
    [{"devices": 1, "model": "qwen3-0.6b"}, {"batch_tokens": 1}, {"devices": 7},
     {"hardware": "tpu-v6e", "devices": 1, "batch_tokens": 1}, {"sequence": 2**24},
     {"devices": 2**17, "batch_tokens": 2**30}],
)  # fmt: skip
def test_extremes_give_a_plan_or_say_why_not(changes: dict[str, object]) -> None:
    document = plan(**{**JOB, **changes})
    assert document["recommended"] or document["reason"].startswith("nothing fits")


def test_conditions_cite_formulas_of_the_theory_page(document: dict[str, Any]) -> None:
    assert {row["formula"] for row in document["conditions"]} <= set(formulas())
    assert set(document["reliability"]["formulas"]) <= set(formulas())


def test_a_broken_config_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({
        "model_type": "llama", "num_hidden_layers": 0, "hidden_size": 64,
        "intermediate_size": 64, "num_attention_heads": 4, "vocab_size": 100,
    }))  # fmt: skip
    with pytest.raises(MeshscopeError, match="layers is 0"):
        plan(**{**JOB, "model": path})


def test_quiet_prints_nothing() -> None:
    assert run(*WORDS, "--quiet").output == ""


def test_command_does_not_import_the_planner_or_tables() -> None:
    code = (
        "import sys, analyzer.plan.command; "
        "print(sorted({'polars', 'numpy', 'analyzer.plan.search', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "polars" not in done.stdout
    assert "numpy" not in done.stdout
    assert "analyzer.plan.search" not in done.stdout
