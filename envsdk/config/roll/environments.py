"""Rows of the table for environments (`custom_envs`) and rewards."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from envsdk.config.foreign.row import Applies, Place, Row, converted, no_effect, refused
from envsdk.settings.problems import KeyPath

GRIDS = {
    "sokoban": "envsdk/Sokoban-v1",
    "sokoban_sandbox": "envsdk/Sokoban-v1",
    "sokoban_native_env": "envsdk/Sokoban-v1",
    "frozen_lake": "envsdk/FrozenLake-v1",
}
SOKOBANS = tuple(name for name in GRIDS if name != "frozen_lake")
DATA_SETS = {"roll_math": "math", "roll_qa": "exact", "roll_code": "code"}
"""Environments of ROLL's that ask the rows of a data set -> the reward of the answers."""
_GEM = re.compile(r"(game|math|code|qa|logic|rg|eval):.+")
_SWE = "rock_tb_native_env"

_SYMBOLS = {
    "sokoban": ("wall", "floor", "target", "box_on_target", "box", "player", "player_on_target"),
    "frozen_lake": ("player", "frozen", "hole", "goal", "fallen", "arrived"),
}
"""The cells of `grid_lookup`, in the order of their numbers."""
_PLACEHOLDERS = {
    "current_observation": "{observation}",
    "current_step": "{turn_idx}",
    "step_count": "{turn_idx}",
    "history": "",
    "history_length": "all",
    "env_instruction": "",
    "suffix": "",
}
"""Placeholders of ROLL's templates that ours lack. Earlier turns are in the chat itself."""


def _is(*types: str) -> Applies:
    return lambda value, place: place.section(2).get("env_type") in types


def _is_gem(value: Any, place: Place) -> bool:
    return _GEM.fullmatch(str(place.section(2).get("env_type"))) is not None


def _env_type(value: Any, place: Place) -> Mapping[str, Any]:
    config = "custom_envs.*.env_config"
    given = place.section(2).get("env_config") or {}
    if value in SOKOBANS:
        usual = {"dim": [10, 10], "num_boxes": 4, "max_steps": 32}
        names = {"dim": "dim_room"}
        absent = {
            f"{config}.{name}": each for name, each in usual.items() if names.get(name, name) not in given
        }
        rewards = {"step_penalty": 0.1, "box_on_target_reward": 1.0, "success_reward": 10.0}
        absent |= {f"{config}.{name}": each for name, each in rewards.items() if name not in given}
        return {"custom_envs.*.env_type": GRIDS[value], **absent}
    if value == "frozen_lake":
        slippery = {} if "is_slippery" in given else {f"{config}.is_slippery": True}
        return {"custom_envs.*.env_type": GRIDS[value], **slippery}
    if value == "webshop":
        return {"custom_envs.*.env_type": "envsdk/WebShop-v1"}
    if value == _SWE:
        return {"custom_envs.*.env_type": "envsdk/SWE-v1"}
    if value in DATA_SETS:
        return {"custom_envs.*.env_type": "envsdk/Prompts-v1", f"{config}.reward": DATA_SETS[value]}
    return {"custom_envs.*.env_type": "envsdk/Gem-v1", f"{config}.id": value}


def _is_known_type(value: Any, place: Place) -> bool:
    own = {*GRIDS, "webshop", _SWE, *DATA_SETS}
    return isinstance(value, str) and (value in own or _GEM.fullmatch(value) is not None)


def _to(
    name: str, change: Callable[[Any], Any] = lambda value: value
) -> Callable[[Any, Place], Mapping[str, Any]]:
    return lambda value, place: {f"custom_envs.*.env_config.{name}": change(value)}


def _penalty(value: Any) -> Any:
    return -value if isinstance(value, int | float) and value <= 0 else value


def _sokoban_steps(value: Any, place: Place) -> Mapping[str, Any]:
    boxes = place.beside("num_boxes", default=4)
    fewest = 8 * boxes if isinstance(boxes, int) else 8
    return {"custom_envs.*.env_config.max_steps": max(value, fewest) if isinstance(value, int) else value}


