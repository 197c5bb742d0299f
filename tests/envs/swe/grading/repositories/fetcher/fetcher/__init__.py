"""Fetching with retries."""

from fetcher.client import Client, GaveUp, Response
from fetcher.many import fetch_all

__all__ = ["Client", "GaveUp", "Response", "fetch_all"]
