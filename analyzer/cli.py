"""Command line: ``analyze PATH...`` and its subcommands (``meshscope`` is the same program).

Only parsing, printing and exit codes live here. Heavy packages are imported inside the commands,
so that ``analyze --help`` stays fast.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from analyzer import __version__
from analyzer.console import printable, progress, stdout, write
from analyzer.errors import ExitCode, MeshscopeError, UsageError
from analyzer.interop.command import crosscheck_command
from analyzer.plan.command import plan_command
from collectors.simulate.command import simulate_command

if TYPE_CHECKING:
    from analyzer.api import Analysis, Options

app = typer.Typer(
    name="meshscope",
    help="Where a distributed training step's time goes, per parallel axis, and what to change.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
cache_app = typer.Typer(help="The on-disk cache of parsed traces.", no_args_is_help=True)
app.add_typer(cache_app, name="cache")

DEFAULT_COMMAND = "analyze"


def main() -> None:
    """Entry point of both console scripts."""
    try:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")  # a console that lacks a character shows ?
        _check_installation()
        name = Path(sys.argv[0]).name
        prog_name = name if name == "analyze" else "meshscope"
        app(args=_with_default_command(sys.argv[1:]), prog_name=prog_name)
    except MeshscopeError as error:
        _fail(f"error: {error}", error.exit_code)
    except MemoryError:
        _fail("error: not enough memory for these inputs (give fewer ranks)", ExitCode.BAD_INPUT)
    except Exception as error:  # the last resort: one line, never a traceback
        if os.environ.get("MESHSCOPE_DEBUG"):
            raise
        text = f"internal error: {type(error).__name__}: {error}".splitlines()[0]
        _fail(f"{text} (set MESHSCOPE_DEBUG=1 for a traceback)", ExitCode.INTERNAL)


def _fail(line: str, code: ExitCode) -> None:
    sys.stderr.write(printable(line) + "\n")
    sys.exit(int(code))


def _with_default_command(args: list[str]) -> list[str]:
    """Insert ``analyze`` when the first word is a path or option instead of a command."""
    known = {c.name or c.callback.__name__ for c in app.registered_commands if c.callback}
    known |= {group.name for group in app.registered_groups if group.name}
    if not args or args[0] in known or args[0] in {"-h", "--help", "--version"}:
        return args
    return [DEFAULT_COMMAND, *args]


def _check_installation() -> None:
    """The top-level package names are generic: refuse to run with a stranger's package."""
    import importlib.util

    home = Path(__file__).resolve().parent.parent
    for name in ("collectors", "rules", "reports"):
        spec = importlib.util.find_spec(name)
        origin = Path(spec.origin).resolve() if spec and spec.origin else None
        if origin is None or origin.parent.parent != home:
            raise MeshscopeError(
                f"package {name!r} is {origin or 'missing'}, not meshscope's",
                "install meshscope into an environment of its own, e.g. with pipx",
            )


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        sys.stdout.write(f"meshscope {__version__}\n")
        raise typer.Exit


ModelOption = Annotated[
    str | None, typer.Option(help="For MFU: model name (llama3-8b) or its config.json.")
]
TokensOption = Annotated[
    int | None, typer.Option(min=1, help="With --model: tokens of the whole job in a step.")
]
SequenceOption = Annotated[
    int | None, typer.Option(min=1, help="With --model: tokens of a sequence.")
]
NodeOption = Annotated[
    int | None, typer.Option(min=1, help="Devices that share a node's fast links (else told).")
]
ConventionOption = Annotated[
    str | None, typer.Option(help="With --model: megatron (default), palm, torchtitan or k22.")
]


