"""A tool that runs Python programs in a sandbox: `envsdk.adapters.tools.python_code:execute_python_code`."""

from __future__ import annotations

import asyncio
from typing import Annotated

from pydantic import Field

from envsdk.adapters.tools.definition import ToolUnavailable
from envsdk.contracts.failures import EnvsdkError
from envsdk.rewards.sandbox import ExecEnd, ExecResult, Image, Limits, open_backend

_LIMITS = Limits(processes=32, memory_mb=1024, disk_mb=64, output_bytes=1 << 20, kept_output_bytes=16 << 10)


def execute_python_code(
    code: str, timeout: Annotated[float, Field(gt=0, le=300, description="in seconds")] = 60
) -> str:
    """Run Python code in a sandbox without network and return what it prints. Calls share nothing."""
    try:
        result = asyncio.run(_run(code, timeout))
    except EnvsdkError as error:
        raise ToolUnavailable(str(error)) from error
    if result.reason is ExecEnd.INFRASTRUCTURE:
        raise ToolUnavailable(result.output)
    ending = "" if result.ok else f"\n(exit code {result.returncode})"
    return result.output.rstrip() + (
        ending if result.reason is ExecEnd.EXIT else f"\n({result.reason} reached)"
    )


async def _run(code: str, timeout_s: float) -> ExecResult:
    backend = open_backend("bubblewrap")
    try:
        sandbox = await backend.start(Image(), limits=_LIMITS)
        program = code.encode("utf-8", "surrogatepass")
        return await sandbox.exec("exec python3 -", timeout_s=timeout_s, stdin=program)
    finally:
        await backend.aclose()
