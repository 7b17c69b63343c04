"""The command line as a user meets it: exit codes, one-line errors, pipes, files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "sample_traces" / "ddp_healthy"
FSDP = ROOT / "sample_traces" / "fsdp_tp_no_prefetch"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory without configuration, and a cache of its own."""
    return tmp_path_factory.mktemp("home")


def run(home: Path, *args: object, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    """Run ``analyze ARGS`` in a process of its own."""
    variables = os.environ | {"PYTHONPATH": str(ROOT), "MESHSCOPE_CACHE_DIR": str(home / "cache")}
    return subprocess.run(
        [sys.executable, "-m", "analyzer", *map(str, args)],
        cwd=home,
        env=variables | env,
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
    )


def assert_one_line(done: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    """Exit code, and a single line on stderr that holds ``words``."""
    assert done.returncode == code, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr


def test_summary_html_json_and_second_run_from_the_cache(home: Path) -> None:
    done = run(home, SAMPLE, "--expect", "ddp", "--html", "r.html", "--json", "r.json")
    assert done.returncode == 0, done.stderr
    assert "Verdict" in done.stdout
    document = json.loads((home / "r.json").read_text())
    jsonschema.validate(document, json.loads(run(home, "schema").stdout))
    assert (home / "r.html").read_text().startswith("<!doctype html>")
    again = json.loads(run(home, SAMPLE, "--expect", "ddp", "--json", "-").stdout)
    assert again | {"timeline": None} == document | {"timeline": None}
    assert "4 traces" in run(home, "cache", "info").stdout
    assert run(home, "cache", "clear").stdout.startswith("freed")
    assert "0 traces" in run(home, "cache", "info").stdout
    assert run(home, "render", "r.json").stdout.splitlines()[0].startswith("ddp")
    assert "pass" in run(home, "gate", "r.json", "--max-exposed-comm", "50%").stdout


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--max-exposed-comm", "50%"], 0),
        (["--max-exposed-comm", "10%"], 1),
        (["--max-exposed-comm", "tp=5%", "--max-exposed-comm", "50%"], 1),
        (["--gate", "axes.cp.exposed_ns <= 1ms"], 3),
        (["--max-bubble", "5%"], 0),
        (["--fail-on", "warning"], 1),
    ],
)
def test_gates_decide_the_exit_code(home: Path, options: list[str], code: int) -> None:
    done = run(home, FSDP, "--expect", "fsdp_tp", "--quiet", *options)
    assert done.returncode == code, done.stderr


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["/no/such"], ["/no/such", "no such file"]),
        ([SAMPLE, "--expect", "dpp"], ["dpp", "ddp"]),
        ([SAMPLE, "--mesh", "dp=2"], ["dp"]),
        ([SAMPLE, "--mesh", "tp=" + "9" * 30], ["tp"]),
        ([SAMPLE, "--gate", "exposed_comm_pct"], ["exposed_comm_pct"]),
        ([SAMPLE, "--fail-on", "bad"], ["bad"]),
        ([SAMPLE, "--json", "-", "--markdown", "-"], ["stdout"]),
        ([SAMPLE, "--json", "/no/such/dir/x.json", "-q"], ["/no/such/dir/x.json"]),
        ([SAMPLE, "--config", "none.toml"], ["none.toml"]),
        (["render", "none.json"], ["none.json"]),
        (["gate", "none.json", "--max-bubble", "1%"], ["none.json"]),
        (["explain", "XYZ999"], ["XYZ999"]),
    ],
)
def test_bad_usage_is_one_line_and_exit_2(home: Path, args: list[object], words: list[str]) -> None:
    assert_one_line(run(home, *args), 2, *words)


@pytest.mark.parametrize(
    "content",
    [b"", b"not json", b'{"a": 1}', b"\x80\x02}q\x00.", b"[1, 2, 3]", b'{"traceEvents": []}'],
)
def test_unusable_file_is_one_line_and_exit_2(home: Path, content: bytes) -> None:
    path = home / "bad trace.json"
    path.write_bytes(content)
    assert_one_line(run(home, path), 2, "bad trace.json")


def test_an_output_never_overwrites_an_input_or_another_output(home: Path) -> None:
    trace = home / "t.json.gz"
    trace.write_bytes((SAMPLE / "rank0.json.gz").read_bytes())
    before = trace.read_bytes()
    assert_one_line(run(home, trace, "-q", "--json", trace), 2, "overwrite")
    assert trace.read_bytes() == before
    assert_one_line(run(home, trace, "-q", "--json", "x", "--html", "x"), 2, "overwrite")


@pytest.mark.parametrize("gate", [[], ["--max-exposed-comm", "1%"]])
def test_a_reader_that_leaves_does_not_change_the_verdict(home: Path, gate: list[str]) -> None:
    command = [sys.executable, "-m", "analyzer", str(SAMPLE), *gate]
    variables = os.environ | {"PYTHONPATH": str(ROOT), "MESHSCOPE_CACHE_DIR": str(home / "cache")}
    process = subprocess.Popen(
        command, cwd=home, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert process.wait() == (1 if gate else 0), errors
    assert errors == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_said_in_one_line(home: Path) -> None:
    assert_one_line(run(home, SAMPLE, "-q", "--json", "/dev/full"), 2, "/dev/full")


def test_a_console_without_unicode_still_gets_the_summary(home: Path) -> None:
    done = run(home, SAMPLE, PYTHONIOENCODING="ascii", COLUMNS="40")
    assert done.returncode == 0, done.stderr
    assert "Verdict" in done.stdout


def test_configuration_holds_expectation_and_gates_and_flags_win(home: Path) -> None:
    config = home / "sub" / "analyze.toml"
    config.parent.mkdir()
    config.write_text('expect = "fsdp_tp"\n[gates]\nmax_exposed_comm = "10%"\n')
    assert run(home, FSDP, "-q", "--config", config).returncode == 1
    assert run(home, FSDP, "-q", "--config", config, "--max-exposed-comm", "50%").returncode == 0
    config.write_text('expekt = "fsdp_tp"\n')
    assert_one_line(run(home, FSDP, "-q", "--config", config), 2, "expekt", "expect")


def test_a_saved_result_that_is_not_whole_is_refused(home: Path) -> None:
    path = home / "half.json"
    path.write_text('{"schema": "meshscope.analysis/1"}')
    assert_one_line(run(home, "render", path), 2, "half.json")


def test_version_and_help(home: Path) -> None:
    assert run(home, "--version").stdout.startswith("meshscope ")
    assert "--max-exposed-comm" in run(home, "analyze", "--help", COLUMNS="200").stdout
    assert "COM001" in run(home, "rules").stdout
    assert "serialized" in run(home, "explain", "COM002").stdout
