"""The plan's page as text: safe, small, complete."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib.resources import files
from typing import Any

import pytest
from plan_helpers import plan

from reports.plan_html import render_plan_html


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return plan(model="llama3-70b", hardware="h100-sxm", devices=64, batch_tokens="1M",
                strategy="fsdp+tp")  # fmt: skip


def test_policy_allows_exactly_its_own_style_and_script(document: dict[str, Any]) -> None:
    page = render_plan_html(document)
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)
    assert policy
    assert "unsafe" not in policy[1]
    for tag in ("style", "script"):
        source = re.search(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        assert source
        digest = base64.b64encode(hashlib.sha256(source[1].encode()).digest()).decode()
        assert f"{tag}-src &#x27;sha256-{digest}&#x27;" in policy[1]
    assert " style=" not in page
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in page


def test_script_is_small() -> None:
    script = (files("reports.plan_html") / "assets" / "plan.js").read_bytes()
    assert len(script) <= 20_000
    assert b"innerHTML" not in script


def test_hostile_names_stay_text(document: dict[str, Any]) -> None:
    hostile = "</script><script>alert(1)</script>\u202e"
    row = {**document["curves"]["models"][0], "name": hostile}
    made = {
        **document,
        "model": {**document["model"], "name": hostile},
        "curves": {**document["curves"], "models": [row]},
    }
    page = render_plan_html(made)
    assert "<script>alert" not in page
    assert "\u202e" not in page


def test_a_plan_that_fits_nowhere_has_a_page() -> None:
    page = render_plan_html(
        plan(model="llama3-405b", hardware="h100-sxm", devices=8, batch_tokens="1M")
    )
    assert "nothing fits" in page
