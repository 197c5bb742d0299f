"""For all tests: Hypothesis measures no time, because a busy machine is not a bug."""

from hypothesis import settings

settings.register_profile("envsdk", deadline=None)
settings.load_profile("envsdk")
