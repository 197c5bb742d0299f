"""Settings of the `sglang` engine, and the command line its server is started with. Pure."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveFloat, model_validator

from envsdk.base.settings.memory import Memory, ModelSizes
from envsdk.base.settings.problems import Problem
from envsdk.base.store.model_files import positions_problem
from envsdk.engines.engine import EngineConfig
from envsdk.engines.sampling import SamplingShape
from envsdk.engines.settings import PassThroughSettings

_ARGUMENTS = tomllib.loads(Path(__file__).with_name("arguments.toml").read_text(encoding="utf-8"))
SET_BY_ENGINE: dict[str, str] = _ARGUMENTS["set_by_engine"]
"""Arguments of SGLang's server that follow from the run's own keys, and from which."""
COMMON_ARGUMENTS = frozenset(_ARGUMENTS["common"])
"""Those whose misspellings are found before it starts; it refuses others itself."""
_SHARE = 0.85
"""What SGLang chooses for `mem_fraction_static`, about."""


class SGLangSettings(PassThroughSettings):
    """`strategy_config` of the `sglang` engine.

    For a server that the engine starts, any other argument of SGLang's is taken too, by its name with
    underscores.
    """

    needs = ("httpx2",)
    scores_prompts = True
    common_arguments = COMMON_ARGUMENTS
    set_by_engine = SET_BY_ENGINE

    base_url: Annotated[str, Field(pattern=r"^https?://[^\s@]+$")] | None = None
    """A running server that is this engine's alone, such as `http://127.0.0.1:30000`. When absent the engine
    starts one on this machine."""
    load_at_start: bool = True
    """Have the server at `base_url` read the weights of `pretrain` first, of which it must see the folder.
    false: it has them already, which nothing checks."""
    api_key_env: str | None = None
    """Name of the environment variable that holds the key of the server at `base_url`."""
    python: str | None = None
    """Interpreter of the environment that SGLang is installed in; this process's own when absent."""
    logprobs: Literal["sampling", "untruncated", "none"] = "sampling"
    """`sampling`: those of the distribution that tokens are drawn from; `top_p` and `min_p` then need a
    `top_k`. `untruncated`: after temperature alone. `none`: recorded as NaN."""
    deterministic: bool = True
    """A request's seed decides its tokens, at the price of SGLang's batch-invariant kernels; without, seeds
    are not heeded."""
    structured_output: bool = False
    """Load the tokenizer too, which SGLang needs to hold replies to a structure; JSON is then written without
    blanks. The server at `base_url` was started so or not."""
    stream_interval: Annotated[int, Field(ge=1)] = 16
    """Tokens that come in one message."""
    weights_folder: Path | None = None
    """Where new weights are written for the server to read, which must see the same path. The system's folder
    for temporary files when absent; `/dev/shm` is faster where it has room for the model."""
    start_timeout_s: PositiveFloat = 1800.0
    """How long a server may take to load the model and warm up."""
    update_timeout_s: PositiveFloat = 1800.0
    """How long reading new weights may take it."""
    connect_timeout_s: PositiveFloat = 10.0
    """How long opening a connection may take."""
    silence_timeout_s: PositiveFloat = 300.0
    """How long the server may leave anything unanswered before it counts as hung."""
    max_retries: NonNegativeInt = 5
    """How often a request is sent again after a broken connection or status 408, 429 or 5xx."""
    backoff_s: PositiveFloat = 0.5
    """Longest wait before the first retry; doubles with each, up to 30 s. A `Retry-After` is respected."""

    @property
    def is_one_server(self) -> bool:
        return self.base_url is not None

    @property
    def may_tell_experts(self) -> bool:
        return self.base_url is not None or super().may_tell_experts

    @property
    def takes_adapters(self) -> bool:
        """As far as the arguments of a server that the engine starts tell."""
        return bool((self.model_extra or {}).get("enable_lora"))

    @model_validator(mode="after")
    def _adapters_have_a_size(self) -> Self:
        missing = {"max_lora_rank", "lora_target_modules"} - (self.model_extra or {}).keys()
        if self.takes_adapters and missing:
            raise ValueError(
                f"enable_lora: SGLang needs {' and '.join(sorted(missing))} too, such as max_lora_rank: 16 "
                "and lora_target_modules: [all]"
            )
        return self

    def start_problem(self, model: Path | None, sequence_length: int, max_running: int) -> Problem | None:
        is_given = self.base_url is not None or "context_length" in (self.model_extra or {})
        return None if is_given else positions_problem(model, sequence_length)

    def problem_of(self, name: str) -> str:
        problem = super().problem_of(name)
        if not problem and self.base_url is not None:
            return "the server at `base_url` is running already; start it with this argument instead"
        return problem

    @property
    def device_share(self) -> tuple[str, float] | None:
        share = (self.model_extra or {}).get("mem_fraction_static", _SHARE)
        return ("mem_fraction_static", float(share)) if isinstance(share, int | float) else None

    @property
    def lacks(self) -> str:
        """What to do where the server cannot start for want of SGLang; empty where it may."""
        if self.base_url or self.python or find_spec("sglang"):
            return ""
        return (
            "sglang is not installed here: install it into an environment of its own and name its "
            "interpreter (strategy_config.python), or name a running server (base_url)"
        )

    def sampling_memory(self, model: ModelSizes, *, num_replies: int, num_tokens: int) -> Memory:
        """In bytes; see `EstimatesSampling`."""
        if self.base_url is not None:
            return {}  # it computes elsewhere
        extra = self.model_extra or {}
        tp = extra.get("tp_size", 1)
        return self.weights_and_keys(
            model,
            model.element_bytes(extra.get("dtype")),
            num_replies,
            num_tokens,
            num_devices=tp if isinstance(tp, int) and tp > 0 else 1,
        )

    def support_problem(self, sampling: SamplingShape, *others: SamplingShape) -> str:
        if self.logprobs != "sampling":
            return "SGLang tells them with `logprobs: sampling` alone"
        return "" if sampling.top_k else "SGLang tells them only with a top_k"

    def identity(self) -> dict[str, Any]:
        # Which of the server's arguments change a reply, and which only its speed, is not known.
        ways = {"python", "weights_folder", "api_key_env", "stream_interval", "max_retries", "backoff_s"}
        ways.add("structured_output")  # what structure a reply has is said elsewhere
        if self.base_url is None:
            ways.add("load_at_start")
        times = {name for name in type(self).model_fields if name.endswith("_timeout_s")}
        return self.model_dump(mode="json", exclude=ways | times, exclude_none=True)


def server_arguments(config: EngineConfig, settings: SGLangSettings, *, port: int) -> list[str]:
    """Arguments of `python -m sglang.launch_server`."""
    arguments: dict[str, Any] = {
        "model_path": str(config.model),
        "host": "127.0.0.1",
        "port": port,
        "skip_tokenizer_init": not settings.structured_output,
        # A weak policy would write blanks between the tokens of JSON to the end.
        "constrained_json_disable_any_whitespace": settings.structured_output,
        "max_running_requests": config.max_running,
        "random_seed": config.seed,
        "incremental_streaming_output": True,
        "enable_deterministic_inference": settings.deterministic,
        "enable_memory_saver": config.takes_turns,
        **(settings.model_extra or {}),
    }
    return list(_flags(arguments))


def _flags(arguments: Mapping[str, Any]) -> Iterator[str]:
    for name, value in arguments.items():
        if value is None or value is False:
            continue
        yield "--" + name.replace("_", "-")
        if value is True:
            continue
        if isinstance(value, (list, tuple)):
            yield from map(str, value)
        else:
            yield json.dumps(value) if isinstance(value, dict) else str(value)
