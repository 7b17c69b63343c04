"""The plan as a page: the recommended mesh, what-if charts with sliders, and all the numbers."""

from reports.plan_html.page import render_plan_html

__all__ = ["render_plan_html"]
