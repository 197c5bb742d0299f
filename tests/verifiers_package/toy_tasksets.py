"""Tasksets of verifiers 0.4, as packages of them would have them: a module each, made by `module_with`."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import verifiers.v1 as vf


class SumsConfig(vf.TasksetConfig):
    num_tasks: int = 20


class SumData(vf.TaskData):
    answer: int


class Sum(vf.Task[SumData]):
    """One turn: right or wrong, and a little for its form."""

    @vf.reward
    async def is_right(self, task: SumData, trace: vf.Trace) -> float:
        return float(_given(trace) == str(task.answer))

    @vf.reward(weight=0.1)
    async def is_number(self, trace: vf.Trace) -> float:
        return float(_given(trace).isdecimal())

    @vf.metric
    async def length(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply))


def _given(trace: vf.Trace) -> str:
    return trace.last_reply.rpartition("<answer>")[2].partition("</answer>")[0].strip()


class Sums(vf.Taskset[Sum, SumsConfig]):
    def load(self):
        for number in range(self.config.num_tasks):
            prompt, system = f"{number} + {number + 1} = ?", "Answer in <answer> tags."
            data = SumData(prompt=prompt, system_prompt=system, answer=2 * number + 1)
            yield Sum(data, self.config.task)


class SumWithoutEnd(Sums):
    INFINITE = True

    def load(self):
        while True:
            yield from super().load()


class Broken(vf.Task[SumData]):
    @vf.reward
    async def is_right(self, trace: vf.Trace) -> float:
        raise OSError("the judge is gone")


class BrokenSums(vf.Taskset[Broken, SumsConfig]):
    def load(self):
        yield Broken(SumData(prompt="1 + 1 = ?", answer=2), self.config.task)


class InContainer(Sum):
    NEEDS_CONTAINER = True


class Repairs(vf.Taskset[InContainer, SumsConfig]):
    def load(self):
        yield InContainer(SumData(prompt="Repair it.", answer=2), self.config.task)


class Pictures(Sums):
    def load(self):
        square = vf.ImageUrlContentPart(image_url=vf.ImageUrlSource(url="data:image/png;base64,"))
        message = vf.UserMessage(content=[square, vf.TextContentPart(text="Which color?")])
        yield Sum(SumData(prompt=[message], answer=2), self.config.task)


class Lacking(Sums):
    def load(self):
        import a_package_that_is_absent  # noqa: F401


class Guess(vf.Task[SumData]):
    @vf.reward
    async def guessed(self, task: SumData, trace: vf.Trace) -> float:
        return float(trace.last_reply == str(task.answer))


class Guesses(vf.Taskset[Guess, SumsConfig]):
    def load(self):
        for number in range(self.config.num_tasks):
            yield Guess(SumData(prompt="Guess from 1 to 20.", answer=1 + number), self.config.task)


class GuessingConfig(vf.EnvConfig):
    guesser: vf.AgentConfig = vf.AgentConfig()


class Guessing(vf.Env[GuessingConfig]):
    """Several turns: higher or lower until it is right."""

    async def run(self, task: Any, agents: Any) -> None:
        async with agents.guesser.interaction(task) as talk:
            segment = await talk.turn()
            while not segment.terminated and segment.last_reply != str(task.data.answer):
                guess = segment.last_reply
                is_low = guess.isascii() and guess.isdigit() and int(guess[:5]) < task.data.answer
                segment = await talk.turn("Higher." if is_low else "Lower.")


class DebateConfig(vf.EnvConfig):
    pro: vf.AgentConfig = vf.AgentConfig()
    contra: vf.AgentConfig = vf.AgentConfig()


class Debate(vf.Env[DebateConfig]):
    async def run(self, task: Any, agents: Any) -> None:
        await agents.pro.run(task)


def module_with(name: str, *classes: type) -> str:
    """The id of a taskset: the name of a module that exports these classes."""
    module = ModuleType(name)
    module.__all__ = [each.__name__ for each in classes]
    for each in classes:
        setattr(module, each.__name__, each)
    sys.modules[name] = module
    return name
