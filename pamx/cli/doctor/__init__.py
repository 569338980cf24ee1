"""`pamx doctor`: what this machine and this installation can do. Nothing here uses the network."""
