"""Measuring: workloads, programs that run them, statistics, and records that can be checked.

The process that orders and reads measurements never imports mlx; each program that is measured
runs in a process of its own (`pamx.bench.programs`).
"""
