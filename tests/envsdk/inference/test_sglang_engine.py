"""The `sglang` engine against an emulated server on a socket, and its pure parts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sglang_server import FakeSGLang, read_table, write_model

from envsdk.inference.engine import EngineConfig, WeightReference
from envsdk.inference.sglang.engine import SGLangEngine
from envsdk.testing.engines import EngineSuite


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


class TestSGLangConforms(EngineSuite):
    engine_class = SGLangEngine
    unknown_key, nearest_key = "mem_fraction_statik", "mem_fraction_static"
    long_reply_s = 0.5
    server: FakeSGLang
    folder: Path
    other: Path

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _serve(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        cls.folder = write_model(tmp_path_factory.mktemp("table"), seed=0)
        cls.other = write_model(tmp_path_factory.mktemp("other"), seed=1)
        with FakeSGLang(read_table(cls.folder)) as cls.server:
            cls.server.behavior.slow_after = 30  # the long replies, so that the rest of the suite is quick
            cls.server.behavior.token_s = 1.2 * cls.long_reply_s / (cls.long_reply - 30)
            yield
        assert not cls.server.engine.crash
        assert not cls.server.behavior.num_stale_reads

    def config(self, **changes: Any) -> EngineConfig:
        settings = {"base_url": self.server.base_url}
        changes["strategy_config"] = settings | dict(changes.get("strategy_config", {}))
        return EngineConfig(model=self.folder, sequence_length=self.sequence_length, **changes)

    def weights(self) -> WeightReference:
        return self.other
