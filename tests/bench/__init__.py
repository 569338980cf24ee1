"""Tests of pamx.bench."""
