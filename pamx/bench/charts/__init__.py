"""Charts of records. Needs matplotlib; `pamx.bench.plot` writes them to files."""
