"""Rewrite the generated documentation pages: ``python tests/tools/docs.py``."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))


def pages() -> dict[Path, str]:
    """Every generated page and its content."""
    from analyzer.roofline.registry import theory_page
    from analyzer.schema import to_markdown
    from rules.docs import pages as rule_pages

    found = {ROOT / "docs" / "schema.md": to_markdown()}
    found[ROOT / "docs" / "theory.md"] = theory_page()
    found |= {ROOT / "docs" / "rules" / name: text for name, text in rule_pages().items()}
    return found


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
