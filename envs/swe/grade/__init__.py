"""`python -m envsdk.envs.swe.grade`: grades patches that are written already; SWE-bench's reports."""
