"""Invoices: lines, sums, taxes."""

from invoice.lines import Invoice, Line, UnknownRate
from invoice.money import Money

__all__ = ["Invoice", "Line", "Money", "UnknownRate"]
