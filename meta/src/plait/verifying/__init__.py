"""Comparison of compiled programs with eager: what `options={"verify": n}` asks for."""

from plait.verifying.blame import blame_stage
from plait.verifying.flat import FlatVerifier
from plait.verifying.told import Difference, Verification
from plait.verifying.whole import verified_graph

__all__ = ["Difference", "FlatVerifier", "Verification", "blame_stage", "verified_graph"]
