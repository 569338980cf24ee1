// Checks that are printed and counted, by each source file for itself, when they fail.
#pragma once

#include <cstdio>
#include <string_view>

static int failures = 0;

static void expect(bool condition, std::string_view what) {
  if (condition) return;
  std::fprintf(stderr, "FAILED: %.*s\n", static_cast<int>(what.size()), what.data());
  ++failures;
}
