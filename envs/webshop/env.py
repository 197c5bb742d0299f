"""The WebShop environment."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from gymnasium.error import ResetNeeded
from gymnasium.spaces import Text

from envsdk.env import Info, TextEnv
from envsdk.envs.spaces import PRINTABLE, AnyText
from envsdk.envs.webshop.goals import GoalKind, Split, split_bounds
from envsdk.envs.webshop.oracle import best_options, find_query, next_action, plain_query
from envsdk.envs.webshop.pages import MODES, Mode, render
from envsdk.envs.webshop.replies import ACTION_FORMATS, ActionFormat, format_reply, parse_reply
from envsdk.envs.webshop.session import PAGE_SIZE, Page, Session, parse_action
from envsdk.envs.webshop.store import GOALS, Store, is_complete, open_store
from envsdk.failures import ConfigurationError

INVALID = "Invalid action."


class WebShopEnv(TextEnv):
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

    def __init__(
        self,
        *,
        data_dir: str | None = None,
        num_products: int = 1000,
        catalogue_seed: int = 0,
        goals: GoalKind = "human",
        split: Split = "all",
        observation_mode: Mode = "text",
        action_format: ActionFormat = "tag",
        max_steps: int = 15,
        page_size: int = PAGE_SIZE,
        show_attributes: bool = False,
        strict_options: bool = False,
        special_queries: bool = True,
        explain_invalid: bool = False,
        invalid_penalty: float = 0.0,
        render_mode: str | None = None,
    ) -> None:
        """
        Args:
            data_dir: A store made by `python -m envsdk.envs.webshop.build`, or the folder in which its
                default place is. None generates a catalogue.
            num_products: Of the generated catalogue.
            catalogue_seed: Of the generated catalogue.
            goals: `human` or `synthetic`.
            split: `test` (goals 0 to 499), `eval` (500 to 1499), `train` (from 1500), `held_out` (the
                first fifth), `rest` or `all`.
            observation_mode: `text` or `text_rich`.
            action_format: `tag`, the action in `<action>`; `answer`, in `<answer>`; `text`, the entire reply.
            max_steps: Replies before the episode is truncated.
            page_size: Products on a page of results; upstream has 10.
            show_attributes: Products have a page of their attributes.
            strict_options: An option counts only if it is the very one asked for.
            special_queries: `search[<r>]`, `search[<c> CATEGORY]` and `search[<q> QUERY]` list products.
            explain_invalid: A line below the page says that the reply was no action possible there.
            invalid_penalty: Taken off the reward of such a turn.
            render_mode: None, or `ansi`: `render()` returns the page.
        """
        if goals not in GOALS:
            raise ValueError(f"goals: must be human or synthetic, not {goals!r}")
        if observation_mode not in MODES:
            raise ValueError(f"observation_mode: must be text or text_rich, not {observation_mode!r}")
        if action_format not in ACTION_FORMATS:
            known = ", ".join(ACTION_FORMATS)
            raise ValueError(f"action_format: must be one of {known}, not {action_format!r}")
        for name, value in (
            ("max_steps", max_steps),
            ("page_size", page_size),
            ("num_products", num_products),
        ):
            if value < 1:
                raise ValueError(f"{name}: must be at least 1, not {value}")
        self.max_steps = max_steps
        self.render_mode = render_mode
        self.store = _open(data_dir, num_products, catalogue_seed)
        self._goals: GoalKind = goals
        self._bounds = split_bounds(split, self.store.num_goals(goals))
        self._mode = observation_mode
        self._action_format = action_format
        self._page_size = page_size
        self._show_attributes = show_attributes
        self._strict_options = strict_options
        self._special_queries = special_queries
        self._explain_invalid = explain_invalid
        self._invalid_penalty = invalid_penalty

        self._session: Session | None = None
        self._number = 0
        """Of the goal, in upstream's order."""
        self._turn = 0
        self._note = ""
        self._ended = True
        self._success = False
        self._plan: tuple[dict[str, str], str] | None = None
        """The oracle's: what to choose, and what to search for."""

    @cached_property
    def observation_space(self) -> Text:  # type: ignore[override]
        return AnyText(2**20)

    @cached_property
    def action_space(self) -> Text:  # type: ignore[override]
        return Text(min_length=0, max_length=256, charset=PRINTABLE)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        super().reset(seed=seed)
        number = (options or {}).get("goal")
        if number is None:
            number = self.store.draw_goal(self._goals, *self._bounds, self.np_random.random())
        elif not (isinstance(number, int) and 0 <= number < self.store.num_goals(self._goals)):
            raise ValueError(
                f"goal: must be from 0 to {self.store.num_goals(self._goals) - 1}, not {number!r}"
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
        outcome = session.act(parse_reply(action, self._action_format))
        reward = 0.0 if outcome.is_valid else -self._invalid_penalty
        self._note = "" if outcome.is_valid or not self._explain_invalid else f"\n{INVALID}"
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
        trip = {
            "page": session.page,
            "keywords": session.keywords,
            "number": session.number,
            "results": tuple(session.results),
            "product": session.product,
            "options": dict(session.options),
            "visited": session.visited,
            "sub": session.sub,
            "reward": session.reward,
        }
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
            setattr(self._session, name, dict(value) if name == "options" else value)
        return self._observation()

    def oracle(self) -> str:
        """A step towards buying the goal's own product with the options asked for."""
        session = self._session
        if session is None or self._ended:
            return format_reply("click[buy now]", self._action_format)
        if self._plan is None:
            product = self.store.product(session.goal.product)
            options = best_options(product, session.goal, strict_options=self._strict_options)
            self._plan = options, find_query(session)
        return format_reply(next_action(session, *self._plan), self._action_format)

    def legal_actions(self) -> Sequence[str]:
        """A click on each label; on the index page, a search for what the instruction says."""
        session = self._session
        if session is None or self._ended:
            return ()
        if session.page is Page.INDEX:
            return (format_reply(f"search[{plain_query(session.goal.text)}]", self._action_format),)
        actions = []
        for label in session.clickables():
            action = f"click[{label}]"
            # Of labels with brackets, some cannot be named.
            if label != "search" and (
                ("[" not in label and "\n" not in label) or parse_action(action) == ("click", label)
            ):
                actions.append(format_reply(action, self._action_format))
        return actions

    def state_hash(self) -> str:
        """Of the goal, the page and what was chosen and visited. Turns left do not count."""
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
            goal=self.store.goal(self._goals, number),
            show_attributes=self._show_attributes,
            strict_options=self._strict_options,
            special_queries=self._special_queries,
            page_size=self._page_size,
            draw=self._draw,
        )
        self._turn, self._note, self._ended, self._success, self._plan = 0, "", False, False, None

    def _draw(self, population: int, k: int) -> tuple[int, ...]:
        return tuple(self.np_random.choice(population, size=k, replace=False).tolist())

    def _observation(self) -> str:
        assert self._session is not None
        return render(self._session, self._mode) + self._note


def _open(data_dir: str | None, num_products: int, catalogue_seed: int) -> Store:
    """The store of the official data, or of a generated catalogue."""
    try:
        import bm25s  # noqa: F401
        import regex  # noqa: F401
        import Stemmer  # noqa: F401
    except ImportError as error:
        raise ConfigurationError(
            f"WebShop needs its search engine ({error}): pip install 'envsdk[webshop]'"
        ) from error
    if data_dir is None:
        from envsdk.envs.webshop.generate import generated_store

        return open_store(generated_store(num_products, catalogue_seed))
    folder = Path(data_dir).expanduser()
    return open_store(
        folder / "store" if not is_complete(folder) and is_complete(folder / "store") else folder
    )
