"""Data sets on disk: what is kept of what was played, its other formats, its card, and reading it back.

    played episodes -> EpisodeFilters, Deduplicator -> shards (envsdk.base.store.shards) -> exports -> card

`envsdk.collect` writes data sets; `envsdk.replay` and `envsdk.sft` read them.
"""