def _pattern(value: Any, place: Place) -> Mapping[str, Any]:
    plain = re.sub(r"\\s[*+]", "", str(value))
    if plain == "<answer>(.*?)</answer>":
        return {}
    if plain == "<think>(.*?)</think><answer>(.*?)</answer>":
        return {"custom_envs.*.env_config.require_think": True}
    raise ValueError(
        "only `<answer>(.*?)</answer>` and the same after `<think>(.*?)</think>` are read; use one of them"
    )


def _web_pattern(value: Any, place: Place) -> Mapping[str, Any]:
    if value != "<answer>(.*?)</answer>":
        raise ValueError("only `<answer>(.*?)</answer>` is read; leave it out, and see action_format")
    return {"custom_envs.*.env_config.action_format": "answer"}


def _symbols(value: Any, place: Place) -> Mapping[str, Any]:
    kind = "frozen_lake" if place.section(2).get("env_type") == "frozen_lake" else "sokoban"
    if not isinstance(value, Mapping) or not {int(each) for each in value} <= set(range(len(_SYMBOLS[kind]))):
        raise ValueError(f"takes a mapping from 0 to {len(_SYMBOLS[kind]) - 1} to symbols")
    return {
        "custom_envs.*.env_config.symbols": {_SYMBOLS[kind][int(each)]: text for each, text in value.items()}
    }


def _template(value: Any, place: Place) -> Mapping[str, Any]:
    """ROLL fills templates in with `str.format`, where `{{` is a brace."""
    text = re.sub(
        r"\{(\w+)\}",
        lambda m: _PLACEHOLDERS.get(m[1], m[0]),
        str(value).replace("{{", "\0").replace("}}", "\1"),
    )
    text = text.replace("\0", "{").replace("\1", "}")
    return {"custom_envs.*.agent_template": text} if "{observation}" in text else {}


def _is_foreign_template(value: Any, place: Place) -> bool:
    own_names = {"observation", "turn_idx", "actions_left", "max_response_length"}
    return (
        isinstance(value, str)
        and place.is_theirs
        and (
            "{{" in value
            or "{observation}" not in value
            or bool(set(re.findall(r"\{(\w+)\}", value)) - own_names)
        )
    )


def _data_columns(role: str) -> Callable[[Any, Place], Mapping[str, Any]]:
    return lambda value, place: {f"custom_envs.*.env_config.columns.{role}": value}


_ENV = "custom_envs.*"
_CONFIG = "custom_envs.*.env_config"
_ROLL_CLASS: Applies = lambda value, place: value is None or str(value).startswith("roll.")  # noqa: E731


def _is_unplayed(value: Any, place: Place) -> bool:
    managers = [place.get(name, "tags") for name in ("train_env_manager", "val_env_manager")]
    return any(isinstance(tags, list) for tags in managers) and not any(
        place.path[-1] in tags for tags in managers if isinstance(tags, list)
    )


