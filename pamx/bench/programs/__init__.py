"""Programs that are measured, each run as a process: `python -m pamx.bench.programs.NAME`."""
