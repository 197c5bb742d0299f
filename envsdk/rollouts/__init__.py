"""Episodes played outside a run: rollout, collect, evaluate, replay; their results and data sets."""
