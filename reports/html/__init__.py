"""The HTML report: one self-contained file that opens offline."""

from reports.html.page import render_html

__all__ = ["render_html"]
