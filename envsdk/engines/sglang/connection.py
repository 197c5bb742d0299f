"""Shell: the server of one engine, its own process or one that runs already, and the requests there.

open -> check -> look* -> close
"""

from __future__ import annotations

import asyncio
import itertools
import os
import secrets
import signal
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2

from envsdk.base.net.rendezvous import free_port
from envsdk.contracts.failures import ConfigurationError, EngineError
from envsdk.engines.core import Reply
from envsdk.engines.engine import EngineConfig
from envsdk.engines.engine_support.failures import ReplyRefused, Unavailable
from envsdk.engines.engine_support.http import events, http_client, refusal, unavailable
from envsdk.engines.sampling import SamplingParams
from envsdk.engines.sglang.settings import SGLangSettings, server_arguments
from envsdk.engines.sglang.wire import ServerFacts, generate_body, read_facts, read_kv_usage, read_message

_POLL_S = 0.25
_LAST_WORDS_S = 2.0
"""Between the last answer of a server that ends and its end."""


class Connection:
    """Owner: the engine, on its event loop."""

    def __init__(self, config: EngineConfig, settings: SGLangSettings, api_key: str | None) -> None:
        self._settings = settings
        self._process: ServerProcess | None = None
        base_url = settings.base_url
        if base_url is None:
            port = free_port("127.0.0.1")
            base_url = f"http://127.0.0.1:{port}"
            arguments = server_arguments(config, settings, port=port)
            self._process = ServerProcess(settings.python or sys.executable, arguments)
        self._base_url = base_url.rstrip("/")
        self._http = http_client(
            api_key=api_key,
            connect_timeout_s=settings.connect_timeout_s,
            silence_timeout_s=settings.silence_timeout_s,
        )
        self._name = secrets.token_hex(4)
        """Name of this engine among all that ever used the server."""
        self._numbers = itertools.count()

    def stamp(self, version: int) -> str:
        """What the server calls the version: no other engine's, so that a second one there is found out."""
        return f"{self._name}-{version}"

    def new_name(self) -> str:
        """A new name of a request or an adapter.

        SGLang aborts all requests whose names begin with the one it is given, so all are of one length.
        """
        return f"{self._name}-{next(self._numbers):012}"

    async def open(self) -> None:
        """Start the server unless it runs already, and wait until it answers.

        EngineError when it does not come up, ReplyRefused when it is no such server.
        """
        if self._process is not None:
            await self._process.start()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._settings.start_timeout_s
        while True:
            try:
                await self.get("/health")
                return
            except Unavailable as error:
                await self._check_process()
                if loop.time() > deadline:
                    waited = f"{self._settings.start_timeout_s:g} s"
                    raise EngineError(f"SGLang's server was not ready after {waited}: {error}") from error
            await asyncio.sleep(_POLL_S)

    async def _check_process(self, patience_s: float = 0.0) -> None:
        process = self._process
        if process is not None and await process.ends_within(patience_s):
            raise EngineError(
                f"SGLang's server ended (exit status {process.exit_status}): {process.last_words()}"
            )

    async def check(self) -> ServerFacts:
        """See that the server will do, and make its weights version 0.

        Raises ConfigurationError when it gives something else, Unavailable or ReplyRefused.
        """
        settings = self._settings
        facts = read_facts(await self.get("/server_info"))
        if settings.deterministic and not facts.deterministic:
            raise ConfigurationError(
                "strategy_config of engine `sglang`: `deterministic` is set, but the server was started "
                "without --enable-deterministic-inference; start it with that, or set `deterministic: false`"
            )
        if settings.structured_output and not facts.keeps_structures:
            raise ConfigurationError(
                "strategy_config of engine `sglang`: `structured_output` is set, but the server has no "
                "tokenizer or no grammar backend; start it without --skip-tokenizer-init and without "
                "`--grammar-backend none`"
            )
        # Whatever an earlier engine left there ends.
        await self.post("/update_weight_version", {"new_version": self.stamp(0), "abort_all_requests": True})
        if settings.logprobs != "none":
            sharp, plain = await self._likeliest(1e-4), await self._likeliest(0.0)
            if sharp is not None and sharp == plain and plain < -1e-3:
                raise ConfigurationError(
                    f"SGLang's server ({facts.version}) gives log-probabilities without the temperature; "
                    "start it without SGLANG_RETURN_ORIGINAL_LOGPROB"
                )
        return facts

    async def _likeliest(self, temperature: float) -> float | None:
        """Log-probability of the likeliest token after a prompt; None when the server has nothing to say."""
        sampling = SamplingParams(max_new_tokens=1, temperature=temperature, seed=0)
        body = generate_body(
            self._settings, rid=self.new_name(), input_ids=[0], sampling=sampling, max_new_tokens=1
        )
        logprobs: list[float] = []
        async with aclosing(self.messages(body)) as messages:
            async for data in messages:
                logprobs += read_message(
                    data, body=body, num_known=len(logprobs), stamp=self.stamp(0)
                ).logprobs
        return logprobs[0] if logprobs else None

    async def look(self) -> float:
        """How full the KV cache is, 0 to 1. EngineError when the server ended or does not answer."""
        try:
            # Asks every scheduler process, and so tells when one hangs.
            await self.get("/server_info")
            return read_kv_usage(await self.get("/v1/loads?include=core"))
        except (Unavailable, ReplyRefused) as error:
            await self._check_process(_LAST_WORDS_S)  # why, where it can tell
            raise EngineError(f"SGLang's server does not answer: {error}") from error

    def messages(self, body: Mapping[str, Any]) -> AsyncGenerator[str, None]:
        """`data` of each message of one reply; see `http.events`. Raises Unavailable or ReplyRefused."""
        # A request waits in silence for its turn; whether the server is alive is asked elsewhere.
        limits = httpx2.Timeout(None, connect=self._settings.connect_timeout_s)
        return events(self._http, self._base_url + "/generate", body, limits=limits)

    async def post(
        self, path: str, body: Mapping[str, Any] | None = None, *, timeout_s: float | None = None
    ) -> httpx2.Response:
        """The answer, of a status that is a success. Raises Unavailable or ReplyRefused."""
        return await self._ask("POST", path, dict(body or {}), timeout_s)

    async def get(self, path: str) -> dict[str, Any]:
        """The JSON object in the answer; an empty one when there is none. Raises as `post`."""
        response = await self._ask("GET", path)
        try:
            answer = response.json() if response.content else {}
        except ValueError as error:
            raise ReplyRefused(f"{path} answered no JSON: {response.text[:200]!r}") from error
        return answer if isinstance(answer, dict) else {}

    async def _ask(
        self, method: str, path: str, body: dict[str, Any] | None = None, timeout_s: float | None = None
    ) -> httpx2.Response:
        url = self._base_url + path
        timeout = httpx2.Timeout(
            timeout_s or self._settings.silence_timeout_s, connect=self._settings.connect_timeout_s
        )
        try:
            response = await self._http.request(method, url, json=body, timeout=timeout)
        except httpx2.TransportError as error:
            raise unavailable(url, error) from error
        if not response.is_success:
            raise await refusal(response)
        return response

    async def close(self) -> None:
        """End the server if it is ours. Idempotent."""
        await self._http.aclose()
        if self._process is not None:
            await self._process.stop()


