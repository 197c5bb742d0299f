"""`report.html`: one file that shows what a run learned, how well its two sides overlapped, and why."""

from envsdk.report.command import main
from envsdk.report.page import write_report

__all__ = ["main", "write_report"]