ENVIRONMENT_ROWS: tuple[Row, ...] = (
    *no_effect(
        _ENV,
        "no manager names the tag",
        applies=_is_unplayed,
        condition="that nobody plays",
        only_their_files=True,
    ),
    refused(
        f"{_ENV}.env_type",
        "Atropos serves its environments over a protocol of its own: take one of "
        "envsdk's, or wrap it in `envsdk/OpenEnv-v1`",
        applies=_is("atropos_env"),
    ),
    refused(
        f"{_ENV}.env_type",
        "OpenReward's environments are served by a program of theirs: take one of "
        "envsdk's, or wrap it in `envsdk/OpenEnv-v1`",
        applies=_is("openreward_env"),
    ),
    refused(
        f"{_ENV}.env_type",
        "take `envsdk/ToolUse-v1`, which gives any environment tools to call",
        applies=_is("sokoban_mcp", "sokoban_tool_call"),
    ),
    converted(
        f"{_ENV}.env_type",
        "env_type, env_config",
        _env_type,
        "sokoban, frozen_lake, webshop, ...: ours, with ROLL's rewards",
        applies=_is_known_type,
        condition="one of ROLL's",
    ),
    refused(
        f"{_ENV}.tool_wrapper",
        "gem's tools are not there: give the environment tools with `envsdk/ToolUse-v1` "
        "(Python functions, MCP servers); see docs/tools.md",
    ),
    *no_effect(
        f"{_ENV}.use_thread_lock {_ENV}.max_env_step_concurrent", "environments run side by side in workers"
    ),
    *no_effect(
        f"{_ENV}.history_length {_ENV}.pre_step_template {_ENV}.next_step_template",
        "the policy sees all turns of the episode, as a chat",
    ),
    *no_effect(
        f"{_ENV}.agent_runner_cls {_ENV}.env_manager_cls",
        "ROLL's own: TrajEnvManager plays the episodes",
        applies=_ROLL_CLASS,
        condition="null, or roll.*",
    ),
    *no_effect(
        f"{_ENV}.agent_system_template", "says nothing", applies=lambda v, p: v is None, condition="null"
    ),
    *no_effect(
        f"{_ENV}.agent_system_template",
        "is a placeholder",
        applies=lambda v, p: v == "agent_system_template placeholder",
        condition="a placeholder",
    ),
    converted(
        f"{_ENV}.agent_template",
        "agent_template",
        _template,
        "`{current_observation}`: `{observation}`, `{current_step}`: `{turn_idx}`, `{{`: `{`; without an "
        "observation: as when absent",
        applies=_is_foreign_template,
        condition="with ROLL's placeholders",
    ),
    # Grids.
    converted(
        f"{_CONFIG}.max_steps",
        "env_config.max_steps",
        _sokoban_steps,
        "at least 8 for each box; the tag's max_steps ends episodes",
        applies=_is(*SOKOBANS),
        condition="of Sokoban",
    ),
    converted(f"{_CONFIG}.dim_room", "env_config.dim", _to("dim", list), applies=_is(*SOKOBANS)),
    *no_effect(
        f"{_CONFIG}.search_depth",
        "rooms are drawn by their solution: min_pushes is the difficulty",
        applies=_is(*SOKOBANS),
        condition="of Sokoban",
    ),
    converted(
        f"{_CONFIG}.grid_lookup", "env_config.symbols", _symbols, applies=_is(*GRIDS), condition="of grids"
    ),
    *no_effect(
        f"{_CONFIG}.grid_vocab",
        "the legend names the cells of grid_lookup",
        applies=_is(*GRIDS),
        condition="of grids",
    ),
    converted(
        f"{_CONFIG}.format_penalty",
        "env_config.invalid_penalty",
        _to("invalid_penalty", _penalty),
        "its size: a penalty of -0.15 is 0.15 here",
        applies=_is(*GRIDS, "webshop"),
        condition="of grids and WebShop",
    ),
    converted(
        f"{_CONFIG}.action_pattern",
        "env_config.require_think",
        _pattern,
        "true for the pattern with <think>",
        applies=_is(*GRIDS),
        condition="of grids",
    ),
    *no_effect(
        f"{_CONFIG}.env_instruction",
        "write it into agent_system_template; the first observation explains the symbols",
        applies=_is(*GRIDS, "webshop"),
        condition="of grids and WebShop",
    ),
    *no_effect(
        f"{_CONFIG}.render_mode {_CONFIG}.special_token_list {_CONFIG}.map_seed {_CONFIG}.base_url",
        "the environment runs in the worker and draws a new world for each task",
        applies=_is(*GRIDS),
        condition="of grids",
    ),
    refused(
        f"{_CONFIG}.action_lookup", "moves are Left, Down, Right and Up; leave it out", applies=_is(*GRIDS)
    ),
    # WebShop.
    converted(
        f"{_CONFIG}.action_pattern",
        "env_config.action_format",
        _web_pattern,
        "answer",
        applies=_is("webshop"),
        condition="of WebShop",
    ),
    # SWE.
    *no_effect(
        f"{_CONFIG}.dataset_name",
        "names no tests: give a file of SWE-bench as env_config.data; the tasks "
        "that ship with envsdk are played until then",
        applies=_is(_SWE),
        condition="of SWE",
    ),
    converted(
        f"{_CONFIG}.mode",
        "env_config.split",
        _to("split", lambda mode: "held_out" if mode == "val" else "train"),
        "val: held_out",
        applies=_is(_SWE),
        condition="of SWE",
    ),
    *no_effect(
        " ".join(
            f"{_CONFIG}.{name}"
            for name in [
                "agent_config",
                "tools",
                "test_files",
                "sandbox_base_url",
                "user_id",
                "experiment_id",
                "debug",
                "cluster",
                "auto_clear_seconds",
                "start_timeout_s",
                "model_service",
            ]
        ),
        "the policy itself gives the commands, in envsdk's own sandbox",
        applies=_is(_SWE),
        condition="of SWE",
    ),
    *no_effect(
        f"{_CONFIG}.max_steps",
        "the tag's max_steps holds",
        applies=_is(*DATA_SETS),
        condition="of data sets",
    ),
    # Data sets.
    converted(
        f"{_CONFIG}.dataset_name",
        "env_config.files",
        _to("files", lambda name: [name]),
        applies=_is(*DATA_SETS),
        condition="of data sets",
    ),
    converted(
        f"{_CONFIG}.question_key",
        "env_config.columns.prompt",
        _data_columns("prompt"),
        applies=_is(*DATA_SETS),
        condition="of data sets",
    ),
    converted(
        f"{_CONFIG}.answer_key",
        "env_config.columns.ground_truth",
        _data_columns("ground_truth"),
        applies=_is(*DATA_SETS),
        condition="of data sets",
    ),
    *no_effect(
        f"{_CONFIG}.split",
        "all rows of the file are asked",
        applies=_is(*DATA_SETS),
        condition="of data sets",
    ),
    # Gem.
    converted(
        f"{_CONFIG}.*",
        "env_config.kwargs",
        lambda v, p: {f"{_CONFIG}.kwargs.*": v},
        "arguments of gem.make",
        applies=lambda v, p: _is_gem(v, p) and p.path[-1] not in ("id", "kwargs"),
        condition="of gem's",
    ),
)

