"""The whole conformance sample on a GPU, the tests that need one, and the benchmarks."""