@app.command(name="analyze")
def analyze_command(
    paths: Annotated[
        list[str], typer.Argument(help="Trace files, directories or globs: one job's traces.")
    ],
    expect: Annotated[
        str | None, typer.Option(help="Strategy of the job: fsdp_tp, hsdp+tp8+pp4, ddp, ...")
    ] = None,
    mesh: Annotated[
        str | None, typer.Option(help="Device mesh, outermost first: pp=2,dp_shard=4,tp=2.")
    ] = None,
    rank: Annotated[
        int | None, typer.Option(min=0, max=2**20, help="Rank of a single trace without one.")
    ] = None,
    json_path: Annotated[
        str | None, typer.Option("--json", help="Write the result as JSON; - for stdout.")
    ] = None,
    html_path: Annotated[
        Path | None, typer.Option("--html", help="Write one self-contained HTML report.")
    ] = None,
    markdown_path: Annotated[
        str | None, typer.Option("--markdown", help="Write Markdown; - for stdout.")
    ] = None,
    max_exposed_comm: Annotated[
        list[str] | None,
        typer.Option(help="Gate: 15% of the step, or per axis tp=8%. Repeatable."),
    ] = None,
    max_bubble: Annotated[
        str | None, typer.Option(help="Gate: pipeline bubble, 10% of the step.")
    ] = None,
    gate: Annotated[
        list[str] | None,
        typer.Option(help="Gate expression: 'axes.tp.exposed_ns <= 12ms'. Repeatable."),
    ] = None,
    fail_on: Annotated[
        str | None, typer.Option(help="Fail on findings at or above: info, warning, error.")
    ] = None,
    gpus_per_node: NodeOption = None,
    model: ModelOption = None,
    tokens_per_step: TokensOption = None,
    sequence: SequenceOption = None,
    flops_convention: ConventionOption = None,
    config: Annotated[
        Path | None, typer.Option(help="Configuration file instead of the nearest analyze.toml.")
    ] = None,
    no_config: Annotated[bool, typer.Option("--no-config", help="Read no configuration.")] = False,
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Neither read nor write the parsed-trace cache.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No terminal summary.")] = False,
) -> None:
    """Analyse the traces of one training job and print where the step's time goes."""
    from analyzer.api import analyze
    from collectors.cache import Cache

    _check_outputs(paths, [json_path, markdown_path, str(html_path) if html_path else None])
    flags = {
        "expect": expect, "mesh": mesh, "rank": rank, "max_exposed_comm": max_exposed_comm,
        "max_bubble": max_bubble, "gate": gate, "fail_on": fail_on,
    }  # fmt: skip
    options = _options(flags, config, no_config=no_config)
    options = replace(
        options, model=model, tokens_per_step=tokens_per_step, sequence=sequence,
        flops_convention=flops_convention, gpus_per_node=gpus_per_node,
        timeline=html_path is not None,
    )  # fmt: skip
    with progress(enabled=not quiet) as bar:
        result = analyze(paths, options=options, cache=None if no_cache else Cache(), progress=bar)
    _write_outputs(result, json_path, html_path, markdown_path)
    if not quiet and "-" not in (json_path, markdown_path):
        _print_summary(result.document)
    from analyzer.gates import exit_code

    raise typer.Exit(int(exit_code(result.gates)))


def _check_outputs(inputs: list[str], outputs: list[str | None]) -> None:
    """No report may overwrite a trace or another report."""
    used = {str(Path(path).resolve()) for path in inputs if Path(path).is_file()}
    for output in filter(None, outputs):
        target = output if output == "-" else str(Path(output).resolve())
        if target in used and not Path(target).is_char_device():
            name = "stdout" if output == "-" else output
            raise UsageError(f"{name}: would overwrite an input or another report")
        used.add(target)


def _options(flags: Mapping[str, Any], config_path: Path | None, *, no_config: bool) -> Options:
    """Merge command line over configuration over defaults."""
    from analyzer.api import Options
    from analyzer.config import Config, load_config
    from analyzer.gates import bubble_gate, exposed_comm_gate, parse_gate
    from analyzer.model import Severity
    from rules.settings import validate

    config = Config() if no_config else load_config(Path.cwd(), config_path)
    settings = validate(
        config.rules, select=config.select, ignore=config.ignore, source=config.source
    )
    exposed = flags["max_exposed_comm"] or list(config.max_exposed_comm)
    bubble = flags["max_bubble"] or config.max_bubble
    gates = [exposed_comm_gate(text) for text in exposed]
    gates += [bubble_gate(bubble)] if bubble else []
    gates += [parse_gate(text) for text in (flags["gate"] or list(config.gate))]
    fail_on = flags["fail_on"] or config.fail_on
    if fail_on is not None and fail_on not in set(Severity):
        raise UsageError(f"--fail-on {fail_on!r} is not known", "use info, warning or error")
    return Options(
        expect=flags["expect"] or config.expect,
        mesh=flags["mesh"] or config.mesh,
        rank=flags["rank"],
        rules=settings,
        gates=tuple(gates),
        fail_on=Severity(fail_on) if fail_on else None,
    )


