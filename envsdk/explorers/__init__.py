"""A job of several programs: one trainer, and explorers that come and go.

    explorer == groups ==> buffer == batches ==> trainer
        ^                                           |
        +-------------- weights --------------------+

Each is started by `envsdk train FILE` with a `mode`. `docs/explorers.md` shows them at work.
"""
