"""What Ray says of an actor's end, and what is said of it."""

from __future__ import annotations

import pytest
from ray.exceptions import OutOfMemoryError, RayActorError

from envsdk.base.processes.actor_death import ACTOR_DIED, reason_of_death

KILLED = """The actor died unexpectedly before finishing this task.
\tclass_name: Busy
\tpid: 3505
\tip: 127.0.0.1
The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: \
Worker unexpectedly exits with a connection error code 2. End of file. Some common causes include: (1) the \
process was killed by the OOM killer due to high memory usage, (2) ray stop --force was called, or (3) ..."""
LOST = """The actor died unexpectedly before finishing this task.
\tpid: 7
The actor died because its node has died. Node Id: 5f38. If the process was killed by the kernel ..."""
LOW = """1 worker(s) were killed due to the node running low on memory. Memory on the node (IP: 127.0.0.1, \
ID: f82f) was 22.78GB used / 23.54GB limit (0.9755)
OOM kill reason: Memory usage exceeded threshold
Refer to the documentation on how to address the out of memory issue: ..."""


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RayActorError(error_msg=KILLED), "pid 3505: it was killed, ran out of memory, or crashed"),
        (RayActorError(error_msg=LOST), "pid 7: The actor died because its node has died. Node Id: 5f38."),
        (
            OutOfMemoryError(LOW),
            "Ray killed it because its machine ran out of memory: 22.78GB of 23.54GB were used",
        ),
    ],
)
def test_the_reason_of_a_death_is_one_line_without_rays_advice(error: Exception, reason: str) -> None:
    assert isinstance(error, ACTOR_DIED)
    assert reason_of_death(error) == reason
