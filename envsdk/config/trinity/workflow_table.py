"""Trinity's workflows and reward functions, and what becomes of each: `workflows.toml`."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import cache

from envsdk.base.settings.nearest import suggest
from envsdk.base.settings.strict import StrictSettings
from envsdk.config.foreign.row import read_data
from envsdk.config.foreign.table import Text


class Kind(StrEnum):
    """What plays a task."""

    PROMPTS = "prompts"
    """A prompt and its response, which a reward scores."""
    ENVIRONMENT = "environment"
    """An environment of ours."""
    TOOLS = "tools"
    """A prompt with tools to call before the response."""
    REFUSED = "refused"


class Workflow(StrictSettings):
    """One workflow."""

    names: tuple[str, ...] = ()
    """What it is called."""
    kind: Kind
    says: Text
    """What it becomes and what differs; of one that is refused, what is missing and what to do."""
    args: tuple[str, ...] = ()
    """`workflow_args` that are translated."""
    asks: str = ""
    """Which of the prompts is its own."""
    has_judge: bool = False


class _Workflows(StrictSettings):
    workflows: list[Workflow]
    prompts: dict[str, Text]
    """What workflows ask for by themselves, by name."""
    old_names: dict[str, str]
    rewards: dict[str, str]
    """Reward function -> the reward here."""


@cache
def table() -> _Workflows:
    """All that `workflows.toml` says."""
    return _Workflows.model_validate(read_data("envsdk.config.trinity", "workflows.toml"))


@cache
def workflows() -> Mapping[str, Workflow]:
    """The workflows by name."""
    return {name: workflow for workflow in table().workflows for name in workflow.names}


def workflow_named(name: str) -> Workflow:
    """What becomes of a workflow; one that the table does not have is refused."""
    kind = plain_name(name)
    if kind in workflows():
        return workflows()[kind]
    known = [each for each, workflow in workflows().items() if workflow.kind is not Kind.REFUSED]
    agent = workflows()["agentscope_workflow_adapter"].says
    hint = suggest(kind, known, known="known workflows")
    return Workflow(kind=Kind.REFUSED, says=f"is not there; {hint}. Code of your own {agent}")


def plain_name(name: str) -> str:
    """The name that the table has."""
    last = name.rpartition(".")[2].removeprefix("async_")
    return table().old_names.get(last, last)
