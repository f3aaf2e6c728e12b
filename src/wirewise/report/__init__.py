"""What a run found, for people and programs: progress, tables, one sentence, JSON and a page."""

from wirewise.report.page import page_html
from wirewise.report.plan import plan_html
from wirewise.report.progress import TrainingProgress
from wirewise.report.shell import write_page
from wirewise.report.summary import summary_sentence, to_json_object
from wirewise.report.tables import print_result

__all__ = [
    "TrainingProgress",
    "page_html",
    "plan_html",
    "print_result",
    "summary_sentence",
    "to_json_object",
    "write_page",
]
