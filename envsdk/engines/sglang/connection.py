"""Shell: the server of one engine, its own process or one that runs already.

open -> check -> look* -> close
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

import httpx2

from envsdk.base.net.rendezvous import free_port
from envsdk.contracts.failures import ConfigurationError, EngineError
from envsdk.engines.engine import EngineConfig
from envsdk.engines.engine_support.failures import ReplyRefused, Unavailable
from envsdk.engines.engine_support.http import events, http_client, refusal, unavailable
from envsdk.engines.sampling import SamplingParams
from envsdk.engines.sglang.server import ServerProcess
from envsdk.engines.sglang.settings import SGLangSettings, server_arguments
from envsdk.engines.sglang.wire import ServerFacts, generate_body, read_facts, read_kv_usage, read_message

_POLL_S = 0.25
_LAST_WORDS_S = 2.0
"""Between the last answer of a server that ends and its end."""


class Connection:
    """Owner: the engine, on its event loop."""

    def __init__(self, config: EngineConfig, settings: SGLangSettings, api_key: str | None) -> None:
        self._config = config
        self._settings = settings
        self._process: ServerProcess | None = None
        base_url = settings.base_url
        if base_url is None:
            port = free_port("127.0.0.1")
            base_url = f"http://127.0.0.1:{port}"
            arguments = server_arguments(config, settings, port=port)
            self._process = ServerProcess(settings.python or sys.executable, arguments)
        self.client = SGLangClient(base_url, settings, api_key)
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
                await self.client.get("/health")
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
        facts = read_facts(await self.client.get("/server_info"))
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
        await self.client.post(
            "/update_weight_version", {"new_version": self.stamp(0), "abort_all_requests": True}
        )
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
        async with aclosing(self.client.messages(body)) as messages:
            async for data in messages:
                logprobs += read_message(
                    data, body=body, num_known=len(logprobs), stamp=self.stamp(0)
                ).logprobs
        return logprobs[0] if logprobs else None

    async def look(self) -> float:
        """How full the KV cache is, 0 to 1. EngineError when the server ended or does not answer."""
        try:
            # Asks every scheduler process, and so tells when one hangs.
            await self.client.get("/server_info")
            return read_kv_usage(await self.client.get("/v1/loads?include=core"))
        except (Unavailable, ReplyRefused) as error:
            await self._check_process(_LAST_WORDS_S)  # why, where it can tell
            raise EngineError(f"SGLang's server does not answer: {error}") from error

    async def close(self) -> None:
        """End the server if it is ours. Idempotent."""
        await self.client.close()
        if self._process is not None:
            await self._process.stop()


class SGLangClient:
    """Connections to one server. Owner: the engine, on its event loop.

    Every method raises Unavailable or ReplyRefused.
    """

    def __init__(self, base_url: str, settings: SGLangSettings, api_key: str | None) -> None:
        self._base_url = base_url.rstrip("/")
        self._connect_timeout_s = settings.connect_timeout_s
        self._silence_timeout_s = settings.silence_timeout_s
        self._http = http_client(
            api_key=api_key,
            connect_timeout_s=settings.connect_timeout_s,
            silence_timeout_s=settings.silence_timeout_s,
        )

    def messages(self, body: Mapping[str, Any]) -> AsyncGenerator[str, None]:
        """`data` of each message of one reply; see `http.events`."""
        # A request waits in silence for its turn; whether the server is alive is asked elsewhere.
        limits = httpx2.Timeout(None, connect=self._connect_timeout_s)
        return events(self._http, self._base_url + "/generate", body, limits=limits)

    async def post(
        self, path: str, body: Mapping[str, Any] | None = None, *, timeout_s: float | None = None
    ) -> httpx2.Response:
        """The answer, of a status that is a success."""
        return await self._ask("POST", path, dict(body or {}), timeout_s)

    async def get(self, path: str, *, timeout_s: float | None = None) -> dict[str, Any]:
        """The JSON object in the answer; an empty one when there is none."""
        response = await self._ask("GET", path, None, timeout_s)
        try:
            answer = response.json() if response.content else {}
        except ValueError as error:
            raise ReplyRefused(f"{path} answered no JSON: {response.text[:200]!r}") from error
        return answer if isinstance(answer, dict) else {}

    async def _ask(
        self, method: str, path: str, body: dict[str, Any] | None, timeout_s: float | None
    ) -> httpx2.Response:
        url = self._base_url + path
        timeout = httpx2.Timeout(timeout_s or self._silence_timeout_s, connect=self._connect_timeout_s)
        try:
            response = await self._http.request(method, url, json=body, timeout=timeout)
        except httpx2.TransportError as error:
            raise unavailable(url, error) from error
        if not response.is_success:
            raise await refusal(response)
        return response

    async def close(self) -> None:
        await self._http.aclose()
