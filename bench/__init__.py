"""Benchmarks on real parts. They measure the installed product from outside, as a user would."""
