"""Results of rollouts as objects, and what they become: messages, frames, arrays, data sets, advantages.

Everything stays in memory; `envsdk.rollouts.datasets` has the formats on disk.
"""
