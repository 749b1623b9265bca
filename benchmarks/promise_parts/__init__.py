"""Parts of `benchmarks.promises`: the table of what documents promise, a copy of the repository, and the typing of a row in it."""
