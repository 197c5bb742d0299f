"""The three additions of docs/how-to-add.md, done from outside.

In a folder of the user's, or in a copy of the package with the edits that the page lists.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from envsdk.algorithms.batches import ModelScores, learnable, prepare_batch
from envsdk.base import registry
from envsdk.config import load_config
from envsdk.contracts.failures import ConfigurationError
from envsdk.contracts.trajectory import Task, Trajectory
from envsdk.engines.engine_policy import EnginePolicy
from envsdk.managers.wiring import tag_setups
from envsdk.rollouts.play.local_runner import play_tasks
from tests.envsdk.engines.endpoint_models import CHATS
from tests.envsdk.engines.test_engine_policy import ScriptedProxy

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/how-to-add.md").read_text(encoding="utf-8")

RUN = """\
exp_name: digs
rollout_batch_size: 2
val_batch_size: 2
sequence_length: 1024
max_steps: 1
custom_envs:
  Ground: {env_type: mine/Digging-v0, max_steps: 3}
train_env_manager: &manager {tags: [Ground], num_env_groups: 1, group_size: 2}
val_env_manager: *manager
actor_infer:
  strategy_args: {strategy_name: mock}
adv_estimator: effort:less_effort
adv_args: {price: 0.5}
"""


@pytest.fixture
def run_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run beside the page's two modules."""
    for name, code in re.findall(r"```python file=(\S+)\n(.*?)```", PAGE, re.DOTALL):
        (tmp_path / name).write_text(code)
        monkeypatch.delitem(sys.modules, name.removesuffix(".py"), raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "_specs", dict(registry._specs))
    __import__("digging")
    file = tmp_path / "run.yaml"
    file.write_text(RUN)
    return file


async def test_a_number_of_each_turn_reaches_an_estimator_of_ones_own_with_its_settings(
    run_file: Path,
) -> None:
    config = load_config(run_file).config
    chat = CHATS["qwen_like_chat"]
    efforts = [[0, 1, 2], [4, 0, 1]]
    proxy = ScriptedProxy(*(chat.reply("dig" + "!" * effort) for episode in efforts for effort in episode))
    played: list[Trajectory] = []
    await play_tasks(
        [(n, Task(tag="Ground", split="train", index=0)) for n in range(2)],
        setups=tag_setups(config, config.train_env_manager),
        policy=lambda _: EnginePolicy(
            proxy, chat, config.actor_infer.generating_args.sampling, sequence_length=config.sequence_length
        ),
        run_seed=config.seed,
        num_slots_per_tag=1,
        on_trajectory=lambda _, trajectory: played.append(trajectory),
    )
    trajectories = [replace(trajectory, group_id=0) for trajectory in learnable(played)]
    sequences = prepare_batch(config.algorithm, 0, trajectories, ModelScores()).batch.sequences
    earned = np.array([[0, -0.5, 1 - 1.0], [-2.0, 0, 1 - 0.5]])
    for trajectory, sequence, advantages in zip(trajectories, sequences, earned - earned.mean(), strict=True):
        assert [turn.metrics["effort"] for turn in trajectory.turns] in efforts
        for turn, advantage in zip(trajectory.turns, advantages, strict=True):
            given = sequence.advantages[turn.response_start : turn.response_end]
            np.testing.assert_allclose(given, advantage, rtol=1e-6)


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["adv_args.price=-1"], "adv_args.price.*must be at least 0"),
        (["adv_args.prize=1"], "adv_args.prize.*did you mean `price`"),
        (["train_env_manager.group_size=1"], "adv_estimator=effort:less_effort compares the members"),
        (["adv_estimator=grpo"], "adv_args.price.*unknown key"),
        (["critic_warmup=1", "max_steps=5"], "which has no critic"),
    ],
)
def test_what_an_estimator_of_ones_own_declares_is_held_against_the_file(
    run_file: Path, overrides: list[str], says: str
) -> None:
    with pytest.raises(ConfigurationError, match=says):
        load_config(run_file, overrides)


