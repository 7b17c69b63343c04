"""What holds for all rules: identity, documentation, tests, independence of order."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import importlib.metadata
import pkgutil
import re
from pathlib import Path

import pytest
from measure_builder import Comm, measured, strategy, unmeasurable

from analyzer.errors import ConfigError, UsageError
from analyzer.model import Finding, Outcome, Quantity, Severity, Verdict
from rules import Registry, Rule, catalog, load, option, run, validate
from rules.docs import pages, render
from rules.registry import built_in, find_rule
from rules.spec import HEADINGS, AnyRule

ROOT = Path(__file__).resolve().parents[2]
RULES = built_in()
by_rule = pytest.mark.parametrize("rule", RULES, ids=lambda r: r.code)


@dataclasses.dataclass(frozen=True, slots=True)
class NoOptions:
    limit: float = option(1.0, "A limit.")


def a_rule(code: str = "EXT001", name: str = "external", **fields: object) -> AnyRule:
    values = {"title": "t", "axes": (), "needs": (), "severity": Severity.INFO,
              "options": NoOptions, "check": lambda m, o: iter(()), "since": "0"}  # fmt: skip
    return Rule(code, name, **{**values, **fields})


def job():
    comm = [Comm("dp_shard", "all_gather", 10 * i, 10 * i + 2) for i in range(6)]
    comm += [Comm("dp_shard", "reduce_scatter", 60 + i, 61 + i) for i in range(6)]
    comm += [Comm("tp", "all_reduce", 66 + i / 10, 66.1 + i / 10, mib=0.5) for i in range(40)]
    compute = [(10 * i + 2, 10 * i + 10) for i in range(6)]
    idle = {"host_bound": 4, "sync": 1, "data": 2}
    return measured(comm, compute=compute, idle=idle, host={"drain": 1, "sync_calls": 2},
                    expect=strategy("fsdp"), ranks=(0, 1))  # fmt: skip


# ---------------------------------------------------------------------- every rule


def test_every_module_of_the_catalogue_is_a_rule() -> None:
    modules = {m.name for m in pkgutil.iter_modules(catalog.__path__)}
    assert {r.name.replace("-", "_") for r in RULES} == modules


def test_codes_and_names_are_unique() -> None:
    assert len({r.code for r in RULES}) == len({r.name for r in RULES}) == len(RULES)
    assert [r.code for r in RULES] == sorted(r.code for r in RULES)


@by_rule
def test_identity(rule: AnyRule) -> None:
    assert re.fullmatch(r"(COM|HST|STR|TRC|SKW|PIP|MOE|MEM|CMP)\d{3}", rule.code)
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", rule.name)
    assert rule.check.__module__ == f"rules.catalog.{rule.name.replace('-', '_')}"
    assert rule.title
    assert not rule.title.endswith(".")


@by_rule
def test_docstring_has_all_headings_in_order(rule: AnyRule) -> None:
    found = re.findall(r"^## (.*)$", rule.explanation, flags=re.MULTILINE)
    assert tuple(found) == HEADINGS
    sections = re.split(r"^## .*$", rule.explanation, flags=re.MULTILINE)
    assert all(section.strip() for section in sections)


@by_rule
def test_options_are_documented_frozen_and_have_defaults(rule: AnyRule) -> None:
    assert rule.options() == rule.options()
    assert rule.options.__dataclass_params__.frozen
    for field in dataclasses.fields(rule.options):
        assert field.metadata["doc"].endswith(".")


@by_rule
def test_all_three_kinds_of_cases_are_tested(rule: AnyRule) -> None:
    path = ROOT / "tests" / "rules" / f"test_{rule.name.replace('-', '_')}.py"
    text = path.read_text(encoding="utf-8")
    for kind in ("fires", "quiet", "not_applicable"):
        assert re.search(rf"^def test_{kind}_", text, flags=re.MULTILINE), f"no {kind} case"
    assert f'"{rule.code}"' in text


def test_pages_are_in_sync() -> None:
    directory = ROOT / "docs" / "rules"
    written = {p.name: p.read_text(encoding="utf-8") for p in directory.glob("*.md")}
    assert written == pages(), "run: python -m rules.docs docs/rules"


@by_rule
def test_page_names_every_option(rule: AnyRule) -> None:
    page = render(rule)
    for field in dataclasses.fields(rule.options):
        assert f"| `{field.name}` | {field.default} |" in page


# ---------------------------------------------------------------------- running them


def test_one_outcome_a_rule_in_any_order() -> None:
    m = job()
    forward = run(m, registry=Registry(RULES))
    backward = run(m, registry=Registry(RULES[::-1]))
    assert [o.rule for o in forward] == [r.code for r in RULES]
    assert sorted(backward, key=lambda o: o.rule) == list(forward)
    assert {o.verdict for o in forward} >= {Verdict.FAIL, Verdict.WARN}
    assert run(m, registry=Registry(RULES)) == forward


@by_rule
def test_a_job_without_steps_gives_a_reason_or_a_pass(rule: AnyRule) -> None:
    (result,) = run(unmeasurable("nothing to see"), registry=Registry((rule,)))
    assert result.verdict in (Verdict.NOT_APPLICABLE, Verdict.PASS)
    assert result.reason or not rule.needs


@by_rule
def test_findings_are_complete(rule: AnyRule) -> None:
    for finding in run(job(), registry=Registry((rule,)))[0].findings:
        assert finding.rule == rule.code
        assert finding.doc == f"docs/rules/{rule.name}.md"
        assert (ROOT / finding.doc).is_file()
        assert finding.advice
        assert finding.measured.value is not None
        assert finding.measured.unit


def test_an_exception_is_an_outcome_and_the_run_goes_on() -> None:
    def broken(m: object, o: object):
        yield from ()
        raise KeyError("column\nmissing")

    registry = Registry((a_rule("AAA001", "broken", check=broken), *RULES))
    first, *others = run(job(), registry=registry)
    assert first == Outcome("AAA001", "broken", Verdict.ERROR, "KeyError: 'column\\nmissing'")
    assert tuple(others) == run(job(), registry=Registry(RULES))


def test_levels() -> None:
    def check(m: object, o: object):
        for severity in Severity:
            yield Finding("EXT001", severity.value, severity, None, Quantity(1.0, "x"))

    registry = Registry((a_rule(check=check),))
    severities = {
        level: [f.severity.value for f in run(job(), levels=levels, registry=registry)[0].findings]
        for level, levels in {
            "": {},
            "warn": {"EXT001": "warn"},
            "error": {"external": "error"},
            "off": {"EXT001": "off"},
        }.items()
    }
    assert severities == {
        "": ["error", "warning", "info"],
        "warn": ["warning", "warning", "info"],
        "error": ["error", "error", "info"],
        "off": [],
    }


# ---------------------------------------------------------------------- settings


def test_settings_reach_the_rule() -> None:
    settings = validate({"exposed-communication": {"error_pct": 99, "level": "error"}})
    assert settings.options == {"COM001": {"error_pct": 99}}
    assert settings.levels == {"COM001": "error"}


def test_select_and_ignore_by_family_code_and_name() -> None:
    settings = validate({}, select=["COM", "host-bound-step"], ignore=["COM002"])
    runs = {r.code for r in RULES} - settings.levels.keys()
    assert runs == {"COM001", "COM003", "COM004", "COM005", "COM006", "HST001"}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            {"exposed-comunication": {}},
            r"no rule 'exposed-comunication' \(did you mean 'exposed-comm",
        ),
        ({"COM001": {"eror_pct": 1}}, r"no option 'eror_pct' \(did you mean 'error_pct'"),
        ({"COM001": {"error_pct": "5%"}}, r"error_pct = '5%' \(must be a float"),
        ({"COM001": {"error_pct": True}}, r"error_pct = True"),
        ({"COM001": {"error_pct": -1}}, r"must not be negative"),
        ({"COM001": {"error_pct": float("nan")}}, r"must not be negative"),
        ({"COM005": {"min_count": 1.5}}, r"min_count = 1.5 \(must be a int"),
        ({"COM001": {"level": "loud"}}, r"level = 'loud' \(one of off, warn, error"),
    ],
)
def test_bad_settings_are_named(table: dict[str, dict[str, object]], message: str) -> None:
    with pytest.raises(ConfigError, match=rf"^analyze\.toml: .*{message}"):
        validate(table, source="analyze.toml")


def test_unknown_rules_in_select_are_named() -> None:
    with pytest.raises(ConfigError, match="no rule 'XYZ'"):
        validate({}, select=["XYZ"])


# ---------------------------------------------------------------------- plugins


class Point:
    """As much of an entry point as the registry looks at."""

    def __init__(self, name: str, loads: object) -> None:
        self.name, self.value, self.loads = name, f"package:{name}", loads

    def load(self) -> object:
        if isinstance(self.loads, Exception):
            raise self.loads
        return self.loads


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch):
    def install(*points: Point) -> Registry:
        monkeypatch.setattr("rules.registry.entry_points", lambda group: list(points))
        return load()

    return install


def test_entry_points_add_rules(plugins) -> None:
    registry = plugins(Point("mine", a_rule()))
    assert registry.find("EXT001") is not None
    assert registry.find("external") is registry.find("EXT001")
    assert registry.broken == ()
    assert load(plugins=False).find("EXT001") is None


@pytest.mark.parametrize(
    ("loads", "reason"),
    [
        (ImportError("no module"), "ImportError: no module"),
        (RuntimeError(""), "RuntimeError"),
        (object(), "is a object, not a rules.spec.Rule"),
        (a_rule("COM001"), "COM001 external would shadow COM001 exposed-communication"),
        (a_rule(name="data-stall"), "EXT001 data-stall would shadow HST003 data-stall"),
    ],
)
def test_a_broken_plugin_is_an_outcome(plugins, loads: object, reason: str) -> None:
    registry = plugins(Point("mine", loads))
    assert registry.rules == RULES
    *_, last = run(job(), registry=registry)
    assert (last.rule, last.verdict) == ("mine", Verdict.ERROR)
    assert last.reason == f"plugin package:mine: {reason}"


def test_two_plugins_with_one_code_do_not_shadow_each_other(plugins) -> None:
    registry = plugins(Point("a", a_rule()), Point("b", a_rule(name="other")))
    assert len(registry.rules) == len(RULES) + 1
    assert [o.rule for o in registry.broken] == ["b"]


def test_the_group_is_the_documented_one() -> None:
    assert list(importlib.metadata.entry_points(group="meshscope.rules")) == []
    guide = (ROOT / "docs" / "writing-a-rule.md").read_text(encoding="utf-8")
    assert 'entry-points."meshscope.rules"' in guide


def test_the_documented_example_is_a_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guide = (ROOT / "docs" / "writing-a-rule.md").read_text(encoding="utf-8")
    code = guide.split("```python\n")[1].split("```\n\n## Conventions")[0]
    (tmp_path / "bare_copies_example.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    rule = importlib.import_module("bare_copies_example").RULE
    assert tuple(re.findall(r"^## (.*)$", rule.explanation, flags=re.MULTILINE)) == HEADINGS
    m = job()
    copying = dataclasses.replace(m, mean=dataclasses.replace(m.mean, memcpy_ns=3_000_000))
    (result,) = run(copying, registry=Registry((rule,)))
    assert [f.title for f in result.findings] == ["Copies alone take 3.00 ms a step"]
    assert run(m, registry=Registry((rule,)))[0].findings == ()


def test_find_rule_by_code_name_or_not_at_all() -> None:
    assert find_rule("com001") is find_rule("exposed-communication")
    with pytest.raises(UsageError, match="did you mean 'data-stall'"):
        find_rule("data-stal")


def test_rules_import_neither_collectors_nor_reports() -> None:
    for path in (ROOT / "rules").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not {n.split(".")[0] for n in names} & {"collectors", "reports"}, path
