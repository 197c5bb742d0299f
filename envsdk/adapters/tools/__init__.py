"""Tools that a policy may call: Python functions and those of MCP servers, for any environment."""

from envsdk.adapters.tools.answers import Answer, CallStatus, Toolbox
from envsdk.adapters.tools.definition import Tool, ToolError, ToolUnavailable, load_tool, tool
from envsdk.adapters.tools.mcp import McpConnection, McpServer
from envsdk.contracts.env import EnvSpec, Isolation

SPEC = EnvSpec(
    id="envsdk/ToolUse-v1",
    entry_point="envsdk.adapters.tools.env:ToolUseEnv",
    # Tools wait: for processes, for servers.
    isolation=Isolation.THREAD,
    reset_timeout_s=120.0,
    step_timeout_s=60.0,
    description="Another environment (env=ID) with tools to call: Python functions, MCP servers.",
    action_format='A call, <tool_call>{"name": NAME, "arguments": {...}}</tool_call>, or a move of its own.',
    prompt="envsdk.adapters.tools.env:tool_use_prompt",
    needs={"jsonschema": "pip install 'envsdk[tools]'"},
)

__all__ = [
    "SPEC",
    "Answer",
    "CallStatus",
    "McpConnection",
    "McpServer",
    "Tool",
    "ToolError",
    "ToolUnavailable",
    "Toolbox",
    "load_tool",
    "tool",
]
