"""Which explorers do not have the weights that were published long ago. Pure."""

from __future__ import annotations

from collections.abc import Mapping


class WeightLag:
    """Seen by the trainer's program: published -> slow -> ...; each explorer is named once per version.

    lag = WeightLag(timeout_s=1200)
    lag.published(3, now=100.0)
    lag.slow({"a": 3, "b": 2}, now=1400.0)      # a line about b
    """

    def __init__(self, timeout_s: float) -> None:
        """`timeout_s` is `synchronizer.sync_timeout`."""
        self._timeout_s = timeout_s
        self._published: dict[int, float] = {}
        self._told: dict[str, int] = {}
        """The newest version about which each explorer was named."""

    def published(self, version: int, *, now: float) -> None:
        """Explorers can get `version` from now on."""
        self._published.setdefault(version, now)

    def slow(self, held: Mapping[str, int], *, now: float) -> list[str]:
        """Lines for the user about explorers that are behind for longer than they should.

        Args:
            held: Version that each living explorer plays with, by name.
            now: On the clock of `published`.
        """
        oldest = min(held.values(), default=max(self._published, default=0))
        self._published = {version: at for version, at in self._published.items() if version > oldest}
        lines = []
        for name, version in sorted(held.items()):
            lacks = [newer for newer in self._published if newer > version]
            if not lacks or self._told.get(name, -1) >= max(lacks):
                continue
            seconds = now - self._published[min(lacks)]
            if seconds > self._timeout_s:
                self._told[name] = max(lacks)
                lines.append(
                    f"explorer {name!r} plays with version {version} and has not got version {min(lacks)} "
                    f"for {seconds:.0f} s (synchronizer.sync_timeout is {self._timeout_s:g} s); nobody "
                    "waits for it"
                )
        self._told = {name: version for name, version in self._told.items() if name in held}
        return lines
