"""A person plays an environment, line by line.

session -> observation -> line -> step, or a word to the session -> ... -> end
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
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
    rewards: Mapping[str, float]
    """In all, by role; under an empty name where there are no roles."""
    success: bool
    is_over: bool
    """False when the person stopped before the end."""

    def __str__(self) -> str:
        solved = "over" if "" not in self.rewards else "solved" if self.success else "not solved"
        how = solved if self.is_over else "stopped"
        return f"{how}: {_told(self.rewards)} in {self.turns} turn{'' if self.turns == 1 else 's'}"


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
    turns, success = 0, False
    total, role = _begin(env, say, seed)
    for line in lines:
        line = line.rstrip("\r\n")
        if not line.strip():
            continue
        if line.startswith(":"):
            if line in (":q", ":quit"):
                break
            if line == ":again":
                turns = 0
                total, role = _begin(env, say, seed)
                continue
            reply = _answered(env, line, say)
            if reply is None:
                continue
        else:
            reply = line
        observation, reward, terminated, truncated, info = _asked(env, "step", reply)
        turns, success = turns + 1, bool(info.get("success"))
        paid = {**info.get("rewards", {}), role: reward}
        total = {each: total[each] + paid.get(each, 0.0) for each in total}
        truncated = truncated or (max_turns is not None and turns >= max_turns)
        say(observation)
        if any(paid.values()):
            say(f"[{_told(paid)}]")
        if terminated or truncated:
            if truncated and not success:
                say("[no turns left]")
            return Played(turns=turns, rewards=total, success=success, is_over=True)
        role = _turn_of(info, say)
    return Played(turns=turns, rewards=total, success=False, is_over=False)


def _begin(env: TextEnv, say: Callable[[str], None], seed: int) -> tuple[dict[str, float], str]:
    """Start the task; returns each role's reward, and the one whose turn it is."""
    observation, info = _asked(env, "reset", seed=seed)
    say(observation)
    return dict.fromkeys(info.get("roles") or ("",), 0.0), _turn_of(info, say)


def _turn_of(info: Mapping[str, Any], say: Callable[[str], None]) -> str:
    role: str = info.get("role", "")
    if role:
        say(f"[{role} to play]")
    return role


def _told(rewards: Mapping[str, float]) -> str:
    return "reward " + ", ".join(f"{role} {reward:g}".strip() for role, reward in rewards.items())


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
