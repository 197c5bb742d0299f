"""The base of engines' settings, and the key that an engine's server may ask for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import ConfigDict, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from envsdk.base.settings.memory import Memory, ModelSizes
from envsdk.base.settings.problems import Problem
from envsdk.base.settings.strict import StrictSettings
from envsdk.contracts.failures import ConfigurationError
from envsdk.engines.sampling import SamplingShape

_QUANTIZED = {"fp8": 1.0, "awq": 0.5, "awq_marlin": 0.5, "bitsandbytes": 0.5, "gptq": 0.5, "gptq_marlin": 0.5}
"""Bytes of a weight in the layers, by an engine's `quantization`."""
NO_EXPERTS = (
    "does not tell which experts a mixture chose: take `embedded`, or `vllm` or `sglang` with "
    "strategy_config.enable_return_routed_experts: true"
)
"""What to do about an engine without the ability `routed_experts`."""


class EngineSettings(StrictSettings):
    """Base of every engine's settings."""

    needs: ClassVar[tuple[str, ...]] = ()
    """Modules of optional packages that a run with this engine needs."""
    takes_new_weights: ClassVar[bool] = True
    """Whether the engine can be trained with: its ability `weight_updates`, known without importing it."""

    scores_prompts: ClassVar[bool] = False
    """Its ability `prompt_logprobs`."""

    def start_problem(self, model: Path | None, sequence_length: int, max_running: int) -> Problem | None:
        """What stands against a start with the model in a folder: a key of `strategy_args`, or of the run."""
        return None

    def update_problem(self, model_type: str, adapter_rank: int | None) -> Problem | None:
        """Why the engine takes no new weights of a model of this family, or no adapter of this rank."""
        return None

    @property
    def may_tell_experts(self) -> bool:
        """False where it is known before the start that the engine lacks the ability `routed_experts`."""
        return False

    @property
    def is_one_server(self) -> bool:
        """Whether every engine with these settings would be the same server, which belongs to one."""
        return False

    def support_problem(self, sampling: SamplingShape, *others: SamplingShape) -> str:
        """Why the engine does not tell which tokens `sampling` leaves to draw from; empty where it does.

        `others`: of requests that do not ask for it.
        """
        return "the engine does not tell them"

    def weights_and_keys(
        self,
        model: ModelSizes,
        element_bytes: int,
        num_sequences: int,
        num_tokens: int,
        *,
        num_devices: int = 1,
    ) -> Memory:
        """Bytes on each device of an engine that keeps the keys and values of so many sequences."""
        extra = self.model_extra or {}
        layer_bytes = _QUANTIZED.get(str(extra.get("quantization")), element_bytes)
        is_fp8 = str(extra.get("kv_cache_dtype")).startswith("fp8")
        keys = model.key_value_bytes(1 if is_fp8 else element_bytes, num_devices=num_devices)
        rest = model.num_parameters - model.num_layer_parameters
        return {
            "weights": (model.num_layer_parameters * layer_bytes + rest * element_bytes) / num_devices,
            f"keys and values of {num_sequences:,} x {num_tokens:,} tokens": keys
            * num_sequences
            * num_tokens,
        }

    def identity(self) -> dict[str, Any]:
        """What of these settings decides the replies to a given prompt and seed, as JSON."""
        return {}


def api_key_of(variable: str | None, *, where: str) -> str | None:
    """The key in an environment variable; ConfigurationError when `variable` names none.

    `where` the name was given, for the message.
    """
    if variable is None:
        return None
    # A key written where its variable's name belongs must not end up in a log.
    if not variable.isidentifier():
        raise ConfigurationError(f"{where}: give the name of an environment variable, not the key")
    key = os.environ.get(variable)
    if not key:
        raise ConfigurationError(f"{where}: the environment variable {variable} is not set")
    return key


ROUTED_EXPERTS = "enable_return_routed_experts"
"""The argument by which vLLM and SGLang tell the experts that a mixture chose."""
_MISSPELLED = 0.85
"""How similar a name must be to a known one, as `difflib` measures it, to be a misspelling of it."""


class PassThroughSettings(EngineSettings):
    """Takes the arguments of the program behind the engine too, by their names there.

    The program refuses unknown ones when it starts. A name that differs little from a known one is a
    misspelling, and is refused before.
    """

    model_config = ConfigDict(extra="allow")

    common_arguments: ClassVar[frozenset[str]] = frozenset()
    """Arguments of the program whose misspellings are found."""
    set_by_engine: ClassVar[Mapping[str, str]]
    """Arguments of the program that follow from the run's own keys, and what each is."""

    @property
    def may_tell_experts(self) -> bool:
        return bool((self.model_extra or {}).get(ROUTED_EXPERTS))

    @model_validator(mode="after")
    def _no_misspelled_arguments(self) -> Self:
        problems = [
            InitErrorDetails(
                type=PydanticCustomError("value_error", "{error}", {"error": problem}),
                loc=(name,),
                input=value,
            )
            for name, value in (self.model_extra or {}).items()
            if (problem := self.problem_of(name))
        ]
        if problems:
            raise ValidationError.from_exception_data(type(self).__name__, problems)
        return self

    def problem_of(self, name: str) -> str:
        """Why a key that is no field of this model is refused; empty for an argument that passes through."""
        if name in self.set_by_engine:
            return f"it cannot be set here: it {self.set_by_engine[name]}"
        known = (self.common_arguments | type(self).model_fields.keys()) - self.set_by_engine.keys()
        if name in known or not (meant := get_close_matches(name, known, n=1, cutoff=_MISSPELLED)):
            return ""
        return f"unknown key; did you mean `{meant[0]}`?"
