"""Policies that a program brings along: functions, `Policy` objects, and clients of OpenAI's package.

    async def play(observation, context): return "<answer>up</answer>"      # or without `context`
    def play(messages, context): return ask_somebody(messages)              # the chat so far; on a thread

The name of a function's first parameter says what it gets: `messages`, the conversation in OpenAI's form, or
else the environment's observation.
"""

from __future__ import annotations

import contextvars
import inspect
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from envsdk.base.processes.daemon_threads import DaemonThreads
from envsdk.base.processes.stretches import Timed
from envsdk.contracts.failures import Boundary, ConfigurationError, Failure, show_object
from envsdk.contracts.policy import Policy, PolicyFailed, Reply, TurnContext
from envsdk.contracts.trajectory import FinishReason
from envsdk.engines.engine_support.failures import is_no_connection, no_server
from envsdk.rollouts.play.policy_form import PolicyForm

if TYPE_CHECKING:
    from envsdk.managers.traj_env_manager import TagSetup

_MESSAGES = "messages"
"""Name of a function's first parameter that asks for the chat instead of the observation."""
_CONTEXT = "context"


def own_form(policy: object) -> PolicyForm | None:
    """The form of a Policy object or a function; None for anything else, such as a name."""
    if isinstance(policy, Policy):
        return ObjectForm(policy)
    return FunctionForm(policy) if callable(policy) and not isinstance(policy, type) else None


def form_or_name(policy: object) -> PolicyForm | None:
    """The form of a policy that is an object; None for a name and for none given.

    ConfigurationError for anything else.
    """
    form = own_form(policy)
    if form is None and policy is not None and not isinstance(policy, str):
        raise ConfigurationError(
            "policy: expected a name such as 'oracle', a function `(observation, context)` or a Policy "
            f"object, not {show_object(policy)}"
        )
    return form


class ObjectForm(PolicyForm):
    """A `Policy` of the program's, the same one for all tags."""

    def __init__(self, policy: Policy) -> None:
        self.name = getattr(policy, "name", type(policy).__name__)
        self._policy = policy

    @asynccontextmanager
    async def open(self, num_slots: int) -> AsyncIterator[Callable[[TagSetup], Policy]]:
        yield lambda setup: self._policy


class _OnThreads(PolicyForm):
    """A policy that may block, on threads of its own."""

    @asynccontextmanager
    async def open(self, num_slots: int) -> AsyncIterator[Callable[[TagSetup], Policy]]:
        threads = DaemonThreads("envsdk-policy")
        try:
            yield lambda setup: _OnThreadsPolicy(self.name, partial(self.reply, setup, threads))
        finally:
            threads.close()

    @abstractmethod
    async def reply(self, setup: TagSetup, threads: DaemonThreads, turn: TurnContext) -> Reply:
        """The reply of a tag's policy; blocking calls go to `threads`."""


class _OnThreadsPolicy(Policy):
    def __init__(self, name: str, reply: Callable[[TurnContext], Awaitable[Reply]]) -> None:
        self.name = name
        self._reply = reply

    async def act(self, turn: TurnContext) -> Reply:
        return await self._reply(turn)


async def _called(call: Callable[[], Any], name: str, *, is_async: bool, threads: DaemonThreads) -> Any:
    """What a function of the program returns, awaited where it can be; a plain one runs on a thread."""
    if is_async:
        answer = call()
    else:
        context = contextvars.copy_context()
        answer, error = await threads.run(partial(_caught, partial(context.run, call)))
        ends = (Exception, KeyboardInterrupt, SystemExit)  # the last two end the program
        if isinstance(error, ends) and not isinstance(error, StopIteration):
            raise error
        if error is not None:
            raise PolicyFailed.by(error) from error
    if not inspect.isawaitable(answer):
        return answer
    timed = Timed(answer)
    try:
        return await timed
    finally:
        timed.warn_of(f"the policy {name}")


