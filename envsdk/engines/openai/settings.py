"""Settings of the `openai` engine."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveFloat, field_validator, model_validator

from envsdk.engines.settings import EngineSettings

SET_BY_ENGINE = frozenset(
    {"detokenize", "json_schema", "logprobs", "max_tokens",
     "min_p", "model", "n", "prompt", "regex", "repetition_penalty", "response_format", "return_token_ids",
     "routed_experts_prompt_start", "seed", "stop_token_ids", "stream", "structural_tag",
     "structured_outputs", "temperature", "top_k", "top_p"}
)  # fmt: skip
"""Fields of a request that follow from the run's own keys."""


class OpenAISettings(EngineSettings):
    """`strategy_config` of the `openai` engine."""

    takes_new_weights: ClassVar[bool] = False

    base_url: Annotated[str, Field(pattern=r"^https?://[^\s@]+$")]
    """Where `/completions` is, such as `http://127.0.0.1:8000/v1`."""
    protocol: Literal["completions", "generate"] = "completions"
    """`generate` asks vLLM's `/inference/v1/generate` (`vllm serve --enable-scale-out`, since 0.30), beside
    `/v1`: replies come with the versions of the weights that sampled each token."""
    model: Annotated[str, Field(min_length=1)]
    """Name of the model as the server knows it."""
    api_key_env: str | None = None
    """Name of the environment variable that holds the server's key; no key is sent when absent."""
    logprobs: Literal["sampling", "raw", "none"] = "sampling"
    """`sampling`: those of the distribution that tokens are drawn from, which is checked at the start;
    `raw`: what the server gives, unchecked; `none`: they are not asked for and recorded as NaN."""
    structured_output: Literal["none", "structured_outputs", "sglang", "response_format"] = "none"
    """How the server is told of a structure; that it keeps to them is checked at the start.
    `structured_outputs`: vLLM's field; `sglang`: `json_schema` and `regex`; `response_format`: OpenAI's
    field, for JSON schemas alone. `none`: replies with a structure are refused."""
    connect_timeout_s: PositiveFloat = 10.0
    """How long opening a connection may take."""
    silence_timeout_s: PositiveFloat = 300.0
    """How long the server may send nothing, its queue included, before a request is sent again."""
    max_retries: NonNegativeInt = 5
    """How often a request is sent again after a broken connection, silence, or status 408, 429 or 5xx."""
    backoff_s: PositiveFloat = 0.5
    """Longest wait before the first retry; doubles with each, up to 30 s. A `Retry-After` is respected."""
    extra_body: dict[str, Any] = Field(default_factory=dict)
    """Further fields of every request, such as `ignore_eos: true`; of `generate` its sampling parameters."""

    @field_validator("extra_body")
    @classmethod
    def _leaves_the_engines_fields_alone(cls, fields: dict[str, Any]) -> dict[str, Any]:
        if taken := sorted(SET_BY_ENGINE & fields.keys()):
            raise ValueError(f"{', '.join(taken)}: set by the engine from the run's own keys")
        return fields

    @model_validator(mode="after")
    def _generates_with_its_own_structures(self) -> Self:
        if self.protocol == "generate" and self.structured_output not in ("none", "structured_outputs"):
            raise ValueError("`protocol: generate` knows `structured_output: structured_outputs` alone")
        return self

    @property
    def url(self) -> str:
        """Where requests go."""
        base = self.base_url.rstrip("/")
        if self.protocol == "generate":
            return base.removesuffix("/v1") + "/inference/v1/generate"
        return base + "/completions"

    def identity(self) -> dict[str, Any]:
        return {"model": self.model, "extra_body": self.extra_body}
