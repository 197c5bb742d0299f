"""A person plays an environment, line by line.

session -> observation -> line -> step, or a word to the session -> ... -> end
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from envsdk.contracts.env import TextEnv
from envsdk.contracts.failures import EnvsdkError, describe_error

HELP = """\
What you type is sent to the environment, but for empty lines. Lines with a colon are for this program:
  :legal      the replies that parse now, numbered (:l)
  :N          send the legal reply with the number N
  :oracle     what the environment's own solver would say (:o)
  :again      start the same task anew
  :help       these lines (:h)
  :quit       stop (:q, or the end of the input)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """How it ended."""

    turns: int
    total_reward: float
    success: bool
    is_over: bool
    """False when the person stopped before the end."""

    def __str__(self) -> str:
        how = "solved" if self.success else "not solved" if self.is_over else "stopped"
        return f"{how}: reward {self.total_reward:g} in {self.turns} turn{'' if self.turns == 1 else 's'}"


def play(
    env: TextEnv,
    lines: Iterable[str],
    say: Callable[[str], None],
    *,
    seed: int,
    max_turns: int | None = None,
) -> Played:
    """Play one episode with the replies in `lines`, and tell with `say` what comes back.

    Raises EnvsdkError when the environment raises.
    """
    turns, total, success = 0, 0.0, False
    say(_asked(env, "reset", seed=seed)[0])
    for line in lines:
        line = line.rstrip("\r\n")
        if not line.strip():
            continue
        if line.startswith(":"):
            if line in (":q", ":quit"):
                break
            if line == ":again":
                turns, total = 0, 0.0
                say(_asked(env, "reset", seed=seed)[0])
                continue
            reply = _answered(env, line, say)
            if reply is None:
                continue
        else:
            reply = line
        observation, reward, terminated, truncated, info = _asked(env, "step", reply)
        turns, total, success = turns + 1, total + reward, bool(info.get("success"))
        truncated = truncated or (max_turns is not None and turns >= max_turns)
        say(observation)
        if reward:
            say(f"[reward {reward:g}]")
        if terminated or truncated:
            if truncated and not success:
                say("[no turns left]")
            return Played(turns=turns, total_reward=total, success=success, is_over=True)
    return Played(turns=turns, total_reward=total, success=False, is_over=False)


def _answered(env: TextEnv, line: str, say: Callable[[str], None]) -> str | None:
    """Do what a line with a colon asks for; returns a reply to send, if it stands for one."""
    word = line[1:].strip()
    abilities = env.abilities()
    if word in ("o", "oracle"):
        say(f"[oracle: {_asked(env, 'oracle')}]" if "oracle" in abilities else "[it has no oracle]")
    elif word in ("l", "legal") or word.isdecimal():
        if "legal_actions" not in abilities:
            say("[it lists no legal replies]")
            return None
        legal = list(_asked(env, "legal_actions"))
        if word.isdecimal() and 1 <= int(word) <= len(legal):
            reply: str = legal[int(word) - 1]
            say(f"[{reply}]")
            return reply
        say("\n".join(f"  :{number} {reply}" for number, reply in enumerate(legal, 1)))
    else:
        say(HELP)
    return None


def _asked(env: TextEnv, method: str, *arguments: Any, **keywords: Any) -> Any:
    try:
        return getattr(env, method)(*arguments, **keywords)
    except Exception as error:
        raise EnvsdkError(f"{method}() raised {describe_error(error)} (`envsdk check` shows more)") from error
