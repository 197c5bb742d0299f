"""`TextHarness`: the harness of verifiers for a policy that reads and writes text.

It runs in this process and asks the model once per turn, so it needs no sandbox, no uv and no network.
"""

from __future__ import annotations

import sys
from typing import Any

import httpx
import verifiers.v1 as vf
from verifiers.v1.dialects.chat import message_to_wire

__all__ = ["TextHarness"]

HARNESS_ID = "envsdk_text_harness"
"""Name of the module by which verifiers finds the harness."""


class TextHarnessConfig(vf.HarnessConfig):  # type: ignore[misc]
    """Nothing to set."""


class TextHarness(vf.Harness[TextHarnessConfig]):  # type: ignore[misc]
    """One reply of the model to the conversation so far; an interaction continues from there."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: Any,
    ) -> Any:
        system, prompt = self.resolve_prompt(data)
        messages = [{"role": "system", "content": system}] if system else []
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        else:
            messages.extend(map(message_to_wire, prompt or ()))
        # Of the model only its endpoint knows how long it may take.
        async with httpx.AsyncClient(timeout=None) as client:
            answer = await client.post(
                f"{endpoint}/chat/completions",
                json={"model": ctx.model, "messages": messages},
                headers={"Authorization": f"Bearer {secret}"},
            )
        return vf.ProgramResult(exit_code=int(answer.is_error), stdout="", stderr=answer.text)


# verifiers imports harnesses by the name of a module without dots.
sys.modules.setdefault(HARNESS_ID, sys.modules[__name__])
