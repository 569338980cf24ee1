"""`pamx doctor`: what this machine and this installation can do, and whether a model fits."""
