"""Finding, reading and refusing configuration files."""

from __future__ import annotations

from pathlib import Path

import pytest

from analyzer.config import Config, load_config
from analyzer.errors import ConfigError
from rules import validate

FULL = """
expect = "fsdp_tp"
mesh = "dp_shard=4,tp=2"
select = ["COM", "HST001"]
ignore = "small-collectives"

[gates]
max_exposed_comm = { total = "15%", tp = "8.5 %" }
max_bubble = "10%"
gate = ["axes.tp.exposed_ns <= 12ms"]
fail_on = "warning"

[rules.exposed-communication]
warning_pct = 2.5
level = "warn"
"""


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_every_key_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "analyze.toml", FULL)
    config = load_config(tmp_path)
    assert config == Config(
        path=path,
        expect="fsdp_tp",
        mesh="dp_shard=4,tp=2",
        max_exposed_comm=("15%", "tp=8.5%"),
        max_bubble="10%",
        gate=("axes.tp.exposed_ns <= 12ms",),
        fail_on="warning",
        select=("COM", "HST001"),
        ignore=("small-collectives",),
        rules={"exposed-communication": {"warning_pct": 2.5, "level": "warn"}},
    )


def test_pyproject_holds_the_same_table(tmp_path: Path) -> None:
    write(tmp_path / "a" / "analyze.toml", FULL)
    nested = FULL.replace("[gates]", "[tool.meshscope.gates]").replace(
        "[rules", "[tool.meshscope.rules"
    )
    write(tmp_path / "b" / "pyproject.toml", "[tool.meshscope]\n" + nested)
    a, b = load_config(tmp_path / "a"), load_config(tmp_path / "b")
    assert b.path == tmp_path / "b" / "pyproject.toml"
    assert {name: getattr(a, name) for name in Config.__slots__ if name != "path"} == {
        name: getattr(b, name) for name in Config.__slots__ if name != "path"
    }


def test_the_nearest_file_wins_and_its_name_before_pyproject(tmp_path: Path) -> None:
    write(tmp_path / "analyze.toml", 'expect = "ddp"')
    inner = tmp_path / "x" / "y"
    inner.mkdir(parents=True)
    assert load_config(inner).expect == "ddp"
    # A pyproject.toml that is not about us does not end the search.
    write(tmp_path / "x" / "pyproject.toml", "[project]\nname = 'other'\n")
    assert load_config(inner).expect == "ddp"
    write(tmp_path / "x" / "pyproject.toml", "[tool.meshscope]\nexpect = 'tp'\n")
    assert load_config(inner).expect == "tp"
    write(tmp_path / "x" / "analyze.toml", "expect = 'fsdp'")
    assert load_config(inner).expect == "fsdp"


def test_no_file_is_an_empty_configuration(tmp_path: Path) -> None:
    assert load_config(tmp_path) == Config()
    assert Config().source == "configuration"


def test_explicit_file_is_not_searched_for(tmp_path: Path) -> None:
    write(tmp_path / "analyze.toml", "expect = 'ddp'")
    other = write(tmp_path / "ci.toml", "expect = 'fsdp'")
    assert load_config(tmp_path, other).expect == "fsdp"
    with pytest.raises(ConfigError, match=r"gone\.toml: cannot be read"):
        load_config(tmp_path, tmp_path / "gone.toml")
    with pytest.raises(ConfigError, match=r"has no \[tool.meshscope\]"):
        load_config(tmp_path, write(tmp_path / "p" / "pyproject.toml", ""))


def test_mesh_as_a_table_keeps_its_order(tmp_path: Path) -> None:
    write(tmp_path / "analyze.toml", "[mesh]\npp = 2\ndp_shard = 4\ntp = 2\n")
    assert load_config(tmp_path).mesh == "pp=2,dp_shard=4,tp=2"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("expct = 'fsdp'", r"analyze\.toml: unknown key 'expct' \(did you mean 'expect'\?\)"),
        (
            "[gates]\nmax_bubbel = '1%'",
            r"unknown key 'gates.max_bubbel' \(did you mean 'gates.max_bubble'",
        ),
        ("zzz = 1", r"unknown key 'zzz' \(known: expect, "),
        ("path = '/x'", r"unknown key 'path'"),
        ("expect = 3", r"expect = 3 \(must be a string\)"),
        (
            "[gates]\nmax_exposed_comm = 0.15",
            r"gates.max_exposed_comm = 0.15 \(must be a percentage",
        ),
        ("[gates]\nmax_exposed_comm = {tp = 'x'}", r"gates.max_exposed_comm.tp = 'x'"),
        ("[gates]\nmax_exposed_comm = {'a b' = '1%'}", r"is not the name of an axis"),
        ("[gates]\nmax_bubble = true", r"gates.max_bubble = True"),
        (
            "[gates]\nfail_on = 'never'",
            r"gates.fail_on = 'never' \(must be one of info, warning, error",
        ),
        ("[gates]\ngate = [1]", r"gates.gate = \[1\]"),
        ("gates = 1", r"gates = 1 \(must be a table\)"),
        ("[rules]\nx = 1", r"rules.x = 1 \(must be a table\)"),
        ("[mesh]\ntp = 0", r"mesh.tp = 0"),
        ("[mesh]\ntp = true", r"mesh.tp = True"),
        ("select = 3", r"select = 3"),
        ("expect = ", r"analyze\.toml: is not TOML"),
    ],
)
def test_mistakes_name_the_file_and_the_key(tmp_path: Path, text: str, message: str) -> None:
    write(tmp_path / "analyze.toml", text)
    with pytest.raises(ConfigError, match=message):
        load_config(tmp_path)


def test_a_tool_table_of_the_wrong_kind_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "pyproject.toml", "[tool]\nmeshscope = 1\n")
    with pytest.raises(ConfigError, match=r"tool.meshscope = 1"):
        load_config(tmp_path)


def test_the_documented_example_is_valid(tmp_path: Path) -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "config.md"
    example = page.read_text(encoding="utf-8").split("```toml\n")[1].split("```")[0]
    write(tmp_path / "analyze.toml", example)
    config = load_config(tmp_path)
    assert config.max_exposed_comm == ("15%", "tp=8%")
    unset = [name for name in Config.__slots__ if not getattr(config, name)]
    assert unset == [], "the example shows every key"
    settings = validate(config.rules, select=config.select, ignore=config.ignore)
    assert settings.options["COM001"] == {"warning_pct": 2.0}