STOP_GRACE_S = 20.0
"""Between the request to end and the kill; SGLang looks for the request every 5 s."""
_TAIL_BYTES = 2000
_GUARD = "envsdk.engines.sglang.guard"


class ServerProcess:
    """The server and its schedulers; they end when this process does, however it ends.

    start -> (process) -> stop
                 |-> ended by itself: `exit_status`, and what it last said
    """

    def __init__(self, python: str, arguments: Sequence[str]) -> None:
        self._command = [python, "-m", "sglang.launch_server", *arguments]
        self._process: asyncio.subprocess.Process | None = None
        self._log = tempfile.NamedTemporaryFile(prefix="sglang-", suffix=".log")  # noqa: SIM115 - until `stop`

    async def start(self) -> None:
        """Returns at once; OSError when the command cannot be run."""
        environment = os.environ | {"SGLANG_RETURN_ORIGINAL_LOGPROB": "false"}
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", _GUARD, str(STOP_GRACE_S), *self._command,
            stdin=asyncio.subprocess.PIPE, stdout=self._log, stderr=self._log,
            start_new_session=True, env=environment,
        )  # fmt: skip

    @property
    def exit_status(self) -> int | None:
        """None while it runs."""
        return self._process.returncode if self._process is not None else None

    async def ends_within(self, timeout_s: float) -> bool:
        """Wait for its end."""
        assert self._process is not None, "start first"
        with suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), timeout_s)
        return self._process.returncode is not None

    def last_words(self) -> str:
        """The end of what it printed."""
        path = Path(self._log.name)
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            return log.read().decode(errors="replace").strip()

    async def stop(self) -> None:
        """End it and wait until it has ended. Idempotent."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            assert process.stdin is not None
            with suppress(ConnectionError):
                process.stdin.write(b"\n")
                await process.stdin.drain()
            process.stdin.close()
            try:
                await asyncio.wait_for(process.wait(), 2 * STOP_GRACE_S)
            except TimeoutError:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        self._log.close()


_AGAIN_S = 0.1
"""Between two requests to abort: an abort that arrives before its request has no effect."""
_ABORT_GRACE_S = 5.0
"""For the server to end one request; then the connection is closed."""


class ServerRequests:
    """Owner: the engine, on its event loop."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.names: dict[Reply, str] = {}
        """The name on the server of each reply that it samples."""
        self.num_clearings = 0
        self._is_clearing = False
        self._changed = asyncio.Event()

    @contextmanager
    def named(self, reply: Reply) -> Iterator[str]:
        """The server samples the reply in here, under this name."""
        name = self.names[reply] = self._connection.new_name()
        try:
            yield name
        finally:
            del self.names[reply]
            self._changed.set()

    async def end(self, reply: Reply) -> None:
        """Returns when the server has ended it, or does not."""
        await self._until(lambda: not self._is_clearing)  # one request ends all of them
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _ABORT_GRACE_S
        while (name := self.names.get(reply)) and loop.time() < deadline:
            with suppress(Unavailable, ReplyRefused):
                await self._connection.post("/abort_request", {"rid": name}, timeout_s=_ABORT_GRACE_S)
            await self._until(lambda: reply not in self.names, _AGAIN_S)

    async def let_end(self, holds: Callable[[Reply], bool]) -> None:
        """Wait for those for which this holds, while nothing more is sent there."""
        bound = {reply for reply in self.names if holds(reply)}
        await self._until(lambda: not bound & self.names.keys())

    async def clear(self, timeout_s: float) -> None:
        """Until the server samples nothing of what it was given before.

        Raises Unavailable, ReplyRefused and TimeoutError.
        """
        self._is_clearing = True
        self.num_clearings += 1
        there = set(self.names)
        try:
            async with asyncio.timeout(timeout_s):
                while there & self.names.keys():
                    await self._connection.post("/abort_request", {"abort_all": True})
                    await self._until(lambda: not there & self.names.keys(), _AGAIN_S)
        finally:
            self._is_clearing = False
            self._changed.set()

    async def _until(self, is_so: Callable[[], bool], timeout_s: float | None = None) -> None:
        """Returns when it is so, or the time is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not is_so():
                    self._changed.clear()
                    await self._changed.wait()