def _caught(call: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    """What a call returns or raises: StopIteration, SystemExit and their like cannot come out of a future."""
    try:
        return call(), None
    except BaseException as error:  # noqa: BLE001 - boundary: a function of the program
        return None, error


class FunctionForm(_OnThreads):
    """A function `(observation, context)`, `(observation)`, `(messages, context)` or `(messages)`."""

    def __init__(self, function: Callable[..., Any]) -> None:
        """ConfigurationError for a function that cannot be called in this way."""
        of = function if hasattr(function, "__qualname__") else type(function)
        self.name = f"{of.__module__}.{of.__qualname__}"
        self._function = function
        self._takes_messages, self._takes_context = _parameters_of(function, self.name)
        called = function.func if isinstance(function, partial) else function
        self._is_async = inspect.iscoroutinefunction(called) or inspect.iscoroutinefunction(
            getattr(called, "__call__", None)  # noqa: B004 - an object whose `__call__` is a coroutine function
        )

    async def reply(self, setup: TagSetup, threads: DaemonThreads, turn: TurnContext) -> Reply:
        shown = setup.shown.asked(turn) if self._takes_messages else turn.observation
        arguments = (shown, turn) if self._takes_context else (shown,)
        answer = await _called(
            partial(self._function, *arguments), self.name, is_async=self._is_async, threads=threads
        )
        return as_reply(answer, self.name)


def _parameters_of(function: Callable[..., Any], name: str) -> tuple[bool, bool]:
    """Whether a function takes messages, and whether it takes a context."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # built in: it has no signature
        return False, False
    positional = [
        each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]
    takes_any = any(each.kind is each.VAR_POSITIONAL for each in parameters)
    needed = [
        each.name for each in parameters if each.default is each.empty and each.kind is each.KEYWORD_ONLY
    ]
    num_needed = sum(each.default is each.empty for each in positional)
    if needed or num_needed > 2 or not (positional or takes_any):
        raise ConfigurationError(
            f"policy: {name}{inspect.signature(function)} cannot be called with an observation; its "
            "parameters are (observation, context), (observation), (messages, context) or (messages)"
        )
    second = positional[1] if len(positional) > 1 else None
    takes_context = takes_any if second is None else second.default is second.empty or second.name == _CONTEXT
    return bool(positional) and positional[0].name == _MESSAGES, takes_context


def as_reply(answer: Any, name: str) -> Reply:
    """What a function returned as a Reply. TypeError for what is none."""
    if isinstance(answer, Reply):
        return answer
    if isinstance(answer, str):
        return Reply(text=str.__str__(answer))
    hint = ""
    if answer is None:
        hint = " (is a `return` missing?)"
    elif hasattr(answer, "choices"):
        hint = " (of a chat completion, return choices[0].message.content)"
    elif isinstance(answer, Mapping) and "content" in answer:
        hint = ' (of a message, return its "content")'
    raise TypeError(
        f"{name} returned {'None' if answer is None else f'a {type(answer).__name__}'}{hint}: "
        "return the text of the reply, a str, or an envsdk.Reply"
    )


def creates_completions(policy: object) -> Callable[..., Any] | None:
    """`client.chat.completions.create` of a client like `openai.OpenAI`; None where there is none."""
    create = policy
    for name in ("chat", "completions", "create"):
        create = getattr(create, name, None)
    return create if callable(create) else None


class ClientForm(_OnThreads):
    """A client of OpenAI's package, or one like it: text in, text out."""

    def __init__(self, client: object, model: str, sampling: Mapping[str, Any]) -> None:
        """`sampling`: fields of each request, given to `create` as they are."""
        create = creates_completions(client)
        assert create is not None
        self.name = f"{type(client).__name__}({model})"
        self._create = create
        self._model = model
        self._fields = dict(sampling)
        base_url = getattr(client, "base_url", None)
        self._address = "" if base_url is None else f" at {show_object(base_url, str)}"
        self._was_reached = False
        self._is_async = inspect.iscoroutinefunction(inspect.unwrap(create))

    async def reply(self, setup: TagSetup, threads: DaemonThreads, turn: TurnContext) -> Reply:
        fields = dict(self._fields)
        max_new_tokens = fields.pop("max_new_tokens", setup.max_new_tokens)
        if "max_completion_tokens" not in fields:
            fields.setdefault("max_tokens", max_new_tokens)
        fields = {"seed": turn.seed, **fields}
        request = partial(
            self._create,
            model=self._model,
            messages=setup.shown.asked(turn),
            **{name: value for name, value in fields.items() if value is not None},
        )
        try:
            answer = await _called(request, self.name, is_async=self._is_async, threads=threads)
        except Exception as error:
            if self._was_reached or not is_no_connection(error):
                self._was_reached = True
                raise
            raise no_server(f"the client {self.name}{self._address}", error) from error
        self._was_reached = True
        return _read(answer)


def _read(completion: Any) -> Reply:
    """The reply in a chat completion; PolicyFailed where there is none."""
    choices = getattr(completion, "choices", None)
    choice = choices[0] if choices else None
    text = getattr(getattr(choice, "message", None), "content", None)
    reason = getattr(choice, "finish_reason", None) or "stop"
    if isinstance(text, str) and reason in ("stop", "length"):
        return Reply(text=text, finish_reason=FinishReason(reason))
    found = f"ended with finish_reason {reason!r}" if isinstance(text, str) else "has no text"
    message = f"the completion {found}: {show_object(completion)}"
    raise PolicyFailed(Failure(boundary=Boundary.ENGINE, kind="reply_refused", message=message[:500]))
