"""A scripted player, who reads the texts as a policy does and knows nothing else about the home.

It looks into one receptacle after the other, in the order of the first observation, until it finds what the
task asks for, and then does what is to be done with it.

    envsdk evaluate envsdk/ALFWorld-v1 --policy alfworld_searcher size=small
"""

from __future__ import annotations

from envsdk.contracts.policy import Policy, Reply, TurnContext
from envsdk.envs.alfworld.notebook import Notebook
from envsdk.envs.alfworld.replies import ActionFormat, format_reply, parse_reply
from envsdk.envs.alfworld.solver import next_command


def search(notebook: Notebook) -> str:
    """The next command; `look` where the task is in words that ALFWorld's templates do not have."""
    goal = notebook.goal()
    if goal is None:
        return "look"
    return next_command(
        notebook.view(),
        goal,
        put=notebook.put,
        seen=notebook.contents,
        search_order=notebook.receptacles,
    )


class SearchingPolicy(Policy):
    """`search` on every turn, registered as the policy `alfworld_searcher`."""

    name = "alfworld_searcher"

    def __init__(self, action_format: ActionFormat = "tag") -> None:
        self._action_format: ActionFormat = action_format

    async def act(self, turn: TurnContext) -> Reply:
        observations = [*(past.observation for past in turn.turns), turn.observation]
        notebook = Notebook.begin(observations[0])
        for past, observation in zip(turn.turns, observations[1:], strict=True):
            command, _ = parse_reply(past.reply, self._action_format)
            notebook = notebook.after(command, observation)
        return Reply(text=format_reply(search(notebook), self._action_format))
