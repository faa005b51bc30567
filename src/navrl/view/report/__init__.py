"""The report page: how runs learnt, what they cost and how they fail, in one HTML file."""

from navrl.view.report.page import report_page, write_report
from navrl.view.report.run_data import RunData, read_run

__all__ = ["RunData", "read_run", "report_page", "write_report"]
