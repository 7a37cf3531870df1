"""The report of a run: its values, charts, a self-contained page, and plots."""

from hpcbal.report.model import ReportData
from hpcbal.report.page.page import render_page, write_page, write_plots
from hpcbal.report.reading.run_files import read_run

__all__ = ["ReportData", "read_run", "render_page", "write_page", "write_plots"]
