"""Which programs of a job live, and what these mean."""

from __future__ import annotations

import json
import os
import socket

import sqlalchemy as sa
from sqlalchemy import Connection, RowMapping

from envsdk.buffer.contract import Agreement, Meaning, Role
from envsdk.buffer.tables import job, members


def agreed(connection: Connection, meaning: Meaning, now: float) -> Agreement:
    """The meanings in the job with one of a program that is not a living member. ConfigurationError."""
    state = connection.execute(sa.select(job)).mappings().one()
    living = sa.select(members).where(members.c.left_at.is_(None), members.c.expires_at > now)
    return meaning.joined(
        json.loads(state["tags"]),
        is_alone=all(map(has_ended, connection.execute(living).mappings())),
        has_begun=state["version"] >= 0,
    )


def has_ended(row: RowMapping) -> bool:
    """Whether this machine knows that the program is gone."""
    if row["host"] != socket.gethostname():
        return False
    try:
        os.kill(row["pid"], 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False


def already_there(role: Role, row: RowMapping, now: float) -> str:
    where = f"process {row['pid']} on {row['host']}, heard {now - row['seen_at']:.0f} s ago"
    if role is Role.TRAINER:
        return f"this job has a trainer already ({where}); end it first, or choose another exp_name"
    return f"an explorer named {row['name']!r} plays already ({where}); give this one another explorer.name"
