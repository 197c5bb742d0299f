"""The WebShop environment."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from copy import copy
from pathlib import Path
from typing import Any

from gymnasium.error import ResetNeeded
from pydantic import Field

from envsdk.adapters.missing import import_extra
from envsdk.contracts.env import Info, TextEnv
from envsdk.contracts.turn_env import AnyTextSpaces
from envsdk.envs.arguments import EnvArguments, keywords_of
from envsdk.envs.webshop.goals import GoalKind, Split, split_bounds
from envsdk.envs.webshop.oracle import best_options, find_query, next_action, plain_query
from envsdk.envs.webshop.pages import Mode, render
from envsdk.envs.webshop.replies import ActionFormat, format_reply, parse_reply
from envsdk.envs.webshop.session import PAGE_SIZE, TRIP, Page, Session, parse_action
from envsdk.envs.webshop.store import Store, is_complete, open_store

INVALID = "Invalid action."


class WebShopArguments(EnvArguments):
    """The keywords of `WebShopEnv`."""

    data_dir: str | None = None
    """A store made by `python -m envsdk.envs.webshop.build`, or the folder in which its default place is.
    None generates a catalogue."""
    num_products: int = Field(1000, ge=1)
    """Products of the generated catalogue."""
    catalogue_seed: int = 0
    """Seed of the generated catalogue."""
    goals: GoalKind = "human"
    split: Split = "all"
    """`test` (goals 0 to 499), `eval` (500 to 1499), `train` (from 1500), `held_out` (the first fifth),
    `rest` or `all`."""
    observation_mode: Mode = "text"
    action_format: ActionFormat = "tag"
    """`tag`, the action in `<action>`; `answer`, in `<answer>`; `text`, the entire reply."""
    max_steps: int = Field(15, ge=1)
    """Replies before the episode is truncated."""
    page_size: int = Field(PAGE_SIZE, ge=1)
    """Products on a page of results; upstream has 10."""
    show_attributes: bool = False
    """Products have a page of their attributes."""
    strict_options: bool = False
    """An option counts only if it is the very one asked for."""
    special_queries: bool = True
    """`search[<r>]`, `search[<c> CATEGORY]` and `search[<q> QUERY]` list products."""
    explain_invalid: bool = False
    """A line below the page says that the reply was no action possible there."""
    invalid_penalty: float = 0.0
    """Taken off the reward of such a turn."""
    render_mode: str | None = None
    """None, or `ansi`: `render()` returns the page."""


class WebShopEnv(AnyTextSpaces, TextEnv):
    """Buy what an instruction asks for, in a shop of text pages: upstream WebShop's text mode.

    The observation is a page. An action is `search[words]` or `click[label]`, in a reply such as
    `<action>click[buy now]</action>`. Buying ends the episode; the reward, from 0 to 1, says how well the
    purchase fits, and `info["success"]` that it fits in full. Any other turn has reward 0.

    A reply that names no action that is possible on the page costs a turn and leaves the page as it is. After
    `max_steps` replies the episode is truncated.

    `reset(options={"goal": 17})` plays the goal at that position of upstream's order, whatever the split;
    otherwise the seed draws one of the split.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 4}  # noqa: RUF012 (gymnasium declares it so)
    max_observation_length = 2**20

    @keywords_of(WebShopArguments)
    def __init__(self, args: WebShopArguments) -> None:
        self.max_steps, self.render_mode = args.max_steps, args.render_mode
        self.store = _open(args.data_dir, args.num_products, args.catalogue_seed)
        self._args = args
        self._bounds = split_bounds(args.split, self.store.num_goals(args.goals))
        self._session: Session | None = None
        self._number = 0
        """Number of the goal, in upstream's order."""
        self._turn = 0
        self._note = ""
        self._ended = True
        self._success = False
        self._plan: tuple[dict[str, str], str] | None = None
        """The oracle's: what to choose, and what to search for."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        super().reset(seed=seed)
        number = (options or {}).get("goal")
        if number is None:
            number = self.store.draw_goal(self._args.goals, *self._bounds, self.np_random.random())
        elif not (isinstance(number, int) and 0 <= number < self.store.num_goals(self._args.goals)):
            raise ValueError(
                f"goal: must be from 0 to {self.store.num_goals(self._args.goals) - 1}, not {number!r}"
            )
        self._start(number)
        return self._observation(), {"goal": number}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        session = self._session
        if session is None:
            raise ResetNeeded("WebShop: call reset() before step()")
        if self._ended:
            # Nothing happens, for no reward.
            bought = session.page is Page.DONE
            return self._observation(), 0.0, bought, not bought, {"success": self._success, "metrics": {}}
        self._turn += 1
        outcome = session.act(parse_reply(action, self._args.action_format))
        reward = 0.0 if outcome.is_valid else -self._args.invalid_penalty
        self._note = "" if outcome.is_valid or not self._args.explain_invalid else f"\n{INVALID}"
        metrics = {"action_is_valid": float(outcome.is_valid)}
        info: Info = {"success": False, "purchased": False, "metrics": metrics}
        score = outcome.score
        if score is not None:
            reward += score.reward
            self._success = score.reward == 1.0
            components = score.components()
            info |= {"success": self._success, "purchased": True, "reward_components": components}
            metrics.update((name, float(value)) for name, value in components.items() if name[0] == "r")
        purchased = score is not None
        truncated = not purchased and self._turn >= self.max_steps
        self._ended = purchased or truncated
        if self._ended:
            metrics["purchased"] = float(purchased)
        return self._observation(), reward, purchased, truncated, info

    def render(self) -> str | None:
        return self._observation() if self.render_mode == "ansi" and self._session is not None else None

    def snapshot(self) -> Any:
        session, random_state = self._session, self.np_random.bit_generator.state
        if session is None:
            return None, random_state
        trip = {name: copy(getattr(session, name)) for name in TRIP}
        return (self._number, self._turn, self._note, self._ended, self._success, trip), random_state

    def restore(self, snapshot: Any) -> str:
        state, self.np_random.bit_generator.state = snapshot
        if state is None:
            raise ResetNeeded("WebShop: the snapshot was taken before reset()")
        number, turn, note, ended, success, trip = state
        self._start(number)
        self._turn, self._note, self._ended, self._success = turn, note, ended, success
        assert self._session is not None
        for name, value in trip.items():
            setattr(self._session, name, copy(value))
        return self._observation()

    def oracle(self) -> str:
        """A step towards buying the goal's own product with the options asked for."""
        session = self._session
        if session is None or self._ended:
            return format_reply("click[buy now]", self._args.action_format)
        if self._plan is None:
            options = best_options(session.goal, strict_options=self._args.strict_options)
            self._plan = options, find_query(session)
        return format_reply(next_action(session, *self._plan), self._args.action_format)

    def legal_actions(self) -> Sequence[str]:
        """A click on each label; on the index page, a search for what the instruction says."""
        session = self._session
        if session is None or self._ended:
            return ()
        if session.page is Page.INDEX:
            return (format_reply(f"search[{plain_query(session.goal.text)}]", self._args.action_format),)
        actions = []
        for label in session.clickables():
            action = f"click[{label}]"
            # Of labels with brackets, some cannot be named.
            if label != "search" and (
                ("[" not in label and "\n" not in label) or parse_action(action) == ("click", label)
            ):
                actions.append(format_reply(action, self._args.action_format))
        return actions

    def state_hash(self) -> str:
        """Digest of the goal, the page and what was chosen and visited. Turns left do not count."""
        session = self._session
        if session is None:
            return ""
        state = [
            self._number,
            session.page,
            session.keywords,
            session.number,
            list(session.results),
            session.product,
            sorted(session.options.items()),
            sorted(session.visited),
            session.sub if session.page is Page.SUB else "",
        ]
        return hashlib.blake2b(json.dumps(state).encode(), digest_size=16).hexdigest()

    def _start(self, number: int) -> None:
        """At the index page of a goal."""
        self._number = number
        self._session = Session(
            catalogue=self.store,
            goal=self.store.goal(self._args.goals, number),
            show_attributes=self._args.show_attributes,
            strict_options=self._args.strict_options,
            special_queries=self._args.special_queries,
            page_size=self._args.page_size,
            draw=self._draw,
        )
        self._turn, self._note, self._ended, self._success, self._plan = 0, "", False, False, None

    def _draw(self, population: int, k: int) -> tuple[int, ...]:
        return tuple(self.np_random.choice(population, size=k, replace=False).tolist())

    def _observation(self) -> str:
        assert self._session is not None
        return render(self._session, self._args.observation_mode) + self._note


def _open(data_dir: str | None, num_products: int, catalogue_seed: int) -> Store:
    """The store of the official data, or of a generated catalogue."""
    for module in ("bm25s", "regex", "Stemmer"):
        import_extra(module, extra="webshop")
    if data_dir is None:
        from envsdk.envs.webshop.generate import generated_store

        return open_store(generated_store(num_products, catalogue_seed))
    folder = Path(data_dir).expanduser()
    return open_store(
        folder / "store" if not is_complete(folder) and is_complete(folder / "store") else folder
    )
