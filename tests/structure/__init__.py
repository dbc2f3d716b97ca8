"""Tests of graphflops.structure."""
