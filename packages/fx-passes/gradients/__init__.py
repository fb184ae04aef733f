"""Gradients of compiled programs against eager's: a long suite with a printed score."""
