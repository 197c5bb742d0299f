"""Tasks of SWE: the schema (`task`), loaders of the public data sets, and the tasks shipped with envsdk."""

from envsdk.envs.swe.tasks.task import (
    GitSource,
    ImageSource,
    Outcome,
    RepoSource,
    Runner,
    Split,
    Task,
    TaskLimits,
    TestPlan,
    TextSource,
    TreeSource,
)

__all__ = [
    "GitSource",
    "ImageSource",
    "Outcome",
    "RepoSource",
    "Runner",
    "Split",
    "Task",
    "TaskLimits",
    "TestPlan",
    "TextSource",
    "TreeSource",
]
