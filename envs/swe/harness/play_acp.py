"""Runs in a sandbox: an agent that speaks the Agent Client Protocol works on the task, and may do everything.

    python play_acp.py PROGRAM ARGUMENT ...

For programs without a command that plays one task and ends. It needs the package agent-client-protocol.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from acp import PROTOCOL_VERSION, spawn_agent_process, text_block
from acp.schema import AllowedOutcome, DeniedOutcome, RequestPermissionResponse


class Everything:
    """The client: allows everything."""

    async def request_permission(self, options: list[Any], **_: Any) -> RequestPermissionResponse:
        allowing = (each.option_id for each in options if each.kind.startswith("allow"))
        chosen = next(allowing, None)
        if chosen is None:
            return RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))
        return RequestPermissionResponse(outcome=AllowedOutcome(outcome="selected", option_id=chosen))

    async def session_update(self, **_: Any) -> None: ...

    def on_connect(self, conn: Any) -> None: ...


async def _play(task: str, *command: str) -> str:
    """Why the agent stopped."""
    own = {"env": os.environ, "transport_kwargs": {"stderr": None}}
    async with spawn_agent_process(Everything(), *command, **own) as (agent, _):
        await agent.initialize(protocol_version=PROTOCOL_VERSION)
        session = await agent.new_session(cwd=os.getcwd(), mcp_servers=[])
        ended = await agent.prompt(prompt=[text_block(task)], session_id=session.session_id)
        return str(ended.stop_reason)


if __name__ == "__main__":
    issue = Path(os.environ["HARNESS_TASK"]).read_text(encoding="utf-8")
    why = asyncio.run(_play(issue, *sys.argv[1:]))
    sys.exit(None if why == "end_turn" else f"the agent stopped: {why}")
