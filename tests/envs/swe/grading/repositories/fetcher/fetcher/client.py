"""One request after another."""

import random
import time
from dataclasses import dataclass


class GaveUp(Exception):
    """No attempt worked; the last error is the cause."""

    def __init__(self, url, attempts):
        super().__init__(f"{url}: gave up after {attempts} attempts")
        self.url = url
        self.attempts = attempts


@dataclass
class Response:
    status: int
    body: bytes = b""

    @property
    def ok(self):
        return 200 <= self.status < 300


class Client:
    """Sends requests by `transport(method, url, headers)` and tries again after errors of the server.

    Before the n-th retry it waits `base * 2 ** (n - 1)` seconds, at most `longest`, plus up to a tenth of it
    at random where `jitter` is a `random.Random`.
    """

    def __init__(self, transport, *, retries=2, base=1.0, longest=30.0, jitter=None, headers=None):
        self.transport = transport
        self.retries = retries
        self.base = base
        self.longest = longest
        self.jitter = jitter
        self.headers = dict(headers or {})
        self.log = []

    def get(self, url, **headers):
        """The first response that is no error of the server. GaveUp where there is none."""
        error = None
        for attempt in range(self.retries + 1):
            if attempt:
                time.sleep(self._pause(attempt))
            try:
                response = self.transport("GET", url, {**self.headers, **headers})
            except OSError as caught:
                error = caught
                continue
            self.log.append((url, response.status))
            if response.status < 500:
                return response
        raise GaveUp(url, self.retries + 1) from error

    def _pause(self, attempt):
        pause = min(self.base * 2 ** (attempt - 1), self.longest)
        return pause + (self.jitter.uniform(0, pause / 10) if isinstance(self.jitter, random.Random) else 0)