EDITS = {
    "engines/sampling.py": [
        ("    min_p: MinP = 0.0\n", "    top_a: MinP = 0.0\n    min_p: MinP = 0.0\n"),
        ("self.min_p > 0)", "self.min_p > 0 or self.top_a > 0)"),
    ],
    "config/section.py": [("    min_p: MinP = 0.0\n", "    top_a: MinP = 0.0\n    min_p: MinP = 0.0\n")],
    "engines/endpoint/wire.py": [
        ("    min_p: MinP | None = None\n", "    top_a: MinP | None = None\n    min_p: MinP | None = None\n")
    ],
    "engines/embedded/sampling.py": [
        (
            '    outside |= ordered < ordered[:, :1] + shape["min_p"].log()\n',
            '    outside |= ordered < ordered[:, :1] + shape["min_p"].log()\n'
            '    outside |= probabilities < shape["top_a"] * probabilities[:, :1] ** 2\n',
        )
    ],
}
"""A parameter `top_a`: tokens less likely than top_a times the likeliest one's squared probability are left
out."""

USE = """\
import numpy as np, torch
from envsdk.config import load_config
from envsdk.engines.embedded.sampling import SamplingPlan, sample
from envsdk.engines.endpoint.sampling import SamplingRules, sampling_params
from envsdk.engines.endpoint.wire import SamplingFields
from envsdk.engines.engine import GenerationRequest
from envsdk.engines.openai.settings import OpenAISettings
from envsdk.engines.openai.wire import completion_body
from envsdk.engines.sampling import out_of_range, recorded
from envsdk.engines.sglang.settings import SGLangSettings
from envsdk.engines.sglang.wire import generate_body
from envsdk.engines.vllm.translate import sampling_options
from envsdk.engines.wire import pack_requests, unpack_requests

config = load_config("agentic_async.yaml", ["actor_infer.generating_args.top_a=0.5"]).config
given = config.actor_infer.generating_args.sampling
request = GenerationRequest(request_id="r", prompt_ids=np.array([1], np.int32), sampling=given)
[request] = unpack_requests(pack_requests([request]))
asked = sampling_params(
    SamplingFields(model="m"), SamplingRules(**request.sampling.shape()), num_prompt_tokens=1,
    sequence_length=64, stop_token_ids=(), default_max_tokens=4, number=0, choice=0,
)
assert asked.top_a == recorded(asked)["top_a"] == 0.5 and not out_of_range(asked) and asked.is_truncated
server = OpenAISettings(base_url="http://127.0.0.1:1/v1", model="m")
assert completion_body(server, request, 4)["top_a"] == 0.5
assert sampling_options(asked, room=4)["top_a"] == 0.5
body = generate_body(SGLangSettings(), rid="r", input_ids=[1], sampling=asked, max_new_tokens=4)
assert body["sampling_params"]["top_a"] == 0.5
logits = torch.tensor([[0.5, 0.3, 0.12, 0.08]]).log().expand(1000, 4)
evenly = (torch.arange(1000) + 0.5) / 1000
tokens, *_ = sample(logits, evenly, SamplingPlan.of([asked] * 1000, torch.device("cpu")))
assert set(tokens.tolist()) == {0, 1}, "0.5 * 0.5 ** 2 = 0.125"
"""


def test_a_sampling_parameter_takes_no_more_files_than_the_page_lists(tmp_path: Path) -> None:
    named = re.findall(r"^\| `envsdk/(\S+\.py)` \|", PAGE, re.MULTILINE)
    assert sorted(named) == sorted(EDITS)
    shutil.copytree(ROOT / "envsdk", tmp_path / "envsdk")
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    for name, edits in EDITS.items():
        file = tmp_path / "envsdk" / name
        text = file.read_text(encoding="utf-8")
        for before, after in edits:
            assert text.count(before) == 1, (name, before)
            text = text.replace(before, after)
        file.write_text(text, encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", USE],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
