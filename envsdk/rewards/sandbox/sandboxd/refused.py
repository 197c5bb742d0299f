"""What a server refuses, for all of its parts."""

from __future__ import annotations


class Refused(Exception):
    """What a client is told, with a status of HTTP."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
