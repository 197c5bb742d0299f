"""Agents that play from outside, for tests."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import httpx2

from envsdk.engines.endpoint.errors import ApiError
from envsdk.managers.agent_env_manager import AgentEnvManager, AgentEpisode


class TurnByTurn(AgentEnvManager):
    """Plays as `TrajEnvManager` does, over HTTP."""

    more_fields: ClassVar[Mapping[str, Any]] = {}
    """Of each request."""
    more_of_replies: ClassVar[Mapping[str, Any]] = {}
    """Fields of replies that are sent back."""

    async def run_agent(self, agent: AgentEpisode) -> None:
        headers = {"Authorization": f"Bearer {agent.api_key}"}
        async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
            shown = (await http.get(f"{agent.session_url}/env")).json()
            messages = [{"role": "system", "content": shown["system"]}] if shown["system"] else []
            while not shown["is_over"]:
                messages.append({"role": "user", "content": shown["prompt"]})
                body = {"model": agent.model, "messages": messages, **self.more_fields}
                answer = await http.post(f"{agent.base_url}/chat/completions", json=body)
                answer.raise_for_status()
                reply = answer.json()["choices"][0]["message"]["content"]
                messages.append({"role": "assistant", "content": reply, **self.more_of_replies})
                step = await http.post(f"{agent.session_url}/env/step", json={"action": reply})
                step.raise_for_status()
                shown = step.json()


class SendsMore(TurnByTurn):
    """Sends what clients send besides."""

    more_fields: ClassVar[Mapping[str, Any]] = {
        "user": "me",
        "metadata": {"run": "1"},
        "logit_bias": {},
        "presence_penalty": 0,
    }
    more_of_replies: ClassVar[Mapping[str, Any]] = {
        "provider_specific_fields": {"refusal": None},
        "refusal": None,
        "name": "walker",
    }


class Program(AgentEnvManager):
    """The same as a program of its own."""

    command = (sys.executable, str(Path(__file__).with_name("lake_program.py")))


class ProgramOfMessages(AgentEnvManager):
    """The same through Anthropic's API, in a folder of the episode, where it leaves a file."""

    async def run_agent(self, agent: AgentEpisode) -> None:
        with tempfile.TemporaryDirectory() as folder:
            program = (
                "import runpy, sys; open('here', 'w'); runpy.run_path(sys.argv.pop(1), None, '__main__')"
            )
            python, file = Program.command
            await self.run_program(agent, python, "-c", program, file, "messages", cwd=folder)
            assert os.listdir(folder) == ["here"]


class HangingProgram(AgentEnvManager):
    """Starts another process and waits for it."""

    command = ("sh", "-c", "sleep 3600 & wait")


class BrokenProgram(AgentEnvManager):
    command = (sys.executable, "-c", "import sys; sys.exit('no lake here')")


class Forgetful(AgentEnvManager):
    """Starts a new conversation with each observation, and asks twice."""

    async def run_agent(self, agent: AgentEpisode) -> None:
        headers = {"Authorization": f"Bearer {agent.api_key}"}
        async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
            for _ in range(2):
                for _ in range(2):
                    shown = await agent.env.look()
                    messages = [{"role": "user", "content": shown["prompt"]}]
                    body = {"model": agent.model, "messages": messages}
                    await http.post(f"{agent.base_url}/chat/completions", json=body)
                await agent.env.step("go")


class Delegating(AgentEnvManager):
    """Asks a helper in between, a conversation of its own, and puts it another question at last."""

    async def run_agent(self, agent: AgentEpisode) -> None:
        headers = {"Authorization": f"Bearer {agent.api_key}"}
        async with httpx2.AsyncClient(headers=headers, timeout=60) as http:

            async def say(messages: list[dict[str, str]], text: str) -> str:
                messages.append({"role": "user", "content": text})
                body = {"model": agent.model, "messages": messages}
                answer = await http.post(f"{agent.base_url}/chat/completions", json=body)
                reply: str = answer.json()["choices"][0]["message"]["content"]
                messages.append({"role": "assistant", "content": reply})
                return reply

            main: list[dict[str, str]] = []
            helper: list[dict[str, str]] = []
            shown = await agent.env.look()
            shown = await agent.env.step(await say(main, shown["prompt"]))
            await say(helper, "hello")
            await say(helper, "more")
            await agent.env.step(await say(main, shown["prompt"]))
            await say(helper[:2], "less")


class StepsTooOften(AgentEnvManager):
    """Goes on when the episode is over, and fails over it."""

    async def run_agent(self, agent: AgentEpisode) -> None:
        while True:
            await agent.env.step("go")


class Stubborn(TurnByTurn):
    """Takes what goes wrong in the environment for its own."""

    async def run_agent(self, agent: AgentEpisode) -> None:
        try:
            await super().run_agent(agent)
        except (ApiError, httpx2.HTTPError):
            raise RuntimeError("I give up") from None


class Idle(AgentEnvManager):
    async def run_agent(self, agent: AgentEpisode) -> None:
        return