def _write_outputs(
    result: Analysis, json_path: str | None, html_path: Path | None, markdown_path: str | None
) -> None:
    if json_path:
        from reports.json_ import render_json

        write(json_path, render_json(result.document))
    if markdown_path:
        from reports.markdown import render_markdown

        write(markdown_path, render_markdown(result.document))
    if html_path:
        from reports.html import render_html

        write(str(html_path), render_html(result.document, result.timeline))


def _print_summary(document: Mapping[str, Any]) -> None:
    from rich.console import Console

    from reports.terminal import render_terminal

    class Summary(Console):
        def on_broken_pipe(self) -> None:
            raise  # rich calls this while it handles the error; stdout() decides

    with stdout():
        render_terminal(document, Summary(highlight=False))


app.command(name="simulate")(simulate_command)
app.command(name="crosscheck")(crosscheck_command)
app.command(name="plan")(plan_command)


@app.command(name="render")
def render_command(
    report: Annotated[Path, typer.Argument(help="A result written with --json.")],
    markdown_path: Annotated[
        str | None, typer.Option("--markdown", help="Write Markdown; - for stdout.")
    ] = None,
) -> None:
    """Print a saved result again, without its traces."""
    document = _load_document(report)
    if markdown_path:
        from reports.markdown import render_markdown

        write(markdown_path, render_markdown(document))
        return
    _print_summary(document)


@app.command(name="gate")
def gate_command(
    report: Annotated[Path, typer.Argument(help="A result written with --json.")],
    max_exposed_comm: Annotated[
        list[str] | None, typer.Option(help="15% of the step, or per axis tp=8%. Repeatable.")
    ] = None,
    max_bubble: Annotated[str | None, typer.Option(help="10% of the step.")] = None,
    gate: Annotated[list[str] | None, typer.Option(help="Gate expression. Repeatable.")] = None,
) -> None:
    """Evaluate gates on a saved result, without its traces."""
    from analyzer.gates import bubble_gate, evaluate, exit_code, exposed_comm_gate, parse_gate

    gates = [exposed_comm_gate(text) for text in max_exposed_comm or []]
    gates += [bubble_gate(max_bubble)] if max_bubble else []
    gates += [parse_gate(text) for text in gate or []]
    if not gates:
        raise UsageError("no gate given", "e.g. --max-exposed-comm 15%")
    results = evaluate(gates, _load_document(report))
    lines = []
    for r in results:
        verdict = {True: "pass", False: "fail", None: "no verdict"}[r.passed]
        value = "" if r.value is None else f" (measured {r.value:.6g})"
        reason = f": {r.reason}" if r.reason else ""
        lines.append(printable(f"{verdict:<10} {r.gate}{value}{reason}") + "\n")
    write("-", "".join(lines))
    raise typer.Exit(int(exit_code(results)))


def _load_document(path: Path) -> dict[str, Any]:
    import json

    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise UsageError(f"{path}: is not JSON") from None
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != "meshscope.analysis/1":
        raise UsageError(f"{path}: is not a meshscope result", "write one with --json")
    missing = [key for key in _required_keys() if key not in document]
    if missing:
        raise UsageError(f"{path}: is not a whole meshscope result: no {missing[0]!r}")
    return dict(document)


def _required_keys() -> list[str]:
    import json

    from reports.json_ import schema_text

    return list(json.loads(schema_text())["required"])


@app.command(name="rules")
def rules_command() -> None:
    """List the rules."""
    from rules.registry import all_rules

    write("-", "".join(f"{r.code}  {r.name:<34} {r.title}\n" for r in all_rules()))


@app.command(name="explain")
def explain_command(
    rule: Annotated[str, typer.Argument(help="Rule code or name, e.g. COM001.")],
) -> None:
    """Print a rule's documentation page."""
    from rules.docs import render
    from rules.registry import find_rule

    write("-", render(find_rule(rule)) + "\n")


@app.command(name="schema")
def schema_command() -> None:
    """Print the JSON Schema of the result document."""
    from reports.json_ import schema_text

    write("-", schema_text())


@cache_app.command(name="clear")
def cache_clear_command() -> None:
    """Delete all cached traces."""
    from collectors.cache import Cache

    freed = Cache().clear()
    sys.stdout.write(f"freed {freed / 2**20:.1f} MiB\n")


@cache_app.command(name="info")
def cache_info_command() -> None:
    """Show where the cache is and how large."""
    from collectors.cache import Cache

    cache = Cache()
    size = cache.size_bytes() / 2**20
    sys.stdout.write(f"{cache.directory}: {len(cache.entries())} traces, {size:.1f} MiB\n")
