"""Predicts how fast a run would be on other machines: the real ledger and router in virtual time."""