_REWARDS = "roll.pipeline.rlvr.rewards."
_D = "rewards.*"


def _worker(name: str) -> Applies:
    return lambda value, place: (
        str(place.section(2).get("worker_cls")).startswith(_REWARDS)
        and str(place.section(2).get("worker_cls")).endswith(name)
    )


def _is_roll_reward(value: Any, place: Place) -> bool:
    return str(place.section(2).get("worker_cls")).startswith("roll.")


def _cross_think(value: Any, place: Place) -> Mapping[str, Any]:
    kind = place.beside("reward_type", default="soft")
    if kind not in ("soft", "loose", "strict"):
        raise ValueError(f"reward_type {kind!r} is not there: use soft, loose or strict")
    parts = {
        "choice": {"worker_cls": "choice", "reward_type": kind},
        "repetition": {"worker_cls": "repetition", "ngram_size": 3, "weight": 0.5},
    }
    return {f"{_D}.worker_cls": "sum", f"{_D}.parts": parts}


def _judge(value: Any, place: Place) -> Mapping[str, Any]:
    model = place.beside("judge_model_name") or place.beside("model_args", default={}).get(
        "model_name_or_path"
    )
    return {
        f"{_D}.worker_cls": "judge",
        f"{_D}.prompt": "match",
        **({f"{_D}.model": model} if model else {}),
    }


def pending_keys(data: Mapping[str, Any]) -> dict[KeyPath, str]:
    """Keys that training needs, and that one of ROLL's files says otherwise or not at all: what to do."""
    rewards = data.get("rewards")
    return {
        ("rewards", name, "base_url"): (
            "is missing: start the judge's model, for example with `vllm serve MODEL --port 8001`, and give "
            f"rewards.{name}.judge_api_url=http://HOST:8001/v1"
        )
        for name, reward in (rewards.items() if isinstance(rewards, Mapping) else ())
        if isinstance(reward, Mapping)
        and str(reward.get("worker_cls")).endswith("LLMJudgeRewardWorker")
        and not (reward.get("judge_api_url") or reward.get("base_url"))
    }


def _judge_sampling(value: Any, place: Place) -> Mapping[str, Any]:
    given = value if isinstance(value, Mapping) else {}
    ours = {"max_tokens": given.get("max_new_tokens"), "temperature": given.get("temperature")}
    extra = {name: given[name] for name in ("top_p", "top_k") if name in given}
    found = {f"{_D}.{name}": each for name, each in ours.items() if each is not None}
    return found | ({f"{_D}.extra_body": extra} if extra else {})


