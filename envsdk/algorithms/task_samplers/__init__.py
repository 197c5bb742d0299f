"""Task samplers: which task the next group plays; found by `task_sampler` through entry points."""
