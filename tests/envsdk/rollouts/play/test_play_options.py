"""How a policy plays besides its name: scripts, models in runs, paced requests."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envsdk.collect import collect
from envsdk.contracts.failures import ConfigurationError
from envsdk.contracts.policy import Policy, Reply, TurnContext
from envsdk.engines.rate_limits import PacedPolicy, RateGate, RateLimits
from envsdk.rollouts.play.model import find_model_folder
from envsdk.rollouts.play.options import PlayOptions, read_body, read_replies


def test_the_newest_checkpoint_of_a_run_is_its_model(tmp_path: Path) -> None:
    for step in (2, 10):
        folder = tmp_path / "checkpoints" / f"step_{step:06d}" / "model"
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
    newest = tmp_path / "checkpoints" / "step_000010" / "model"
    assert find_model_folder(tmp_path) == newest
    assert find_model_folder(newest.parent) == newest
    assert find_model_folder(newest) == newest
    with pytest.raises(ConfigurationError, match="nor a run with one"):
        find_model_folder(tmp_path / "checkpoints")


@pytest.mark.parametrize(
    ("name", "text", "replies"),
    [
        ("script.txt", "Up\n<answer>Left</answer>\n", ("Up", "<answer>Left</answer>")),
        ("script.json", '["two\\nlines", ""]', ("two\nlines", "")),
    ],
)
def test_a_script_is_lines_or_a_list(tmp_path: Path, name: str, text: str, replies: tuple[str, ...]) -> None:
    (tmp_path / name).write_text(text)
    assert read_replies(tmp_path / name) == replies


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.txt", "", "at least one reply"),
        ("a.json", "[", "is not JSON"),
        ("a.json", "[]", "at least one reply"),
        ("a.json", "[1]", "as a list of texts"),
        ("a.json", '{"a": 1}', "as a list of texts"),
    ],
)
def test_a_script_that_is_none_is_named(tmp_path: Path, name: str, text: str, expected: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigurationError, match=expected):
        read_replies(tmp_path / name)


@pytest.mark.parametrize("text", ["{", "[]", "3"])
def test_a_body_must_be_an_object(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--endpoint-body"):
        read_body(text)


def test_an_endpoint_goes_over_the_engine_of_the_yaml() -> None:
    from envsdk.engines.sampling import SamplingParams
    from envsdk.rollouts.play.model import ModelSource

    def source(engine: str, **settings: Any) -> ModelSource:
        return ModelSource(
            folder=Path("model"), engine=engine, settings=settings, max_running=8,
            generating=SamplingParams(max_new_tokens=4), sequence_length=64, turn_timeout_s=1.0, seed=0,
        )  # fmt: skip

    options = PlayOptions(endpoint="http://here/v1", endpoint_model="qwen", concurrency=3)
    there = options.applied_to(source("embedded", num_threads=2))
    assert (there.engine, there.settings) == ("openai", {"base_url": "http://here/v1", "model": "qwen"})
    assert there.max_running == 3
    kept = options.applied_to(source("openai", logprobs="raw", base_url="http://elsewhere"))
    assert kept.settings == {"logprobs": "raw", "base_url": "http://here/v1", "model": "qwen"}
    assert PlayOptions().applied_to(source("embedded")) == source("embedded")


async def test_a_paced_policy_counts_the_prompt_and_the_reply_of_each_request() -> None:
    class Wordy(Policy):
        name = "wordy"

        async def act(self, turn: TurnContext) -> Reply:
            return Reply(text="hello", response_start=90, response_end=100)

    charged: list[int] = []
    gate = RateGate(RateLimits(tokens_per_minute=1e6))
    gate.charge = charged.append  # type: ignore[method-assign]
    policy = PacedPolicy(Wordy(), gate)
    turn: Any = SimpleNamespace()
    assert (await policy.act(turn)).text == "hello"
    assert charged == [100]
    assert policy.name == "wordy"


def test_a_limit_of_evaluations_is_refused_where_a_data_set_is_collected(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="max_failed_share is a limit of evaluations"):
        collect("envsdk/FrozenLake-v1", tmp_path / "lake", overrides=["max_failed_share=0.1"])
    assert not (tmp_path / "lake").exists()