def _reward(name: str, **settings: Any) -> Callable[[Any, Place], Mapping[str, Any]]:
    return lambda value, place: {
        f"{_D}.worker_cls": name,
        **{f"{_D}.{key}": each for key, each in settings.items()},
    }


_JUDGE = _worker("LLMJudgeRewardWorker")

REWARD_ROWS: tuple[Row, ...] = (
    *(
        converted(f"{_D}.worker_cls", f"worker_cls: {ours}", convert, applies=_worker(roll), condition=roll)
        for roll, ours, convert in (
            ("CrossThinkQARuleRewardWorker", "sum of choice and repetition", _cross_think),
            ("MultipleChoiceBoxedRuleRewardWorker", "choice", _reward("choice", reward_type="boxed")),
            ("GeneralValRuleRewardWorker", "choice", _reward("choice")),
            ("GeneralRuleRewardWorker", "ifeval", _reward("ifeval")),
            ("MathRuleRewardWorker", "math", _reward("math")),
            ("CodeSandboxRewardWorker", "code", _reward("code")),
            ("LLMJudgeRewardWorker", "judge", _judge),
        )
    ),
    refused(
        f"{_D}.worker_cls",
        "is a worker of ROLL's that envsdk has no counterpart of: name a reward of envsdk's "
        "(math, exact, choice, ifeval, code, judge, remote, ...), or write your own: docs/rewards.md",
        applies=lambda v, p: str(v).startswith("roll."),
    ),
    converted(
        f"{_D}.judge_api_url",
        "base_url",
        lambda v, p: {f"{_D}.base_url": v},
        applies=_JUDGE,
        condition="of the judge",
    ),
    refused(
        f"{_D}.judge_api_key",
        "a key in a file ends up in run folders: put it into an environment variable and "
        "name that: api_key_env",
        applies=_JUDGE,
    ),
    *no_effect(
        f"{_D}.judge_model_name",
        "is part of worker_cls's conversion",
        applies=_JUDGE,
        condition="of the judge",
    ),
    *no_effect(
        f"{_D}.judge_prompt",
        "the judge is asked whether the answer matches: prompt: match",
        applies=_JUDGE,
        condition="of the judge",
    ),
    *no_effect(
        f"{_D}.judge_model_type",
        "you start the judge's model: `vllm serve MODEL --port 8001`, and give "
        "judge_api_url: http://HOST:8001/v1",
        applies=_JUDGE,
        condition="of the judge",
    ),
    converted(
        f"{_D}.generating_args",
        "max_tokens, temperature, extra_body",
        _judge_sampling,
        applies=_JUDGE,
        condition="of the judge",
    ),
    *no_effect(
        f"{_D}.infer_batch_size",
        "judges are asked one response at a time",
        applies=_JUDGE,
        condition="of the judge",
    ),
    *no_effect(
        " ".join(
            f"{_D}.{name}"
            for name in [
                "model_args",
                "data_args",
                "strategy_args",
                "device_mapping",
                "generating_args",
                "system_envs",
            ]
        ),
        "the reward runs without a model of its own, or asks a server",
        applies=_is_roll_reward,
        condition="of ROLL's workers",
    ),
    *no_effect(
        f"{_D}.use_local",
        "programs run in envsdk's sandbox",
        applies=_is_roll_reward,
        condition="of ROLL's workers",
    ),
    *no_effect(
        f"{_D}.reward_type",
        "ROLL's worker does not read it, or it is part of worker_cls's conversion",
        applies=_is_roll_reward,
        condition="of ROLL's workers",
    ),
    *no_effect(
        f"{_D}.response_length_penalty_coef",
        "has no effect in ROLL either; shape lengths with a `length` part of a `sum`",
        applies=_is_roll_reward,
        condition="of ROLL's workers",
    ),
    *no_effect(
        f"{_D}.format_pattern",
        "ROLL does not add it; add a `format` part of a `sum`",
        applies=_is_roll_reward,
        condition="of ROLL's workers",
    ),
    *no_effect(f"{_D}.response_filter_config", "ROLL's filter keeps everything"),
    *no_effect(
        f"{_D}.name {_D}.code_url {_D}.test_case_timeout",
        "is about ROLL's own workers",
        applies=_is_roll_reward,
        condition="of ROLL's workers",
    ),
)
