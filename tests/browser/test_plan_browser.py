"""The plan's page in a real browser: offline, silent, and its script computes what Python does."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from plan_helpers import plan

from analyzer.plan.curves import MachineRow, ModelRow, Point, times
from reports.plan_html import render_plan_html

sync_api = pytest.importorskip("playwright.sync_api")

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium (set CHROMIUM to its path)"),
    # Playwright's own event loop and transport are closed by its driver, late and loudly.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
             "--disable-background-networking", "--disable-component-update",
             "--disable-sync"]  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return plan(model="llama3-70b", hardware="h100-sxm", devices=512, batch_tokens="4M",
                strategy="fsdp+tp")  # fmt: skip


@pytest.fixture(scope="module")
def path(document: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("plan") / "plan.html"
    made.write_text(render_plan_html(document), encoding="utf-8")
    return made


class Visit:
    """An open page that fails the test on any console message, error or request."""

    def __init__(self, browser: Any, path: Path, **options: Any) -> None:
        self.noise: list[str] = []
        self.requests: list[str] = []
        self.context = browser.new_context(
            offline=True, **{"viewport": {"width": 1280, "height": 900}, **options}
        )
        self.page = self.context.new_page()
        self.page.on("console", lambda message: self.noise.append(message.text))
        self.page.on("pageerror", lambda error: self.noise.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())
        if options.get("java_script_enabled", True):
            self.page.wait_for_selector("#what-if[data-ready]")

    def move(self, control: str, value: float | str) -> None:
        """Put a slider (or, with an index, a list) somewhere, as a user would."""
        self.page.evaluate(
            """([id, value]) => {
              const control = document.getElementById(`c-${id}`);
              if (control.tagName === "SELECT") control.selectedIndex = value;
              else control.value = value;
              control.dispatchEvent(new Event("input"));
            }""",
            [control, value],
        )

    def value(self, control: str) -> float:
        return float(self.page.evaluate(f"document.getElementById('c-{control}').value"))

    def at_point(self) -> dict[str, list[float]]:
        """Strategy -> compute, communication, step as the page computed them."""
        found: dict[str, list[float]] = self.page.evaluate(
            """() => {
              const rows = [...document.querySelectorAll("#at-point tbody tr")];
              const cells = (row) => [...row.querySelectorAll(".num")];
              const numbers = (row) => cells(row).map((cell) => Number(cell.dataset.s));
              return Object.fromEntries(rows.map((row) => [row.dataset.strategy, numbers(row)]));
            }"""
        )
        return found

    def chart(self, name: str) -> list[list[float]]:
        """Rows of a chart's table: x, compute, and communication by strategy."""
        rows: list[list[float]] = self.page.evaluate(
            """(id) => [...document.querySelectorAll(`#table-${id} tbody tr`)].map((row) =>
              [Number(row.dataset.x),
               ...[...row.querySelectorAll(".num")].map((cell) => Number(cell.dataset.s))])""",
            name,
        )
        return rows

    def __enter__(self) -> Visit:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()
        assert self.noise == []
        assert all(url.startswith(("file:", "blob:")) for url in self.requests), self.requests


def close(found: float, expected: float) -> bool:
    return math.isclose(found, expected, rel_tol=1e-3)


def expected_times(document: dict[str, Any], model: int, machine: int, point: Point) -> Any:
    curves = document["curves"]
    return times(
        ModelRow(**curves["models"][model]), MachineRow(**curves["machines"][machine]), point
    )


POINTS = [
    # model, machine, batch slider from the middle, doublings of chips, tensor index, efficiency
    (0, 0, 0.0, 0, 1, 100),
    (1, 0, -3.0, 2, 3, 40),
    (2, 3, 2.5, -5, 0, 55),
    (3, -1, 1.0, 3, 2, 100),
    (4, -2, -6.0, 1, 6, 80),
    (-1, 4, 1.5, 0, 2, 60),
]


@pytest.mark.parametrize("point", POINTS)
def test_the_script_computes_what_python_does(
    browser: Any, path: Path, document: dict[str, Any], point: tuple[Any, ...]
) -> None:
    model, machine, batch, chips, tensor, efficiency = point
    curves = document["curves"]
    model %= len(curves["models"])
    machine %= len(curves["machines"])
    degrees = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    with Visit(browser, path) as visit:
        visit.move("model", model)
        visit.move("machine", machine)
        visit.move("batch", math.log2(4e6) + batch)
        visit.move("chips", 9 + chips)
        visit.move("tensor", tensor)
        visit.move("efficiency", efficiency)
        here = Point(4e6 * 2**batch, 512 * 2**chips if chips >= 0 else 512 // 2**-chips,
                     degrees[tensor], efficiency / 100)  # fmt: skip
        found = visit.at_point()
        made = expected_times(document, model, machine, here)
        for name, row in made.items():
            for mine, theirs in zip(found[name], (row.math_s, row.comm_s, row.step_s), strict=True):
                assert close(mine, theirs), (name, mine, theirs)
        for axis in ("batch", "chips"):
            rows = visit.chart(axis)
            assert len(rows) > 3
            for x, compute, *comm in rows:
                at = Point(x, here.chips, here.tensor, here.efficiency) if axis == "batch" else (
                    Point(here.batch, int(x), here.tensor, here.efficiency)
                )  # fmt: skip
                row = expected_times(document, model, machine, at)
                assert close(compute, row["dp"].math_s)
                for mine, name in zip(comm, ("dp", "fsdp", "tp", "fsdp+tp"), strict=True):
                    assert close(mine, row[name].comm_s)


def test_opens_where_the_plan_stands(browser: Any, path: Path, document: dict[str, Any]) -> None:
    with Visit(browser, path) as visit:
        found = visit.at_point()
        for name, row in document["curves"]["times"].items():
            assert close(found[name][1], row["comm_s"])
        assert visit.page.locator("#chart-batch path").count() == 5
        assert visit.page.text_content("#o-batch") == "4,000,000 tokens"


def test_sliders_move_with_the_keyboard_and_are_named(browser: Any, path: Path) -> None:
    with Visit(browser, path) as visit:
        for name in ("Batch", "Chips", "Tensor degree", "Compute, share of peak", "Model"):
            assert visit.page.get_by_label(name).count() == 1
        before = visit.at_point()["dp"][0]
        visit.page.get_by_label("Batch").focus()
        for _ in range(8):
            visit.page.keyboard.press("ArrowRight")
        assert close(visit.at_point()["dp"][0], 2 * before)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 420])
def test_light_and_dark_without_sideways_scrolling(
    browser: Any, path: Path, scheme: str, width: int
) -> None:
    with Visit(
        browser, path, color_scheme=scheme, viewport={"width": width, "height": 800}
    ) as visit:
        page = visit.page
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        light = sum(int(c) for c in background[4:-1].split(",")) > 3 * 128
        assert light == (scheme == "light")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.click("#theme")
        toggled = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(int(c) for c in toggled[4:-1].split(",")) > 3 * 128) != light


def test_tables_are_there_without_script(
    browser: Any, path: Path, document: dict[str, Any]
) -> None:
    with Visit(browser, path, java_script_enabled=False) as visit:
        assert visit.page.locator("#at-point tbody tr").count() == 4
        assert visit.page.locator("#conditions tbody tr").count() == len(document["conditions"])
        assert not visit.page.locator("#c-batch").is_visible()
