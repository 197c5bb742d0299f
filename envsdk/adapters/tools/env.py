"""`ToolUseEnv`: any environment, with tools that the policy may call between its moves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

from envsdk.adapters.hosted import Answer, HostedEnv
from envsdk.adapters.tools.answers import NO_CALLS, Toolbox
from envsdk.adapters.tools.definition import Tool, ToolUnavailable, load_tool
from envsdk.adapters.tools.mcp import McpConnection, McpServer
from envsdk.base import registry
from envsdk.base.settings.validation import validated
from envsdk.contracts.env import Info, TextEnv

ToolList = Literal["observation", "template", "none"]


def tool_use_prompt(*, env: str, env_config: Mapping[str, Any] | None = None, **_: Any) -> str:
    """The system prompt: that of the environment inside, and how tools are called."""
    inside = registry.system_prompt(registry.spec(env), env_config or {})
    return (f"{inside}\n\n" if inside else "") + (
        'You may call tools first: <tool_call>{"name": NAME, "arguments": {...}}</tool_call>. '
        "The next message has their answers."
    )


class ToolUseEnv(HostedEnv):
    """An environment of ours with tools.

    A reply with calls, `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` or as another family of
    models writes them, is answered with what the tools said; the environment does not see it. Any other reply
    is the environment's. Calls that cannot be read, do not agree with a tool's schema, or fail, are
    answered with what is wrong.

    A tool that is broken (its MCP server is gone) fails the episode, which is then masked.
    """

    def __init__(
        self,
        *,
        env: str,
        env_config: Mapping[str, Any] | None = None,
        tools: Sequence[str | Tool | Callable[..., Any]] = (),
        mcp_servers: Mapping[str, Any] | None = None,
        tool_list: ToolList = "observation",
        max_calls: int | None = None,
        max_calls_per_reply: int = 8,
        max_output_chars: int = 4000,
        max_steps: int = 50,
        call_penalty: float = 0.0,
        invalid_penalty: float = 0.0,
    ) -> None:
        """
        Args:
            env: Id of the environment.
            env_config: Its arguments.
            tools: Functions or `Tool`s, in YAML as `package.module:attribute`.
            mcp_servers: By name, what `McpServer` takes: `command`, or `url`.
            tool_list: Where the tools are described. `observation`: at the head of the first one;
                `template`: the model's chat template gets them as `tools`; `none`: your prompt says it.
            max_calls: Calls of an episode; those beyond are answered with an error.
            max_calls_per_reply: The same within one reply.
            max_output_chars: Longest output of one call; the middle of a longer one is left out.
            max_steps: Replies before the episode is truncated, those with calls included.
            call_penalty: Taken off the reward for each call that is carried out.
            invalid_penalty: Taken off the reward of a turn with a call that cannot be carried out.
        """
        super().__init__(max_steps=max_steps, invalid_penalty=invalid_penalty)
        if tool_list not in get_args(ToolList):
            raise ValueError(f"tool_list: must be one of {', '.join(get_args(ToolList))}, not {tool_list!r}")
        if max_calls is not None and max_calls < 0:
            raise ValueError(f"max_calls: must be at least 0, not {max_calls}")
        self._functions = [load_tool(item) if isinstance(item, str) else item for item in tools]
        self._servers = {name: _server(name, given) for name, given in (mcp_servers or {}).items()}
        if not self._functions and not self._servers:
            raise ValueError("tools: give some, or mcp_servers")
        self._limits = {"max_calls_per_reply": max_calls_per_reply, "max_output_chars": max_output_chars}
        if self._functions:
            # What is wrong with these is said before anything is started.
            Toolbox(self._functions, **self._limits)
        self._tool_list = tool_list
        self._max_calls = max_calls
        self._call_penalty = call_penalty
        self._env: TextEnv = registry.make(env, **(env_config or {}))
        # Of the instance: what the environment inside can do.
        vars(self)["abilities"] = lambda: type(self).abilities() & self._env.abilities()
        self._connections: dict[str, McpConnection] = {}
        self._toolbox: Toolbox | None = None
        """None when the servers have to be connected, again or for the first time."""
        self._num_calls = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        observation, info = super().reset(seed=seed)
        if self._tool_list == "template":
            assert self._toolbox is not None
            info["tools"] = self._toolbox.described()
        return observation, info

    def _start(self, seed: int) -> object:
        self._num_calls = 0
        self._connect()
        assert self._toolbox is not None
        observation, _ = self._env.reset(seed=seed)
        if self._tool_list == "observation":
            return f"{self._toolbox.as_text()}\n\n{observation}"
        return observation

    def _answer(self, reply: str) -> Answer:
        assert self._toolbox is not None
        left = None if self._max_calls is None else self._max_calls - self._num_calls
        try:
            called = self._toolbox.answer(reply, num_calls_left=left)
        except ToolUnavailable:
            self._disconnect()
            raise
        if called is not None:
            self._num_calls += called.num_carried_out
            penalty = self._call_penalty * called.num_carried_out
            if not called.is_valid:
                penalty += self._invalid_penalty
            return Answer(observation=called.observation, reward=0.0 - penalty, metrics=called.metrics())
        observation, reward, terminated, truncated, info = self._env.step(reply)
        return Answer(
            observation=observation,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            success=bool(info.get("success", False)),
            metrics={**info.get("metrics", {}), **NO_CALLS},
        )

    def oracle(self) -> str:
        """The environment's own; it calls no tool. NotImplementedError where it has none."""
        return self._env.oracle()

    def legal_actions(self) -> Sequence[str]:
        """The environment's own; calls are not among them."""
        return () if self._terminated or self._truncated else self._env.legal_actions()

    def state_hash(self) -> str:
        """The environment's own: what a tool remembers does not count."""
        return self._env.state_hash()

    def close(self) -> None:
        self._disconnect()
        self._env.close()

    def _connect(self) -> None:
        """Connect what is not connected yet, and what is connected anew for each episode."""
        stale = [
            name for name, server in self._servers.items() if server.is_fresh and name in self._connections
        ]
        for name in stale:
            self._connections.pop(name).close()
        if self._toolbox is not None and not stale:
            return
        self._toolbox = None
        try:
            for name, server in self._servers.items():
                if name not in self._connections:
                    self._connections[name] = server.connect(name)
            found = [each for name in self._servers for each in self._connections[name].tools]
            self._toolbox = Toolbox([*self._functions, *found], **self._limits)
        except BaseException:
            self._disconnect()
            raise

    def _disconnect(self) -> None:
        self._toolbox = None
        while self._connections:
            self._connections.popitem()[1].close()


def _server(name: str, given: Any) -> McpServer:
    if isinstance(given, McpServer):
        return given
    return validated(McpServer, given, f"mcp_servers.{name}")
