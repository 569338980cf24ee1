"""`pamx bench`: the command line of pamx.bench; what is shown is made in pamx.bench.words."""
