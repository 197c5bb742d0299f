"""How an agent's program reaches the policy: over the network, or from inside an environment's sandbox."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentDoor:
    """The policy, for a program inside one episode's sandbox. Picklable.

    Owner: the episode's manager, which opens it before `AsyncTextEnv.play` and closes it afterwards.
    """

    socket: Path
    """Unix socket of this episode alone. It serves OpenAI's and Anthropic's protocols, and nothing else."""
    api_key: str
    """Refused when the episode is over."""
    model: str
    """What requests give as `model`."""


def agent_variables(url: str, api_key: str, model: str) -> dict[str, str]:
    """Environment variables of an agent's program: those that OpenAI's and Anthropic's clients read.

    `url` is what Anthropic's clients are given; OpenAI's get it with `/v1`.
    """
    return {
        "OPENAI_BASE_URL": f"{url}/v1",
        "OPENAI_API_KEY": api_key,
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_AUTH_TOKEN": api_key,
        "ANTHROPIC_MODEL": model,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": model,
        "ENVSDK_MODEL": model,
    }
