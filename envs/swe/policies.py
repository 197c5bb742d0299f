"""Policies without a model that play SWE; the oracle is `SWEEnv.oracle`."""

from __future__ import annotations

from envsdk.contracts.policy import Policy, Reply, TurnContext
from envsdk.envs.shell.replies import format_reply
from envsdk.envs.swe.observations import SUBMIT_COMMAND

ROUNDS = (
    "ls -A && git log --oneline | head -5",
    "git ls-files | head -50",
    "grep -rn 'def ' --include='*.py' . | head -40",
    "cat README* 2> /dev/null | head -60",
    "f=$(git ls-files '*.py' | grep -v test | head -1) && sed -n 1,60p \"$f\"",
    "python -m pytest -q 2>&1 | tail -15",
    "f=$(git ls-files '*.py' | grep -v test | head -1) && echo '# looked at' >> \"$f\" && git diff",
    "printf 'import sys\\nprint(sys.version)\\n' > /tmp/try.py && python /tmp/try.py",
    SUBMIT_COMMAND,
)
"""What somebody does who looks around, changes something of no use and submits it."""


class LookingPolicy(Policy):
    """Looks around, runs the tests, adds a comment and submits. For measuring and for trying a set-up.

    Replies are in the format `bash`.
    """

    name = "swe_looker"

    async def act(self, turn: TurnContext) -> Reply:
        last = min(turn.turn_index, len(ROUNDS) - 1)
        command = SUBMIT_COMMAND if turn.num_actions_left == 1 else ROUNDS[last]
        return Reply(text=format_reply(command, "bash", thought="THOUGHT: step by step."))
