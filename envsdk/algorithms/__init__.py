"""Advantages, losses and divergences as pure functions; every trainer uses the same ones.

`args` and `advantages` need NumPy only; `losses` and `logits` need torch and are imported where used.
"""
