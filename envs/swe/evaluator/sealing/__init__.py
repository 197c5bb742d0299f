"""Sealed tests: what a test expects never enters the process that runs patched code.

hidden tests --rewrite--> tests that send what they saw --gold runs--> seal (sealed files, what is expected)
candidate's run of the sealed files --claims--> judged here, against the seal
"""

from envsdk.envs.swe.evaluator.sealing.judge import Seal
from envsdk.envs.swe.evaluator.sealing.seal import SealedTests, sealed_tests

__all__ = ["Seal", "SealedTests", "sealed_tests"]
