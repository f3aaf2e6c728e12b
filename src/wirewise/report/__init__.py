"""Results for display: tables, self-contained HTML pages and pictures of plans."""

from wirewise.report.plan import plan_html
from wirewise.report.shell import write_page

__all__ = ["plan_html", "write_page"]
